#!/usr/bin/env python3
"""Tests of dev/data: token files, splits and shards, atomic writes, mirrors, downloads, error lines.

    python3 dev/test/scripts/test_data.py          # 30 s; ends in 'N passed, N failed'

Needs the standard library only. Tests of GPT-2 tokens run where tokenize_gpt2 or tiktoken is, and the vocabulary (a
mirror may hold it), tests of the raw files where the mirror holds them; the others say that they were skipped, and why.
"""

import contextlib
import errno
import fcntl
import functools
import glob
import hashlib
import http.server
import importlib.util
import io
import json
import mmap
import os
import random
import resource
import shlex
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir, "data"))

import checksum
import data_common
import text as text_script
import unit
from unit import write

MIRROR = os.environ.get("DATA_MIRROR")
GPT2 = {"DATA_MIRROR": MIRROR} if MIRROR else {}  # for scripts that need what require_gpt2() has found
SPEECHES = "First Citizen:\nBefore we proceed, hear me speak.\n\nAll:\nSpeak, speak.\n\n" * 40


def run(script, *arguments, code=0, env=None, flags=(), **options):
    """Runs a script of dev/data, checks its exit code and returns (stdout, stderr). An error must be a single line."""
    environment = {key: value for key, value in os.environ.items() if key not in ("DATA_MIRROR", "PYTHONPATH")}
    command = [sys.executable, *flags, os.path.join(data_common.HERE, script), *map(str, arguments)]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=300, env={**environment, **(env or {})}, **options
    )
    assert done.returncode == code, f"exit code {done.returncode}, expected {code}: {done.stderr}"
    if code:
        errors = done.stderr.splitlines()
        assert len(errors) == 1 and errors[0].startswith("error: "), f"not one line: {done.stderr!r}"
    return done.stdout, done.stderr


def read(path):
    with open(path, "rb") as f:
        return f.read()


def tokens_of(path):
    return data_common.read_token_file(path)[0].tolist()


def expect_failure(call, *words):
    """Calls something that must fail() and checks that its line holds the words."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        line = unit.refused(words[0], call)
    assert all(word in line for word in words), f"{words} are not all in: {line}"


TABLES = tempfile.TemporaryDirectory()  # GPT-2's tokenizer file for this process


@functools.cache
def gpt2_tables():
    """GPT-2's tokenizer file, or None; asked for once, as a download that fails takes seconds."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return data_common.prepare_gpt2(MIRROR, TABLES.name)
    except SystemExit:
        return None


def require_gpt2():
    if not data_common.native_program() and importlib.util.find_spec("tiktoken") is None:
        raise unit.Skipped("neither tokenize_gpt2 nor tiktoken is here")
    if gpt2_tables() is None:
        raise unit.Skipped("GPT-2's vocabulary is neither in a mirror nor on the network")
    return gpt2_tables()


def require_pyarrow():
    try:
        import pyarrow.parquet
    except ImportError:
        raise unit.Skipped("pyarrow is not installed") from None
    return pyarrow


@functools.cache
def tiktoken_encoding():
    """tiktoken's encoding, or None. It needs vocab.bpe, not the tokenizer file at the root that tokenize_gpt2 reads."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return data_common.tiktoken_encoding()
    except SystemExit:
        return None


def require_both_encoders():
    """tokenize_gpt2's and tiktoken's encodings."""
    native = require_gpt2()
    if not isinstance(native, data_common.NativeEncoding) or tiktoken_encoding() is None:
        raise unit.Skipped("tokenize_gpt2, or tiktoken with GPT-2's vocabulary, is not here")
    return native, tiktoken_encoding()


@contextlib.contextmanager
def serve(folder):
    """Serves a folder by HTTP on this machine; gives the address."""

    stop, broken = threading.Event(), threading.Event()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def send_head(self):
            if self.path == "/truncated":  # promises more than it sends
                self.send_response(200)
                self.send_header("Content-Length", "1000")
                self.end_headers()
                return io.BytesIO(b"short")
            if self.path == "/broken" and not broken.is_set():  # the first time, ends inside a chunk
                broken.set()
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                return io.BytesIO(b"10\r\nshort")
            if self.path.endswith("/stalled.parquet"):  # sends the beginning, and then nothing
                self.send_response(200)
                self.send_header("Content-Length", "5000000")
                self.end_headers()
                self.wfile.write(bytes(4_000_000))
                stop.wait()
                return None
            return super().send_head()

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        stop.set()
        server.shutdown()
        thread.join()


# ----------------------------------------------------------------------------
# Formats


def test_token_file_has_the_documented_bytes(folder):
    path = os.path.join(folder, "a.bin")
    with data_common.TokenFile(path, 50257) as out:
        out.append([1, 2, 50256])
        out.append([7])
        out.finish()
    content = read(path)
    assert struct.unpack("<124i", content[:496]) == (20240520, 1, 4, 50257, *[0] * 120)
    assert content[1024:] == struct.pack("<4H", 1, 2, 50256, 7)


def test_large_vocabularies_take_32_bits(folder):
    path = os.path.join(folder, "a.bin")
    with data_common.TokenFile(path, 128256) as out:
        out.append([1, 128255])
        out.finish()
    content = read(path)
    assert struct.unpack("<4i", content[:16]) == (20240801, 7, 2, 128256)
    assert content[1024:] == struct.pack("<2I", 1, 128255)
    assert tokens_of(path) == [1, 128255]


def test_bytes_are_packed_as_tokens(_):
    every = bytes(range(256))
    assert bytes(data_common.pack_tokens(every, 256)) == struct.pack("<256H", *range(256))


def test_tokens_outside_the_vocabulary_are_refused(_):
    for bad in ([256], [-1], [0, 70000]):
        unit.refused("", data_common.pack_tokens, bad, 256, error=ValueError)


def test_unsound_token_files_are_refused(folder):
    path = os.path.join(folder, "a.bin")
    with data_common.TokenFile(path, 256) as out:
        out.append(b"hello")
        out.finish()
    good = read(path)
    cases = [(good[:-1], "bytes of tokens"), (good + b"x", "bytes of tokens"), (good[:100], "header")]
    for content, word in [*cases, (b"\0" * 1100, "magic"), (b"", "header")]:
        write(path, content)
        expect_failure(lambda: data_common.read_token_file(path), path, word)
    expect_failure(lambda: data_common.read_token_file(path + "x"), path, "No such file")


def test_evaluation_file_reads_back(folder):
    path = os.path.join(folder, "e.bin")
    examples = [
        {"label": 2, "ctx_tokens": [5, 6, 7], "ending_tokens": [[1], [2, 3], [4], [50256]]},
        {"label": 0, "ctx_tokens": [9], "ending_tokens": [[8, 8, 8], [1], [1], [1, 2]]},
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        data_common.write_evaluation_file(path, examples)
    content = read(path)
    header = struct.unpack("<124i", content[:496])
    words = struct.unpack(f"<{(len(content) - 1024) // 2}H", content[1024:])
    at, longest = 0, 0
    for index, example in enumerate(examples):
        mark, size, number, label, endings, context = words[at : at + 6]
        assert (mark, number, label, endings) == (65535, index, example["label"], 4)
        assert list(words[at + 6 : at + 6 + context]) == example["ctx_tokens"]
        cursor = at + 6 + context
        for ending in example["ending_tokens"]:
            assert list(words[cursor : cursor + 1 + words[cursor]]) == [len(ending), *ending]
            cursor += 1 + len(ending)
        assert size == 2 * (cursor - at)
        at, longest = cursor, max(longest, size)
    assert at == len(words)
    assert header == (20240522, 1, 2, longest, *[0] * 120)
    assert checksum.verify(path)
    long = {"label": 0, "ctx_tokens": [1] * 32762, "ending_tokens": []}  # with five words and a length: 2^16 bytes
    expect_failure(lambda: data_common.write_evaluation_file(path, [long]), path, "example 0 takes 65,536 bytes")


def test_gpt2_table_decodes_every_token(folder):
    encoding = require_gpt2()
    path = os.path.join(folder, "t.bin")
    with contextlib.redirect_stdout(io.StringIO()):
        data_common.write_gpt2_tokenizer(path, MIRROR)
    content = read(path)
    assert struct.unpack("<5i", content[:20]) == (20240328, 2, 50257, 50256, 0) and checksum.verify(path)
    tokens, at = [], 1024
    while at < len(content):
        tokens.append(content[at + 1 : at + 1 + content[at]])
        at += 1 + content[at]
    assert len(tokens) == 50257 and tokens[50256] == b"<|endoftext|>" and min(map(len, tokens)) > 0
    assert data_common.is_gpt2_table(path)
    theirs = tiktoken_encoding()
    assert theirs is None or tokens == [theirs.decode_single_token_bytes(i) for i in range(theirs.n_vocab)]
    sample = "Größe, 日本 and\n\n  spaces"
    assert b"".join(tokens[t] for t in encoding.encode_ordinary(sample)) == sample.encode()


# ----------------------------------------------------------------------------
# Checksums


def crc_by_definition(data, crc=0):
    """CRC32C bit by bit."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_crc32c_of_known_messages(_):
    for message, crc in (  # RFC 3720, B.4, and the check value of the catalogues
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ):
        assert checksum.crc32c(message) == crc_by_definition(message) == crc, message


