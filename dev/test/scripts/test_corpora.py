#!/usr/bin/env python3
"""Tests of the corpora from Debian's packages: dev/data/debian.py, linux_source.py, english.py, c_and_english.py.

    python3 dev/test/scripts/test_corpora.py          # 20 s; ends in 'N passed, N failed'

Needs no network: packages are made here. Tests of tokens run where tokenize_gpt2 or tiktoken is, as in test_data.py.
"""

import contextlib
import glob
import gzip
import hashlib
import io
import os
import random
import shutil
import sys
import tarfile
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir, "data"))

import c_and_english
import debian
import english
import linux_source
import unit
from test_data import MIRROR, expect_failure, read, require_gpt2, run, serve, tokens_of, write

EOT = 50256
ALONE = ("linux_source", "english")


def sources(folder, n=40):
    """C files in folders; two are equal, and a header and an empty file are no documents. Returns the unique texts."""
    texts = [f"int f{i}(int x) {{ return x * {i}; }}\n" * (1 + i % 5) for i in range(n)]
    for i, text in enumerate(texts):
        write(os.path.join(folder, f"d{i % 3}", f"{i}.c"), text)
    write(os.path.join(folder, "d1", "copy.c"), texts[7])
    write(os.path.join(folder, "d1", "empty.c"), "\n")
    write(os.path.join(folder, "d1", "x.h"), "#define X\n")
    return texts


def documents_in(path):
    """The token lists of the documents of a token file."""
    documents = []
    for token in tokens_of(path):
        if token == EOT:
            documents.append([])
        documents[-1].append(token)
    return [tuple(document[1:]) for document in documents]


def make(folder, output, *flags, name="linux_source"):
    """Runs a corpus script on a folder; returns (training, validation) documents."""
    arguments = ["--sources", folder, "--output", output, "--workers", 1, *flags]
    run(f"{name}.py", *arguments, *(["--mirror", MIRROR] if MIRROR else []))
    return tuple(documents_in(os.path.join(output, f"{name}_{split}.bin")) for split in ("train", "val"))


