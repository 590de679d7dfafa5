"""Corpora from Debian's packages, for linux_source.py and english.py: fetching, unpacking, order and splits.

The packages are named with version, size and SHA-256, so that everyone makes the same files, on any system. Python
reads a .deb itself, without apt and without root.
"""

import contextlib
import hashlib
import lzma
import os
import re
import sys
import tarfile
import tempfile
import urllib.parse
from typing import NamedTuple

from data_common import (
    GPT2_VOCAB_SIZE,
    HERE,
    Parser,
    add_mirror_option,
    add_workers_option,
    errors_name,
    fail,
    make_directory,
    obtain,
    open_splits,
    ordered_map,
    pack_gpt2_document,
    positive_int,
    prepare_gpt2,
)

# Debian replaces packages by newer versions; the snapshot has those of that day for ever.
POOLS = ["https://deb.debian.org/debian", "https://snapshot.debian.org/archive/debian/20261127T000000Z"]


class Package(NamedTuple):
    sha256: str
    size: int
    path: str  # below the pool's address


def packages(table):
    words = table.split()
    return [Package(sha256, int(size), path) for sha256, size, path in zip(words[::3], words[1::3], words[2::3])]


def fetch(package, folder, mirror):
    """The path of a package: in `folder`, in the mirror, or downloaded to `folder`."""
    name = os.path.basename(package.path)
    apt_names = {name, name.replace("_", "_1%3a", 1)}  # apt-get download writes the epoch, the pool does not
    own = os.environ.get("DEBIAN_POOL")
    if own and not re.fullmatch(r"(https?|ftp|file)://\S+", own):
        fail(f"DEBIAN_POOL={own}: an address, such as {POOLS[0]} or, of a folder, file:///mnt/debian")
    for pool in [own] if own else POOLS:
        url = f"{pool}/{urllib.parse.quote(package.path)}"
        try:
            return obtain(url, os.path.join(folder, name), mirror, apt_names, package.size, package.sha256)
        except SystemExit as error:
            if pool in (own, POOLS[-1]):
                raise
            print(f"{error.code}; trying {POOLS[-1]}", file=sys.stderr)
    return None


def files_of_tar(archive, is_wanted):
    """Yields (name, bytes) of each wanted file of a tar stream and of the .tar.xz archives in it."""
    for member in archive:
        archive.members.clear()  # tarfile remembers them all
        if member.isfile() and member.name.endswith(".tar.xz"):
            with tarfile.open(fileobj=archive.extractfile(member), mode="r|xz") as inner:
                yield from files_of_tar(inner, is_wanted)
        elif member.isfile() and is_wanted(member.name):
            yield member.name, archive.extractfile(member).read()


def files_of_package(path, is_wanted):
    """The same of a .deb: an ar archive, whose last member is data.tar.xz."""
    try:
        with open(path, "rb") as f:
            header = f.read(8) and f.read(60)
            while header and not header.startswith(b"data.tar.xz"):
                size = int(header[48:58])
                f.seek(size + size % 2, os.SEEK_CUR)
                header = f.read(60)
            with tarfile.open(fileobj=f, mode="r|xz") as archive:
                yield from files_of_tar(archive, is_wanted)
    except (OSError, ValueError, EOFError, tarfile.TarError, lzma.LZMAError) as error:
        fail(f"{path} is not a sound Debian package: {error}")


def files_of_folder(path, is_wanted):
    for folder, _, names in os.walk(path):
        for file in (os.path.join(folder, name) for name in names if is_wanted(os.path.join(folder, name))):
            if os.path.isfile(file) and not os.path.islink(file):
                yield file, read(file)


def read(path):
    try:
        with open(path, "rb") as f:
            return f.read()
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}")


def pack_documents(documents_of, name, data, seed):
    """A worker's task: [(key, tokens)] of a file's documents. The key orders them: SHA-256 of the seed and the text."""
    texts = [text for text in documents_of(name, data) if text.strip()]
    keys = [hashlib.sha256(f"{seed}\n{text}".encode()).digest() for text in texts]
    return [(key, pack_gpt2_document(text)) for key, text in zip(keys, texts)]


def write_documents(packed, store, train, val, val_tokens):
    """Writes documents, [(key, tokens)] of each file, in the order of their keys, first those of the validation split.

    Equal texts have equal keys and are written once. `store` is a temporary file that holds the tokens until their
    order is known. Returns the numbers of documents and of duplicates.
    """
    places, met, end = {}, 0, 0
    for documents in packed:
        for key, tokens in documents:
            met += 1
            if key not in places:
                places[key] = end, len(tokens)
                with errors_name(train.stem):
                    store.write(tokens)
                end += len(tokens)
    with errors_name(train.stem):
        store.flush()
    for key in sorted(places):
        offset, length = places[key]
        store.seek(offset)
        (val if val.count < val_tokens else train).append_packed(store.read(length))
    return len(places), met - len(places)


def make_corpus(doc, name, wanted, files, is_wanted, documents_of, val_tokens):
    """A corpus script's main(). is_wanted(name): whether a file has documents; documents_of(name, bytes): the texts.
    `files`: those that is_wanted, in words."""
    parser = Parser(doc)
    parser.add_argument("--output", metavar="DIR", help=f"default: dev/data/{name}")
    parser.add_argument("--sources", metavar="DIR", help=f"a folder with {files}, in place of the packages")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of order and splits (default: %(default)s)")
    parser.add_argument(
        "--val-tokens", type=positive_int, default=val_tokens, metavar="N", help=f"at least; default: {val_tokens:,}"
    )
    add_workers_option(parser)
    add_mirror_option(parser)
    args = parser.parse_args()
    if args.sources is not None and not os.path.isdir(args.sources):
        fail(f"--sources: there is no folder {args.sources}")
    folder = args.output or os.path.join(HERE, name)
    make_directory(folder, alone=True)
    prepare_gpt2(args.mirror, args.output)
    if args.sources is not None:
        archives = [files_of_folder(args.sources, is_wanted)]
    else:
        print(f"{len(wanted)} packages of Debian, {sum(p.size for p in wanted) / 1e6:,.0f} MB", flush=True)
        raw = os.path.join(folder, "raw")
        paths = [fetch(package, raw, args.mirror) for package in wanted]
        archives = [files_of_package(path, is_wanted) for path in paths]
    items = ((documents_of, *file, args.seed) for archive in archives for file in archive)
    splits = open_splits(os.path.join(folder, name), GPT2_VOCAB_SIZE)
    with splits as (train, val), tempfile.TemporaryFile(dir=folder) as store:
        with contextlib.closing(ordered_map(pack_documents, items, args.workers)) as packed:
            count, duplicates = write_documents(packed, store, train, val, args.val_tokens)
        if not train.count:
            found = f"{count} documents of {val.count:,} tokens in {files}"
            fail(f"{found} leave no training split: see --sources and --val-tokens")
        print(f"{count:,} documents, {duplicates:,} duplicates removed")
