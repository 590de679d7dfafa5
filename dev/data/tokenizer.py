#!/usr/bin/env python3
"""Writes gpt2_tokenizer.bin, the table with which the trainers turn GPT-2 tokens back into text.

python3 dev/data/tokenizer.py                     # 1 s, 0.4 MB; fetches 1.5 MB, or takes them from a mirror
"""

import os

from data_common import (
    ROOT,
    Parser,
    add_mirror_option,
    gpt2_encoding,
    run,
    use_tiktoken_mirror,
    write_gpt2_tokenizer,
)

DEFAULT_PATH = os.path.join(ROOT, "gpt2_tokenizer.bin")


def main():
    parser = Parser(__doc__)
    parser.add_argument("--output", default=DEFAULT_PATH, metavar="FILE", help="default: %(default)s")
    add_mirror_option(parser)
    args = parser.parse_args()
    use_tiktoken_mirror(args.mirror)
    write_gpt2_tokenizer(gpt2_encoding(), args.output)


if __name__ == "__main__":
    run(main)
