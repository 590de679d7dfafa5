#!/usr/bin/env python3
"""English from Debian's documentation packages as GPT-2 tokens, without markup: 31 M tokens that anyone can make.

    python3 dev/data/english.py                         # english/english_{train,val}.bin; fetches 83 MB
    python3 dev/data/english.py --sources unpacked      # of a folder below which packages are unpacked with dpkg -x

Takes a minute on two cores, 350 MB of memory, 200 MB of disk. A page of the manuals of Python, Perl, Linux and C++ is a
document; the dictionaries GCIDE and WordNet are cut between entries, every 16,000 characters. Texts that are equal are
in once. Order, splits, interruptions and DEBIAN_POOL are as in linux_source.py.
"""

import gzip
import html
import re
import zlib

from data_common import fail, run
from debian import make_corpus, packages

PACKAGES = packages("""
50eb63e7f636c4281e9ce1b8f10386f1def42159eddce34fc1f41c46261df71b 12642400
    pool/main/p/python3.11/python3.11-doc_3.11.2-6+deb12u8_all.deb
7b0af5cfde3cbdef5e9d6e78f92ec335ced7c2790f37a40f49bebc6f7347ac0f 14800692
    pool/main/d/dict-gcide/dict-gcide_0.48.5+nmu2_all.deb
603e9b7ef33d08b957e287b2b1f429f2338bccf75144f91b7c9e51d3cb6a14e2 3592528
    pool/main/c/cppreference-doc/cppreference-doc-en-html_20170409-2_all.deb
e9e3564ff5ade27de0585835f2acad769bcc545c0a0045a9f55d5401f27f7591 7909200
    pool/main/p/perl/perl-doc_5.36.0-7+deb12u3_all.deb
61060d960f9ada8fa120872312eccd3ecebfbab8c4579e4f5a74e1cf67620752 6467132
    pool/main/w/wordnet/wordnet-base_3.0-37_all.deb
0d843674607703b9ef8c1db5e715c38ed52ff23574feabfe0d961d552126859f 37222656
    pool/main/l/linux/linux-doc-6.1_6.1.176-1_all.deb
""")
PIECE = 16_000  # characters of a dictionary that make a document

RST = [  # (pattern, replacement), in this order
    (r"^[ \t]*\.\. (?![\w:+.-]+::).*\n", ""),  # comments and labels
    (r"^[ \t]*\.\. (?:[\w-]*code|\w*author|highlight|(?:current)?module|index|toctree|image|figure|literal).*\n", ""),
    (r"^([ \t]*)\.\. [\w:+.-]+::[ \t]*", r"\1"),  # of other directives the text stays
    (r"^[ \t]+:[\w -]+:(?:[ \t].*)?\n", ""),  # options of directives
    (r":[\w:+.-]+:`[~!]?([^`<]*?)(?:\s*<[^`>]*>)?`", r"\1"),  # roles, with a target perhaps
    (r"`([^`<]+?)\s*<[^`>]*>`__?", r"\1"),  # links
    (r"``(.+?)``|\*\*(.+?)\*\*|`([^`\n]+)`_?_?", r"\1\2\3"),
    (r"^[ \t]*([=\-~^\"'*+#.:])\1{2,}[=\- \t]*\n|:(?=:$)", ""),  # lines under headings and of tables
]
POD = [
    (r"^=(?:head\d|item)[ \t]*|^=(?!head|item)\w.*\n", ""),
    (r"[XZ]<[^<>]*>\n?", ""),
    (r"E<(\w+)>", r"&\1;"),
    (r"[BCFIS]<<+\s(.+?)\s>>+", r"\1"),
    *2 * [(r"[BCFIS]<([^<>]*)>", r"\1")],  # one in another
    (r"L<([^<>|]+)\|[^<>]*>|L</?\"?([^<>]*?)\"?>", r"\1\2"),
]
HTML = [  # cppreference's: the title, and the page without its navigation
    (r"(?s)\A.*?<title>(.*?) - [^<]*</title>.*?id=\"mw-content-text\"[^>]*>", r"\1\n"),
    (r"(?s)<div class=\"t-navbar\".*?<div class=\"t-navbar-sep\">[^<]*</div></div>|<div class=\"printfooter\">.*", ""),
    (r"(?s)<(script|style)\b.*?</\1>|<!--.*?-->|<span class=\"editsection.*?</span>", ""),
    (r"(?s)<(p|div|h\d|li|tr|dt|dd|pre|br)\b[^>]*>", "\n"),
    (r"(?s)</td><td[^>]*>", " "),
    (r"(?s)<[^>]*>", ""),
]
GCIDE = [(r"\\[^\\\n]+\\,?", ""), (r"\{([^{}]*)\}", r"\1"), (r"\n[ \t]*\[[^\[\]\n]*\]$", "")]  # pronunciation, sources
WORDNET = [  # 00011 04 n 02 swan_song 0 last_hurrah 0 001 @ 00550771 n 0000 | a final performance
    (r"^  .*\n", ""),  # the licence
    (r"^\d{8} \d\d \w [0-9a-f]{2} (.+?) \d{3} .*?\| ", lambda m: ", ".join(m[1].split()[::2]).replace("_", " ") + ": "),
]


def without(markup, text):
    for pattern, replacement in markup:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    text = re.sub(r"[ \t\xa0]+$", "", html.unescape(text) if markup in (POD, HTML) else text, flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def cut(text, between):
    """Pieces of about PIECE characters that end where `between` matches."""
    start = 0
    for match in re.finditer(between, text):
        if match.end() - start >= PIECE:
            yield text[start : match.end()]
            start = match.end()
    yield text[start:]


KINDS = {  # names of files: their markup, and between which documents they are cut
    r"_sources/(?!translations/).*\.rst\.txt": (RST, None),
    r"\.pod": (POD, None),
    r"/html/en/.*\.html": (HTML, None),
    r"gcide\.dict\.dz": (GCIDE, r"\n\n(?=\S)"),
    r"wordnet/data\.\w+": (WORDNET, r"\n"),
}
FILES = "_sources/*.rst.txt, *.pod, html/en/*.html, gcide.dict.dz, wordnet/data.*"


def kind_of(name):
    return next((kind for pattern, kind in KINDS.items() if re.search(pattern + "$", name)), None)


def documents_of(name, data):
    markup, between = kind_of(name)
    try:
        data = gzip.decompress(data) if name.endswith(".dz") else data
    except (OSError, EOFError, zlib.error) as error:
        fail(f"{name} is damaged: {error}")
    text = without(markup, data.decode("utf-8", "replace"))
    return list(cut(text, between)) if between else [text]


if __name__ == "__main__":
    run(lambda: make_corpus(__doc__, "english", PACKAGES, FILES, kind_of, documents_of, 2_000_000))
