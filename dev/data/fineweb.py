#!/usr/bin/env python3
"""FineWeb and FineWeb-Edu (Penedo et al. 2024) as shards of 100 M GPT-2 tokens; the first shard is for validation.

    python3 dev/data/fineweb.py                            # fineweb10B: about 104 shards, 20 GB; fetches 28 GB
    python3 dev/data/fineweb.py --max-shards 11            # the first 1.1 G tokens of it: 2.2 GB; fetches 4.3
    python3 dev/data/fineweb.py --type edu --version 100B  # edu_fineweb100B: 200 GB

A core tokenises 8 M tokens a second with tokenize_gpt2, or 2.6 M with the package tiktoken, if tokenize_gpt2 is not
built. Needs the Python package pyarrow. Raw files are prefetched one ahead, and removed when no longer needed. A mirror
holds them as on Hugging Face, with the dataset's name and sample/10BT in their path. After an interruption, the same
command continues at the first missing shard; the shards are those of an uninterrupted run.
"""

import contextlib
import http.client
import json
import os
import threading
import urllib.request
from array import array
from concurrent.futures import Future

from data_common import (
    GPT2_VOCAB_SIZE,
    HERE,
    Parser,
    TokenFile,
    add_mirror_option,
    add_workers_option,
    fail,
    make_directory,
    obtain,
    ordered_map,
    pack_gpt2_document,
    positive_int,
    prepare_gpt2,
    run,
    walk_mirror,
    write_atomically,
)

HUB = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"  # the variable that Hugging Face's own tools read
DATASETS = {"classic": ("fineweb", ""), "edu": ("fineweb-edu", "edu_")}  # name on the hub, prefix of our files
DOCUMENTS_PER_TASK = 64
TOKEN_BYTES = 2


class HubFiles:
    """The raw files of a sample on Hugging Face, prefetched one ahead."""

    def __init__(self, dataset, sample, folder):
        self.folder = folder
        base = f"{HUB}/datasets/HuggingFaceFW/{dataset}/resolve/main"
        listing = f"{HUB}/api/datasets/HuggingFaceFW/{dataset}/tree/main/{sample}"
        try:
            with urllib.request.urlopen(listing, timeout=30) as response:
                entries = json.load(response)
            parquet = [entry for entry in entries if entry["path"].endswith(".parquet")]
            self.files = sorted((f"{base}/{e['path']}", e["size"], e.get("lfs", {}).get("oid")) for e in parquet)
        except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException) as error:
            fail(f"cannot list {listing}: {error}; HF_ENDPOINT names another server, --mirror DIR a local folder")
        if not self.files:
            fail(f"{listing} names no parquet files")
        self.fetched = {}

    def __len__(self):
        return len(self.files)

    def fetch(self, index):
        url, size, sha256 = self.files[index]
        return obtain(url, os.path.join(self.folder, os.path.basename(url)), size=size, sha256=sha256)

    def path(self, index):
        """Waits for a file and returns its path; starts to fetch the next one."""
        self.begin(index)
        path = self.fetched[index].result()
        self.begin(index + 1)
        return path

    def begin(self, index):
        if index < len(self) and index not in self.fetched:
            self.fetched[index] = Future()
            threading.Thread(target=self.fetch_into, args=(self.fetched[index], index), daemon=True).start()

    def fetch_into(self, future, index):
        """Run by a daemon thread, so that the program's end does not wait for a download."""
        try:
            future.set_result(self.fetch(index))
        except BaseException as error:  # noqa: BLE001 (raised again by the thread that waits)
            future.set_exception(error)

    def discard_before(self, index):
        for url, _, _ in self.files[:index]:
            with contextlib.suppress(FileNotFoundError):
                os.remove(os.path.join(self.folder, os.path.basename(url)))


class MirrorFiles:
    """The raw files of a sample in a local folder, which are not removed."""

    def __init__(self, dataset, sample, mirror):
        wanted = [dataset, *sample.split("/")]  # as folders, in this order
        self.paths = []
        for folder, _, files in walk_mirror(mirror):
            parts = iter(os.path.relpath(folder, os.path.dirname(os.path.abspath(mirror))).split(os.sep))
            if all(name in parts for name in wanted):
                self.paths += [os.path.join(folder, name) for name in files if name.endswith(".parquet")]

    def __len__(self):
        return len(self.paths)

    def path(self, index):
        return self.paths[index]

    def discard_before(self, index):
        pass


def read_documents(source, first_file, first_row):
    """Yields (file, row of the first, texts) from a position on, a few documents at a time."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        fail("FineWeb's files need the Python package pyarrow: pip install pyarrow")
    for index in range(first_file, len(source)):
        path = source.path(index)
        try:
            table = parquet.ParquetFile(path)
            if "text" not in table.schema_arrow.names:
                fail(f"{path} has no column text")
            if not table.metadata.num_rows:
                fail(f"{path} holds no documents")
            row = 0
            for batch in table.iter_batches(DOCUMENTS_PER_TASK, columns=["text"]):
                skip = max(first_row - row, 0) if index == first_file else 0
                if skip < len(batch):
                    texts = batch.column(0).to_pylist()
                    for i, text in enumerate(texts):
                        if not isinstance(text, str):
                            fail(f"{path}, row {row + i}: text is {'null' if text is None else type(text).__name__}")
                    yield index, row + skip, texts[skip:]
                row += len(batch)
        except (ArrowException, OSError, ValueError) as error:
            fail(f"{path} is not a parquet file of UTF-8 text: {(str(error) or type(error).__name__).splitlines()[0]}")


def pack_documents(file, row, texts):
    """A worker's task. Returns (documents as uint16 bytes, file, row of the first, bytes of each document)."""
    packed = [pack_gpt2_document(text) for text in texts]
    return b"".join(packed), file, row, array("q", map(len, packed))


