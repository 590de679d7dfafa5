"""Shared by the data scripts: token files, evaluation files, raw files from a mirror or the network, one-line errors.

Needs nothing but Python's standard library (3.9 or newer). GPT-2 tokens need tokenize_gpt2, which make builds, or the
package tiktoken.

A token file is what llmc/files/dataloader.h reads: 256 int32, then the tokens.

    header[0]  20240520 (uint16 tokens) or 20240801 (uint32 tokens)
    header[1]  1 or 7: the version that belongs to each magic number
    header[2]  number of tokens
    header[3]  size of the vocabulary: 50257, 256, ...; 0 in files by other writers. llm.c ignores it.

Every file that these scripts write has checksums in header[124..255], which llm.c ignores, too: see checksum.py.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import errno
import fcntl
import functools
import hashlib
import http.client
import multiprocessing
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from array import array
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import checksum
from checksum import HEADER_BYTES

HEADER_INTS = 256
TOKENS_UINT16 = (20240520, 1)  # (magic, version), uint16 tokens
TOKENS_UINT32 = (20240801, 7)  # uint32 tokens
EVALUATION = (20240522, 1)
TOKENIZER = (20240328, 2)

GPT2_VOCAB_SIZE = 50257
GPT2_EOT = 50256  # <|endoftext|>: written before every document
GPT2_EOT_TEXT = "<|endoftext|>"
BYTE_VOCAB_SIZE = 256

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


# ----------------------------------------------------------------------------
# Errors and the command line


def fail(message):
    """Ends the program with one line on stderr and exit code 1."""
    flush_stdout()
    sys.exit(f"error: {message}")


class StdoutFailed(Exception):
    """Standard output cannot be written."""


class Stdout:
    """Standard output, with an exception of its own, to tell its errors from those of files."""

    def __init__(self, stream):
        self.stream = stream

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def do(self, function, *arguments):
        try:
            return function(*arguments)
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())  # or Python flushes it again at its end
            raise StdoutFailed(f"cannot write standard output: {error.strerror}") from None

    def write(self, text):
        return self.do(self.stream.write, text)

    def flush(self):
        self.do(self.stream.flush)


def flush_stdout():
    if sys.stdout is not None:  # it was closed when Python began
        sys.stdout.flush()


WORKER_DIED = "a worker process died, perhaps for want of memory; try fewer --workers"


def run(main):
    """Runs a script's main(). On Ctrl-C, one of ENDING or a failed write to stdout it ends with one line, and leaves no
    worker and no temporary file."""
    handle_ending(interrupt)
    reason = None
    if sys.stdout:
        sys.stdout.reconfigure(errors="backslashreplace")  # for names that the terminal cannot show
        sys.stdout = Stdout(sys.stdout)
    try:
        try:
            main()
        finally:
            flush_stdout()
    except StdoutFailed as failure:
        reason = str(failure)
    except KeyboardInterrupt as interruption:
        reason = str(interruption) or "interrupted"
    except BrokenProcessPool:
        reason = WORKER_DIED
    finally:
        for number in (*ENDING, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)  # cleaning up is quick
        for path in list(TEMPORARIES):
            with contextlib.suppress(OSError):
                os.remove(path)
    if reason:
        fail(reason)


ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU)  # beside Ctrl-C; Python ignores SIGXFSZ, whose write fails


def handle_ending(handler):
    """Sets the handler of ENDING, but of those ignored from the beginning (nohup); returns the ones before."""
    numbers = [number for number in ENDING if signal.getsignal(number) != signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in numbers}


def interrupt(number, _):
    raise KeyboardInterrupt(f"interrupted by {signal.Signals(number).name}")


@contextlib.contextmanager
def ending_waits():
    """Defers ENDING to the end of the block; a process started in the block inherits them blocked."""
    came = []
    handlers = handle_ending(lambda number, _: came.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line and exit code 1, like those of the C programs.

    Of an unknown option that line names the nearest one.
    """

    def __init__(self, doc):
        super().__init__(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)

    def error(self, message):
        unknown = re.search(r"unrecognized arguments: (?:.* )?(-[^ =]+)", message)
        near = difflib.get_close_matches(unknown[1], self._option_string_actions, 1) if unknown else ()
        meant = "".join(f"did you mean {name}? " for name in near)
        fail(f"{message}; {meant}{os.path.basename(self.prog)} --help lists the options")


