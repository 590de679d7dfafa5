#!/usr/bin/env python3
"""A performance model of a training step on N GPUs: efficiency on 8 to 4,096 GPUs, and the first bottlenecks.

    python3 dev/scaling/model.py                  # assumptions, checks against measurements, and the tables
    python3 dev/scaling/model.py --write          # writes them to the generated part of dev/scaling/README.md
    python3 dev/scaling/model.py --set network_gbps=100 --set gpus_per_node=4       # another machine

A step is simulated bucket by bucket, with the buckets of parameter_layout.h: gradients are reduce-scattered during the
backward pass and weights all-gathered during the next forward pass; communication that these do not hide is exposed.
Two parameters of a single GPU are fitted to its committed step times, two of several GPUs to
dev/bench/<gpu>/scaling.csv; each measured row is then predicted by a fit without it. All other numbers are assumptions,
printed with their sources. Needs only Python's standard library.
"""

import csv
import math
import os
import statistics
import sys
from dataclasses import dataclass, replace
from functools import cache

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "data"))

from data_common import Parser

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
README = os.path.join(ROOT, "dev", "scaling", "README.md")
H200 = os.path.join(ROOT, "dev", "bench", "nvidia-h200")
MARKERS = ("<!-- generated -->\n", "<!-- end -->\n")
BLOCK, BUCKET_BLOCKS, EMBEDDING_BLOCKS = 8192, (1 << 25) // 8192, (1 << 23) // 8192  # parameter_layout.h's
VOCABULARY = 50304

# ----------------------------------------------------------------------------
# Models and machines


@dataclass(frozen=True)
class Model:
    """GPT-2's architecture: 12 L C^2 parameters in the layers."""

    name: str
    layers: int
    channels: int
    heads: int

    @property
    def matrices(self):
        return 12 * self.layers * self.channels**2

    def parameters(self, T=1024):
        return self.matrices + (VOCABULARY + T + 13 * self.layers + 2) * self.channels


MODELS = {
    "d12": Model("124M", 12, 768, 12),
    "d24": Model("355M", 24, 1024, 16),
    "d36": Model("774M", 36, 1280, 20),
    "d48": Model("1558M", 48, 1600, 25),
    "2.7B": Model("2.7B", 32, 2560, 32),
    "6.7B": Model("6.7B", 32, 4096, 32),
    "12B": Model("12B", 36, 5120, 40),
}


@dataclass(frozen=True)
class Machine:
    """Parameters of the hardware. GB/s are 1e9 bytes a second, in each direction."""

    gpus_per_node: int = 8
    gpu_gib: float = 139  # of an H200's memory, of which `spare_gib` hold the context, libraries and scratch
    spare_gib: float = 5
    memory_gbps: float = 4100  # achieved by elementwise kernels and AdamW
    tflops: float = 600  # fitted: achieved by GEMMs and attention at the power limit
    layer_us: float = 100  # fitted: fixed cost of a layer in a micro-step
    nvlink_gbps: float = 290  # achieved by an exchange of 500 MiB
    interference: float = 0.2  # fitted to several GPUs: slowdown of computing by the communication that it hides
    step_ms: float = 1  # fitted to several GPUs: fixed cost of a step
    network_gbps: float = 50  # per GPU, to other nodes
    nvlink_us: float = 20  # latency of an exchange
    network_us: float = 40
    message_us: float = 1  # cost of each further peer in an exchange
    agreement_us: float = 8  # cost of each peer in comm.h's all-to-all gather; `agreements` gathers a step
    agreements: int = 1
    spread: float = 0.004  # standard deviation of GPU speed: the slowest of N sets the pace
    disk_gbps: float = 1.6  # rank 0's rate of writing a checkpoint


