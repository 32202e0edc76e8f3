#!/usr/bin/env bash
# Tests `megalith serve` with the programs that people use with such servers, openai-python, lm-eval and guidellm, and with
# plain HTTP, wrong requests and load. Build first; $MEGALITH is the program, build/release/megalith by default.
# Arguments go to pytest instead of all tests: tests/clients/test_openai.py, tests/clients -k NAME. With "load" first they go
# to tests/clients/load.py.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$PWD/build/clients
export MEGALITH=${MEGALITH:-$PWD/build/release/megalith}
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 TRANSFORMERS_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1

"$MEGALITH" serve --help >/dev/null || { echo "$MEGALITH has no serve: build it first." >&2; exit 1; }
cmp -s tests/clients/requirements.lock "$work/installed.lock" || {
  mkdir -p "$work"
  python3 -m venv "$work/venv"
  "$work/venv/bin/pip" install -q --no-deps -r tests/clients/requirements.lock
  cp tests/clients/requirements.lock "$work/installed.lock"
}

test=("$work/venv/bin/python" -m pytest -q --timeout 120 -p no:cacheprovider --tb short -rs)
status=0
if [[ $# -eq 0 ]]; then
  "${test[@]}" --durations 5 tests/clients || status=$?
  "$work/venv/bin/python" tests/clients/load.py || status=$?
elif [[ $1 == load ]]; then
  "$work/venv/bin/python" tests/clients/load.py "${@:2}" || status=$?
else
  "${test[@]}" "$@" || status=$?
fi
[[ $status -eq 0 ]] && echo "all clients are served" || echo "clients are NOT all served" >&2
exit "$status"
