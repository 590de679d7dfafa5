#!/usr/bin/env python3
"""TinyShakespeare as token files: 1.1 MB of plays, the set for first steps.

    python3 dev/data/tinyshakespeare.py                      # GPT-2 BPE: 305,260 + 32,768 tokens, 2 s
    python3 dev/data/tinyshakespeare.py --tokenizer bytes    # bytes: 1,082,626 + 32,768 tokens, no packages needed

The first 32,768 tokens are the validation split. In GPT-2 tokens every speech is a document: <|endoftext|>, then the
text up to and with the blank line that ends it, so that both files equal llm.c's bit for bit.
"""

import os

from data_common import (
    BYTE_VOCAB_SIZE,
    GPT2_EOT,
    GPT2_VOCAB_SIZE,
    HERE,
    Parser,
    add_mirror_option,
    make_directory,
    obtain,
    open_splits,
    pack_tokens,
    prepare_gpt2,
    run,
)

URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SIZE = 1115394
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
VALIDATION_TOKENS = 32768


def encode_speeches(text, encoding):
    speeches = text.split("\n\n")
    documents = [speech + "\n\n" for speech in speeches[:-1]] + speeches[-1:]
    tokens = []
    for document in documents:
        tokens.append(GPT2_EOT)
        tokens.extend(encoding.encode_ordinary(document))
    return tokens


def main():
    parser = Parser(__doc__)
    parser.add_argument("--tokenizer", choices=["gpt2", "bytes"], default="gpt2", help="default: %(default)s")
    parser.add_argument("--output", metavar="DIR", help="default: dev/data/tinyshakespeare")
    add_mirror_option(parser)
    args = parser.parse_args()

    folder = args.output or os.path.join(HERE, "tinyshakespeare")
    make_directory(folder, alone=True)
    path = obtain(
        URL,
        os.path.join(folder, "tiny_shakespeare.txt"),
        args.mirror,
        other_names=["tinyshakespeare.txt"],
        size=SIZE,
        sha256=SHA256,
    )
    with open(path, "rb") as f:
        text = f.read()
    if args.tokenizer == "bytes":
        name, vocab_size, tokens = "tiny_shakespeare_bytes", BYTE_VOCAB_SIZE, text
    else:
        tokens = encode_speeches(text.decode(), prepare_gpt2(args.mirror, args.output))
        name, vocab_size = "tiny_shakespeare", GPT2_VOCAB_SIZE
    with open_splits(os.path.join(folder, name), vocab_size) as (train, val):
        train.append_packed(pack_tokens(tokens[VALIDATION_TOKENS:], vocab_size))
        val.append_packed(pack_tokens(tokens[:VALIDATION_TOKENS], vocab_size))


if __name__ == "__main__":
    run(main)