def test_crc32c_of_any_length_is_that_of_the_definition(_):
    data = random.Random(1).randbytes(140_000)
    for length in [*range(10), *range(1680, 1720), 3400, 4096, 10_001, 65_535, 65_536, 140_000]:
        assert checksum.crc32c(data[:length]) == crc_by_definition(data[:length]), length
    for middle in (0, 1, 1000, 1695, 70_000):  # a CRC goes on where another ended
        assert checksum.crc32c(data[middle:], checksum.crc32c(data[:middle])) == checksum.crc32c(data), middle


def test_crcs_of_neighbours_combine(_):
    data = random.Random(2).randbytes(5000)
    for log2_bytes in range(13):
        first, second = data[: len(data) - (1 << log2_bytes)], data[len(data) - (1 << log2_bytes) :]
        together = checksum.combine(checksum.crc32c(first), checksum.crc32c(second), log2_bytes)
        assert together == checksum.crc32c(data), log2_bytes


def write_checked(path, header, body, piece):
    with data_common.CheckedFile(path, *header) as out:
        for at in range(0, len(body), piece):
            out.write(body[at : at + piece])
        out.finish()


def test_checksum_words_are_as_documented(folder):
    """The mark, log2 of the block, number of blocks, the header's CRC, the blocks': whatever pieces were written."""
    path = os.path.join(folder, "a.bin")
    kib = 1 << 10
    for length, log2_block, blocks in (
        (0, 16, 0),
        (1, 16, 1),
        (64 * kib, 16, 1),
        (64 * kib + 1, 16, 2),
        (8192 * kib, 16, 128),
        (8192 * kib + 1, 17, 65),
        (33_000 * kib + 5, 19, 65),
    ):
        body = random.Random(length).randbytes(length)
        for piece in (5_000_001, 1_000):
            if length > 64 * kib + 1 and piece == 1_000:
                continue
            write_checked(path, (20240520, 1, 77, -3), body, piece)
            content = read(path)
            words = list(struct.unpack("<256I", content[:1024]))
            assert words[:124] == [20240520, 1, 77, (1 << 32) - 3, *[0] * 120] and content[1024:] == body
            assert words[124:127] == [0x43524343, log2_block, blocks], (length, words[124:127])
            crcs = [checksum.crc32c(body[at : at + (1 << log2_block)]) for at in range(0, length, 1 << log2_block)]
            assert words[128:] == crcs + [0] * (128 - blocks), length
            assert words[127] == crc_by_definition(content[:508] + bytes(4) + content[512:1024])
            assert checksum.verify(path)


