#!/usr/bin/env python3
r"""Writes llmc/text/unicode_classes.h: which characters are letters, numbers and white space in GPT-2's pattern.

    python3 dev/data/unicode_classes.py            # from Python's own table, where that has the version wanted
    python3 dev/data/unicode_classes.py --unicode-data UnicodeData.txt    # from the Unicode Character Database's file
    python3 dev/data/unicode_classes.py --check    # compares the header with what would be written; writes nothing

\p{L} and \p{N} are the general categories L* and N*; \s is the property White_Space, which is Z* with U+0009 to U+000D
and U+0085. The version is that of the regular expressions in tiktoken 0.14. Python has it from 3.14 on; so has the
package unicodedata2 16.0.0, for any Python. A character that is younger than the table is a sign, neither letter nor
number, for both: its text is cut elsewhere, and comes back the same.
"""

import itertools
import os
import unicodedata

from data_common import ROOT, Parser, fail, run, write_atomically

VERSION = "16.0.0"
HEADER = os.path.join(ROOT, "llmc", "text", "unicode_classes.h")
OTHER, LETTER, NUMBER, SPACE = range(4)
CODE_POINTS = 0x110000
LONGEST = 0x3FFF  # characters of a run, whose class is in the two lowest bits of 16

HEAD = """\
/*
The classes of characters in GPT-2's pattern, by Unicode {version}: letters (general category L), numbers (N), and white
space (the property White_Space). Written by dev/data/unicode_classes.py.
*/
#ifndef LLMC_TEXT_UNICODE_CLASSES_H
#define LLMC_TEXT_UNICODE_CLASSES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {{ UNICODE_OTHER, UNICODE_LETTER, UNICODE_NUMBER, UNICODE_SPACE }};
enum {{ UNICODE_CLASSES_END = 0x{end:x} }}; // from here on all are UNICODE_OTHER

// Runs of characters of one class, from U+0000 on: 4 * how many they are + their class
// clang-format off
static const uint16_t UNICODE_RUNS[] = {{
{runs}
}};
// clang-format on

static uint8_t unicode_classes[UNICODE_CLASSES_END]; // of each character, once unicode_classes_fill() was called

static inline void unicode_classes_fill(void) {{
    size_t at = 0;
    if (unicode_classes['A'] == UNICODE_LETTER) {{ return; }}
    for (size_t i = 0; i < sizeof(UNICODE_RUNS) / sizeof(UNICODE_RUNS[0]); at += UNICODE_RUNS[i++] / 4u) {{
        memset(unicode_classes + at, UNICODE_RUNS[i] % 4, UNICODE_RUNS[i] / 4u);
    }}
}}

// The class of a code point
static inline int unicode_class(uint32_t c) {{
    return c < UNICODE_CLASSES_END ? unicode_classes[c] : (int)UNICODE_OTHER;
}}

#endif
"""


def class_of(code_point, category):
    if category[0] == "Z" or 0x9 <= code_point <= 0xD or code_point == 0x85:
        return SPACE
    return {"L": LETTER, "N": NUMBER}.get(category[0], OTHER)


def read_unicode_data(path):
    """The classes by UnicodeData.txt: a line is 'code point;name;category;...', the ends of a range are two lines."""
    classes = bytearray(CODE_POINTS)
    first = None
    try:
        with open(path, encoding="ascii") as f:
            for line in f:
                code, name, category = line.split(";")[:3]
                code = int(code, 16)
                if name.endswith(", First>"):
                    first = code
                    continue
                for c in range(code if first is None else first, code + 1):
                    classes[c] = class_of(c, category)
                first = None
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}")
    except (ValueError, UnicodeDecodeError, IndexError):
        fail(f"{path} is not UnicodeData.txt of the Unicode Character Database")
    return classes


def python_table():
    """The module of Python, or unicodedata2, whose version is VERSION; None: neither is."""
    if unicodedata.unidata_version == VERSION:
        return unicodedata
    try:
        import unicodedata2
    except ImportError:
        return None
    return unicodedata2 if unicodedata2.unidata_version == VERSION else None


def python_classes():
    """The classes by Python's table; None: it has another version."""
    table = python_table()
    return table and bytearray(class_of(c, table.category(chr(c))) for c in range(CODE_POINTS))


def lines_of(items, indent):
    """The items, separated by ', ', in lines of at most 120 characters."""
    lines, line = [], ""
    for item in items:
        if len(indent) + len(line) + len(item) + 1 > 120:
            lines.append(indent + line.rstrip())
            line = ""
        line += item + ", "
    return "\n".join([*lines, indent + line.rstrip()])


def header_text(classes):
    end = max(c for c, kind in enumerate(classes) if kind != OTHER) + 1
    runs = []
    for kind, run_of in itertools.groupby(classes[:end]):
        left = len(list(run_of))
        while left > 0:
            runs.append(4 * min(left, LONGEST) + kind)
            left -= runs[-1] // 4
    return HEAD.format(version=VERSION, end=end, runs=lines_of(map(str, runs), "    "))


def main():
    parser = Parser(__doc__)
    parser.add_argument("--unicode-data", metavar="FILE", help=f"UnicodeData.txt of Unicode {VERSION}")
    parser.add_argument("--output", default=HEADER, metavar="FILE", help="default: llmc/text/unicode_classes.h")
    parser.add_argument("--check", action="store_true", help="compare, do not write")
    args = parser.parse_args()
    classes = read_unicode_data(args.unicode_data) if args.unicode_data else python_classes()
    if classes is None:
        found = unicodedata.unidata_version
        fail(f"this Python's table is of Unicode {found}, not {VERSION}: pip install unicodedata2=={VERSION}")
    text = header_text(classes)
    if not args.check:
        write_atomically(args.output, text.encode())
        return
    with open(args.output, encoding="ascii") as f:
        if f.read() != text:
            fail(f"{args.output} is not what Unicode {VERSION} says; write it without --check")
    print(f"{args.output} is what Unicode {VERSION} says")


if __name__ == "__main__":
    run(main)
