#!/usr/bin/env python3
"""Holds tokenize_gpt2 against tiktoken: the same tokens for the same text, and every byte comes back.

    python3 dev/test/text/compare_tokenizer.py                  # GPT-2's vocabulary; a minute
    python3 dev/test/text/compare_tokenizer.py --texts DIR      # also every file below DIR
    python3 dev/test/text/compare_tokenizer.py --short          # a vocabulary made here, fewer texts; 3 s
    python3 dev/test/text/compare_tokenizer.py --write-cases    # writes dev/test/text/gpt2_pieces.txt anew

Compared are: every code point in front of and behind others; random text in 25 scripts, of emoji, combining marks,
digits, spaces of all kinds and English endings; the project's sources; words without an end; and bytes that are not
UTF-8, which tiktoken gets as U+FFFD. Needs tiktoken; its vocabulary comes from the network, from TIKTOKEN_CACHE_DIR or
from DATA_MIRROR.
"""

import os
import random
import subprocess
import sys
import tempfile
import time
from array import array

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
sys.path.insert(0, os.path.join(ROOT, "dev", "data"))
import data_common  # noqa: E402

CASES = os.path.join(HERE, "gpt2_pieces.txt")
SCRIPTS = {  # first and last letters of a script
    "Latin": (0x41, 0x24F),
    "Greek": (0x370, 0x3FF),
    "Cyrillic": (0x400, 0x52F),
    "Armenian": (0x531, 0x58A),
    "Hebrew": (0x591, 0x5F4),
    "Arabic": (0x600, 0x6FF),
    "Syriac": (0x700, 0x74F),
    "Devanagari": (0x900, 0x97F),
    "Bengali": (0x980, 0x9FE),
    "Tamil": (0xB82, 0xBFA),
    "Telugu": (0xC00, 0xC7F),
    "Thai": (0xE01, 0xE5B),
    "Lao": (0xE81, 0xEDF),
    "Tibetan": (0xF00, 0xFDA),
    "Myanmar": (0x1000, 0x109F),
    "Georgian": (0x10A0, 0x10FF),
    "Ethiopic": (0x1200, 0x139F),
    "Cherokee": (0x13A0, 0x13FD),
    "Khmer": (0x1780, 0x17F9),
    "Mongolian": (0x1800, 0x18AA),
    "Hiragana": (0x3041, 0x309F),
    "Katakana": (0x30A0, 0x30FF),
    "Han": (0x4E00, 0x9FFF),
    "Hangul": (0xAC00, 0xD7A3),
    "Gothic": (0x10330, 0x1034A),
}
SPACES = "\t\n\x0b\x0c\r\x1c\x1f \x85\xa0\u1680\u2000\u2003\u2009\u200a\u200b\u2028\u2029\u202f\u205f\u2060\u3000\ufeff"
MARKS = "\u0301\u0308\u0327\u20dd\u200d\ufe0f\u093f\u0e31\u05b8\u064b"
EMOJI = "😀👍🏽👨\u200d👩\u200d👧\u200d👦🇩🇪🏳\ufe0f\u200d🌈❤\ufe0f🫨1\ufe0f\u20e3"
DIGITS = "0123456789²³¼½٠٣٩०५९೧߀৪๔Ⅷⅻ①㉈〇一三𝟘𝟿𑁦"
ENDINGS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'RE", "’s", "'", "''s", "'l", "'r", "'v", " 's", "'éa"]
SIGNS = '!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~…—«»€※。、'
PIECE_CASES = [
    "Hello world",
    "I'll say: don't, we've, you're, I'm, he'd, it's",
    "DON'T I'LL 'S 's 'l 'lx 'r 'v 've've'",
    "''s '''ll 's x' s ’s don’t",
    "  two   three",
    "trailing ",
    "trailing  ",
    "x \n y\n\n\nb\n",
    "\t\tif (x) {\r\n",
    "1234 567,89 0x1F 3.14",
    "a1b2 3c",
    "$100 €50 ¥",
    "x=1;y=-2",
    "<|endoftext|>",
    "snake_case CamelCase",
    "e\u0301a nai\u0308ve",
    "a \xa0 b \xa0\xa0 \xa0x",
    "a\u2003\u2003b \u3000你好",
    "x\u2028\u2029y a\u200bb\u2060c\ufeffd",
    EMOJI,
    "hi 😀😀 ok",
    DIGITS,
    " " + " ".join(DIGITS),
    "٣٫١٤ ½kg x² H₂O Ⅷth",
    "你好，世界。 こんにちは世界！ 안녕하세요",
    "\ud7ff\ue000\U0010ffff \x00\x7f",
]