def test_every_flipped_bit_is_found(folder):
    """Each of the header, and some of each block of the body; the line says which block."""
    path = os.path.join(folder, "a.bin")
    draw = random.Random(3)
    body = draw.randbytes(200_000)
    write_checked(path, (20240520, 1, 100_000), body, 64_000)
    good = read(path)
    bits = [*range(8 * 1024), *(8 * 1024 + draw.randrange(8 * len(body)) for _ in range(60))]
    for bit in bits:
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        block = (bit // 8 - 1024) >> 16
        where = f"bytes {1024 + (block << 16)} to" if bit >= 8 * 1024 else "its header (bytes 0 to 1023)"
        unit.refused(f"{path}: {where}", checksum.verify, write(path, bytes(bad)), error=checksum.CorruptFile)


COPY = """ // copies a file through the C side: what it reads is verified, what it writes is sealed anew
#include "llmc/base/checked_file.h"
int main(int argc, char** argv) {
    CheckedReader r;
    CheckedWriter w;
    char buffer[10007];
    if (argc != 3 || checked_open(&r, argv[1], 20240326, "file") != STATUS_OK) { fatal("%s", status_message()); }
    check(checked_create(&w, argv[2], r.header, r.body_bytes));
    for (size_t at = 0, n; at < r.body_bytes; at += n) {
        n = r.body_bytes - at < sizeof(buffer) ? r.body_bytes - at : sizeof(buffer);
        check(checked_read(&r, buffer, n));
        check(checked_write(&w, buffer, n));
    }
    check(checked_end(&r));
    check(checked_commit(&w));
}
"""


def test_c_reads_and_writes_the_same_files(folder):
    program, path, copied = (os.path.join(folder, name) for name in ("copy", "a.bin", "b.bin"))
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if shutil.which(compiler[0]) is None:
        raise unit.Skipped(f"there is no {compiler[0]}")
    flags = ["-std=c11", "-D_GNU_SOURCE", "-O2", "-I", data_common.ROOT, "-x", "c", "-", "-o", program, "-lpthread"]
    subprocess.run([*compiler, *flags], input=COPY, text=True, check=True)
    for length in (0, 1, 65_536, 70_001, 128 << 16, (128 << 16) + 1):
        write_checked(path, (20240326, 3, 7, -1), random.Random(length).randbytes(length), 1 << 20)
        subprocess.run([program, path, copied], check=True)
        assert read(path) == read(copied), length
    content = bytearray(read(path))
    for at in (17, 1023, 1024, 8_000_000):
        content[at] ^= 16
        write(path, bytes(content))
        content[at] ^= 16
        done = subprocess.run([program, path, copied], check=False, capture_output=True, text=True)
        said = unit.refused(path, checksum.verify, path, error=checksum.CorruptFile)
        assert said in done.stderr and done.returncode == 1, (said, done.stderr)


def test_files_of_another_length_are_refused(folder):
    path = os.path.join(folder, "a.bin")
    write_checked(path, (20240520, 1, 3), bytes(3 << 16), 1 << 20)
    good = read(path)
    for content, words in (
        (good + b"x", f"{path} has 197633 bytes, for which its header has not as many checksums"),
        (good[:-1], f"{path}: bytes 132096 to 197630 do not have their checksum"),
        (good[: -(1 << 16)], "it is truncated or has trailing bytes"),
        (good[:1024], "it is truncated or has trailing bytes"),
        (good[:1023], "ends inside its header"),
    ):
        unit.refused(words, checksum.verify, write(path, content), error=checksum.CorruptFile)


def test_files_without_checksums_are_read(folder):
    path = write(os.path.join(folder, "a.bin"), data_common.pack_header(20240520, 1, 2) + struct.pack("<2H", 5, 6))
    assert checksum.verify(path) is False and tokens_of(path) == [5, 6]


def test_readers_refuse_a_flipped_token(folder):
    path = os.path.join(folder, "a.bin")
    with data_common.TokenFile(path, 256) as out:
        out.append(bytes(200))
        out.finish()
    content = bytearray(read(path))
    content[1100] ^= 1
    write(path, bytes(content))
    expect_failure(lambda: data_common.read_token_file(path), path, "bytes 1024 to 1423 do not have")


def test_verify_says_which_files_are_right(folder):
    right, wrong, foreign = (os.path.join(folder, name) for name in ("right.bin", "wrong.bin", "foreign.bin"))
    write_checked(right, (20240326, 3), bytes(70_000), 70_000)
    write(wrong, read(right)[:-1] + b"\1")
    write(foreign, data_common.pack_header(20240527, 1))
    printed, _ = run("verify.py", right, foreign)
    assert printed.splitlines() == [f"{right}: ok, model, 2 blocks", f"{foreign}: state, no checksums"], printed
    printed, error = run("verify.py", wrong, right, code=1)
    assert f"{wrong}: bytes 66560 to 71023 do not have" in printed and f"{right}: ok" in printed, printed
    assert "1 of 2 files" in error
    os.mkfifo(os.path.join(folder, "pipe"))
    for path, words in (
        (os.path.join(folder, "none.bin"), "No such file"),
        (os.path.join(folder, "pipe"), "it is a pipe or a device, not a file"),
        (__file__, "no file of ours"),
        (folder, ""),
    ):
        printed, _ = run("verify.py", path, code=1)
        assert path in printed and words in printed, printed


# ----------------------------------------------------------------------------
# Atomic writes


OLD = struct.pack("<256i", 20240520, 1, *[0] * 254)  # an earlier run's file


def test_nothing_is_left_of_a_write_that_failed(folder):
    path = write(os.path.join(folder, "x_train.bin"), OLD)
    try:
        with data_common.open_splits(os.path.join(folder, "x"), 256) as (train, val):
            train.append_packed(b"a\0" * 100)
            val.append_packed(b"b\0" * 100)
            raise RuntimeError("interrupted")
    except RuntimeError:
        pass
    assert read(path) == OLD and os.listdir(folder) == ["x_train.bin"]


def test_a_full_disk_leaves_the_old_files(folder):
    source = write(os.path.join(folder, "in.txt"), SPEECHES)
    prefix = os.path.join(folder, "out", "x")
    for split in ("train", "val"):
        write(f"{prefix}_{split}.bin", OLD)

    def limit():  # files may not grow beyond 2000 bytes
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    _, error = run("text.py", source, "--output", prefix, "--tokenizer", "bytes", code=1, preexec_fn=limit)
    assert f"cannot write {prefix}_train" in error, error
    assert sorted(os.listdir(os.path.dirname(prefix))) == ["x_train.bin", "x_val.bin"]
    assert read(f"{prefix}_train.bin") == read(f"{prefix}_val.bin") == OLD


@contextlib.contextmanager
def file_calls(**faults):
    """Records os.fsync, os.replace and os.remove; those in `faults`, or fsync_folder, fail with their errno."""
    calls = []

    def recorded(name, call, describe):
        def function(*arguments):
            kind = "fsync_folder" if name == "fsync" and stat.S_ISDIR(os.fstat(arguments[0]).st_mode) else name
            calls.append(f"{kind} {describe(*arguments)}")
            if kind in faults:
                raise OSError(faults[kind], os.strerror(faults[kind]))
            return call(*arguments)

        return mock.patch.object(os, name, function)

    def content(fd):
        return "" if stat.S_ISDIR(os.fstat(fd).st_mode) else f"of {os.fstat(fd).st_size} bytes"

    with contextlib.ExitStack() as patches:
        patches.enter_context(recorded("fsync", os.fsync, content))
        patches.enter_context(
            recorded("replace", os.replace, lambda a, b: f"{os.path.basename(a)} by {os.path.basename(b)}")
        )
        patches.enter_context(recorded("remove", os.remove, os.path.basename))
        yield calls


def write_split(folder):
    with data_common.open_splits(os.path.join(folder, "x"), 256) as (train, val):
        train.append_packed(b"a\0" * 100)
        val.append_packed(b"b\0" * 50)


def test_bytes_reach_the_disk_before_their_names(folder):
    write(os.path.join(folder, "x_train_000001.bin"), OLD)
    with contextlib.redirect_stdout(io.StringIO()), file_calls() as calls:
        write_split(folder)
    assert calls[:7] == [
        "fsync of 1224 bytes",
        "fsync of 1124 bytes",
        "replace x_train_000000.bin.tmp by x_train.bin",
        "fsync_folder ",
        "remove x_train_000001.bin",
        "replace x_val_000000.bin.tmp by x_val.bin",
        "fsync_folder ",
    ], calls


def test_a_missing_fsync_is_noted_once(folder):
    for call, errors in (
        ("fsync", ("EINVAL", "ENOTSUP", "ENOSYS")),
        ("fsync_folder", ("EINVAL", "ENOTSUP", "ENOSYS", "EBADF", "EACCES")),
    ):
        for error in errors:
            data_common.noted.clear()
            said, faults = io.StringIO(), file_calls(**{call: getattr(errno, error)})
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said), faults:
                write_split(folder)
            what = "files" if call == "fsync" else "directories"
            assert said.getvalue().count("note: ") == 1 and f" has no fsync of {what} (" in said.getvalue(), (
                said.getvalue()
            )
            assert sorted(os.listdir(folder)) == ["x_train.bin", "x_val.bin"]