def mirror_folder(path):
    if path and not os.path.isdir(path):
        fail(f"the mirror {path} is not a folder (from --mirror or DATA_MIRROR)")
    return path


def add_mirror_option(parser):
    parser.add_argument(
        "--mirror",
        type=mirror_folder,
        default=os.environ.get("DATA_MIRROR") or None,
        metavar="DIR",
        help="a local folder that holds the raw files, anywhere below it (default: the environment's DATA_MIRROR)",
    )


def add_workers_option(parser):
    parser.add_argument(
        "--workers",
        type=positive_int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes that tokenise (default: the %(default)s processors of this machine)",
    )


def ordered_map(function, items, workers):
    """Yields function(*item) for each item, in order, by `workers` processes with at most 4 items each in flight.

    The processes are spawned: a fork during a download could inherit a lock that the downloading thread holds. A caller
    that stops early closes the generator, which waits for the items that workers have begun; a worker that dies raises
    BrokenProcessPool.
    """
    if workers == 1:
        for item in items:
            yield function(*item)
        return
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, spawn, initializer=begin_worker)
    pending = deque()
    try:
        for item in items:
            with ending_waits():  # it may start a worker
                pending.append(pool.submit(function, *item))
            if len(pending) == 4 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def begin_worker():
    """Initialises a worker: it leaves signals to its parent, and ends with the parent, however that ends.

    A pool whose workers die first can block forever, so on SIGTERM a worker gives the parent time to end; a broken pool
    sends SIGTERM, too.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    handle_ending(lambda *_: threading.Thread(target=end_later, daemon=True).start())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    threading.Thread(target=end_with_parent, daemon=True).start()


def end_later():
    time.sleep(5)
    os._exit(1)


def end_with_parent():
    multiprocessing.parent_process().join()
    os._exit(1)


def positive_int(text):
    """An argparse type: an integer of at least 1; accepts underscores and powers such as 1e8."""
    try:
        value = float(text)
        if value >= 1 and value == int(value):
            return int(value)
    except (ValueError, OverflowError):
        pass
    raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of at least 1")


# ----------------------------------------------------------------------------
# Atomic output files: complete, or absent


@contextlib.contextmanager
def errors_name(path):
    """Turns an operating system error inside the block into one line that names the path."""
    try:
        yield
    except OSError as error:
        fail(f"cannot write {path}: {error.strerror or error}")


NOT_SUPPORTED = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)  # the file system does not have the call
noted = set()


@contextlib.contextmanager
def passes_over_missing_fsync(what, path, *also):
    """Notes once where the file system has no fsync of `what`, by NOT_SUPPORTED and `also`; other errors pass."""
    try:
        yield
    except OSError as error:
        if error.errno not in (*NOT_SUPPORTED, *also):
            raise
        if what not in noted:
            print(f"note: the file system of {path} has no fsync of {what} ({error.strerror})", file=sys.stderr)
        noted.add(what)


def sync_directory(path):
    """Brings the names of a folder's files onto the disk, where its file system can."""
    with passes_over_missing_fsync("directories", path, errno.EACCES, errno.EBADF):  # it is opened for reading alone
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def make_directory(path, alone=False):
    """Makes a folder. alone: waits for other processes that have it so, and has it until this one ends."""
    with errors_name(path):
        os.makedirs(path or ".", exist_ok=True)
    if alone:
        lock_folder(os.path.realpath(path or "."))


@functools.cache  # a process that has the folder need not wait for itself
def lock_folder(path):
    with contextlib.suppress(OSError):  # a file system without locks, or a folder that cannot be read
        folder = os.open(path, os.O_RDONLY)  # the folder itself: no file of a lock is left
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"note: another call writes to {path}; this one goes on when that has ended", file=sys.stderr)
            fcntl.flock(folder, fcntl.LOCK_EX)


def write_atomically(path, *parts):
    """Writes the parts (bytes-like objects) to `path`, as OutputFile does."""
    with OutputFile(path) as out:
        for part in parts:
            out.write(part)
        out.finish()


TEMPORARIES = set()  # existing temporary files, which run() removes after an interruption


