#!/usr/bin/env bash
# Megalith's server and llama.cpp's on the same checkpoint, side by side: time to the first token and between tokens, with 1
# and with 4 clients. Run bench/peer.sh first, with the same WORK: it makes the checkpoint and llama.cpp's sources.
#
#   bench/peer_serve.sh [CONFIG_JSON]        THREADS=2  WORK=build/peer  ROUNDS=3
set -euo pipefail
cd "$(dirname "$0")/.."
config=${1:-tests/data/configs/qwen3.5-0.8b.json}
work=${WORK:-build/peer}
threads=${THREADS:-$(nproc)}
model=$work/$(basename "$config" .json)
[[ -e $model.gguf ]] || { echo "$model.gguf is missing: run bench/peer.sh first" >&2; exit 1; }

make build
ninja -C "$work/llama" llama-server >"$work/build_server.log" 2>&1 || { tail -5 "$work/build_server.log" >&2; exit 1; }

servers=()
trap 'kill "${servers[@]}" 2>/dev/null || true' EXIT
build/release/megalith serve --model "$model" --bind 127.0.0.1:18081 --threads "$threads" --max-sequences 4 --context 2048 \
  --prefix-cache 0 --quiet &
servers+=($!)
"$work/llama/bin/llama-server" -m "$model.gguf" -t "$threads" -c 8192 -np 4 --host 127.0.0.1 --port 18082 >"$work/server.log" 2>&1 &
servers+=($!)
for port in 18081 18082; do
  until curl -fs "http://127.0.0.1:$port/health" >/dev/null; do sleep 0.5; done
done
"$work/venv/bin/python" tools/peer/compare_servers.py http://127.0.0.1:18081 http://127.0.0.1:18082 --rounds "${ROUNDS:-3}"
