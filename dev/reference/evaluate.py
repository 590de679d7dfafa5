#!/usr/bin/env python3
"""Scores a text, or answers HellaSwag, with the PyTorch model: what generate_gpt2 --perplexity and --hellaswag compute.

    python3 dev/reference/evaluate.py -e gpt2_124M.bin --perplexity wiki.test.raw --window 1024 --stride 512
    python3 dev/reference/evaluate.py -e folder --hellaswag dev/data/hellaswag/hellaswag_val.bin
    python3 dev/reference/evaluate.py -e model.bin --perplexity text.txt --against ./generate_gpt2

-e is a .bin file or a Hugging Face folder; the file is text (bytes for a vocabulary of 256, else GPT-2's tokens) or
tokens in a .bin. Prints one line of JSON, as generate_gpt2 --json does. With --against, that program scores the same,
and where a loss differs by more than --tolerance, or an answer does, the exit code is 1. Token i of the file, i > 0, is
predicted in the first window [w * stride, w * stride + window] that holds it, from the tokens of that window before it.
"""

import json
import math
import os
import subprocess

try:
    import numpy as np
    import torch
    from torch.nn import functional as F
except ImportError as error:
    raise SystemExit(f"error: no Python package {error.name} here: pip install torch numpy") from None

from common import HEADER_BYTES, Parser, add_device_option, fail, positive_int, read_token_file, run, verify
from data_common import gpt2_encoding
from formats import read_hugging_face, read_model

EVAL_MAGIC, ENDINGS = 20240522, 4


def parse_arguments():
    parser = Parser(__doc__)
    parser.add_argument("-e", "--model", required=True, metavar="PATH", help="a .bin file, or a Hugging Face folder")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--perplexity", metavar="FILE", help="text, or tokens where the name ends in .bin")
    what.add_argument("--hellaswag", metavar="FILE", help="questions, as dev/data/hellaswag.py writes them")
    parser.add_argument("--window", type=positive_int, metavar="T", help="default: what the model was trained on")
    parser.add_argument("--stride", type=positive_int, metavar="S", help="default: half a window, rounded up")
    parser.add_argument(
        "--dtype",
        choices=["float32", "float64", "bfloat16"],
        default="float64",
        help="of the computation (default: %(default)s)",
    )
    parser.add_argument("--against", metavar="PROGRAM", help="generate_gpt2 or generate_gpt2cu")
    parser.add_argument(
        "--tolerance",
        type=float,
        default=1e-5,
        metavar="NATS",
        help="default: 1e-5, ten times what fp32 differs from fp64 by; bf16 needs 5e-2",
    )
    add_device_option(parser)
    return parser.parse_args()


def read_tokens(path, vocab_size):
    """The tokens of a file, and the bytes of all but the first (None where they are not known)."""
    if path.endswith(".bin"):
        tokens = read_token_file(path)[0].tolist()
        if max(tokens, default=0) >= vocab_size:
            fail(f"{path}: token {max(tokens)} is not below the vocabulary of {vocab_size}")
        return tokens, len(tokens) - 1 if vocab_size == 256 else None
    try:
        with open(path, "rb") as f:
            text = f.read()
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}")
    if vocab_size == 256:
        return list(text), len(text) - 1
    encoding = gpt2_encoding()
    tokens = list(encoding.encode_ordinary(text.decode("utf-8")))
    return tokens, len(text) - sum(len(encoding.decode_single_token_bytes(token)) for token in tokens[:1])


def losses_of(net, tokens):
    """The losses (n-1) of tokens[1:], each from those before it, in nats."""
    row = torch.tensor(tokens, device=net.wte.device)[None]
    logits, _ = net(row[:, :-1], row[:, 1:])
    return F.cross_entropy(logits[0].double(), row[0, 1:], reduction="none").tolist()