class OutputFile:
    """Writes to <path>.tmp. finish() flushes it to the disk, renames it to <path> and flushes the folder; without it
    nothing remains.

    close() and publish() are the two halves of finish(), for callers whose files must appear together.
    """

    def __init__(self, path):
        self.path = path
        self.temporary = f"{path}.tmp"
        with errors_name(path):
            if os.path.isdir(path):
                raise IsADirectoryError(21, "it is a directory")
            if os.path.exists(path) and not os.path.isfile(path):  # the rename would replace it
                raise OSError(22, "it is a pipe or a device, not a file")
            TEMPORARIES.add(self.temporary)
            self.file = open(self.temporary, "wb")  # noqa: SIM115 (closed by close() or __exit__)

    def write(self, data):
        with errors_name(self.path):
            self.file.write(data)

    def close(self):
        with errors_name(self.path):
            self.file.flush()
            with passes_over_missing_fsync("files", self.path):
                os.fsync(self.file.fileno())
            self.file.close()

    def publish(self):
        with errors_name(self.path):
            os.replace(self.temporary, self.path)
            sync_directory(os.path.dirname(self.path) or ".")

    def finish(self):
        self.close()
        self.publish()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):
            self.file.close()
        with contextlib.suppress(OSError):
            os.remove(self.temporary)  # fails after publish(), which has renamed it
        TEMPORARIES.discard(self.temporary)


def pack_header(*ints):
    return struct.pack(f"<{HEADER_INTS}i", *ints, *[0] * (HEADER_INTS - len(ints)))


class CheckedFile(OutputFile):
    """A file whose header holds the checksums of its body; `header`, ints, may change until the file is closed."""

    def __init__(self, path, *header):
        super().__init__(path)
        self.header = header
        self.checksums = checksum.BlockChecksums()
        super().write(bytes(HEADER_BYTES))

    def write(self, data):
        self.checksums.update(data)
        super().write(data)

    def close(self):
        if self.file.closed:
            return
        with errors_name(self.path):
            self.file.seek(0)
            self.file.write(self.checksums.complete(pack_header(*self.header)))
        super().close()


def write_checked(path, header, body):
    """Writes a file with checksums, atomically; `header` is a sequence of ints."""
    with CheckedFile(path, *header) as out:
        out.write(body)
        out.finish()


def verify(path):
    """Ends the program with one line if a file does not match its checksums. Returns False if it has none."""
    try:
        return checksum.verify(path)
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}")
    except checksum.CorruptFile as error:
        fail(error)


# ----------------------------------------------------------------------------
# Token files


def pack_tokens(tokens, vocab_size):
    """Returns tokens as little-endian bytes: uint16, or uint32 if the vocabulary does not fit in 16 bits.

    `tokens` is bytes (each byte a token) or a sequence of integers. Raises ValueError for one not below vocab_size.
    """
    if isinstance(tokens, (bytes, bytearray, memoryview)):
        packed = bytearray(2 * len(tokens))  # little-endian uint16: the byte, then zero
        packed[::2] = tokens
        return packed
    if len(tokens) and not 0 <= min(tokens) <= max(tokens) < vocab_size:
        raise ValueError(f"a token lies outside the vocabulary of {vocab_size}")
    packed = array("H" if vocab_size <= 1 << 16 else "I", tokens)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def item_bytes(vocab_size):
    return 2 if vocab_size <= 1 << 16 else 4


class TokenFile(CheckedFile):
    """A token file that is written in pieces; its header is completed when it is closed."""

    def __init__(self, path, vocab_size):
        super().__init__(path)
        self.vocab_size = vocab_size
        self.count = 0

    def append(self, tokens):
        self.append_packed(pack_tokens(tokens, self.vocab_size))

    def append_packed(self, data):
        self.write(data)
        self.count += len(data) // item_bytes(self.vocab_size)

    def close(self):
        if self.count >= 1 << 31:
            fail(f"{self.path} would hold {self.count:,} tokens; a file holds fewer than 2^31: use smaller shards")
        self.header = *(TOKENS_UINT16 if self.vocab_size <= 1 << 16 else TOKENS_UINT32), self.count, self.vocab_size
        super().close()


