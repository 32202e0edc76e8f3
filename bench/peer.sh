#!/usr/bin/env bash
# Megalith and llama.cpp on the same checkpoint, in turns, in one run: prints both and their ratio, and appends a line to
# bench/results/. The checkpoint has random bf16 weights in the shape of Qwen3.5-0.8B (or of the config.json given).
#
#   bench/peer.sh [CONFIG_JSON]        ROUNDS=3  THREADS=2  WORK=build/peer
#
# Needs Python with venv, and packages from PyPI (llama.cpp comes with llama-cpp-python's source). The first run builds
# llama.cpp, which takes 15 to 45 minutes on two cores; each step is done once.
set -euo pipefail
cd "$(dirname "$0")/.."
config=${1:-tests/data/configs/qwen3.5-0.8b.json}
work=${WORK:-build/peer}
rounds=${ROUNDS:-3}
threads=${THREADS:-$(nproc)}
version=0.3.36
mkdir -p "$work"
python=$work/venv/bin/python
llama=$work/llama_cpp_python-$version/vendor/llama.cpp
model=$work/$(basename "$config" .json)

once() {
  [[ -e $work/done.$1 ]] && return
  echo "$1 ..." >&2
  "$1" >"$work/$1.log" 2>&1 || { tail -5 "$work/$1.log" >&2; echo "$1 failed, see $work/$1.log" >&2; exit 1; }
  touch "$work/done.$1"
}

install_python() {
  python3 -m venv "$work/venv"
  "$python" -m pip install -q -r tools/peer/requirements.txt
}
fetch_llama() {
  "$python" -m pip download -q --no-deps --no-binary llama-cpp-python -d "$work" "llama-cpp-python==$version"
  tar xzf "$work/llama_cpp_python-$version.tar.gz" -C "$work"
}
build_llama() {
  cmake -S "$llama" -B "$work/llama" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_BUILD_TESTS=OFF \
    -DLLAMA_BUILD_UI=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF
  ninja -C "$work/llama" llama-bench llama-batched-bench
}
make_vocabulary() { "$python" tools/vocabulary/make_vocabulary.py full "$work/vocabulary"; }
make_checkpoint() {
  build/release/random_checkpoint "$config" "$model"
  cp "$work/vocabulary/tokenizer.json" "$model/"
  echo '{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}' \
    >"$model/tokenizer_config.json"
}
convert_checkpoint() { "$python" tools/peer/convert.py "$llama" "$model" --no-mtp --outtype bf16 --outfile "$model.gguf"; }

make build
cmake --build --preset release --target random_checkpoint
once install_python
once fetch_llama
once build_llama
once make_vocabulary
[[ -e $model/config.json ]] || make_checkpoint
[[ -e $model.gguf ]] || convert_checkpoint

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
for ((round = 0; round < rounds; ++round)); do
  echo "round $((round + 1)) of $rounds" >&2
  build/release/megalith bench --model "$model" --threads "$threads" --repeat 1 --steps 16 --prompt-rows 512 --quiet --json \
    >"$results/megalith-$round.json"
  "$work/llama/bin/llama-bench" -m "$model.gguf" -t "$threads" -p 512 -n 16 -r 1 -o jsonl >"$results/single-$round.jsonl" 2>/dev/null
  "$work/llama/bin/llama-batched-bench" -m "$model.gguf" -t "$threads" -c 4096 -b 512 -ub 512 -npp 16 -ntg 16 -npl 2,4,8 \
    --output-format jsonl >"$results/batched-$round.jsonl" 2>/dev/null
done
processor=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1 | tr -cs 'A-Za-z0-9' '-' | sed 's/-$//')
"$python" tools/peer/compare.py "$results" "bench/results/$processor-$(nproc).csv"
