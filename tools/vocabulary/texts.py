"""Texts on which tokenizers go wrong: runs of blanks, blank lines, scripts with marks, digits, code, long runs."""

import base64
import random

WRITTEN = [
    "",
    " ",
    "p   q",
    "\n\n\n  z",
    " \r\n \t end",
    "stop!<|im_end|>",
    "for i in x:\n\t    y = 2\n\n   \n",
    "trailing blanks    ",
    "a\u00a0b\u3000c\u2028d\u0085e\u200bf\u180eg",
    "กำลังทำ",
    "हिन्दी में लिखा",
    "مُحَمَّد",
    "Tie\u0302\u0301ng Vie\u0323\u0302t",
    "Tiếng Việt",
    "\u0301\u0301 accents alone \u0308",
    "q\u0307\u0323 q\u0323\u0307 \u1e0b\u0323 a\u0315\u0300\u05ae\u0300",
    "\u1100\u1161\u11a8 \uac00\u11a8 각 한국어",
    "\u212b \u2126 \u0958 \u2adc \ufb1f \U0001d15e \uf900 \u0344 \u0374 \u037e",
    "ﬁ ½ ² Ⅷ ①",
    "第3章〇一二abc漢字's",
    "中文——IT'S",
    "}\n// x",
    "1234567890.12",
    "٣٤٥ ४५६ ½²",
    "0x1F 1e-7 1,000,000",
    "I'm you're WE'VE she'd he'LL it's 'ſ 'S ’s",
    "👩‍👩‍👧 मूर्ति 𠮷野家 ok 🇳🇴🏳️‍🌈",
    "<think>\nhm\n</think>\n\nyes <tool_call> </tool_call>",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n",
    "<|im_start|<|im_start|>|> <<think>> <|im_start |>",
    "<|fim_prefix|><|endoftext|><|audio_pad|><tts_text_bos_single><tts_text_bos>",
    "e<|im_start|>\u0301 and e\u0301<|im_end|>",
    "int main() {\n  return a->b[i] != nullptr ? 0 : -1;  // done\n}\n",
    "https://example.org/a_b?c=%20&d=[1]#x",
    "\x00\x01\x1f\x7f control",
    "ÀÁ ßẞ İı ǅ ΑΒΓ абв ԱԲ אבג ಕನ್ನಡ தமிழ் ភាសា မြန်မာ አማርኛ ᏣᎳᎩ",
    "\ufeffmark \ufffd \u202eright\u202c",
]

PARTS = [
    [" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r", "\u00a0", "\u3000", "\u2009"]
    + ["\x0b", "\x0c", "\u0085", "\u2028"],
    list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    ["the", "and", " of", "Hello", "world", "tion", "ing", " return"]
    + ["class", "void", "function", "'s", "'LL", "'re", "'"],
    list("0123456789٣४²½〇"),
    list(".,;:!?-_=+*/\\|<>()[]{}\"'`~@#$%^&—–…“”„«»、。，！？"),
    ["\u0300", "\u0301", "\u0302", "\u0308", "\u0323", "\u0327", "\u0e31"]
    + ["\u0e48", "\u093f", "\u094d", "\u064e", "\u0651", "\u20dd"],
    list("éüñçøåßŁžđ"),
    list("абвгдежзийАБВГ"),
    list("αβγδεΆΈ"),
    list("漢字中文日本語のカタナひらがな"),
    list("한국어가각"),
    list("กขคงจ"),
    list("हिन्दीमें"),
    list("مرحبابالعالم"),
    list("שלום"),
    ["👩‍👩‍👧", "🙂", "🇳🇴", "❤️", "👍🏽", "𠮷", "𝒜"],
    ["{\n", "}\n", "  if (", "->", "::", "==", "!=", "&&", "//", "/*", "*/", "#include <", "\t\t", "    "],
    ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "<|", "|>", "<", "</"],
]


def mixed(generator):
    """A short text from a few of the kinds of parts."""
    kinds = generator.sample(PARTS, generator.randint(1, 5))
    return "".join(generator.choice(generator.choice(kinds)) for _ in range(generator.randint(1, 40)))


def generated(n, seed):
    generator = random.Random(seed)
    return [mixed(generator) for _ in range(n)]


def runs(n):
    """One character for very long, alone and inside words."""
    units = ["q", " ", "-", "国", "7", "\n", "\u0301", "é", " a", "ab", "👍"]
    return [unit * n for unit in units] + ["x" + " " * n + "y", "a\u0323\u0301" * (n // 3)]


def base64_line(n_bytes, seed):
    return base64.b64encode(random.Random(seed).randbytes(n_bytes)).decode()


def few():
    return WRITTEN + generated(300, 1) + runs(60) + [base64_line(200, 2)]


def many():
    """Long runs are only as long as the library that gives the expected ids can take in a reasonable time."""
    return WRITTEN + generated(5000, 3) + runs(100) + runs(20000) + [base64_line(150_000, 4)]