def split_names(prefix, split):
    """A pattern that matches the file names of a split."""
    return re.compile(re.escape(os.path.basename(f"{prefix}_{split}")) + r"(_\d{6})?\.bin")


def is_token_file(path):
    with errors_name(path), open(path, "rb") as f:
        return f.read(8) in (struct.pack("<2i", *magic) for magic in (TOKENS_UINT16, TOKENS_UINT32))


class SplitWriter:
    """The token files of one split, <prefix>_<split>.bin or, if it fills several, <prefix>_<split>_000000.bin, ...

    No file appears before publish(), which then removes an earlier run's files of the split: a trainer that reads
    <prefix>_<split>*.bin must not mix the two.
    """

    def __init__(self, prefix, split, vocab_size, shard_tokens=100_000_000):
        self.stem = f"{prefix}_{split}"
        self.names = split_names(prefix, split)
        folder = os.path.dirname(self.stem) or "."
        for path in (os.path.join(folder, name) for name in os.listdir(folder) if self.names.fullmatch(name)):
            if not is_token_file(path):
                fail(f"{path} is no token file, and would be replaced or removed; move it, or choose another --output")
        self.vocab_size, self.shard_tokens = vocab_size, shard_tokens
        self.files = []

    def append_packed(self, data):
        width = item_bytes(self.vocab_size)
        data = memoryview(data)
        while len(data):
            if not self.files or self.files[-1].count == self.shard_tokens:
                if self.files:
                    self.files[-1].close()
                self.files.append(TokenFile(f"{self.stem}_{len(self.files):06d}.bin", self.vocab_size))
            room = (self.shard_tokens - self.files[-1].count) * width
            self.files[-1].append_packed(data[:room])
            data = data[room:]

    @property
    def count(self):
        return sum(file.count for file in self.files)

    def close(self):
        if len(self.files) == 1:
            self.files[0].path = f"{self.stem}.bin"
        for file in self.files:
            file.close()

    def publish(self):
        for file in self.files:
            file.publish()
            print(f"{file.path}: {file.count:,} tokens")
        folder = os.path.dirname(self.stem) or "."
        written = {os.path.basename(file.path) for file in self.files}
        for name in sorted(os.listdir(folder)):
            if self.names.fullmatch(name) and name not in written:
                with errors_name(os.path.join(folder, name)):
                    os.remove(os.path.join(folder, name))
                print(f"{os.path.join(folder, name)}: removed, an earlier run left it")

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for file in self.files:
            file.__exit__(*exception)


@contextlib.contextmanager
def open_splits(prefix, vocab_size, shard_tokens=100_000_000):
    """Yields (train, val), two SplitWriters, and publishes both if the block succeeds; otherwise nothing remains."""
    train, val = (SplitWriter(prefix, split, vocab_size, shard_tokens) for split in ("train", "val"))
    with train, val:
        yield train, val
        train.close()
        val.close()
        train.publish()
        val.publish()


def read_token_file(path):
    """Returns (tokens as an array, vocab_size or 0). Ends the program with one line if the token file is not valid."""
    try:
        with open(path, "rb") as f:
            data = f.read()
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}")
    if len(data) < HEADER_BYTES:
        fail(f"{path} ends inside its header")
    magic, version, count, vocab_size = struct.unpack_from("<4i", data)
    if (magic, version) not in (TOKENS_UINT16, TOKENS_UINT32):
        fail(f"{path} is not a token file: magic number {magic}, version {version}")
    tokens = array("H" if magic == TOKENS_UINT16[0] else "I")
    if len(data) != HEADER_BYTES + count * tokens.itemsize:
        fail(f"{path} holds {len(data) - HEADER_BYTES} bytes of tokens, its header says {count * tokens.itemsize}")
    verify(path)
    tokens.frombytes(data[HEADER_BYTES:])
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens, vocab_size