SOURCES = {
    "gpus_per_node": "an HGX board",
    "gpu_gib": "an H200",
    "spare_gib": "assumed",
    "memory_gbps": "assumed: 85% of an H200's data sheet",
    "tflops": "fitted to steps on one GPU",
    "layer_us": "fitted to steps on one GPU",
    "nvlink_gbps": "two H200s, `build/nccl_exchange` (dev/LOG.md)",
    "interference": "assumed",
    "step_ms": "assumed",
    "network_gbps": "assumed: one 400 Gb/s port a GPU, all of it reached, no congestion",
    "nvlink_us": "assumed: a few kernels",
    "network_us": "assumed: a few round trips",
    "message_us": "assumed: a million messages a second",
    "agreement_us": "assumed: a small message over TCP, sent and received",
    "agreements": "trainer: errors and signals; losses and norms go with the gradients",
    "spread": "assumed",
    "disk_gbps": "dev/bench/nvidia-h200/checkpoint_cost.csv",
}


@dataclass(frozen=True)
class Setup:
    """A step: model, batch, and how they are divided among GPUs."""

    model: Model
    gpus: int
    B: int  # rows of a micro-batch
    T: int = 1024
    K: int = 1  # micro-steps of each process
    zero: int = 1  # 0: moments everywhere, 1: sharded, 2: gradients too, 3: weights too
    gradient_bytes: int = 4  # of an exchanged element
    hierarchical: bool = False  # reduce within each node first, then between nodes


# ----------------------------------------------------------------------------
# Buckets