class Server:
    """tokenize_gpt2 serve: texts in, tokens out."""

    def __init__(self, program, tokenizer):
        command = [program, "serve", "--tokenizer", tokenizer]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def encode(self, text):
        self.process.stdin.write(len(text).to_bytes(4, "little") + text)
        self.process.stdin.flush()
        count = int.from_bytes(self.process.stdout.read(4), "little")
        tokens = array("H")
        tokens.frombytes(self.process.stdout.read(2 * count))
        return tokens

    def close(self):
        self.process.stdin.close()
        self.process.wait()


# ----------------------------------------------------------------------------
# A vocabulary of our own: 256 bytes and the most frequent pairs of the project's texts, as BPE learns them


def learn_vocabulary(text, size, pattern):
    """Tokens (bytes) in the order in which they are learned."""
    import tiktoken

    tokens = [bytes([i]) for i in range(256)]
    words = {}
    for start in range(0, len(text), 40):
        for piece in cut(tiktoken, text[start : start + 40], pattern):
            words[tuple(piece)] = words.get(tuple(piece), 0) + 1
    while len(tokens) < size:
        pairs = {}
        for word, n in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] = pairs.get(pair, 0) + n
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        tokens.append(tokens[best[0]] + tokens[best[1]])
        merged = {}
        for word, n in words.items():
            new, i = [], 0
            while i < len(word):
                joins = word[i : i + 2] == best
                new.append(len(tokens) - 1 if joins else word[i])
                i += 2 if joins else 1
            merged[tuple(new)] = merged.get(tuple(new), 0) + n
        words = merged
    return tokens


def cut(tiktoken, text, pattern):
    """The pieces of a text, as bytes, by tiktoken's regular expressions.

    It takes a piece that is a token whole; so that every piece is a token, all runs of characters are.
    """
    ranks = {bytes([i]): i for i in range(256)}
    for run in sorted({text[i:j].encode() for i in range(len(text)) for j in range(i + 1, len(text) + 1)}):
        ranks.setdefault(run, len(ranks))
    encoding = tiktoken.Encoding("pieces", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return [encoding.decode_single_token_bytes(token) for token in encoding.encode_ordinary(text)]


def own_encoding(folder, pattern):
    """(tiktoken's encoding, the tokenizer file) of a vocabulary of 700 tokens."""
    import tiktoken

    with open(os.path.join(ROOT, "llmc", "base", "utils.h"), encoding="utf-8") as f:
        text = f.read()[:4000] + "Grüße, Привет мир, 你好世界 😀 don't we'll I've 123 4567\n\n\n    x\n" * 3
    tokens = learn_vocabulary(text, 699, pattern)
    ranks = {token: i for i, token in enumerate(tokens)}
    encoding = tiktoken.Encoding(
        "own", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": len(tokens)}
    )
    path = os.path.join(folder, "tokenizer.bin")
    data_common.write_tokenizer(path, [*tokens, b"<|endoftext|>"], len(tokens))
    return encoding, path


# ----------------------------------------------------------------------------
# Texts


def code_points(step):
    """Every code point (or each step-th) among letters, spaces and itself."""
    part = []
    for c in range(0, 0x110000, step):
        if not 0xD800 <= c < 0xE000:
            part.append(f"a{chr(c)}b {chr(c)} {chr(c)}{chr(c)}1{chr(c)}  {chr(c)}!{chr(c)}")
        if len(part) == 4096:
            yield "".join(part)
            part = []
    yield "".join(part)


def random_text(r, length):
    """A text of so many parts from all that is above."""
    parts = []
    script = r.choice(list(SCRIPTS.values()))
    for _ in range(length):
        kind = r.randrange(12)
        if kind < 4:
            parts.append("".join(chr(r.randint(*script)) for _ in range(r.randrange(1, 8))))
        elif kind == 4:
            parts.append("".join(r.choice("etaoinshrdluETAOIN") for _ in range(r.randrange(1, 10))))
        elif kind == 5:
            parts.append(r.choice(ENDINGS))
        elif kind == 6:
            parts.append(r.choice(SPACES) * r.choice((1, 1, 2, 3)))
        elif kind == 7:
            parts.append(" " * r.choice((1, 1, 1, 2, 4)))
        elif kind == 8:
            parts.append("".join(r.choice(DIGITS) for _ in range(r.randrange(1, 5))))
        elif kind == 9:
            parts.append(r.choice(EMOJI) + r.choice(MARKS))
        elif kind == 10:
            parts.append("".join(r.choice(SIGNS) for _ in range(r.randrange(1, 4))))
        else:
            c = r.randrange(0x110000 - 0x800)
            parts.append(chr(c if c < 0xD800 else c + 0x800))
    return "".join(parts)


def source_files():
    for folder, folders, files in os.walk(ROOT):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f != "build")
        for name in sorted(files):
            if name.endswith((".c", ".h", ".cu", ".cuh", ".py", ".sh", ".md", "Makefile")):
                yield os.path.join(folder, name)


