#!/usr/bin/env python3
"""Any text as token files: <output>_train.bin and <output>_val.bin.

    python3 dev/data/text.py notes.txt --output data/notes                  # GPT-2 BPE, 40 MB/s a processor
    python3 dev/data/text.py src/ docs/ --output data/me --tokenizer bytes  # bytes, no packages needed, 100 MB/s

A folder is read recursively, in the order of paths, without hidden files and those with a zero byte. The last
--val-fraction of the text is the validation split. With GPT-2 tokens each file is a document, preceded by
<|endoftext|>; where that occurs in a text, --allow-special makes it the token. With bytes the files are concatenated.
A split of more than --shard-tokens tokens becomes several files, <output>_train_000000.bin, ... Both splits appear
together at the end, in a folder with gpt2_tokenizer.bin, which the trainers read with --tokenizer.
"""

import argparse
import codecs
import contextlib
import mmap
import os
import re
import sys

from data_common import (
    BYTE_VOCAB_SIZE,
    GPT2_EOT_TEXT,
    GPT2_VOCAB_SIZE,
    Parser,
    add_mirror_option,
    add_workers_option,
    fail,
    make_directory,
    open_splits,
    ordered_map,
    pack_gpt2_document,
    pack_tokens,
    positive_int,
    prepare_gpt2,
    run,
    split_names,
)

PIECE_BYTES = 1 << 20
SEARCH_BYTES = 1 << 16  # without a safe place to cut in so many bytes, cut between any two characters

# GPT-2's pattern has no lookbehind, and always ends a token in two places, so that text cut there has the same tokens
# as the whole: after a visible character before white space, and after a sign (but no apostrophe) before a letter or
# digit. The sets below are subsets that suffice. White space at the end of the text is not cut off alone, and no cut is
# inside <|endoftext|>.
VISIBLE = rb"[!-~\x80-\xff](?<!\xc2\xa0)"  # wide white space too, but U+00A0: no other precedes a space in a token
SIGN = rb"(?:[!-&(-/:-@\[-`{-~]|\xe3\x80[\x81\x82]|\xef\xbc[\x81\x8c\x9a\x9b\x9f])"  # ASCII's, and Chinese , . ! : ; ?
LETTER = rb"[0-9A-Za-z\xe5-\xe9]"  # ASCII's, and the first byte of U+5000 to U+9FFF
SAFE_CUT = re.compile(VISIBLE + rb"(?=[ \t\r\n]+[^ \t\r\n])|" + SIGN + rb"(?<!<\|)(?=" + LETTER + rb")")


def fraction(text):
    """An argparse type: a number in [0, 1)."""
    try:
        if 0 <= float(text) < 1:
            return float(text)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"'{text}' is not a number of at least 0 and below 1")


def is_text(path):
    """Whether to read a file found in a folder: it is not empty, and has no zero byte near its beginning."""
    if not os.path.isfile(path):
        return False
    try:
        with open(path, "rb") as f:
            head = f.read(8192)
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}")
    return bool(head) and b"\0" not in head


def list_files(inputs):
    """The files named by the arguments, in order. Ends the program if an argument does not exist or is empty."""
    paths = []
    for name in inputs:
        if os.path.isdir(name):
            found = []
            for folder, folders, files in os.walk(name):
                folders[:] = sorted(f for f in folders if not f.startswith("."))
                found += [os.path.join(folder, f) for f in sorted(files) if not f.startswith(".")]
            found = [path for path in found if is_text(path)]
            if not found:
                fail(f"no text files below {name}")
            paths += found
        elif not os.path.exists(name):
            fail(f"there is no file or folder {name}")
        elif not os.path.isfile(name):
            fail(f"{name} is neither a file nor a folder")
        elif os.path.getsize(name) == 0:
            fail(f"{name} is empty; leave it out")
        else:
            paths.append(name)
    return paths


def keep_inputs(paths, prefix):
    """Ends the program if an input has a name that this run would write, or would remove as an earlier run's output."""
    names = [split_names(prefix, split) for split in ("train", "val")]
    output = os.path.realpath(os.path.dirname(prefix))
    for path in paths:
        places = [os.path.split(place) for place in (path, os.path.realpath(path))]  # a link may lead to such a name
        if any(p.fullmatch(name) and os.path.realpath(folder) == output for folder, name in places for p in names):
            fail(f"{path} is text to read, and would be replaced or removed; choose another --output")


def next_cut(data, offset, anywhere):
    """Where to cut: the first safe place within SEARCH_BYTES from `offset`, else the start of the character there."""
    if anywhere or offset >= len(data):
        return min(offset, len(data))
    match = SAFE_CUT.search(data, max(offset - 1, 0), offset + SEARCH_BYTES)
    if match:
        return match.end()
    name = GPT2_EOT_TEXT.encode()
    at = data.find(name, max(offset - len(name) + 1, 0), offset + len(name) - 1)
    if at >= 0:
        return at + len(name)
    first = max(offset - 3, 0)  # a UTF-8 character has at most 4 bytes, and all after its first are 0x80 to 0xbf
    return next((i for i in range(offset, first - 1, -1) if not 0x80 <= data[i] < 0xC0), offset)