def pieces(elements, most_blocks):
    """A group's buckets, of whole blocks and equal to within one."""
    blocks = elements // BLOCK
    n = -(-blocks // most_blocks)
    return [(blocks * (i + 1) // n - blocks * i // n) * BLOCK for i in range(n)]


def aligned(sizes):
    """Elements of tensors, each aligned to 64 elements, rounded up to whole blocks."""
    at = 0
    for size in sizes:
        at = -(-at // 64) * 64 + size
    return -(-at // BLOCK) * BLOCK


@cache
def buckets(model, T):
    """Returns the buckets of wte, of wpe and the final LayerNorm, and of a layer, in elements, as by layout_create."""
    C = model.channels
    layer = [3 * C * C, C * C, 4 * C * C, 4 * C * C, C, C, 3 * C, C, C, C, 4 * C, C]
    return (
        pieces(aligned([VOCABULARY * C]), EMBEDDING_BLOCKS),
        pieces(aligned([T * C, C, C]), BUCKET_BLOCKS),
        pieces(aligned(layer), BUCKET_BLOCKS),
    )


# ----------------------------------------------------------------------------
# Computing, seconds on one GPU


def compute(model, B, T, m):
    """Seconds of a micro-step: forward of a layer, backward of a layer, forward and backward of embedding and head."""
    C, tokens, flops, gbps = model.channels, B * T, m.tflops * 1e12, m.memory_gbps * 1e9
    forward = tokens * ((24 * C * C + 2 * T * C) / flops + 34 * C / gbps) + m.layer_us * 1e-6 / 3
    backward = tokens * ((48 * C * C + 5 * T * C) / flops + 66 * C / gbps) + m.layer_us * 2e-6 / 3
    head = tokens * (2 * VOCABULARY * C / flops + 2 * VOCABULARY / gbps)
    head_backward = tokens * (4 * VOCABULARY * C / flops + 2 * VOCABULARY / gbps)
    return forward, backward, head, head_backward


def adamw(elements, m):
    """Seconds of AdamW: reads the gradient, reads and writes moments and master weight, writes the bf16 weight."""
    return elements * 30 / (m.memory_gbps * 1e9)


def one_gpu(model, B, T, m, K=1):
    """Seconds of a step on one GPU."""
    forward, backward, head, head_backward = compute(model, B, T, m)
    return K * (model.layers * (forward + backward) + head + head_backward) + adamw(model.parameters(T), m)


# ----------------------------------------------------------------------------
# Communication


def exchange(elements, bytes_each, s, m):
    """Seconds of a reduce-scatter or an all-gather of a bucket."""
    n = s.gpus
    if n == 1:
        return 0.0
    whole, inside = elements * bytes_each, min(n, m.gpus_per_node)
    nodes = -(-n // m.gpus_per_node)
    if nodes == 1:
        return m.nvlink_us * 1e-6 + max(whole * (n - 1) / n / (m.nvlink_gbps * 1e9), (n - 1) * m.message_us * 1e-6)
    if s.hierarchical:
        first = m.nvlink_us * 1e-6 + whole * (inside - 1) / inside / (m.nvlink_gbps * 1e9)
        wire = whole / inside * (nodes - 1) / nodes / (m.network_gbps * 1e9)
        return first + m.network_us * 1e-6 + max(wire, (nodes - 1) * m.message_us * 1e-6)
    wires = whole * (inside - 1) / n / (m.nvlink_gbps * 1e9), whole * (n - inside) / n / (m.network_gbps * 1e9)
    return m.network_us * 1e-6 + max(*wires, (n - 1) * m.message_us * 1e-6)


class Line:
    """The communication stream, which runs one exchange at a time."""

    def __init__(self):
        self.free = self.busy = 0.0

    def put(self, ready, seconds):
        self.free = max(self.free, ready) + seconds
        self.busy += seconds
        return self.free


def slowest(n, m):
    """Time of the slowest of n GPUs, relative to their mean (Blom's expected maximum of n normal numbers)."""
    return 1 + m.spread * (statistics.NormalDist().inv_cdf((n - 0.375) / (n + 0.25)) if n > 1 else 0.0)


def step(s, m):
    """Seconds of a step, of computing, and of exposed communication: {seconds, compute, forward, backward, ...}."""
    wte, rest, layer = buckets(s.model, s.T)
    pace = slowest(s.gpus, m)
    forward, backward, head, head_backward = (pace * x for x in compute(s.model, s.B, s.T, m))
    L, n = s.model.layers, s.gpus
    sharded = n if s.zero >= 1 else 1
    micro = L * (forward + backward) + head + head_backward
    gathered = 2 if s.zero >= 1 else 0  # bytes of a weight in the all-gather

    # AdamW updates the embeddings' shards, which are gathered while it updates the layers. Layers are gathered 1, 1, 2,
    # 4, ... at a time, and the forward pass of a layer starts as soon as its weights have arrived
    line, there = Line(), []
    now = pace * adamw((sum(wte) + sum(rest)) / sharded, m)
    embedded = line.put(now, exchange(sum(wte) + sum(rest), gathered, s, m)) if gathered else now
    now += pace * adamw(L * sum(layer) / sharded, m)
    updated, end = now, 1
    while len(there) < L:
        layers = min(end, L) - len(there)
        there += [line.put(now, exchange(layers * sum(layer), gathered, s, m)) if gathered else now] * layers
        end *= 2
    now = max(now, embedded)
    for ready in there:
        now = max(now, ready) + forward
    now += head
    exposed_forward = now - updated - L * forward - head
    hidden = line.busy - exposed_forward
    now += (s.K - 1) * micro

    # the last backward pass: gradients are reduced layer by layer, the embedding's last
    line, begin = Line(), now
    now += head_backward
    for _ in range(L):
        now += backward
        for size in layer:
            line.put(now, reduction(size, s, m))
    for size in [*rest, *wte]:
        line.put(now, reduction(size, s, m))
    end = max(now, line.free)
    exposed_backward = end - begin - head_backward - L * backward
    hidden += line.busy - exposed_backward
    weights_again = L * sum(exchange(size, 2, s, m) for size in layer) if s.zero >= 3 else 0.0
    late = max(0.0, weights_again - L * backward)  # ZeRO-3 gathers each layer's weights once more
    other = m.interference * (hidden + weights_again - late) + late
    agreement = m.agreements * m.agreement_us * 1e-6 * (n - 1)
    fixed = m.step_ms * 1e-3 if n > 1 else 0.0
    return {
        "seconds": end + other + agreement + fixed,
        "compute": s.K * micro + updated,
        "forward": exposed_forward,
        "backward": exposed_backward,
        "other": other,
        "agreement": agreement + fixed,
        "optimizer": updated,
    }


def reduction(elements, s, m):
    """Seconds to sum a bucket's gradients: a reduce-scatter, and with ZeRO-0 an all-gather of the sums."""
    if s.gpus == 1:
        return 0.0
    received = (
        elements * (s.gradient_bytes + 4 / s.gpus) / (m.memory_gbps * 1e9)
    )  # read all parts, sum them in tree order, write
    again = exchange(elements, 4, s, m) if s.zero == 0 else 0.0
    return exchange(elements, s.gradient_bytes, s, m) + received + again


def efficiency(s, m):
    """tokens/s of N GPUs, relative to N times those of one GPU with the same micro-batches and no communication."""
    return one_gpu(s.model, s.B, s.T, m, s.K) / step(s, m)["seconds"]


# ----------------------------------------------------------------------------
# Memory


def gradient_buffers(K):
    """gradient_tree.h's buffers: subtrees that wait for their sibling, and a chain where K is no power of two."""
    groups = K & -K
    return max(1, groups.bit_length() - 1 + (groups < K))


def memory(s, m):
    """GiB on a GPU: {weights, gradients, state, activations, total}, with -r 1, which recomputes only the GELU."""
    P, C, L, n, tokens = s.model.parameters(s.T), s.model.channels, s.model.layers, s.gpus, s.B * s.T
    parts = {
        "weights": 2 * P / (n if s.zero >= 3 else 1),
        "gradients": 4 * P * (1 / n if s.zero >= 2 else gradient_buffers(s.K)),
        "state": 12 * P / (n if s.zero >= 1 else 1),
        "activations": tokens * (L * (24 * C + 4 * (4 + 2 * s.model.heads)) + 24 * C + 2 * VOCABULARY),
    }
    largest = 4 * max(max(x) for x in buckets(s.model, s.T))
    parts["received"] = largest * (n - 1) / n  # the others' pieces of a bucket
    parts = {name: size / 2**30 for name, size in parts.items()}
    return {**parts, "total": sum(parts.values()) + m.spare_gib}


def largest_batch(s, m):
    """The largest power of two of rows that fits, at most 64; 0 if one row does not."""
    fitting = [B for B in (1, 2, 4, 8, 16, 32, 64) if memory(replace(s, B=B), m)["total"] <= m.gpu_gib]
    return max(fitting, default=0)


def largest_model(zero, n, m, T=1024):
    """Billions of parameters of the largest model whose weights, gradients and state fit, with a row of T tokens."""
    low, high = 1.0, 4000.0
    for _ in range(60):
        middle = (low + high) / 2
        C = 5120 * (middle / 11.6) ** 0.5 if middle > 11.6 else 5120
        model = Model("", max(1, round(middle * 1e9 / 12 / C**2)), round(C), 40)
        fits = memory(Setup(model, n, 1, T, 1, zero), m)["total"] <= m.gpu_gib
        low, high = (middle, high) if fits else (low, middle)
    return low


# ----------------------------------------------------------------------------
# Measurements, fits and checks


def read_csv(name):
    try:
        with open(os.path.join(H200, name), newline="", encoding="utf-8") as f:
            return list(csv.DictReader(f))
    except FileNotFoundError:
        return []


@dataclass(frozen=True)
class Measured:
    setup: Setup
    ms: float
    source: str
    one_ms: float = 0.0  # of one GPU in the same call

    @property
    def name(self):
        s = self.setup
        how = "" if s.gpus == 1 else f", {s.gpus} GPUs" + (", -z 0" if s.zero == 0 else "")
        return f"{s.model.name}, {s.B} x {s.T}{how}"


def single_steps():
    """The committed steady step times of one GPU, newest files last; one for each shape."""
    found = {}
    for name, column in (("speed.csv", "ms"), ("checkpoint_cost.csv", "ms"), ("step_cost.csv", "now_ms")):
        for row in read_csv(name):
            fast = row.get("attention_forward", "wgmma") == "wgmma"
            if row.get("program", "flashgpt") == "flashgpt" and fast and row["model"] in MODELS:
                setup = Setup(MODELS[row["model"]], 1, int(row["B"]), int(row["T"]))
                found[setup] = Measured(setup, float(row[column]), name)
    several = {}
    for row in read_csv("scaling.csv"):
        if row["program"] == "flashgpt" and row["gpus"] == "1" and row["model"] in MODELS:
            setup = Setup(MODELS[row["model"]], 1, int(row["B"]), int(row["T"]))
            several.setdefault(setup, []).append(float(row["ms"]))
    found.update({s: Measured(s, statistics.mean(ms), "scaling.csv") for s, ms in several.items()})
    return list(found.values())


def several_steps(rows=None):
    """Step times of several GPUs in tree order, each with one GPU's of the same call: means over the rounds."""
    groups = {}
    for row in read_csv("scaling.csv") if rows is None else rows:
        if (
            row["program"] == "flashgpt"
            and row["sum_order"] != "any"
            and row["exchange"] != "nccl"
            and row["model"] in MODELS
        ):
            key = (
                row["model"],
                int(row["max_gpus"]),
                int(row["gpus"]),
                int(row["zero"] or 1),
                int(row["B"]),
                int(row["T"]),
            )
            groups.setdefault(key, []).append(float(row["ms"]))
    found = []
    for (model, most, gpus, zero, B, T), ms in groups.items():
        one = groups.get((model, most, 1, 1, B, T))
        if gpus > 1 and one:
            setup = Setup(MODELS[model], gpus, B, T, zero=zero)
            found.append(Measured(setup, statistics.mean(ms), "scaling.csv", statistics.mean(one)))
    return found


def descend(error, values, m, steps=12):
    """The machine with the values of the named fields that minimise the error: a pattern search with halved steps."""
    factor, best = 1.5, error(m)
    for _ in range(steps):
        moved = True
        while moved:
            moved = False
            for name in values:
                for trial in (getattr(m, name) * factor, getattr(m, name) / factor):
                    other = replace(m, **{name: trial})
                    if error(other) < best * (1 - 1e-9):
                        m, best, moved = other, error(other), True
        factor = math.sqrt(factor)
    return m


def fit_one(measured, m):
    def error(m):
        return sum((one_gpu(x.setup.model, x.setup.B, x.setup.T, m) * 1e3 / x.ms - 1) ** 2 for x in measured)

    return descend(error, ("tflops", "layer_us"), m)


def predicted(x, m):
    """ms on N GPUs: one GPU's measured time in the same call, times the predicted ratio."""
    return x.one_ms / efficiency(x.setup, m)


def fit_several(measured, m):
    """Fits interference and the fixed cost of a step, with a weak regularisation towards the assumed values."""
    start = m

    def error(m):
        pull = sum(math.log(getattr(m, n) / getattr(start, n)) ** 2 for n in ("interference", "step_ms"))
        return sum((100 * (predicted(x, m) / x.ms - 1)) ** 2 for x in measured) + 0.01 * pull

    return descend(error, ("interference", "step_ms"), m) if measured else m


def fitted_to_fewer(n, m, several):
    """The machine m, refitted without the steps measured on n GPUs or more."""
    start = Machine()
    unfitted = replace(m, interference=start.interference, step_ms=start.step_ms)
    return fit_several([x for x in several if x.setup.gpus < n], unfitted)


def fitted(m):
    """(the machine with all fits, measured steps of one GPU, of several)"""
    one, several = single_steps(), several_steps()
    m = fit_one(one, m) if one else m
    return fit_several(several, m), one, several


# ----------------------------------------------------------------------------
# Report

SIZES = [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]


def table(header, rows):
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def assumptions(m, is_fitted):
    sources = dict(SOURCES)
    if is_fitted:
        sources.update(
            interference="fitted to scaling.csv",
            step_ms="fitted to scaling.csv: active NVLink, and the slower GPU (dev/LOG.md)",
        )
    rows = [[f"`{name}`", f"{getattr(m, name):.4g}", source] for name, source in sources.items()]
    return table(["", "value", "from"], rows)


def checks(one, several, m, start):
    """Leave-one-out: each measured row, predicted by the fit to all rows and by a fit to all others."""
    rows = []
    for x in one:
        s = x.setup
        others = fit_one([y for y in one if y is not x], start)
        here, there = (1e3 * one_gpu(s.model, s.B, s.T, k) for k in (m, others))
        rows.append(
            [x.name, f"{x.ms:.2f}", f"{here:.2f}", f"{there:.2f}", f"{100 * (there / x.ms - 1):+.1f}%", x.source]
        )
    for x in several:
        others = fit_several([y for y in several if y is not x], replace(start, tflops=m.tflops, layer_us=m.layer_us))
        here, there = predicted(x, m), predicted(x, others)
        rows.append(
            [x.name, f"{x.ms:.2f}", f"{here:.2f}", f"{there:.2f}", f"{100 * (there / x.ms - 1):+.1f}%", x.source]
        )
    return table(["step", "measured, ms", "fit to all", "fit without it", "error of that", "file"], rows)


def one_machine(m, several):
    """What dev/bench/scaling.py measures on 2, 4 and 8 GPUs, each predicted from steps on fewer."""
    rows = []
    for s in (Setup(MODELS["d12"], 1, 64), Setup(MODELS["d48"], 1, 8)):
        for zero in (1, 0):
            cells = []
            for n in (2, 4, 8):
                there = replace(s, gpus=n, zero=zero)
                cells.append(percent(there, fitted_to_fewer(n, m, several), digits=1))
                took = [x for x in several if x.setup == there]
                cells.append(f"{100 * took[0].one_ms / took[0].ms:.1f}%" if took else "–")
            rows.append([f"{s.model.name}, {s.B} x {s.T}, `-z {zero}`", *cells])
    return table(["of N x 1", *(f"{n}{what}" for n in (2, 4, 8) for what in (" GPUs", ", measured"))], rows)


def percent(s, m, digits=0):
    return f"{100 * efficiency(s, m):.{digits}f}%"


def fixed_per_gpu(m, **how):
    """Efficiency at the largest micro-batch that fits, no accumulation."""
    rows = []
    for model in MODELS.values():
        cells = []
        for n in SIZES:
            s = Setup(model, n, 1, **how)
            B = largest_batch(s, m)
            cells.append(f"{percent(replace(s, B=B), m)}" if B else "–")
        B = largest_batch(Setup(model, 8, 1, **how), m)
        rows.append([f"{model.name}, B={B or '–'}", *cells])
    return table(["model, B of a GPU (of 8)", *SIZES], rows)


def fixed_global(m, tokens, **how):
    """Efficiency at a fixed number of tokens a step: more GPUs have fewer rows or fewer micro-steps each."""
    rows = []
    for model in MODELS.values():
        cells = []
        for n in SIZES:
            share = tokens // 1024 // n
            most = largest_batch(Setup(model, n, 1, **how), m)
            if share < 1 or most < 1:
                cells.append("–")
                continue
            B = min(share, most)
            cells.append(f"{percent(Setup(model, n, B, K=share // B, **how), m)}")
        rows.append([model.name, *cells])
    return table(["model", *SIZES], rows)


def memory_table(m):
    rows = []
    for model in MODELS.values():
        for zero in (0, 1, 2, 3):
            cells = [f"{memory(Setup(model, n, 1, zero=zero), m)['total']:.1f}" for n in (1, 8, 64, 512, 4096)]
            rows.append([f"{model.name}, ZeRO-{zero}" if zero else f"{model.name}, `-z 0`", *cells])
    return table(["GiB a GPU, B=1, T=1024", 1, 8, 64, 512, 4096], rows)


def exposed(m):
    """The time that a step on N GPUs loses, by cause."""
    rows = []
    for name in ("d12", "d48", "12B"):
        for n in (8, 64, 512, 4096):
            s = Setup(MODELS[name], n, 1)
            s = replace(s, B=largest_batch(s, m))
            for hierarchical in (False, True):
                t = step(replace(s, hierarchical=hierarchical), m)
                part = [
                    f"{1e3 * t[key]:.2f}" for key in ("seconds", "compute", "backward", "forward", "other", "agreement")
                ]
                rows.append([f"{s.model.name}, B={s.B}", n, "in nodes first" if hierarchical else "as built", *part])
    header = [
        "model",
        "GPUs",
        "exchange",
        "ms",
        "computing",
        "exposed gradients",
        "exposed weights",
        "interference",
        "agreement",
    ]
    return table(header, rows)


def nexts(m):
    """Efficiency of each model on 1,024 GPUs with each proposed change."""
    ways = {
        "as built": {},
        "in nodes first": {"hierarchical": True},
        "bf16 gradients": {"gradient_bytes": 2},
        "in nodes first, bf16": {"hierarchical": True, "gradient_bytes": 2},
        "in nodes first, ZeRO-3": {"hierarchical": True, "zero": 3},
    }
    rows = []
    for model in MODELS.values():
        B = largest_batch(Setup(model, 1024, 1), m)
        rows.append([f"{model.name}, B={B}", *(percent(Setup(model, 1024, B, **how), m) for how in ways.values())])
    return table(["model on 1,024 GPUs", *ways], rows)


def limits(m):
    """Sentences on the limits of memory, efficiency and checkpoints."""
    said = []
    sizes = [f"{largest_model(1, n, m):.0f}B on {n:,}" for n in (1, 8, 64, 4096)]
    said.append(f"ZeRO-1 holds models up to {', '.join(sizes)} GPUs of {m.gpu_gib:g} GiB, with one row of 1024 tokens.")
    small, n = replace(m, gpu_gib=79), 4096
    eight, many, two = (largest_model(*x, small) for x in ((1, 8), (1, n), (2, n)))
    said.append(
        f"On GPUs of {small.gpu_gib:g} GiB it holds {eight:.0f}B on 8 and {many:.0f}B on {n:,}; ZeRO-2 would hold "
        f"{two:.0f}B there, and ZeRO-3 is limited only by activations."
    )
    for model in map(MODELS.get, ("d12", "d48", "12B")):
        bound = [n for n in SIZES if efficiency(Setup(model, n, max(1, largest_batch(Setup(model, n, 1), m))), m) < 0.9]
        where = f"from {bound[0]:,} GPUs on" if bound else "nowhere up to 4,096 GPUs"
        said.append(f"{model.name} is below 90% {where} at the largest batch a GPU holds.")
    write = 14 * MODELS["12B"].parameters() / (m.disk_gbps * 1e9)
    said.append(
        f"A checkpoint of 12B through rank 0 takes {write:.0f} s in the background, the shortest interval between two."
    )
    return "\n".join(f"- {line}" for line in said)


def report(m, one, several, start):
    parts = [
        ("Assumptions", assumptions(m, bool(several))),
        ("Checked against steps that it was not fitted to", checks(one, several, m, start)),
        ("One machine, predicted from steps on fewer GPUs", one_machine(m, several)),
        ("Efficiency at a fixed batch a GPU, as built", fixed_per_gpu(m)),
        ("The same, exchanged within nodes first", fixed_per_gpu(m, hierarchical=True)),
        ("Efficiency at a fixed global batch of 4,194,304 tokens, as built", fixed_global(m, 1 << 22)),
        ("The same, exchanged within nodes first", fixed_global(m, 1 << 22, hierarchical=True)),
        ("Efficiency at a fixed global batch of 524,288 tokens, as built", fixed_global(m, 1 << 19)),
        ("Exposed time in a step, ms", exposed(m)),
        ("What the next changes would give", nexts(m)),
        ("Memory", memory_table(m)),
        ("Limits", limits(m)),
    ]
    return "\n\n".join(f"### {title}\n\n{text}" for title, text in parts) + "\n"


def main():
    parser = Parser(__doc__)
    parser.add_argument("--write", action="store_true", help="write dev/scaling/README.md's generated part")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="another assumption")
    args = parser.parse_args()
    start = Machine()
    for text in args.set:
        name, _, value = text.partition("=")
        try:
            start = replace(start, **{name: type(getattr(start, name))(value)})
        except (AttributeError, ValueError):
            sys.exit(f"error: --set {text}: NAME=VALUE, NAME one of {', '.join(SOURCES)}")
    m, one, several = fitted(start)
    text = report(m, one, several, start)
    if not args.write:
        print(text, end="")
        return
    with open(README, encoding="utf-8") as f:
        before, _, rest = f.read().partition(MARKERS[0])
    with open(README, "w", encoding="utf-8") as f:
        f.write(before + MARKERS[0] + text + MARKERS[1] + rest.partition(MARKERS[1])[2])
    print(README)


if __name__ == "__main__":
    main()