def files_below(folder):
    for parent, _, files in os.walk(folder):
        for name in sorted(files):
            yield os.path.join(parent, name)


def read(path):
    with open(path, "rb") as f:
        return f.read()


def words_without_end(r, n):
    yield "a" * n
    yield "".join(r.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(n))
    yield "".join(chr(r.randint(0x4E00, 0x9FFF)) for _ in range(n // 3))
    yield "".join(r.choice("0123456789") for _ in range(n))
    yield "=-" * (n // 2)
    yield " " * n
    yield " \n\t" * min(n // 3, 30_000) + "x"  # of a million tiktoken's stack overflows


def broken_text(r, n):
    """Bytes of text with faults: cut characters, surrogates, lone continuations, long forms, any bytes."""
    faults = [
        b"\xff",
        b"\xc3",
        b"\xe2\x82",
        b"\xf0\x9f\x98",
        b"\x80",
        b"\xed\xa0\x80",
        b"\xc0\xaf",
        b"\xf4\x90\x80\x80",
    ]
    parts = []
    for _ in range(n):
        parts.append(random_text(r, 3).encode())
        parts.append(r.choice(faults) if r.randrange(3) else r.randbytes(r.randrange(1, 6)))
    return b"".join(parts)


# ----------------------------------------------------------------------------


def piece_cases():
    """The texts of dev/test/text/gpt2_pieces.txt."""
    r = random.Random(1)
    yield from PIECE_CASES
    for name, script in SCRIPTS.items():
        words = ["".join(chr(r.randint(*script)) for _ in range(4)) for _ in range(3)]
        yield f"{name} {words[0]} {words[1]}'s {words[2]}1"
    for c in SPACES + MARKS:
        yield f"a{c}b {c}{c}1"


def escape(text):
    """Printable characters as they are, the bytes of others as \\xNN."""
    return "".join(
        c if c.isprintable() and c != "\\" else "".join(f"\\x{byte:02x}" for byte in c.encode()) for c in text
    )


def write_cases():
    import tiktoken
    from tiktoken_ext import openai_public

    lines = [
        "# Where GPT-2's pattern cuts a text: the text, a tab, and the bytes of each piece, by tiktoken "
        f"{tiktoken.__version__}.",
        "# Written by dev/test/text/compare_tokenizer.py --write-cases; \\xNN is a byte.",
    ]
    for text in piece_cases():
        lengths = [len(piece) for piece in cut(tiktoken, text, openai_public.r50k_pat_str)]
        lines.append(f"{escape(text)}\t{' '.join(map(str, lengths))}")
    with open(CASES, "w", encoding="utf-8") as f:
        f.write("\n".join(lines) + "\n")


class Comparison:
    def __init__(self, program, encoding, tokenizer, folder):
        self.program, self.encoding, self.tokenizer, self.folder = program, encoding, tokenizer, folder
        self.server = Server(program, tokenizer)
        self.passed = self.failed = 0

    def claim(self, good, text):
        self.passed += good
        self.failed += not good
        if not good:
            print(f"FAILED: {text}")

    def same_tokens(self, name, texts):
        """Encodes each text by both."""
        count = total = 0
        started = time.monotonic()
        for text in texts:
            want = self.encoding.encode_ordinary(text)
            if self.server.encode(text.encode()).tolist() != want:
                short = shortest_difference(text, self.differs)
                self.claim(False, f"{name}: tokens differ, first of {short[:60]!r}")
                return
            count, total = count + 1, total + len(text.encode())
        self.claim(True, name)
        print(
            f"{name}: {count:,} texts, {total:,} bytes, the same tokens ({time.monotonic() - started:.1f} s)",
            flush=True,
        )

    def differs(self, text):
        return self.server.encode(text.encode()).tolist() != self.encoding.encode_ordinary(text)

    def run(self, *arguments):
        result = subprocess.run(
            [self.program, *arguments, "--tokenizer", self.tokenizer], capture_output=True, check=False
        )
        if result.returncode:
            print(result.stderr.decode(errors="replace"))
        return result.stdout

    def same_file(self, name, data):
        """Through files: the same tokens as tiktoken's for what is UTF-8 of it, and the same bytes back."""
        path, tokens = os.path.join(self.folder, "text"), os.path.join(self.folder, "tokens.bin")
        text = data.decode(errors="replace")
        with open(path, "wb") as f:
            f.write(text.encode())
        self.run("encode", path, "--output", tokens)
        got = data_common.read_token_file(tokens)[0].tolist()
        same = got == self.encoding.encode_ordinary(text)
        self.claim(same, f"{name}: tokens of the file differ")
        with open(path, "wb") as f:
            f.write(data)
        self.run("encode", path, "--output", tokens)
        back = self.run("decode", tokens) == data
        self.claim(back, f"{name}: the bytes do not come back")
        if same and back:
            print(f"{name}: a file of {len(data):,} bytes, the same tokens, and the bytes come back", flush=True)


def shortest_difference(text, differs):
    """A short part of the text whose tokens differ too."""
    length = len(text) // 2
    while length:
        for start in range(0, len(text) - length + 1, max(length // 2, 1)):
            if differs(text[start : start + length]):
                text = text[start : start + length]
                break
        else:
            if length < 3:
                break
        length = min(length, len(text)) // 2
    return text


def compare(args, folder):
    import tiktoken

    if args.short:
        from tiktoken_ext import openai_public

        pattern = openai_public.r50k_pat_str
        encoding, tokenizer = own_encoding(folder, pattern)
    else:
        tokenizer = os.path.join(folder, "tokenizer.bin")
        data_common.write_gpt2_tokenizer(tokenizer, os.environ.get("DATA_MIRROR"))
        encoding = data_common.tiktoken_encoding()
    r = random.Random(args.seed)
    c = Comparison(args.program, encoding, tokenizer, folder)
    print(f"tiktoken {tiktoken.__version__}, a vocabulary of {encoding.n_vocab:,}, seed {args.seed}")
    c.same_tokens("code points", code_points(37 if args.short else 1))
    count = 2000 if args.short else 100_000
    c.same_tokens("random Unicode strings", (random_text(r, r.randrange(1, 30)) for _ in range(count)))
    c.same_tokens("source files", (read(path).decode() for path in list(source_files())[:: 20 if args.short else 1]))
    c.same_tokens("words without end", words_without_end(r, 3000 if args.short else 1_000_000))
    c.same_file("broken UTF-8", broken_text(r, 2000 if args.short else 200_000))
    c.same_file("random bytes", r.randbytes(20_000 if args.short else 4_000_000))
    for path in files_below(args.texts) if args.texts else ():
        c.same_tokens(os.path.basename(path), [read(path).decode(errors="replace")])
        c.same_file(os.path.basename(path), read(path))
    c.server.close()
    print(f"{c.passed} passed, {c.failed} failed")
    return c.failed


def main():
    parser = data_common.Parser(__doc__)
    parser.add_argument("program", nargs="?", default="./tokenize_gpt2", help="default: %(default)s")
    parser.add_argument("--texts", metavar="DIR", help="a folder of texts")
    parser.add_argument("--short", action="store_true", help="a small vocabulary of this script's, fewer texts")
    parser.add_argument(
        "--write-cases", action="store_true", help="write dev/test/text/gpt2_pieces.txt, compare nothing"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the random texts (default: %(default)s)")
    args = parser.parse_args()
    try:
        import tiktoken  # noqa: F401
    except ImportError:
        print("skipped: tiktoken is not installed")
        return 0
    if args.write_cases:
        write_cases()
        return 0
    with tempfile.TemporaryDirectory() as folder:
        return 1 if compare(args, folder) else 0


if __name__ == "__main__":
    sys.exit(main())