class Shards:
    """Writes the token stream as files of equal size and, after each, the position in the source where the next begins.

    Drops all tokens after `limit` shards.
    """

    def __init__(self, stem, shard_tokens, source, place, limit):
        self.limit = limit
        self.stem, self.shard_bytes, self.source, self.place = stem, shard_tokens * TOKEN_BYTES, source, place
        self.buffer = bytearray()
        self.skip = place["skip"]  # bytes of the first document that are in the previous shard

    def append(self, packed, file, row, lengths):
        documents = memoryview(packed)
        for index, length in enumerate(lengths):
            document, documents = documents[:length], documents[length:]
            used, self.skip = self.skip, 0
            while used < length and not self.full():
                part = document[used : used + self.shard_bytes - len(self.buffer)]
                self.buffer += part
                used += len(part)
                if len(self.buffer) == self.shard_bytes:
                    finished = used == length
                    self.write({"file": file, "row": row + index + finished, "skip": 0 if finished else used})

    def full(self):
        return self.place["shards"] >= self.limit

    def write(self, place):
        """Writes the buffer as the next shard; `place` is where the following shard begins."""
        shards = self.place["shards"]
        split = "train" if shards else "val"
        path = f"{self.stem}_{split}_{shards:06d}.bin"
        with TokenFile(path, GPT2_VOCAB_SIZE) as out:
            out.append_packed(self.buffer)
            out.finish()
        print(f"{path}: {len(self.buffer) // TOKEN_BYTES:,} tokens", flush=True)
        self.buffer.clear()
        self.place.update(place, shards=shards + 1)
        write_progress(self.stem, self.place)
        self.source.discard_before(self.place["file"])


def progress_path(stem):
    return os.path.join(os.path.dirname(stem), "progress.json")


def write_progress(stem, place):
    write_atomically(progress_path(stem), json.dumps(place).encode())


def read_progress(stem, settings):
    """Returns where the last run stopped. Ends the program if that run had other settings."""
    beginning = {**settings, "shards": 0, "file": 0, "row": 0, "skip": 0, "complete": False}
    path = progress_path(stem)
    if not os.path.exists(path):
        return beginning
    try:
        with open(path, encoding="utf-8") as f:
            place = json.load(f)
        differing = [key for key, value in settings.items() if place[key] != value]
        if place.keys() != beginning.keys():
            raise ValueError("other keys")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        fail(f"{path} is not a record of this script ({error}); remove {os.path.dirname(path)} to start over")
    if differing:
        key = differing[0]
        folder = os.path.dirname(path)
        fail(f"{folder} was begun with {key} {place[key]}, not {settings[key]}: choose another --output, or remove it")
    return place


def main():
    parser = Parser(__doc__)
    parser.add_argument("-t", "--type", choices=DATASETS, default="classic", help="default: %(default)s")
    parser.add_argument("-v", "--version", choices=["10B", "100B"], default="10B", help="default: %(default)s")
    parser.add_argument("-s", "--shard-tokens", type=positive_int, default=10**8, metavar="N", help="default: 1e8")
    parser.add_argument("--max-shards", type=positive_int, metavar="N", help="stop after so many (default: all)")
    parser.add_argument("--output", metavar="DIR", help="default: dev/data/fineweb10B and the like")
    add_workers_option(parser)
    add_mirror_option(parser)
    args = parser.parse_args()

    dataset, prefix = DATASETS[args.type]
    sample = f"sample/{args.version}T"
    folder = args.output or os.path.join(HERE, f"{prefix}fineweb{args.version}")
    stem = os.path.join(folder, f"{prefix}fineweb")
    settings = {"dataset": dataset, "sample": sample, "shard_tokens": args.shard_tokens}
    for alone in (False, True):  # what is there already does not wait for a call that makes more
        make_directory(folder, alone)
        place = read_progress(stem, settings)
        if place["complete"] or (args.max_shards and place["shards"] >= args.max_shards):
            print(f"{folder} is complete: {place['shards']} shards")
            return
    prepare_gpt2(args.mirror, args.output)
    source = MirrorFiles(dataset, sample, args.mirror) if args.mirror else ()
    if not source:
        if args.mirror:
            print(f"the mirror {args.mirror} holds no {dataset}/.../{sample}; trying the network", flush=True)
        source = HubFiles(dataset, sample, os.path.join(folder, "raw"))
    if place["shards"]:
        print(f"continuing after {place['shards']} shards")

    shards = Shards(stem, args.shard_tokens, source, place, args.max_shards or float("inf"))
    documents = read_documents(source, place["file"], place["row"])
    with contextlib.closing(ordered_map(pack_documents, documents, args.workers)) as results:
        for packed in results:
            shards.append(*packed)
            if shards.full():
                return
    if shards.buffer:
        shards.write({"file": len(source), "row": 0, "skip": 0})
    place["complete"] = True
    write_progress(stem, place)


if __name__ == "__main__":
    run(main)
