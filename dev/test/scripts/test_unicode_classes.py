#!/usr/bin/env python3
"""Tests of llmc/text/unicode_classes.h: what dev/data/unicode_classes.py writes, and what tiktoken's pattern means.

The first needs a table of the header's Unicode version, Python's own or the package unicodedata2; the second tiktoken,
but not its vocabularies.
"""

import importlib.util
import os
import re
import subprocess
import sys
import unicodedata

import unit

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, os.path.join(ROOT, "dev", "data"))
import unicode_classes  # noqa: E402


def header_classes():
    """The class of every code point, as the header has it."""
    with open(unicode_classes.HEADER, encoding="ascii") as f:
        text = f.read()
    runs = re.search(r"UNICODE_RUNS\[\] = \{(.*?)\n\};", text, re.DOTALL).group(1)
    classes = bytearray()
    for run in map(int, re.findall(r"\d+", runs)):
        classes += bytes([run % 4]) * (run // 4)
    return classes + bytes(unicode_classes.CODE_POINTS - len(classes))


def test_the_header_is_what_the_script_writes(folder):
    classes = unicode_classes.python_classes()
    if classes is None:
        raise unit.Skipped(f"no table of Unicode {unicode_classes.VERSION}; Python has {unicodedata.unidata_version}")
    with open(unicode_classes.HEADER, encoding="ascii") as f:
        assert f.read() == unicode_classes.header_text(classes)


def test_what_older_tables_know_has_not_changed(folder):
    if tuple(map(int, unicodedata.unidata_version.split("."))) > (16, 0, 0):
        raise unit.Skipped("Python's table is newer than the header")
    classes = header_classes()
    changed = [
        f"U+{c:04X}"
        for c in range(unicode_classes.CODE_POINTS)
        if unicodedata.category(chr(c)) != "Cn"
        and classes[c] != unicode_classes.class_of(c, unicodedata.category(chr(c)))
    ]
    assert not changed, changed


def test_the_classes_are_those_of_tiktoken(folder):
    if importlib.util.find_spec("tiktoken") is None:
        raise unit.Skipped("tiktoken is not installed")
    import tiktoken

    every = "".join(chr(c) for c in range(unicode_classes.CODE_POINTS) if not 0xD800 <= c < 0xE000)
    want = bytearray(unicode_classes.CODE_POINTS)
    for pattern, kind in ((r"\p{L}", 1), (r"\p{N}", 2), (r"\s", 3)):
        ranks = {bytes([i]): i for i in range(256)}  # what the pattern does not match is left out
        encoding = tiktoken.Encoding("class", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        for c in bytes(encoding.encode_ordinary(every)).decode():
            want[ord(c)] = kind
    different = [f"U+{c:04X}" for c, (a, b) in enumerate(zip(header_classes(), want)) if a != b]
    assert not different, f"{len(different)}, first {different[:5]}; tiktoken {tiktoken.__version__}"


def test_unicode_data_is_read(folder):
    path = os.path.join(folder, "UnicodeData.txt")
    with open(path, "w", encoding="ascii") as f:
        f.write("0041;LATIN CAPITAL LETTER A;Lu;0;L\n00B2;SUPERSCRIPT TWO;No;0;EN\n2028;LINE SEPARATOR;Zl;0;WS\n")
        f.write("4E00;<CJK Ideograph, First>;Lo;0;L\n4E03;<CJK Ideograph, Last>;Lo;0;L\n4E10;X;So;0;L\n")
    classes = unicode_classes.read_unicode_data(path)
    letters = [c for c, kind in enumerate(classes) if kind == unicode_classes.LETTER]
    assert letters == [0x41, 0x4E00, 0x4E01, 0x4E02, 0x4E03]
    assert [classes[0xB2], classes[0x2028], classes[0x4E10]] == [2, 3, 0]
    unit.write(path, "no table\n")
    script = os.path.join(ROOT, "dev", "data", "unicode_classes.py")
    command = [sys.executable, script, "--unicode-data", path, "--output", os.path.join(folder, "x.h")]
    end = subprocess.run(command, capture_output=True, text=True, check=False)
    assert end.returncode == 1 and end.stderr.count("\n") == 1 and "is not UnicodeData.txt" in end.stderr, end.stderr
    assert os.listdir(folder) == ["UnicodeData.txt"]


if __name__ == "__main__":
    sys.exit(unit.run(globals()))
