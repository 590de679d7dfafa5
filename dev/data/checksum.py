"""CRC32C with nothing but the standard library, and the checksum words in the headers of our files.

A file is a header of 256 int32, then its body, which is checked in blocks, so that a fault has a place. These words of
the header, which llm.c ignores, are ours (llmc/base/checked_file.h reads and writes the same):

    [124]       0x43524343, the mark; a file without it carries no checksums
    [125]       log2 of the bytes of a block: the smallest from 16 on (64 KiB) with which 128 blocks hold the body
    [126]       number of blocks; the last may be short
    [127]       CRC32C of the whole header with this word 0
    [128..255]  CRC32C of each block, then zeros
"""

import functools
import os
import struct
import sys

if sys.version_info < (3, 9):  # noqa: UP036, older ones come by: all data scripts import this
    sys.exit(f"error: Python {sys.version.split()[0]} is too old: run the script with 3.9 or newer")

HEADER_BYTES = 1024
MARK, LOG2_BLOCK, BLOCKS, HEADER_CRC, BLOCK_CRCS, HEADER_WORDS = 124, 125, 126, 127, 128, 256  # words of the header
MARK_VALUE = 0x43524343
MAX_BLOCKS = 128
SMALLEST_LOG2 = 16

POLYNOMIAL = (
    0x82F63B78  # x^32 + x^28 + ... + 1 (Castagnoli et al. 1993), reflected: the highest power is the lowest bit
)
MULTIPLE = 6777, 484, 100  # the polynomial divides x^6777 + x^484 + x^100 + 1


def next_table_entry(crc):
    for _ in range(8):
        crc = crc >> 1 ^ (POLYNOMIAL if crc & 1 else 0)
    return crc


TABLE = [next_table_entry(byte) for byte in range(256)]


