#!/usr/bin/env bash
# Tests the tokenizer on the family's real vocabulary, against the tokenizers library and llama.cpp's test pairs. Needs
# Python, and the network for PyPI packages; `make test` needs neither.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$PWD/build/vocabulary
mkdir -p "$work"
if [[ ! -x $work/venv/bin/python ]]; then
  python3 -m venv "$work/venv"
fi
"$work/venv/bin/pip" install -q -r tools/vocabulary/requirements.txt
[[ -e $work/data/done ]] || { "$work/venv/bin/python" tools/vocabulary/make_vocabulary.py full "$work/data" && touch "$work/data/done"; }
MEGALITH_VOCABULARY_DIR=$work/data build/release/test_text_real_vocabulary