def write_evaluation_file(path, examples):
    """Writes multiple-choice examples: dicts with label, ctx_tokens and ending_tokens (a list of token lists).

    Header: [2] number of examples, [3] bytes of the longest. Each example is a run of uint16: 65535 as its first mark,
    its length in bytes, its index, the label, the number of endings, then the context and each ending, every one led
    by its length in tokens.
    """
    if len(examples) >= 1 << 16:
        fail(f"{path}: {len(examples):,} examples, and the format counts them in 16 bits")
    body = bytearray()
    longest = 0
    for index, example in enumerate(examples):
        words = [0xFFFF, 0, index, example["label"], len(example["ending_tokens"])]
        for tokens in [example["ctx_tokens"], *example["ending_tokens"]]:
            words += [len(tokens), *tokens]
        words[1] = 2 * len(words)
        if words[1] >= 1 << 16:
            fail(f"{path}: example {index} takes {words[1]:,} bytes, and the format counts them in 16 bits")
        longest = max(longest, words[1])
        body += pack_tokens(words, 1 << 16)
    write_checked(path, (*EVALUATION, len(examples), longest), body)
    print(f"{path}: {len(examples):,} examples")


# ----------------------------------------------------------------------------
# GPT-2's tokenizer: tokenize_gpt2 if it is built, else tiktoken. Their tokens are the same.

VOCABULARY_URL = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe"
VOCABULARY_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
TABLE_SHA256 = "a622700e3255b4a6186e052c4c715c1d05634cb6041c12ab6c95c9ee0a2c9772"  # gpt2_tokenizer.bin after its header


def use_tiktoken_mirror(mirror):
    """Sets tiktoken's cache to a folder `tiktoken` in the mirror, if it has one, so that no network is needed."""
    if mirror and "TIKTOKEN_CACHE_DIR" not in os.environ:
        for folder, names, _ in walk_mirror(mirror):
            if "tiktoken" in names:
                os.environ["TIKTOKEN_CACHE_DIR"] = os.path.join(folder, "tiktoken")
                break


def gpt2_tokens(mirror=None):
    """The bytes of GPT-2's tokens, in the order of their ids, from vocab.bpe: 256 bytes, then a merge a line.

    The file is taken from tiktoken's cache, a mirror, or the network, and then kept in the cache, as tiktoken does.
    """
    use_tiktoken_mirror(mirror)
    cache = os.environ.get("TIKTOKEN_CACHE_DIR") or os.path.join(tempfile.gettempdir(), "data-gym-cache")
    cached = os.path.join(cache, hashlib.sha1(VOCABULARY_URL.encode()).hexdigest())
    path = obtain(VOCABULARY_URL, cached, mirror, sha256=VOCABULARY_SHA256)
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]  # written as themselves
    others = [byte for byte in range(256) if byte not in printable]  # written as U+0100, U+0101, ...
    tokens = [bytes([byte]) for byte in printable + others]
    byte_of = {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}
    with open(path, encoding="utf-8") as f:
        next(f)  # the version
        tokens += [bytes(byte_of[c] for c in line if c not in " \n") for line in f]
    return [*tokens, b"<|endoftext|>"]


class NativeEncoding:
    """`tokenize_gpt2 serve` with GPT-2's vocabulary, with the part of the interface of tiktoken's encoding used here.

    The process starts with the first text, and ends when its pipe closes: with this object, or with this process.
    """

    n_vocab, eot_token = GPT2_VOCAB_SIZE, GPT2_EOT

    def __init__(self, program, table):
        self.command = [program, "serve", "--tokenizer", table]
        self.name = "TOKENIZE_GPT2=" * ("TOKENIZE_GPT2" in os.environ) + program
        self.process = None

    def encode_ordinary(self, text):
        """Returns the tokens of a text, an array; replaces lone surrogates by U+FFFD, as tiktoken does."""
        try:
            data = text.encode()
        except UnicodeEncodeError:
            data = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
        if self.process is None:
            pipe = subprocess.PIPE
            try:
                self.process = subprocess.Popen(self.command, stdin=pipe, stdout=pipe, stderr=pipe)
            except OSError as error:
                fail(f"cannot run {self.name}: {error.strerror}")
        tokens = array("H")
        try:
            self.process.stdin.write(struct.pack("=I", len(data)))
            self.process.stdin.write(data)
            self.process.stdin.flush()
            (count,) = struct.unpack("=I", self.process.stdout.read(4))
            tokens.frombytes(self.process.stdout.read(2 * count))
        except (OSError, ValueError, struct.error):
            count = None
        if len(tokens) != count:
            reason = self.process.stderr.read().decode(errors="replace").strip() or "it has ended"
            fail(f"{self.name}: {reason.removeprefix('error: ')}")
        return tokens

    def decode_single_token_bytes(self, token):
        """The bytes of a token: the table has a length byte and the bytes of each."""
        with open(self.command[-1], "rb") as f:
            table = f.read()
        at = HEADER_BYTES
        for _ in range(token):
            at += 1 + table[at]
        return table[at + 1 : at + 1 + table[at]]