def test_a_call_that_fails_is_no_missing_one(folder):
    for call in "fsync", "fsync_folder", "replace":
        for number in errno.EIO, errno.ENOSPC, errno.EDQUOT:
            with contextlib.redirect_stdout(io.StringIO()), file_calls(**{call: number}):
                line = unit.refused("", write_split, folder)
            assert line == f"error: cannot write {folder}/x_train.bin: {os.strerror(number)}", line
            assert not glob.glob(os.path.join(folder, "*.tmp"))


# ----------------------------------------------------------------------------
# text.py


def test_a_text_that_can_only_be_mapped_privately(folder):
    path = write(os.path.join(folder, "in.txt"), SPEECHES)

    def private(fd, length, flags, protection):
        assert flags == mmap.MAP_PRIVATE, "ENODEV, as FUSE says without a page cache"
        return real(fd, length, flags, protection)

    real = mmap.mmap
    with mock.patch.object(text_script.mmap, "mmap", private):
        pieces = list(text_script.cut_file(path, 0, False))
    assert b"".join(piece for _, _, piece in pieces) == SPEECHES.encode()


def test_bytes_need_only_the_standard_library(folder):
    source = write(os.path.join(folder, "in.txt"), SPEECHES)
    prefix = os.path.join(folder, "out", "x")
    run("text.py", source, "--output", prefix, "--tokenizer", "bytes", flags=["-S"])  # -S: no installed packages
    train, val = tokens_of(f"{prefix}_train.bin"), tokens_of(f"{prefix}_val.bin")
    assert bytes(train + val) == SPEECHES.encode()
    assert len(val) == round(0.1 * len(SPEECHES))
    assert data_common.read_token_file(f"{prefix}_train.bin")[1] == 256


def test_folders_stand_for_their_text_files_in_order(folder):
    for name, content in {"b/2.txt": "two", "b/1.txt": "one", "a.c": "zero", "c.bin": b"\0\1", ".git/x": "no"}.items():
        write(os.path.join(folder, "in", name), content)
    prefix = os.path.join(folder, "x")
    run("text.py", os.path.join(folder, "in"), "--output", prefix, "--tokenizer", "bytes", "--val-fraction", "0")
    assert bytes(tokens_of(f"{prefix}_train.bin")) == b"zeroonetwo"
    assert not os.path.exists(f"{prefix}_val.bin")


def test_shards_are_full_and_replace_those_of_earlier_runs(folder):
    source = write(os.path.join(folder, "in.txt"), bytes(range(256)) * 10)
    prefix = os.path.join(folder, "x")
    common = ["text.py", source, "--output", prefix, "--tokenizer", "bytes", "--val-fraction", 0.25]
    foreign = write(f"{prefix}_train_notes.bin", "not ours")
    run(*common, "--shard-tokens", 500)
    shards = [f"{prefix}_train_{i:06d}.bin" for i in range(4)]
    lengths = [len(tokens_of(path)) for path in shards]
    assert lengths == [500, 500, 500, 420]
    shards += [f"{prefix}_val_{i:06d}.bin" for i in range(2)]
    assert [token for path in shards for token in tokens_of(path)] == list(range(256)) * 10
    run(*common, "--shard-tokens", 1000)
    run(*common)
    notes = write(f"{prefix}_val_000003.bin", "not ours, either")
    _, error = run(*common, code=1)
    assert f"{notes} is no token file, and would be replaced or removed" in error and read(notes) == b"not ours, either"
    os.remove(notes)
    names = {os.path.basename(foreign), "in.txt", "x_train.bin", "x_val.bin"}
    assert set(os.listdir(folder)) == names, os.listdir(folder)