def cut_file(path, train_bytes, anywhere):
    """Yields (starts the file, belongs to the validation split, bytes) for each piece of about PIECE_BYTES.

    The training split ends at the first place to cut from `train_bytes` on. Some file systems map files only privately.
    """
    try:
        with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ) as data:
            boundary = next_cut(data, train_bytes, anywhere) if train_bytes else 0
            first = start = len(codecs.BOM_UTF8) if data[:3] == codecs.BOM_UTF8 else 0
            if start:
                print(f"note: {path}: its byte order mark is dropped", file=sys.stderr)
            while start < len(data):
                end = len(data)
                if end - start > PIECE_BYTES + SEARCH_BYTES:
                    end = next_cut(data, start + PIECE_BYTES, anywhere)
                if start < boundary:
                    end = min(end, boundary)
                yield start == first, start >= boundary, data[start:end]
                start = end
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}")


def cut_files(paths, val_fraction, anywhere):
    """Yields (path, starts the file, belongs to the validation split, bytes) over all files."""
    sizes = [os.path.getsize(path) for path in paths]
    train_left = sum(sizes) - round(val_fraction * sum(sizes))
    for path, size in zip(paths, sizes):
        for piece in cut_file(path, min(max(train_left, 0), size), anywhere):
            yield (path, *piece)
        train_left -= size


def pack_bytes(text, *_):
    return pack_tokens(text, BYTE_VOCAB_SIZE)


def decode(text, path):
    try:
        return text.decode()
    except UnicodeDecodeError:
        fail(f"{path} is not UTF-8 text; convert it, or choose --tokenizer bytes")


def main():
    parser = Parser(__doc__)
    parser.add_argument("inputs", nargs="+", metavar="PATH", help="text files, and folders of them")
    parser.add_argument("--output", required=True, metavar="PREFIX", help="<PREFIX>_train.bin and <PREFIX>_val.bin")
    parser.add_argument("--tokenizer", choices=["gpt2", "bytes"], default="gpt2", help="default: %(default)s")
    parser.add_argument("--allow-special", action="store_true", help=f"{GPT2_EOT_TEXT} in a text is the token")
    parser.add_argument("--val-fraction", type=fraction, default=0.1, metavar="F", help="default: %(default)s")
    parser.add_argument("--shard-tokens", type=positive_int, default=100_000_000, metavar="N", help="default: 100e6")
    add_workers_option(parser)
    add_mirror_option(parser)
    args = parser.parse_args()

    paths = list_files(args.inputs)
    if not os.path.basename(args.output):
        fail(f"--output {args.output}: that is a folder; add how the names of the files begin, as in {args.output}text")
    keep_inputs(paths, args.output)
    make_directory(os.path.dirname(args.output), alone=True)
    total = sum(os.path.getsize(path) for path in paths)
    as_bytes = args.tokenizer == "bytes"
    if as_bytes and args.allow_special:
        fail(f"--allow-special: with --tokenizer bytes, {GPT2_EOT_TEXT} is no token")
    print(f"{len(paths):,} file{'s' * (len(paths) > 1)}, {total:,} bytes", flush=True)
    if as_bytes:
        pack, vocab_size, workers = pack_bytes, BYTE_VOCAB_SIZE, 1
    else:
        prepare_gpt2(args.mirror, os.path.dirname(args.output))
        pack, vocab_size = pack_gpt2_document, GPT2_VOCAB_SIZE
        workers = min(
            args.workers, 1 + total // (8 * PIECE_BYTES)
        )  # processes cost more than they bring on small texts

    destinations = []  # of the pieces in flight, in order
    met = 0
    with open_splits(args.output, vocab_size, args.shard_tokens) as (train, val):

        def texts():
            nonlocal met
            for path, starts_file, is_val, piece in cut_files(paths, args.val_fraction, as_bytes):
                destinations.append(val if is_val else train)
                met += piece.count(GPT2_EOT_TEXT.encode())
                yield (piece if as_bytes else decode(piece, path)), starts_file, args.allow_special

        with contextlib.closing(ordered_map(pack, texts(), workers)) as results:
            for packed in results:
                destinations.pop(0).append_packed(packed)
        if not train.count or (args.val_fraction and not val.count):
            empty = "validation" if train.count else "training"
            fail(f"the {empty} split is empty: give more text, or change --val-fraction ({args.val_fraction:g})")
    if met and not as_bytes and not args.allow_special:
        times = "1 time" if met == 1 else f"{met:,} times"
        print(
            f"note: {GPT2_EOT_TEXT} occurs {times}, encoded as text; --allow-special makes it the token",
            file=sys.stderr,
        )


if __name__ == "__main__":
    run(main)
