#!/usr/bin/env python3
"""The documents of linux_source.py and english.py in one order: 320 M GPT-2 tokens, a tenth of them English.

    python3 dev/data/c_and_english.py                   # c_and_english/c_and_english_{train_*,val}.bin; fetches 222 MB
    python3 dev/data/c_and_english.py --sources folder  # of the files below a folder that those two would take

Takes a minute on two cores, 300 MB of memory, 1.5 GB of disk, half of it temporary. Both splits have both kinds.
"""

import english
import linux_source
from data_common import run
from debian import make_corpus

PACKAGES = [*linux_source.PACKAGES, *english.PACKAGES]
FILES = f"{linux_source.FILES}, {english.FILES}"


def is_wanted(name):
    return linux_source.is_source(name) or english.kind_of(name)


def documents_of(name, data):
    script = linux_source if linux_source.is_source(name) else english
    return script.documents_of(name, data)


if __name__ == "__main__":
    run(lambda: make_corpus(__doc__, "c_and_english", PACKAGES, FILES, is_wanted, documents_of, 10_000_000))
