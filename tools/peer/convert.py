"""Runs llama.cpp's converter, but lets a tokenizer that it has no name for pass as that of the Qwen3.5 family.

    python convert.py LLAMA_CPP_FOLDER ARGUMENTS_OF_convert_hf_to_gguf.py
"""

import runpy
import sys
from pathlib import Path


def main(root: Path):
    """Replaces the one function that recognises tokenizers, then runs the converter as it is."""
    sys.path[:0] = [str(root), str(root / "gguf-py")]
    import conversion.base as base
    recognise = base.TextModel.get_vocab_base_pre

    def recognise_or_assume(self, tokenizer):
        try:
            return recognise(self, tokenizer)
        except NotImplementedError:
            return "qwen35"

    base.TextModel.get_vocab_base_pre = recognise_or_assume
    converter = root / "convert_hf_to_gguf.py"
    sys.argv = [str(converter), *sys.argv[2:]]
    runpy.run_path(str(converter), run_name="__main__")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