def crc32c(data, crc=0):
    """CRC32C (RFC 3720, B.4) of a message whose beginning has the CRC `crc`, and whose rest is `data`: 300 MB/s.

    A CRC is the remainder of a polynomial over GF(2), the message, by another. Python shifts and XORs long integers
    fast, so the message is one integer, whose lowest bit is the first bit of the first byte: the highest power.

    Let x^a + x^b + x^c + 1 be a multiple of the divisor. Then x^a leaves the remainder of x^b + x^c + 1, and any power
    x^(a+i) that of x^(b+i) + x^(c+i) + x^i: a bit may be cleared if those a-b, a-c and a places above it are flipped.
    So the t lowest bits are folded into the others at once, if t <= a-b (no cleared bit is flipped again) and t <= n-a
    (no flipped bit lies beyond the n bits of the message). The square of a multiple is a multiple, with all exponents
    doubled: folding by the largest that fits about halves the message. The table divides the last 850 bytes.
    """
    crc ^= 0xFFFFFFFF  # by definition, the message's first 32 bits and the remainder are inverted
    n = 8 * len(data)
    if n >= 2 * MULTIPLE[0]:
        message = int.from_bytes(data, "little") ^ crc
        while n >= MULTIPLE[0] + 8:
            square = ((n - 8) // MULTIPLE[0]).bit_length() - 1
            a, b, c = (exponent << square for exponent in MULTIPLE)
            t = min(a - b, n - a) & ~7
            low = message & ((1 << t) - 1)
            message = message >> t ^ (low ^ low << (b - c) ^ low << b) << (a - b - t)
            n -= t
        data, crc = message.to_bytes(n // 8, "little"), 0
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


@functools.cache
def zeros_matrix(log2_bytes):
    """The linear map that 2^log2_bytes zero bytes apply to a message's remainder: the image of each of its 32 bits."""
    if log2_bytes == 0:
        return [(1 << i) >> 8 ^ TABLE[(1 << i) & 0xFF] for i in range(32)]
    half = zeros_matrix(log2_bytes - 1)
    return [apply(half, column) for column in half]


def apply(matrix, vector):
    result = 0
    for i, column in enumerate(matrix):
        if vector >> i & 1:
            result ^= column
    return result


def combine(first, second, log2_bytes):
    """The CRC of two concatenated pieces, from the CRC of each; the second has 2^log2_bytes bytes."""
    return apply(zeros_matrix(log2_bytes), first) ^ second


class BlockChecksums:
    """The block CRCs of a body that is written in pieces, and whose length is known only at its end.

    Blocks start at the smallest size; when 128 are full and more data comes, pairs merge into blocks of twice the size.
    """

    def __init__(self):
        self.log2_block = SMALLEST_LOG2
        self.crcs = []
        self.room = 0  # bytes left in the last block
        self.pending = bytearray()

    def update(self, data):
        data = memoryview(data).cast("B")
        while len(data):
            piece = data[: (1 << SMALLEST_LOG2) - len(self.pending)]
            data = data[len(piece) :]
            self.pending += piece
            if len(self.pending) == 1 << SMALLEST_LOG2:
                self.flush()

    def flush(self):
        """Adds the pending bytes, which fill a block of the smallest size except at the end of the body."""
        if self.room == 0:
            if len(self.crcs) == MAX_BLOCKS:
                pairs = zip(self.crcs[::2], self.crcs[1::2])
                self.crcs = [combine(first, second, self.log2_block) for first, second in pairs]
                self.log2_block += 1
            self.crcs.append(0)
            self.room = 1 << self.log2_block
        self.crcs[-1] = crc32c(self.pending, self.crcs[-1])
        self.room -= len(self.pending)
        self.pending.clear()

    def complete(self, header):
        """Returns the header with its checksum words; to be called after the whole body."""
        if self.pending:
            self.flush()
        header = bytearray(header)
        words = [MARK_VALUE, self.log2_block, len(self.crcs), 0, *self.crcs]
        struct.pack_into(f"<{len(words)}I", header, 4 * MARK, *words)
        struct.pack_into("<I", header, 4 * HEADER_CRC, crc32c(header))
        return bytes(header)


class CorruptFile(ValueError):
    """A file does not match its checksums; the text is one line that names the file and the bytes."""


def read_header(file, path):
    """The 256 words of an open file's header, unsigned."""
    header = file.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        raise CorruptFile(f"{path} ends inside its header")
    return struct.unpack(f"<{HEADER_WORDS}I", header)


def verify(path):
    """Checks a file against its checksums. Returns True if all match, False if it has none. Raises CorruptFile."""
    with open(path, "rb") as file:
        words = read_header(file, path)
        if not any(words[MARK:]):
            return False
        header = struct.pack(f"<{HEADER_WORDS}I", *words[:HEADER_CRC], 0, *words[BLOCK_CRCS:])
        if words[MARK] != MARK_VALUE or words[HEADER_CRC] != crc32c(header):
            last = HEADER_BYTES - 1
            raise CorruptFile(f"{path}: its header (bytes 0 to {last}) does not have its checksum; the file is corrupt")
        size = os.fstat(file.fileno()).st_size
        if (words[LOG2_BLOCK], words[BLOCKS]) != division(size - HEADER_BYTES):
            raise CorruptFile(
                f"{path} has {size} bytes, for which its header has not as many checksums; it is truncated or has "
                "trailing bytes"
            )
        for crc in words[BLOCK_CRCS : BLOCK_CRCS + words[BLOCKS]]:
            begin = file.tell()
            if crc != crc_of_next(file, 1 << words[LOG2_BLOCK]):
                last = file.tell() - 1
                raise CorruptFile(f"{path}: bytes {begin} to {last} do not have their checksum; the file is corrupt")
    return True


def division(size):
    """Returns log2 of the block size and the number of blocks for a body of `size` bytes."""
    log2_block = SMALLEST_LOG2
    while size > MAX_BLOCKS << log2_block:
        log2_block += 1
    return log2_block, -(-size >> log2_block)


def crc_of_next(file, size):
    crc = 0
    while size and (piece := file.read(min(size, 1 << 20))):
        crc = crc32c(piece, crc)
        size -= len(piece)
    return crc