def archive(mode, files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def package(files):
    """A .deb: its members, an odd one too, are padded to an even length."""
    members = {"debian-binary": b"2.0\n", "control.tar.xz": b"odd", "data.tar.xz": archive("w:xz", files)}
    out = b"!<arch>\n"
    for name, data in members.items():
        out += f"{name:16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2)
    return out


def package_of_sources(folder):
    files = {}
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            files[os.path.join("linux-source-6.1", os.path.relpath(path, folder))] = read(path)
    return package({"./usr/src/linux-source-6.1.tar.xz": archive("w:xz", files), "./usr/share/doc/x.c.gz": b"1"})


def corpus_of(data, output, **settings):
    """Makes the corpus of one package in this process, as linux_source.py does; returns what it said on stderr."""
    row = debian.Package(hashlib.sha256(data).hexdigest(), len(data), "pool/l/linux-source-6.1_6.1+1_all.deb")
    flags = ["x", "--output", output, "--workers", "1", "--val-tokens", "300"]
    if "mirror" in settings:
        flags += ["--mirror", settings["mirror"]]
        for path in glob.glob(f"{MIRROR}/**/vocab.bpe", recursive=True)[:1]:
            shutil.copy(path, settings["mirror"])
    patches = [mock.patch.object(sys, "argv", flags), mock.patch.dict(os.environ, settings.get("env", {}))]
    patches.append(mock.patch.object(debian, "POOLS", settings.get("pools", ["http://127.0.0.1:9"])))
    said = io.StringIO()
    with contextlib.ExitStack() as stack, contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        for patch in patches:
            stack.enter_context(patch)
        is_source, documents_of = linux_source.is_source, linux_source.documents_of
        debian.make_corpus("", "linux_source", [row], ".c files", is_source, documents_of, 1)
    return said.getvalue()


def test_each_file_is_a_document_once(folder):
    encoding = require_gpt2()
    texts = sources(os.path.join(folder, "in"))
    train, val = make(os.path.join(folder, "in"), os.path.join(folder, "out"), "--val-tokens", "300")
    assert sorted(train + val) == sorted(tuple(encoding.encode_ordinary(text)) for text in texts)
    lengths = [1 + len(document) for document in val]
    assert sum(lengths) >= 300 > sum(lengths[:-1]), lengths
    order = [(train + val).index(tuple(encoding.encode_ordinary(text))) for text in texts]
    assert sum(a < b for a, b in zip(order, order[1:])) < 30, "the files are in their own order"


def test_the_order_is_that_of_seed_and_texts(folder):
    require_gpt2()
    texts = sources(os.path.join(folder, "in"))
    first = make(os.path.join(folder, "in"), os.path.join(folder, "out"), "--val-tokens", "300")
    random.Random(1).shuffle(texts)
    for i, text in enumerate(texts):
        write(os.path.join(folder, "other", f"renamed{i}.c"), text)
    again = make(os.path.join(folder, "other"), os.path.join(folder, "out2"), "--val-tokens", "300")
    other = make(os.path.join(folder, "in"), os.path.join(folder, "out3"), "--val-tokens", "300", "--seed", "1")
    assert again == first and other != first and sorted(other[0] + other[1]) == sorted(first[0] + first[1])


def test_a_package_gives_the_files_of_its_folder(folder):
    require_gpt2()
    texts, output = os.path.join(folder, "in"), os.path.join(folder, "out")
    sources(texts)
    first = make(texts, output, "--val-tokens", "300")
    data = package_of_sources(texts)
    name = "linux-source-6.1_1%3a6.1+1_all.deb"  # as apt-get download calls it
    places = [os.path.join(output, f"linux_source_{split}.bin") for split in ("train", "val")]
    write(os.path.join(folder, "mirror", "deep", name), data)
    write(os.path.join(folder, "served", "pool", "l", name.replace("1%3a", "")), data)
    with serve(os.path.join(folder, "served")) as address:
        for settings in (
            {"mirror": os.path.join(folder, "mirror")},
            {"env": {"DEBIAN_POOL": address}},
            {"env": {"DEBIAN_POOL": f"file://{folder}/served"}},
            {"env": {"DEBIAN_POOL": ""}, "pools": [f"{address}/replaced", address]},
        ):
            shutil.rmtree(output)
            corpus_of(data, output, **settings)
            assert tuple(documents_in(path) for path in places) == first, settings
        raw = os.path.join(output, "raw", name.replace("1%3a", ""))
        assert read(raw) == data
    corpus_of(data, output)  # no server is needed: the package was kept
    kept = {"gpt2_tokenizer.bin", "linux_source_train.bin", "linux_source_val.bin", "raw"}
    assert set(os.listdir(output)) == kept, os.listdir(output)


def test_an_unsound_package_ends_in_one_line(folder):
    require_gpt2()
    good = package({"./x.c": random.Random(1).randbytes(9999).hex().encode()})
    for data in (good[:-3000], good[:100], b"<html>", b"", good[:180] + b"x" * 20 + good[200:]):
        write(os.path.join(folder, "mirror", "linux-source-6.1_6.1+1_all.deb"), data)
        call = lambda data=data: corpus_of(data, os.path.join(folder, "out"), mirror=os.path.join(folder, "mirror"))  # noqa: E731
        expect_failure(call, "6.1+1_all.deb is not a sound Debian package")
        assert not [name for name in os.listdir(os.path.join(folder, "out")) if name.startswith("linux")]


def test_a_pool_that_is_no_address_is_named(folder):
    require_gpt2()
    for pool in (folder, "deb.debian.org/debian", "localhost:8000/debian", "http://deb debian.org", "http://"):
        call = lambda pool=pool: corpus_of(b"x", os.path.join(folder, "out"), env={"DEBIAN_POOL": pool})  # noqa: E731
        expect_failure(call, f"DEBIAN_POOL={pool}: an address, such as http://127.0.0.1:9 or, of a folder, file:///mnt")


def test_bad_input_ends_in_one_line(folder):
    require_gpt2()
    texts, output = os.path.join(folder, "in"), os.path.join(folder, "out")
    sources(texts)
    write(os.path.join(folder, "none", "x.h"), "")
    mirror = ["--mirror", MIRROR] if MIRROR else []
    for script, flags, words in (
        ("linux_source.py", ["--sources", f"{folder}/none"], "0 documents of 0 tokens in .c files leave no training"),
        ("english.py", ["--sources", f"{folder}/none"], "in _sources/*.rst.txt, *.pod, html/en/*.html, gcide.dict.dz,"),
        ("linux_source.py", ["--sources", texts, "--val-tokens", "1e9"], "40 documents of"),
        ("linux_source.py", ["--source", texts], "did you mean --sources?"),
    ):
        _, error = run(script, *flags, "--output", output, "--workers", 1, *mirror, code=1)
        assert words in error, error
        assert not [name for name in os.listdir(folder) if "train" in name]


def test_sources_that_are_not_there_leave_nothing(folder):
    flags = ["--sources", os.path.join(folder, "no"), "--output", os.path.join(folder, "out")]
    _, error = run("linux_source.py", *flags, code=1)
    assert error == f"error: --sources: there is no folder {folder}/no\n" and not os.listdir(folder), error


def test_packages_are_named_in_full(_):
    packages = c_and_english.PACKAGES
    assert len({p.path for p in packages}) == 7 and all(p.path.startswith("pool/main/") for p in packages)
    assert all(len(bytes.fromhex(p.sha256)) == 32 and p.size > 1e6 for p in packages)
    for script in (english, linux_source, c_and_english):
        megabytes = f"fetches {sum(p.size for p in script.PACKAGES) / 1e6:.0f} MB"
        assert megabytes in read(script.__file__).decode(), megabytes


def test_c_and_english_are_in_one_order(folder):
    require_gpt2()
    texts = os.path.join(folder, "in")
    sources(texts)
    for i in range(40):
        write(os.path.join(texts, "doc", f"{i}.pod"), f"=head1 NAME\n\nB<perl{i}> is C<number {i}>.\n")
    train, val = make(texts, os.path.join(folder, "out"), "--val-tokens", 400, name="c_and_english")
    code, prose = (make(texts, os.path.join(folder, name), "--val-tokens", 1, name=name)[0] for name in ALONE)
    kinds = [["c" if document in code else "e" for document in split] for split in (train, val)]
    assert len(train) + len(val) == 80 and len(code) == len(prose) == 39
    assert {*code, *prose} <= {*train, *val}  # the same texts, without markup
    assert all({"c", "e"} == set(split) for split in kinds) and kinds[0] != sorted(kinds[0]), kinds


# ----------------------------------------------------------------------------
# Markup

RST = """.. _label:

.. SPDX-License-Identifier: GPL-2.0

:mod:`argparse` --- Parser
==========================

.. module:: argparse
   :synopsis: Parses.

.. note:: See :ref:`the tutorial
   <tutorial>`, :c:func:`~a.b` and `the site <https://x.y>`_::

   code = 2 ** 3 # ``not`` touched

======  ======
**x**   ``y``
======  ======
.. code-block:: c

   int x;
"""
PLAIN_RST = """argparse --- Parser

See the tutorial, a.b and the site:

   code = 2 ** 3 # not touched

x   y

   int x;
"""
POD = """=head1 NAME
X<refs> X<pointer>

perlref - C<< $x->{y} >>, B<I<both>>, L<see|perlsub/"X"> and L<perldoc>

=over 4

=item C<a E<lt> b>

E<gt>

=back
"""
HTML = """<!DOCTYPE html><head><title>std::swap - cppreference.com</title><script>1 < 2</script></head><body>
<div id="mw-content-text" lang="en"><div class="t-navbar" style=""><div class="t-navbar-sep"> </div>
<div class="t-navbar-head"><a>C++</a></div><div class="t-navbar-sep"> </div></div>
<p>Swaps <code>a &amp; b</code>.<!-- no --></p><table><tr><td> x </td><td>y</td></tr></table>
<div class="printfooter">Retrieved</div></body>"""
GCIDE = """Abjure \\Ab*jure"\\, v. t. [L. abjurare. See
   {Jury}.]
   To swear.
   [1913 Webster]

Abjurer \\Ab*jur"er\\, n.
   One who abjures.
      [1913 Webster +PJC]
"""
WORDNET = """  1 This software and database is being provided
00001740 00 a 01 able 0 005 = 05200169 n 0000 ! 00002098 a 0101 | having means; "able to swim"
00212678 04 n 02 swan_song 0 last_hurrah 1 001 @ 00550771 n 0000 | a final act: the last 0 of all
"""


def test_markup_is_removed(_):
    for name, markup, plain in (
        ("html/_sources/library/argparse.rst.txt", RST, PLAIN_RST),
        ("pod/perlref.pod", POD, "NAME\n\nperlref - $x->{y}, both, see and perldoc\n\na < b\n\n>\n"),
        ("doc/html/en/cpp/swap.html", HTML, "std::swap\n\nSwaps a & b.\n x  y\n"),
        ("wordnet/data.noun", WORDNET, 'able: having means; "able to swim"\nswan song, last hurrah: a final act: '
         "the last 0 of all\n"),
    ):  # fmt: skip
        assert english.documents_of(name, markup.encode()) == [plain], english.documents_of(name, markup.encode())
    found = english.documents_of("dictd/gcide.dict.dz", gzip.compress(GCIDE.encode()))
    for damaged in (b"no gzip", gzip.compress(GCIDE.encode())[:-20]):
        unit.refused("gcide.dict.dz is damaged: ", english.documents_of, "dictd/gcide.dict.dz", damaged)
    assert found == [
        "Abjure  v. t. [L. abjurare. See\n   Jury.]\n   To swear.\n\nAbjurer  n.\n   One who abjures.\n"
    ], found


def test_a_dictionary_is_cut_between_entries(_):
    entry = "Word \\W*rd\\, n.\n   " + "x" * 500 + "\n\n   2. More.\n\n"
    pieces = english.documents_of("dictd/gcide.dict.dz", gzip.compress((100 * entry).encode()))
    assert len(pieces) == 4 and all(piece.startswith("Word  n.") for piece in pieces), [piece[:20] for piece in pieces]
    assert all(english.PIECE <= len(piece) < english.PIECE + 600 for piece in pieces[:-1])
    assert "".join(pieces).count("More.") == 100


def test_other_files_are_no_documents(_):
    for name in (
        "html/x.html",
        "_sources/translations/zh_CN/x.rst.txt",
        "index.noun",
        "x.pod.gz",
        "wordnet/index.noun",
    ):
        assert english.kind_of(name) is None, name
    assert not linux_source.is_source("a/b.h") and linux_source.is_source("a/b.c")


if __name__ == "__main__":
    sys.exit(unit.run(globals()))
