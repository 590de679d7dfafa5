#!/usr/bin/env python3
"""Compares files of ours (tokens, HellaSwag, tokenizer, models, states) with the checksums in their headers.

    python3 dev/data/verify.py dev/data/tinyshakespeare/*.bin log124M/*.bin    # 300 MB/s; prints a line a file

Exit code 1 if a file is damaged, cannot be read or is none of ours. Files by llm.c, or by us before there were
checksums, have none: the line says so, and that is no error.
"""

import os

from checksum import BLOCKS, MARK, MARK_VALUE, CorruptFile, read_header, verify
from data_common import Parser, fail, run

KINDS = {
    20240520: "tokens",
    20240801: "tokens",
    20240522: "evaluation",
    20240328: "tokenizer",
    20240326: "model",
    20240327: "debug state",
    20240527: "state",
    20261127: "changes by Muon",
}


def outcome(path):
    """(whether the file is right, a line about it)"""
    try:
        if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):  # a pipe would be waited for
            return False, f"{path}: it is a pipe or a device, not a file"
        with open(path, "rb") as f:
            words = read_header(f, path)
        kind = KINDS.get(words[0])
        if kind is None and words[MARK] != MARK_VALUE:
            return False, f"{path} is no file of ours: magic number {words[0]}"
        if not verify(path):
            return True, f"{path}: {kind}, no checksums"
    except OSError as error:
        return False, f"{path}: {error.strerror}"
    except CorruptFile as error:
        return False, str(error)
    return True, f"{path}: ok, {kind or 'unknown kind'}, {words[BLOCKS]} block{'s' * (words[BLOCKS] != 1)}"


def main():
    parser = Parser(__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE")
    args = parser.parse_args()
    damaged = 0
    for path in args.files:
        right, line = outcome(path)
        damaged += not right
        print(line, flush=True)
    if damaged:
        fail(f"{damaged} of {len(args.files)} file{'s' * (len(args.files) != 1)} not as written")


if __name__ == "__main__":
    run(main)