def perplexity(net, path, window, stride):
    tokens, scored_bytes = read_tokens(path, net.config.vocab_size)
    if len(tokens) < 2:
        fail(f"{path} has {len(tokens)} tokens; two at least are needed")
    window = min(window, len(tokens) - 1)
    stride = min(stride, window)
    windows = {}  # the window in which each token is predicted: the first that holds it
    for i in range(1, len(tokens)):
        windows.setdefault(0 if i <= window else -(-(i - window) // stride), []).append(i)
    total = 0.0
    for w, scored in windows.items():
        begin = w * stride
        losses = losses_of(net, tokens[begin : begin + window + 1])
        total += math.fsum(losses[i - begin - 1] for i in scored)
    result = {"file": path, "tokens": len(tokens) - 1, "loss": total / (len(tokens) - 1)}
    result["perplexity"] = math.exp(result["loss"])
    if scored_bytes:
        result["bytes"] = scored_bytes
        result["bits_per_byte"] = total / math.log(2) / result["bytes"]
    return {**result, "window": window, "stride": stride}


def questions(path):
    """(label, context, endings) of each question of a file; HellaSwag's format stands in llmc/files/evalloader.h."""
    try:
        header = np.fromfile(path, np.int32, 256)
        words = np.fromfile(path, np.uint16, offset=HEADER_BYTES).tolist()
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}")
    if len(header) < 256 or header[0] != EVAL_MAGIC:
        fail(f"{path} is not a multiple-choice evaluation file")
    verify(path)
    at = 0
    for _ in range(header[2]):
        label, parts = words[at + 3], []
        at += 5
        for _ in range(1 + ENDINGS):
            parts.append(words[at + 1 : at + 1 + words[at]])
            at += 1 + words[at]
        yield label, parts[0], parts[1:]


def hellaswag(net, path, tolerance):
    correct = examples = undecided = 0
    for label, context, endings in questions(path):
        means = [np.mean(losses_of(net, context + ending)[len(context) - 1 :]) for ending in endings]
        correct += int(np.argmin(means)) == label
        undecided += np.diff(sorted(means)[:2])[0] <= 2 * tolerance
        examples += 1
    accuracy = correct / examples
    return {"file": path, "examples": examples, "correct": correct, "accuracy": accuracy, "undecided": int(undecided)}


def score_with(program, args, ours):
    """What generate_gpt2 says of the same model, file, window and stride."""
    command = [program, "-e", args.model, "--json", "-q"]
    if args.hellaswag:
        command += ["--hellaswag", args.hellaswag]
    else:
        command += ["--perplexity", args.perplexity, "--context", str(ours["window"]), "--stride", str(ours["stride"])]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        fail(f"{program} ended with exit code {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def compare(ours, theirs, tolerance):
    """Prints both, and fails where they differ."""
    for key in ("tokens", "bytes", "window", "stride", "examples", "correct"):
        allowed = ours.get("undecided", 0) if key == "correct" else 0  # two endings are as good
        if key in ours and not abs(ours[key] - theirs[key]) <= allowed:
            fail(f"{key}: {ours[key]} here, {theirs[key]} there")
    if "loss" in ours:
        difference = abs(ours["loss"] - theirs["loss"])
        print(f"the losses differ by {difference:.2e}, {tolerance:.0e} allowed")
        if not difference <= tolerance:
            fail(f"loss: {ours['loss']:.9g} here, {theirs['loss']:.9g} there")
        for key in ("perplexity", "bits_per_byte"):
            if key in ours and not abs(theirs[key] / ours[key] - 1) <= 2 * tolerance * max(1.0, 1 / ours["loss"]):
                fail(f"{key}: {ours[key]:.9g} here, {theirs[key]:.9g} there")


@torch.no_grad()
def main():
    args = parse_arguments()
    net = read_hugging_face(args.model) if os.path.isdir(args.model) else read_model(args.model)
    net = net.to(args.device, getattr(torch, args.dtype))
    window = args.window or net.config.trained_length
    stride = args.stride or (window + 1) // 2
    if window > net.config.context or stride > window:
        fail(f"stride {stride}, window {window}, context {net.config.context}: each must be at most the next")
    ours = (
        hellaswag(net, args.hellaswag, args.tolerance)
        if args.hellaswag
        else perplexity(net, args.perplexity, window, stride)
    )
    print(json.dumps(ours))
    if args.against:
        theirs = score_with(args.against, args, ours)
        print(json.dumps(theirs))
        compare(ours, theirs, args.tolerance)


if __name__ == "__main__":
    run(main)
