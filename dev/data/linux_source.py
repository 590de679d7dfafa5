#!/usr/bin/env python3
"""The C files of Linux 6.1 as GPT-2 tokens: 289 M tokens that anyone can make.

    python3 dev/data/linux_source.py                      # linux_source/linux_source_{train_*,val}.bin; fetches 139 MB
    python3 dev/data/linux_source.py --sources ~/linux    # of the .c files of any folder; fetches nothing

Takes a minute on two cores, 350 MB of memory, 1.3 GB of disk, half of it temporary. The sources are a fixed version of
Debian's package linux-source-6.1. Each .c file is a document; files that are equal are in once. Documents are in the
order of a hash of --seed and their text, and the first of them, with --val-tokens tokens, are the validation split.
Fetched packages stay in linux_source/raw, so that an interrupted command continues with those it lacks. DEBIAN_POOL=URL
is another mirror of Debian.
"""

from data_common import run
from debian import make_corpus, packages

PACKAGES = packages("""
9305d1a151b8e83dcb88aa11361e7b9513f0c252bdf7f5647e4542762d99c094 139131140
    pool/main/l/linux/linux-source-6.1_6.1.176-1_all.deb
""")
FILES = ".c files"


def is_source(name):
    return name.endswith(".c")


def documents_of(_, data):
    return [data.decode("utf-8", "replace")]


if __name__ == "__main__":
    run(lambda: make_corpus(__doc__, "linux_source", PACKAGES, FILES, is_source, documents_of, 10_000_000))