def native_program():
    """The path of tokenize_gpt2, or None. The variable TOKENIZE_GPT2 overrides it; if empty, none is used."""
    path = os.environ.get("TOKENIZE_GPT2", os.path.join(ROOT, "tokenize_gpt2"))
    if os.path.isfile(path) and os.access(path, os.X_OK):
        return path
    if os.environ.get("TOKENIZE_GPT2"):
        fail(f"TOKENIZE_GPT2={path}: no such program; leave it out for this project's, or empty for tiktoken")
    return None


@functools.cache
def is_gpt2_table(path):
    """Whether a file is GPT-2's gpt2_tokenizer.bin."""
    try:
        with open(path, "rb") as f:
            return hashlib.sha256(f.read()[HEADER_BYTES:]).hexdigest() == TABLE_SHA256
    except OSError:
        return False


def tiktoken_encoding():
    try:
        import tiktoken
    except ImportError:
        fail("GPT-2 tokens need tokenize_gpt2 (make builds it) or the Python package tiktoken; bytes need neither")
    try:
        return tiktoken.get_encoding("gpt2")
    except Exception as error:  # noqa: BLE001 (tiktoken passes on whatever its HTTP client raises)
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        fail(f"tiktoken cannot load GPT-2's vocabulary ({reason}); DATA_MIRROR=DIR takes it from DIR/tiktoken")


@functools.cache
def gpt2_encoding():
    """GPT-2's encoding, one per process. prepare_gpt2() sets the table's path, for worker processes, too."""
    program = native_program()
    table = os.environ.get("GPT2_TABLE", os.path.join(ROOT, "gpt2_tokenizer.bin"))
    return NativeEncoding(program, table) if program and is_gpt2_table(table) else tiktoken_encoding()


def pack_gpt2_document(text, starts_document=True, allow_special=False):
    """The GPT-2 tokens of a text as uint16 bytes, preceded by <|endoftext|> if it begins a document. allow_special:
    <|endoftext|> in the text is the token, too."""
    tokens = array("H", [GPT2_EOT] if starts_document else [])
    for number, part in enumerate(text.split(GPT2_EOT_TEXT) if allow_special else [text]):
        if number:
            tokens.append(GPT2_EOT)
        tokens.extend(gpt2_encoding().encode_ordinary(part))
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens.tobytes()


def prepare_gpt2(mirror=None, folder=None):
    """Loads the encoding, and writes the C programs' table, gpt2_tokenizer.bin, if it is missing: in the folder of
    --output or, without one, at the root, where the trainers look for it."""
    path = os.path.join(ROOT if folder is None else folder, "gpt2_tokenizer.bin")
    use_tiktoken_mirror(mirror)
    if not native_program():
        tiktoken_encoding()  # fail before anything is written
    if not os.path.exists(path):
        make_directory(os.path.dirname(path))
        write_gpt2_tokenizer(path, mirror)
    if native_program() and not is_gpt2_table(path):
        print(f"{path} is not GPT-2's: it stays, and tiktoken makes the tokens", file=sys.stderr)
    os.environ["GPT2_TABLE"] = os.path.abspath(path)
    return gpt2_encoding()


def write_gpt2_tokenizer(path, mirror=None):
    """Writes the C programs' table for encoding and decoding: a copy of the root's, or made from vocab.bpe."""
    root = os.path.join(ROOT, "gpt2_tokenizer.bin")
    here = os.path.abspath(path) == root
    if not here and is_gpt2_table(root):
        with open(root, "rb") as f:
            write_checked(path, (*TOKENIZER, GPT2_VOCAB_SIZE, GPT2_EOT), f.read()[HEADER_BYTES:])
    else:
        write_tokenizer(path, gpt2_tokens(mirror), GPT2_EOT)
    print(f"{path}: {GPT2_VOCAB_SIZE:,} entries" + ("" if here else f"; the trainers read it with --tokenizer {path}"))


