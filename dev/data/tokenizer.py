#!/usr/bin/env python3
"""Writes gpt2_tokenizer.bin, the C programs' table for encoding text to GPT-2 tokens and decoding them.

python3 dev/data/tokenizer.py                     # 1 s, 0.4 MB; fetches 0.5 MB, or takes them from a mirror
"""

import os

from data_common import ROOT, Parser, add_mirror_option, run, write_gpt2_tokenizer

DEFAULT_PATH = os.path.join(ROOT, "gpt2_tokenizer.bin")


def main():
    parser = Parser(__doc__)
    parser.add_argument("--output", default=DEFAULT_PATH, metavar="FILE", help="default: %(default)s")
    add_mirror_option(parser)
    args = parser.parse_args()
    write_gpt2_tokenizer(args.output, args.mirror)


if __name__ == "__main__":
    run(main)
