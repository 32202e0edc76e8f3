#!/usr/bin/env bash
# Tests what needs Python and PyPI packages, which `make test` does not: the tokenizer on the family's real vocabulary, against
# the tokenizers library and llama.cpp's test pairs; and the generator behind the embedded model. Run `make test` first.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
work=$root/build/tools
mkdir -p "$work"
[[ -x $work/venv/bin/python ]] || python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q -r tools/vocabulary/requirements.txt Jinja2==3.1.6

[[ -e $work/vocabulary/done ]] || {
  "$work/venv/bin/python" tools/vocabulary/make_vocabulary.py full "$work/vocabulary"
  touch "$work/vocabulary/done"
}
MEGALITH_VOCABULARY_DIR=$work/vocabulary build/release/test_text_real_vocabulary

cd tools/train
QWEN_CHAT_CASES=$root/tests/data/text/qwen-chat.json PYTHONDONTWRITEBYTECODE=1 "$work/venv/bin/python" -m unittest test_tiny_qwen