def write_tokenizer(path, tokens, eot_token):
    """Writes a tokenizer file: each token as a length byte and its bytes; header[3] is the token that begins a text."""
    table = b"".join(bytes([len(token)]) + token for token in tokens)
    write_checked(path, (*TOKENIZER, len(tokens), eot_token), table)


# ----------------------------------------------------------------------------
# Raw files: local, in a mirror, or on the network


def walk_mirror(mirror):
    for folder, names, files in os.walk(mirror):
        names.sort()
        yield folder, names, sorted(files)


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        for block in iter(lambda: f.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def fault_of(path, size, sha256):
    """Returns what is wrong with a raw file, or None: compares its size and checksum if they are known."""
    if size is not None and os.path.getsize(path) != size:
        return f"{os.path.getsize(path):,} bytes instead of {size:,}"
    if sha256 is not None and sha256_of(path) != sha256:
        return "its SHA-256 differs"
    return None


def find_in_mirror(mirror, names, size=None, sha256=None):
    """The first valid file below `mirror` with one of the names, or None."""
    for folder, _, files in walk_mirror(mirror):
        for name in files:
            path = os.path.join(folder, name)
            if name in names:
                fault = fault_of(path, size, sha256)
                if fault is None:
                    return path
                print(f"passing over {path}: {fault}", file=sys.stderr)
    return None


class Progress:
    """A progress line, rewritten in place on a terminal and not printed elsewhere."""

    def __init__(self, what, total):
        self.what, self.total, self.start, self.shown = what, total, time.monotonic(), 0.0

    def update(self, done):
        now = time.monotonic()
        if not sys.stderr.isatty() or now - self.shown < 0.2:
            return
        self.shown = now
        rate = done / max(now - self.start, 1e-9)
        share = f" {100 * done / self.total:5.1f}%" if self.total else ""
        left = f", {(self.total - done) / rate:,.0f} s left" if self.total and rate > 0 else ""
        print(f"\r{self.what}{share} {done / 1e6:,.1f} MB, {rate / 1e6:.1f} MB/s{left} ", end="\x1b[K", file=sys.stderr)

    def finish(self):
        if self.shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def download(url, path, size=None, sha256=None, attempts=3):
    """Fetches url to path. The file appears only when it is complete and its size and checksum match."""
    print(f"downloading {url}", flush=True)
    for attempt in range(1, attempts + 1):
        try:
            with urllib.request.urlopen(url, timeout=30) as response, OutputFile(path) as out:
                expected = response.headers.get("Content-Length")
                expected = int(expected) if expected else None
                progress = Progress(os.path.basename(path), expected)
                done = 0
                for block in iter(lambda: response.read(1 << 20), b""):
                    out.write(block)
                    done += len(block)
                    progress.update(done)
                progress.finish()
                out.close()
                fault = fault_of(out.temporary, expected if size is None else size, sha256)
                if fault is None:
                    out.publish()
                    return
                reason = (
                    f"what came has {fault}" if "bytes" in fault else "what came is another file: its SHA-256 differs"
                )
        except urllib.error.HTTPError as error:
            fail(f"cannot download {url}: HTTP status {error.code}")
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = str(getattr(error, "reason", error))
        if attempt < attempts:
            print(f"attempt {attempt} failed ({reason}); trying again", file=sys.stderr)
            time.sleep(attempt)
    fail(f"cannot download {url}: {reason}; --mirror DIR (or DATA_MIRROR) takes the file from a local folder instead")


def obtain(url, path, mirror=None, other_names=(), size=None, sha256=None):
    """The path of a raw file: `path` if it exists and is valid, else one in the mirror, else `path`, downloaded."""
    if os.path.exists(path):
        if fault_of(path, size, sha256) is None:
            return path
        print(f"{path} is not the file that it should be; fetching it again", file=sys.stderr)
    if mirror:
        names = dict.fromkeys([os.path.basename(url), *other_names, os.path.basename(path)])
        found = find_in_mirror(mirror, names, size, sha256)
        if found:
            return found
        print(f"the mirror {mirror} does not hold {' or '.join(names)}", file=sys.stderr)
    make_directory(os.path.dirname(path))
    download(url, path, size, sha256)
    return path