def test_cutting_does_not_change_gpt2_tokens(folder):
    encoding = require_gpt2()
    body = SPEECHES + "tabs\tand  double spaces \n \n\n= Title = \n x's don't\u00a0break 1234 日本語 \r\n" * 30
    body += "学而时习之，不亦说乎？有朋自远方来、\u3000 不亦乐乎。\u2003\n" * 30
    body += "\u03b1\u03b2 \u00a0 \u03b3'\u03b4' s(a,'s;'ll):x\u0085 y\u2009\tz\n" * 30
    body += "nbsp \u00a0 \u00a0 \u00a0 \u00a0 x" * 30 + "don't" * 50 + "\n"
    path = write(os.path.join(folder, "in.txt"), body)
    whole = [50256, *encoding.encode_ordinary(body)]
    old = text_script.PIECE_BYTES, text_script.SEARCH_BYTES
    for piece_bytes in (5, 6, 7, 11):
        try:
            text_script.PIECE_BYTES, text_script.SEARCH_BYTES = piece_bytes, 300
            pieces = list(text_script.cut_file(path, len(body) // 2, anywhere=False))
        finally:
            text_script.PIECE_BYTES, text_script.SEARCH_BYTES = old
        assert len(pieces) > 300 and {is_val for _, is_val, _ in pieces} == {False, True}
        tokens = array("H")
        for starts_file, _, piece in pieces:
            tokens.frombytes(data_common.pack_gpt2_document(piece.decode(), starts_file))
        assert tokens.tolist() == whole, piece_bytes


def cut(path, train_bytes):
    """The pieces of a file, as decoded text, and the bytes of it that belong to the training split."""
    pieces = list(text_script.cut_file(path, train_bytes, anywhere=False))
    return [piece.decode() for _, _, piece in pieces], sum(len(piece) for _, is_val, piece in pieces if not is_val)


def test_every_document_begins_once(folder):
    """<|endoftext|> stands before a document in either split, one that lies wholly in the validation split too."""
    sizes = 3000, 4000, 1000, 500, 500
    paths = [write(os.path.join(folder, f"{i}.txt"), "word \n" * (size // 6)) for i, size in enumerate(sizes)]
    for fraction, splits in (0.4, ("t", "tv", "v", "v", "v")), (0.9, ("tv", "v", "v", "v", "v")), (0, "ttttt"):
        pieces = list(text_script.cut_files(paths, fraction, anywhere=False))
        for path, split in zip(paths, splits):
            own = [(starts, is_val) for name, starts, is_val, _ in pieces if name == path]
            assert own == [(not i, letter == "v") for i, letter in enumerate(split)], (fraction, path, own)


def test_text_without_ascii_is_cut(folder):
    megabyte = text_script.PIECE_BYTES
    greek = "\u03b1\u03b2\u03b3 \u03b4\u03b5\u03b6\n"
    for name, body in {
        "Greek": greek * (3 * megabyte // len(greek.encode())),
        "Chinese lines": "\u5b66\u800c\u65f6\u4e60\u4e4b\u3002\n" * (3 * megabyte // 19),
        "one Chinese line": "\u5b66\u800c\u65f6\u4e60\u4e4b\uff0c" * (3 * megabyte // 18) + "\n",
        "no punctuation": "\u5b66" * megabyte + "\n",
        "one line of code": "f(a,b);" * (3 * megabyte // 7) + "\n",
        "one line of letters": "abcdefgh" * (3 * megabyte // 8) + "\n",
        "spaces": " " * 3 * megabyte,
    }.items():
        path = write(os.path.join(folder, "in.txt"), body)
        size = os.path.getsize(path)
        texts, train = cut(path, size * 9 // 10)
        assert "".join(texts) == body, name
        assert max(len(text.encode()) for text in texts) <= megabyte + text_script.SEARCH_BYTES, name
        assert abs(train - size * 9 // 10) <= text_script.SEARCH_BYTES, f"{name}: {train} of {size} bytes"
    path = write(path, "\u5b66" * 100 + "\n")
    assert cut(path, 271) == (["\u5b66" * 90, "\u5b66" * 10 + "\n"], 270)  # not the line feed alone


def test_chinese_in_one_line_tokenises_and_splits(folder):
    encoding = require_gpt2()
    body = "\u5b66\u800c\u65f6\u4e60\u4e4b\uff0c\u4e0d\u4ea6\u8bf4\u4e4e\u3002" * 40_000  # 1.3 MB
    path = write(os.path.join(folder, "in.txt"), body)
    prefix = os.path.join(folder, "x")
    run("text.py", path, "--output", prefix, env=GPT2)
    train, val = tokens_of(f"{prefix}_train.bin"), tokens_of(f"{prefix}_val.bin")
    assert train + val == [50256, *encoding.encode_ordinary(body)]
    assert 0.09 < len(val) / (len(train) + len(val)) < 0.11


def test_gpt2_documents_begin_with_eot(folder):
    encoding = require_gpt2()
    first = write(os.path.join(folder, "1.txt"), SPEECHES)
    second = write(os.path.join(folder, "2.txt"), "the second document\n" * 50)
    prefix = os.path.join(folder, "x")
    run("text.py", first, second, "--output", prefix, "--workers", 2, env=GPT2)
    tokens = tokens_of(f"{prefix}_train.bin") + tokens_of(f"{prefix}_val.bin")
    texts = [encoding.encode_ordinary(read(path).decode()) for path in (first, second)]
    assert tokens == [50256, *texts[0], 50256, *texts[1]]
    assert set(os.listdir(folder)) == {"1.txt", "2.txt", "x_train.bin", "x_val.bin", "gpt2_tokenizer.bin"}
    write(second, b"caf\xe9 " * 50)
    _, error = run("text.py", first, second, "--output", prefix, code=1)
    assert f"{second} is not UTF-8" in error, error
    assert tokens_of(f"{prefix}_train.bin") + tokens_of(f"{prefix}_val.bin") == tokens


def test_the_end_of_text_in_a_text(folder):
    encoding = require_gpt2()
    name, parts = "<|endoftext|>", ["One day a fox ran.\n", "\n  Two dogs sat", "", "x" * 70_000 + "\n"]
    path = write(os.path.join(folder, "in.txt"), name.join(parts))
    prefix = os.path.join(folder, "x")
    common = ["text.py", path, "--output", prefix, "--val-fraction", 0]
    _, note = run(*common, env=GPT2)
    assert tokens_of(f"{prefix}_train.bin") == [50256, *encoding.encode_ordinary(name.join(parts))]
    assert note == f"note: {name} occurs 3 times, encoded as text; --allow-special makes it the token\n", note
    _, note = run(*common, "--allow-special", env=GPT2)
    want = [token for part in parts for token in [50256, *encoding.encode_ordinary(part)]]
    assert tokens_of(f"{prefix}_train.bin") == want and note == ""
    _, error = run(*common, "--allow-special", "--tokenizer", "bytes", code=1)
    assert "no token" in error, error


def test_no_cut_is_inside_the_end_of_text(folder):
    name = "<|endoftext|>"
    old = text_script.PIECE_BYTES, text_script.SEARCH_BYTES
    for body in (
        f"a fox, ran. {name}\n" * 50,
        f"fox{name}" * 50,
        f"({name}x" * 50,
        f"xxxxxxx{name}yyyyyyyyyyyyyyyy" * 50,
    ):
        path = write(os.path.join(folder, "in.txt"), body)
        for piece_bytes, search_bytes in ((5, 300), (7, 4), (20, 3)):
            try:
                text_script.PIECE_BYTES, text_script.SEARCH_BYTES = piece_bytes, search_bytes
                texts, _ = cut(path, len(body) // 2)
            finally:
                text_script.PIECE_BYTES, text_script.SEARCH_BYTES = old
            assert "".join(texts) == body and sum(text.count(name) for text in texts) == body.count(name), texts


def test_a_byte_order_mark_is_dropped(folder):
    prefix = os.path.join(folder, "x")
    path = write(os.path.join(folder, "in.txt"), "\ufeffhello \ufeff")
    _, note = run("text.py", path, "--output", prefix, "--tokenizer", "bytes", "--val-fraction", 0)
    assert bytes(tokens_of(f"{prefix}_train.bin")) == "hello \ufeff".encode()
    assert note == f"note: {path}: its byte order mark is dropped\n", note
    encoding = require_gpt2()
    run("text.py", path, "--output", prefix, "--val-fraction", 0, env=GPT2)
    assert tokens_of(f"{prefix}_train.bin") == [50256, *encoding.encode_ordinary("hello \ufeff")]


def test_tokenize_gpt2_and_tiktoken_write_the_same_files(folder):
    require_both_encoders()
    texts = SPEECHES, "日本語 \u00a0 don't\t\tx 1234 😀\r\n" * 2000, "\u5b66\u800c\u65f6\u4e60\u4e4b\uff0c" * 80_000
    paths = [write(os.path.join(folder, f"{i}.txt"), text) for i, text in enumerate(texts)]
    files = []
    for name, env in ("native", {}), ("tiktoken", {"TOKENIZE_GPT2": ""}):
        out = os.path.join(folder, name)
        run("text.py", *paths, "--output", os.path.join(out, "x"), "--workers", 2, env=env)
        files.append({file: read(os.path.join(out, file)) for file in os.listdir(out)})
    assert len(files[0]) == 3 and files[0] == files[1]


def test_tokens_do_not_depend_on_the_encoder(folder):
    native, theirs = require_both_encoders()
    for text in "", " ", "a lone \ud83d surrogate", "\ud83d\ude00", "<|endoftext|>", SPEECHES * 100:
        assert native.encode_ordinary(text).tolist() == theirs.encode_ordinary(text), text[:40]


def test_an_encoder_that_ends_is_said(folder):
    program = unit.program(folder, "tokenize_gpt2", "#!/bin/sh\necho 'error: no memory' >&2\nexit 1\n")
    encoding = data_common.NativeEncoding(program, "t.bin")
    expect_failure(lambda: encoding.encode_ordinary("text " * 100_000), f"{program}: no memory")
    encoding = data_common.NativeEncoding(os.path.join(folder, "none"), "t.bin")
    expect_failure(lambda: encoding.encode_ordinary("text"), "none", "No such file")


def test_a_tokenize_gpt2_that_does_not_run_is_named_with_its_variable(folder):
    text = write(os.path.join(folder, "in.txt"), SPEECHES)
    for name in "./none", folder:
        _, error = run("text.py", text, "--output", os.path.join(folder, "x"), env={"TOKENIZE_GPT2": name}, code=1)
        assert error.startswith(f"error: TOKENIZE_GPT2={name}: no such program"), error
    assert os.listdir(folder) == ["in.txt"]
    with mock.patch.dict(os.environ, TOKENIZE_GPT2="false"):
        encoding = data_common.NativeEncoding("false", "t.bin")
        expect_failure(lambda: encoding.encode_ordinary("text"), "error: TOKENIZE_GPT2=false: it has ended")


# Answers with the bytes of one text, if it comes within ten seconds
SERVES_ONE = """#!{}
import signal, struct, sys
signal.alarm(10)
(count,) = struct.unpack("=I", sys.stdin.buffer.read(4))
text = sys.stdin.buffer.read(count)
sys.stdout.buffer.write(struct.pack(f"=I{{count}}H", count, *text))
"""


def test_an_encoder_gets_a_short_text_at_once(folder):
    program = unit.program(folder, "tokenize_gpt2", SERVES_ONE.format(sys.executable))
    assert data_common.NativeEncoding(program, "t.bin").encode_ordinary("text").tolist() == list(b"text")


def test_tokenizer_file_goes_where_the_output_goes(folder):
    encoding = require_gpt2()
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        data_common.prepare_gpt2(MIRROR, os.path.join(folder, "new"))
    path = os.path.join(folder, "new", "gpt2_tokenizer.bin")
    assert f"--tokenizer {path}" in printed.getvalue(), printed.getvalue()
    content = read(path)
    assert struct.unpack("<4i", content[:16]) == (20240328, 2, encoding.n_vocab, encoding.eot_token)
    write(path, "already there")
    with contextlib.redirect_stderr(io.StringIO()):
        data_common.prepare_gpt2(MIRROR, os.path.join(folder, "new"))
    assert read(path) == b"already there"


def test_the_tokenizer_file_at_the_root_serves_without_a_network(folder):
    require_gpt2()
    table = read(os.path.join(TABLES.name, "gpt2_tokenizer.bin"))
    write(os.path.join(folder, "gpt2_tokenizer.bin"), table)
    path = os.path.join(folder, "new", "gpt2_tokenizer.bin")
    os.makedirs(os.path.dirname(path))
    with mock.patch.multiple(data_common, ROOT=folder, obtain=None), contextlib.redirect_stdout(io.StringIO()):
        data_common.write_gpt2_tokenizer(path)
    assert read(path) == table


def start(script, *arguments, **env):
    """Starts a script of dev/data in a process group of its own."""
    command = [sys.executable, os.path.join(data_common.HERE, script), *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=pipe, text=True, start_new_session=True, env={**os.environ, **env}
    )


def wait_for(condition, what, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def group_is_gone(process):
    """Whether no process of the group runs. In a container whose first process reaps none, zombies of it stay."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", encoding="utf-8") as f:
            state, _, group = f.read().rpartition(")")[2].split()[:3]
            if int(group) == process.pid and state not in "ZX":
                return False
    return True


def test_signals_leave_no_worker_and_no_temporary_file(folder):
    require_gpt2()
    source = write(os.path.join(folder, "in.txt"), SPEECHES * 10_000)  # 29 MB
    out = os.path.join(folder, "out")
    interrupted = 0
    for i in range(7):
        process = start("text.py", source, "--output", os.path.join(out, "x"), "--workers", 3)
        try:
            if i in (1, 2, 4):  # at a moment of its own
                time.sleep(0.2 * i)
            else:  # in the middle
                wait_for(functools.partial(glob.glob, os.path.join(out, "x_*.tmp")), "no file begun")
            if i == 5:
                process.kill()  # nothing of ours runs any more, yet the workers end
            elif i in (1, 3):
                os.killpg(process.pid, signal.SIGTERM)
            else:
                process.terminate()
            _, error = process.communicate(timeout=120)
            wait_for(functools.partial(group_is_gone, process), "processes are left")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        if i != 5:
            assert not glob.glob(os.path.join(out, "*.tmp")), f"{i}: {os.listdir(out)}"
            assert process.returncode in (0, 1, -signal.SIGTERM), process.returncode
        if process.returncode == 1:
            assert error in ("error: interrupted by SIGTERM\n", f"error: {data_common.WORKER_DIED}\n"), error
            interrupted += 1
        for path in glob.glob(os.path.join(out, "x_*")):
            os.remove(path)
    assert interrupted >= 3, interrupted


def test_what_ends_a_script_leaves_no_temporary_file(folder):
    path = os.path.join(folder, "x")
    program = f"""
import sys, time
sys.path.insert(0, {data_common.HERE!r})
import data_common
def main():
    with data_common.OutputFile({path!r}):
        print("begun", flush=True)
        for _ in range(600):  # a signal that comes just before a sleep is handled after it
            time.sleep(0.1)
data_common.run(main)
"""

    def ended_by(*numbers, ignored):
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)  # the script inherits it
        command = [sys.executable, "-c", program]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        signal.signal(signal.SIGHUP, before)
        with process:
            assert process.stdout.readline() == "begun\n" and os.path.exists(path + ".tmp")
            for number in numbers:
                process.send_signal(number)
                time.sleep(0.5 if number != numbers[-1] else 0)  # or the second could hide what the first did
            _, error = process.communicate(timeout=60)
        assert process.returncode == 1 and os.listdir(folder) == [], (process.returncode, os.listdir(folder))
        return error

    for number in signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU:
        assert ended_by(number, ignored=False) == f"error: interrupted by {number.name}\n", number
    assert ended_by(signal.SIGHUP, signal.SIGTERM, ignored=True) == "error: interrupted by SIGTERM\n"  # nohup


def test_a_signal_ends_a_stalled_download(folder):
    require_gpt2()
    require_pyarrow()
    tree = os.path.join(folder, "hub", "api", "datasets", "HuggingFaceFW", "fineweb", "tree", "main", "sample", "10BT")
    write(tree, json.dumps([{"path": "sample/10BT/stalled.parquet", "size": 5_000_000}]))
    raw = os.path.join(folder, "out", "raw")
    with serve(os.path.join(folder, "hub")) as address:
        process = start("fineweb.py", "--output", os.path.join(folder, "out"), HF_ENDPOINT=address, DATA_MIRROR="")
        try:
            wait_for(lambda: os.path.exists(os.path.join(raw, "stalled.parquet.tmp")), "no download begun")
            process.terminate()
            _, error = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, error) == (1, "error: interrupted by SIGTERM\n"), error
    assert not os.listdir(raw)


def test_a_process_has_its_folder_alone(folder):
    for _ in range(2):  # without waiting for itself
        data_common.make_directory(folder, alone=True)
    other = os.open(folder, os.O_RDONLY)
    unit.refused("", fcntl.flock, other, fcntl.LOCK_SH | fcntl.LOCK_NB, error=BlockingIOError)
    os.close(other)


def test_a_second_call_waits_for_the_first(folder):
    out = os.path.join(folder, "out")
    common, sources = ["--output", out], write(os.path.join(folder, "in", "a.c"), SPEECHES)
    place = {"dataset": "fineweb", "sample": "sample/10BT", "shard_tokens": 10**8, "shards": 2, "file": 0, "row": 0}
    os.mkdir(out)
    first = os.open(out, os.O_RDONLY)
    fcntl.flock(first, fcntl.LOCK_EX)
    text = start("text.py", sources, "--output", f"{out}/x", "--tokenizer", "bytes")
    fineweb = start("fineweb.py", *common, "--max-shards", 2, HF_ENDPOINT="http://127.0.0.1:9")
    others = [start("linux_source.py", *common, "--sources", os.path.dirname(sources))]
    others += [start(script, *common) for script in ("hellaswag.py", "tinyshakespeare.py")]
    try:
        for process in (text, fineweb, *others):
            said = f"note: another call writes to {os.path.realpath(out)}; this one goes on when that has ended\n"
            assert process.stderr.readline() == said, process.args
        assert not os.listdir(out)
        for process in others:
            process.terminate()
            assert process.communicate(timeout=60)[1] == "error: interrupted by SIGTERM\n"
        write(os.path.join(out, "progress.json"), json.dumps({**place, "skip": 0, "complete": False}))
        run("fineweb.py", *common, "--max-shards", 1)  # which is there
        os.close(first)
        assert [process.wait(60) for process in (text, fineweb)] == [0, 0]
    finally:
        for process in (text, fineweb, *others):
            process.kill()
            process.communicate()
    assert {"progress.json", "x_train.bin", "x_val.bin"} == set(os.listdir(out)), os.listdir(out)


def test_bad_input_ends_in_one_line(folder):
    good = write(os.path.join(folder, "good.txt"), SPEECHES)
    empty = write(os.path.join(folder, "empty.txt"), "")
    os.makedirs(os.path.join(folder, "nothing"))
    prefix = os.path.join(folder, "x")
    os.makedirs(f"{prefix}d_train.bin")
    output = ["--output", prefix, "--tokenizer", "bytes"]
    own = write(os.path.join(folder, "own_train.bin"), SPEECHES)
    over = "is text to read, and would be replaced or removed; choose another --output"
    os.makedirs(os.path.join(folder, "links"))
    link = os.path.join(folder, "links", "text.txt")
    os.symlink(own, link)
    cases = [
        (["text.py", own, "--output", os.path.join(folder, "own"), "--tokenizer", "bytes"], f"{own} {over}"),
        (["text.py", folder, "--output", os.path.join(folder, ".", "own"), "--tokenizer", "bytes"], f"{own} {over}"),
        (["text.py", link, "--output", os.path.join(folder, "own"), "--tokenizer", "bytes"], f"{link} {over}"),
        (["text.py", "missing.txt", *output], "there is no file or folder missing.txt"),
        (["text.py", good, empty, *output], f"{empty} is empty; leave it out"),
        (["text.py", os.path.join(folder, "nothing"), *output], "no text files below"),
        (["text.py", "/dev/null", *output], "/dev/null is neither a file nor a folder"),
        (["text.py", good, *output, "--shuffle"], "unrecognized arguments: --shuffle; text.py --help"),
        (["text.py", good, *output, "--worker", "2"], "--worker 2; did you mean --workers? text.py --help"),
        (["text.py", good, *output, "--val-fracton=0.1"], "--val-fracton=0.1; did you mean --val-fraction? text.py"),
        (["text.py", good], "--output"),
        (["text.py", *output], "PATH"),
        (["text.py", good, *output, "--tokenizer", "words"], "'words'"),
        (["text.py", good, *output, "--val-fraction", "1"], "'1' is not a number of at least 0 and below 1"),
        (["text.py", good, *output, "--val-fraction", "nan"], "'nan' is not"),
        (["text.py", good, *output, "--shard-tokens", "0.5"], "'0.5' is not a whole number"),
        (["text.py", good, *output, "--val-fraction", "1e-9"], "the validation split is empty"),
        (["text.py", good, "--output", f"{good}/x", "--tokenizer", "bytes"], f"cannot write {good}"),
        (["text.py", good, "--output", f"{prefix}d", "--tokenizer", "bytes"], f"cannot write {prefix}d_train.bin"),
        (["text.py", good, "--output", f"{folder}/"], f"--output {folder}/: that is a folder; add"),
        (["tinyshakespeare.py", "--mirror", "/no/such/folder", "--output", folder], "/no/such/folder is not a folder"),
        (["hellaswag.py", "--mirror", "/no/such/folder", "--output", folder], "/no/such/folder is not a folder"),
        (["tokenizer.py", "--mirror", "/no/such/folder", "--output", good], "/no/such/folder is not a folder"),
        (["text.py", good, *output, "--tokenizer", "bytes", "--mirror", empty], f"{empty} is not a folder"),
        (["tinyshakespeare.py", "--tokenizer", "llama"], "'llama'"),
        (["fineweb.py", "--version", "1B"], "'1B'"),
        (["fineweb.py", "--workers", "0"], "'0' is not a whole number of at least 1"),
    ]
    for command, words in cases:
        _, error = run(*command, code=1)
        assert words in error, f"{command}: {words!r} is not in {error!r}"
        assert not [name for name in os.listdir(folder) if name.endswith(".tmp") or name == "x_train.bin"]
    assert read(own) == SPEECHES.encode()


# ----------------------------------------------------------------------------
# Raw files


def test_mirror_is_searched_by_name_and_checksum(folder):
    wrong = write(os.path.join(folder, "a", "input.txt"), "wrong!")
    right = write(os.path.join(folder, "b", "deep", "input.txt"), "right!")
    digest = hashlib.sha256(b"right!").hexdigest()
    with contextlib.redirect_stderr(io.StringIO()) as passed:
        assert data_common.find_in_mirror(folder, {"input.txt"}, sha256=digest) == right
    assert wrong in passed.getvalue()
    assert data_common.find_in_mirror(folder, {"input.txt"}) == wrong
    assert data_common.find_in_mirror(folder, {"other.txt"}) is None
    found = data_common.obtain(
        "http://127.0.0.1:9/x", os.path.join(folder, "out", "deep.txt"), folder, ["input.txt"], 6
    )
    assert found == wrong and not os.path.exists(os.path.join(folder, "out"))


def test_downloads_are_whole_or_nothing(folder):
    content = os.urandom(3_000_000)
    for name in ("raw.bin", "broken"):
        write(os.path.join(folder, "served", name), content)
    target = os.path.join(folder, "out", "raw.bin")
    digest = hashlib.sha256(content).hexdigest()
    with serve(os.path.join(folder, "served")) as address:

        def fetch(name, **known):
            with contextlib.redirect_stdout(io.StringIO()):
                return data_common.obtain(f"{address}/{name}", target, **known)

        once = functools.partial(data_common.download, attempts=1)
        os.makedirs(os.path.dirname(target))
        expect_failure(lambda: once(f"{address}/missing", target), "HTTP status 404", "missing")
        expect_failure(lambda: once(f"{address}/truncated", target), "5 bytes instead of 1,000")
        expect_failure(lambda: once(f"{address}/raw.bin", target, size=7), "3,000,000 bytes instead of 7")
        expect_failure(lambda: once(f"{address}/raw.bin", target, sha256="0" * 64), "SHA-256 differs")
        for url in ("/mnt/raw.bin", "http://127 0 0 1/raw.bin", "http://[/raw.bin"):
            expect_failure(lambda url=url: once(url, target), f"cannot download {url}: ", "--mirror")
        assert os.listdir(os.path.dirname(target)) == []
        with contextlib.redirect_stderr(io.StringIO()) as said:
            fetch("broken", size=len(content), sha256=digest)
        assert said.getvalue().startswith("attempt 1 failed (IncompleteRead("), said.getvalue()
        os.remove(target)
        assert fetch("raw.bin", size=len(content), sha256=digest) == target and read(target) == content
        write(target, "damaged")
        os.mkdir(os.path.join(folder, "mirror"))
        with contextlib.redirect_stderr(io.StringIO()) as said:
            names = ["other.bin", "raw.bin"]
            fetch("raw.bin", mirror=os.path.join(folder, "mirror"), other_names=names, size=len(content), sha256=digest)
        assert read(target) == content and "/mirror does not hold raw.bin or other.bin\n" in said.getvalue()
    fetch("raw.bin", size=len(content), sha256=digest)  # it is there: no server is needed
    expect_failure(lambda: once(f"{address}/raw.bin", target + "2"), "cannot download", "--mirror")
    assert os.listdir(os.path.dirname(target)) == ["raw.bin"]


def test_tinyshakespeare_splits(folder):
    if not MIRROR or not data_common.find_in_mirror(MIRROR, {"tinyshakespeare.txt", "input.txt"}, size=1115394):
        raise unit.Skipped("no mirror holds TinyShakespeare")
    out = os.path.join(folder, "out")
    run("tinyshakespeare.py", "--tokenizer", "bytes", "--output", out, flags=["-S"], env={"DATA_MIRROR": MIRROR})
    train, val = (tokens_of(os.path.join(out, f"tiny_shakespeare_bytes_{split}.bin")) for split in ("train", "val"))
    assert (len(train), len(val)) == (1082626, 32768) and bytes(val[:14]) == b"First Citizen:"
    require_gpt2()
    run("tinyshakespeare.py", "--output", out, "--mirror", MIRROR)
    train, val = (tokens_of(os.path.join(out, f"tiny_shakespeare_{split}.bin")) for split in ("train", "val"))
    assert (len(train), len(val)) == (305260, 32768) and val[:4] == [50256, 5962, 22307, 25]


def test_a_hub_that_is_no_address_is_named(folder):
    require_gpt2()
    for hub in ("huggingface.co", "http://127 0 0 1", "http://127.0.0.1:9"):
        _, error = run("fineweb.py", "--output", folder, env={"HF_ENDPOINT": hub, **GPT2}, code=1)
        assert f"cannot list {hub}/api/" in error and "; HF_ENDPOINT names another server, --mirror" in error, error


def test_fineweb_survives_interruptions(folder):
    require_gpt2()
    pyarrow = require_pyarrow()
    sample = os.path.join(folder, "hub", "datasets", "HuggingFaceFW", "fineweb", "resolve", "main", "sample", "10BT")
    os.makedirs(sample)
    want, listing = array("H"), []
    for i in range(3):
        texts = [f"document {i}.{j} " + "word " * (j * 37 % 400) for j in range(150)]
        path = os.path.join(sample, f"{i:03d}_00000.parquet")
        pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path, row_group_size=60)
        for text in texts:
            want.frombytes(data_common.pack_gpt2_document(text))
        digest = hashlib.sha256(read(path)).hexdigest()
        name = f"sample/10BT/{i:03d}_00000.parquet"
        listing.append({"path": name, "size": os.path.getsize(path), "lfs": {"oid": digest}})
    api = os.path.join(folder, "hub", "api", "datasets", "HuggingFaceFW", "fineweb", "tree", "main", "sample", "10BT")
    write(api, json.dumps(listing))
    out = os.path.join(folder, "out")
    with serve(os.path.join(folder, "hub")) as address:
        env = {"HF_ENDPOINT": address}
        common = ["fineweb.py", "--shard-tokens", 7000, "--workers", 2, "--output", out]
        for shards in (1, 2, 3, 5):
            run(*common, "--max-shards", shards, env=env)
            assert len([name for name in os.listdir(out) if name.startswith("fineweb_")]) == shards
        run(*common, env=env)
    with_mirror = os.path.join(folder, "out2")
    run(*common[:-1], with_mirror, "--mirror", os.path.join(folder, "hub"), env=env)
    names = sorted((n for n in os.listdir(with_mirror) if n.startswith("fineweb_")), key=lambda name: name[-10:])
    assert names[0] == "fineweb_val_000000.bin" and names[1] == "fineweb_train_000001.bin"
    got = array("H")
    for name in names:
        assert read(os.path.join(out, name)) == read(os.path.join(with_mirror, name))
        got.extend(tokens_of(os.path.join(out, name)))
    assert got == want and len(names) == -(-len(want) // 7000)
    assert not os.listdir(os.path.join(out, "raw"))
    _, error = run(*common, "--shard-tokens", 8000, env=env, code=1)
    assert "shard_tokens 7000, not 8000" in error, error


def test_unsound_parquet_ends_in_one_line(folder):
    require_gpt2()
    pyarrow = require_pyarrow()
    sample = os.path.join(folder, "fineweb", "sample", "10BT")
    os.makedirs(sample)
    path = os.path.join(sample, "000_00000.parquet")
    nothing = pyarrow.array([], pyarrow.string())
    for columns, words in (
        ({"words": ["a"]}, f"{path} has no column text"),
        ({"text": nothing}, f"{path} holds no documents"),
        ({"text": ["a"] * 100 + [None]}, f"{path}, row 100: text is null"),
        ({"text": [1, 2]}, f"{path}, row 0: text is int"),
        ({"text": pyarrow.array([None, None])}, f"{path}, row 0: text is null"),
        ({"text": [{"a": "b"}]}, f"{path}, row 0: text is dict"),
    ):
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
        for workers in (1, 2):
            out = os.path.join(folder, "out")
            _, error = run("fineweb.py", "--mirror", folder, "--output", out, "--workers", workers, code=1)
            assert words in error, error
            assert os.listdir(out) == ["gpt2_tokenizer.bin"], os.listdir(out)
    for content in (b"", b"no parquet", read(path)[:-9]):
        write(path, content)
        _, error = run("fineweb.py", "--mirror", folder, "--output", out, "--workers", 1, code=1)
        assert f"{path} is not a parquet file" in error, error


if __name__ == "__main__":
    sys.exit(unit.run(globals()))
