#!/usr/bin/env python3
"""
libattention.so beside other libraries, in one process and on the same inputs: bf16, causal, packed (B,T,3,NH,HS).

    make libattention.so && python3 dev/cuda/bench/compare_libraries.py                  the shapes of SHAPES
    python3 dev/cuda/bench/compare_libraries.py 8,1024,12,64 4,4096,16,128               these shapes: B,T,NH,HS
    python3 dev/cuda/bench/compare_libraries.py --flash3 FOLDER --flash4 FOLDER     with FlashAttention-3 and -4, too

cuDNN and FlashAttention-2 are PyTorch's. FOLDER is what PYTHONPATH would be for `import flash_attn_interface` (3) and
`import flash_attn.cute` (4). "det" marks a backward pass that gives the same bits every time; ours always does.

Modes, as in bench.h: steady, each runs .25 s alone, then .2 s timed back to back, random order, three rounds, median,
and energy by NVML's counter; rested, two replays' worth of sleep before each timed replay, random order, median of
nine. A replay is a CUDA graph whose inputs rotate through more memory than L2. TFLOP/s count the causal half.

Rows go to leaderboard/<gpu>_libraries.csv; at the end a table holds best peer's time / ours against GOALS. Cost: 10 to
20 s a shape and, at the longest rows, 20 GB of memory on an H200.
"""

import ctypes
import importlib
import random
import statistics
import sys
import time
from collections import namedtuple
from pathlib import Path

sys.path += [str(Path(__file__).resolve().parents[2] / other) for other in ("bench", "data")]

from measured import file_name, gpu_provenance, write_rows

from data_common import ROOT, Parser, fail, run

try:
    import torch
except ImportError:  # main() says so
    torch = None

# What is to be reached: best peer's time / ours, at least and as an aim, for each head size and range of T.
Goal = namedtuple("Goal", ["HS", "T", "forward", "backward"])
GOALS = [
    Goal(64, (1024, 1024), forward=(1.22, 1.35), backward=(1.12, 1.25)),
    Goal(64, (2048, 4096), forward=(1.12, 1.25), backward=(1.02, 1.15)),
    Goal(64, (8192, 16384), forward=(1.06, 1.15), backward=(1.00, 1.10)),
    Goal(128, (1024, 1024), forward=(1.05, 1.15), backward=(1.08, 1.20)),
    Goal(128, (4096, 4096), forward=(1.03, 1.12), backward=(1.00, 1.10)),
]
SHAPES = [
    *[(8, 1024, 12, 64), (32, 1024, 12, 64), (64, 1024, 12, 64), (4, 1024, 48, 64), (4, 2048, 48, 64)],
    *[(6, 4096, 12, 64), (4, 4096, 48, 64), (1, 8192, 12, 64), (4, 8192, 48, 64), (4, 16384, 48, 64)],
    *[(16, 1024, 16, 128), (4, 4096, 16, 128)],
    # the others of the leaderboard's plots
    *[(64, 512, 12, 64), (16, 2048, 12, 64), (8, 4096, 12, 64), (4, 8192, 12, 64), (2, 16384, 12, 64)],
]
FLOPS = {"forward": 2, "backward": 5}  # times B NH T^2 HS
MODES = ("steady", "rested")
OURS = "ours"
# Relative errors: the tensor, and the first of its rows. A head's first rows have the fewest keys.
ERRORS = {
    "forward": {"out": ("out", 0), "out_from_64": ("out", 64)},
    "backward": {"dq": ("dq", 0), "dk": ("dk", 0), "dv": ("dv", 0)},
}
RACE = ["direction", "B", "T", "NH", "HS", "mode"]  # the rows of a race go together
COLUMNS = [
    *["gpu", "driver", "cuda", "torch", "cudnn", "date", "commit", *RACE, "provider", "deterministic"],
    *["ms", "tflops", "mj", "pj_per_flop", "sm_mhz", *ERRORS["forward"], *ERRORS["backward"]],
    *["best_peer", "best_peer_over_ours"],
]


# ----------------------------------------------------------------------------
# The providers


class Library:
    """The C interface of dev/cuda/libattention.h."""

    def __init__(self, path):
        try:
            self.lib = ctypes.CDLL(str(path.resolve()))  # of a bare name it would search the system's folders
        except OSError as error:
            fail(f"--library {path}: {error}")
        pointer, integer = ctypes.c_void_p, ctypes.c_int
        self.lib.attention_scratch_bytes.restype = ctypes.c_size_t
        self.lib.attention_scratch_bytes.argtypes = [integer] * 4
        self.lib.attention_error.restype = ctypes.c_char_p
        self.lib.attention_forward.argtypes = [pointer] * 4 + [integer] * 4 + [pointer]
        self.lib.attention_backward.argtypes = [pointer] * 7 + [integer] * 4 + [pointer]

    def call(self, function, tensors, shape):
        pointers = [t.data_ptr() for t in tensors]
        if getattr(self.lib, function)(*pointers, *shape, torch.cuda.current_stream().cuda_stream) != 0:
            fail(f"{function} at B,T,NH,HS {shape_text(shape)}: {self.lib.attention_error().decode()}")


class Ours:
    def __init__(self, library, shape, qkv, dout):
        B, T, NH, _ = shape
        self.library, self.shape, self.qkv, self.dout = library, shape, qkv, dout
        self.out, self.dqkv = torch.empty_like(dout), torch.empty_like(qkv)
        self.l, self.m = (torch.empty(B, NH, T, device="cuda") for _ in range(2))
        bytes_needed = library.lib.attention_scratch_bytes(*shape)
        if bytes_needed == 0:
            fail(f"B,T,NH,HS {shape_text(shape)}: {library.lib.attention_error().decode()}")
        self.scratch = torch.empty(bytes_needed, dtype=torch.uint8, device="cuda")

    def forward(self):
        self.library.call("attention_forward", [self.out, self.l, self.m, self.qkv], self.shape)

    def backward(self):
        tensors = [self.dqkv, self.dout, self.qkv, self.out, self.l, self.m, self.scratch]
        self.library.call("attention_backward", tensors, self.shape)

    def results(self):
        return {"out": self.out, **dict(zip(("dq", "dk", "dv"), self.dqkv.unbind(2)))}


# attention(q, k, v) -> out, all (B,T,NH,HS), with a backward pass of its own
Peer = namedtuple("Peer", ["name", "deterministic", "attention"])


class PeerOnInputs:
    """q, k and v are views of the packed tensor, as a model has them."""

    def __init__(self, peer, qkv, dout):
        self.peer, self.dout = peer, dout
        self.qkv = [x.detach().requires_grad_() for x in qkv.unbind(2)]

    def forward(self):
        out = self.peer.attention(*self.qkv)
        self.out = out[0] if isinstance(out, tuple) else out

    def backward(self):
        torch.use_deterministic_algorithms(self.peer.deterministic)
        self.gradients = torch.autograd.grad(self.out, self.qkv, self.dout, retain_graph=True)
        torch.use_deterministic_algorithms(False)

    def results(self):
        return dict(zip(("out", "dq", "dk", "dv"), (self.out.detach(), *self.gradients)))


def sdpa(backend):
    from torch.nn.attention import sdpa_kernel

    def attention(*qkv):
        with sdpa_kernel(backend):
            q, k, v = (x.transpose(1, 2) for x in qkv)
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    return attention


def flash(folder, module, flag):
    """flash_attn_func of a FlashAttention that lies in a folder: (attention, deterministic attention)."""
    sys.path.insert(0, str(folder))
    try:
        function = importlib.import_module(module).flash_attn_func
    except (ImportError, AttributeError, OSError) as error:
        fail(f"{flag} {folder}: no {module}.flash_attn_func there: {error}")
    return [
        lambda q, k, v, deterministic=deterministic: function(q, k, v, causal=True, deterministic=deterministic)
        for deterministic in (False, True)
    ]


def find_peers(flash3, flash4):
    from torch.nn.attention import SDPBackend

    torch.utils.deterministic.fill_uninitialized_memory = False  # it would cost the deterministic ones a kernel
    flash2 = sdpa(SDPBackend.FLASH_ATTENTION)
    peers = [Peer("cuDNN", False, sdpa(SDPBackend.CUDNN_ATTENTION)), Peer("FA2", False, flash2)]
    peers.append(Peer("FA2 det", True, flash2))
    for name, folder, module in (("FA3", flash3, "flash_attn_interface"), ("FA4", flash4, "flash_attn.cute")):
        flag = f"--flash{name[-1]}"
        if folder is None:
            print(f"{name}: left out, {flag} names no folder")
            continue
        attention, deterministic = flash(folder, module, flag)
        peers += [Peer(name, False, attention), Peer(f"{name} det", True, deterministic)]
    return peers


# ----------------------------------------------------------------------------
# Errors


def reference(qkv, dout, b, h):
    """Attention of one head and its gradients in fp64: the tensors of results(), each (T,HS)."""
    q, k, v = (x[b, :, h].double() for x in qkv.unbind(2))
    T, HS = q.shape
    g = dout[b, :, h].double()
    scores = (q @ k.T) * HS**-0.5
    scores.masked_fill_(torch.ones(T, T, dtype=torch.bool, device=q.device).triu_(1), float("-inf"))
    P = scores.softmax(-1)
    out = P @ v
    dS = P * (g @ v.T - (g * out).sum(-1, keepdim=True)) * HS**-0.5
    return {"out": out, "dq": dS @ k, "dk": dS.T @ q, "dv": P.T @ g}


def relative_errors(entrants, qkv, dout):
    """||x - ref|| / ||ref|| of each provider's tensors over up to 96 heads, from the first to the last: with a few of
    them, chance is larger than what sets the providers apart."""
    B, _, NH, _ = dout.shape
    wanted = {**ERRORS["forward"], **ERRORS["backward"]}
    results = {name: entrant.results() for name, entrant in entrants.items()}
    squares = {name: dict.fromkeys(wanted, 0.0) for name in entrants}
    size = dict.fromkeys(wanted, 1e-300)  # more than nothing, where there are no such rows
    for head in sorted({n * (B * NH - 1) // 95 for n in range(96)}):
        b, h = divmod(head, NH)
        right = reference(qkv, dout, b, h)
        for label, (tensor, row) in wanted.items():
            want = right[tensor][row:]
            size[label] += want.square().sum().item()
            for name, tensors in results.items():
                squares[name][label] += (tensors[tensor][b, row:, h].double() - want).square().sum().item()
    return {name: {t: (x / size[t]) ** 0.5 for t, x in found.items()} for name, found in squares.items()}


# ----------------------------------------------------------------------------
# Timing

Timing = namedtuple("Timing", ["ms", "mj", "mhz"])  # of a launch; None: not measured
Reading = namedtuple("Reading", ["seconds", "joules", "mhz"])  # since the window began; of the board; of the SMs


class Meter:
    """Energy of the whole board and clock of its SMs, by NVML; no readings where there is none."""

    def __init__(self):
        self.device = ctypes.c_void_p()
        try:
            self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            self.nvml = None
            return
        bus = torch.cuda.get_device_properties(0)
        name = f"{bus.pci_domain_id:08x}:{bus.pci_bus_id:02x}:{bus.pci_device_id:02x}.0".encode()
        found = self.nvml.nvmlInit_v2() == 0
        if not found or self.nvml.nvmlDeviceGetHandleByPciBusId_v2(name, ctypes.byref(self.device)) != 0:
            self.nvml = None

    def read(self, seconds):
        millijoules, mhz = ctypes.c_ulonglong(), ctypes.c_uint()
        if not self.nvml or self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.device, ctypes.byref(millijoules)) != 0:
            return None
        sm_clock = 1
        known = self.nvml.nvmlDeviceGetClockInfo(self.device, sm_clock, ctypes.byref(mhz)) == 0
        return Reading(seconds, 1e-3 * millijoules.value, mhz.value if known else None)


def power(windows, begin=0.1):
    """Watts and mean MHz of windows of readings; None where they are not known. The counter ticks a few times only, so
    energy is counted from its first tick to its last; readings before `begin` are of a GPU that is warming up."""
    joules, seconds, clocks = 0.0, 0.0, []
    for readings in windows:
        window = [r for r in readings if r and r.seconds >= begin]
        clocks += [r.mhz for r in window if r.mhz]
        ticks = [r for before, r in zip(window, window[1:]) if r.joules != before.joules]
        if len(ticks) > 1:
            joules += ticks[-1].joules - ticks[0].joules
            seconds += ticks[-1].seconds - ticks[0].seconds
    return joules / seconds if seconds else None, statistics.mean(clocks) if clocks else None


class Replays:
    """A CUDA graph that makes the calls in turn, once warmed up."""

    def __init__(self, calls, stream):
        for call in calls:
            call()
        stream.synchronize()
        self.launches, self.graph = len(calls), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):
            for call in calls:
                call()
        self.graph.replay()
        self.replay_ms = self.time(1)

    def replay(self, times):
        for _ in range(times):
            self.graph.replay()

    def time(self, times, idle=lambda: None):
        """Milliseconds of so many replays; idle() is called until they are done."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        self.replay(times)
        end.record()
        while not end.query():
            idle()
        return begin.elapsed_time(end)


def shuffled(names, order):
    return order.sample(list(names), len(names))


def time_steady(entrants, meter, order, warm_up_ms=250, timed_ms=200, rounds=3):
    """{name: Timing} of {name: Replays}."""
    times, windows = {name: [] for name in entrants}, {name: [] for name in entrants}
    for _ in range(rounds):
        for name in shuffled(entrants, order):
            entrant, readings, start = entrants[name], [], time.monotonic()

            def idle(readings=readings, start=start):
                readings.append(meter.read(time.monotonic() - start))
                time.sleep(1e-3)

            warm_up, timed = (max(1, round(ms / entrant.replay_ms)) for ms in (warm_up_ms, timed_ms))
            entrant.replay(warm_up)
            times[name].append(entrant.time(timed, idle) / timed / entrant.launches)
            windows[name].append(readings)
    timings = {}
    for name, found in times.items():
        ms, (watts, mhz) = statistics.median(found), power(windows[name])
        timings[name] = Timing(ms, watts and watts * ms, mhz)
    return timings


def time_rested(entrants, order, rounds=9):
    """{name: Timing} of {name: Replays}; three rounds are enough where a replay takes more than .1 s."""
    times = {name: [] for name in entrants}
    for n in range(rounds):
        for name in shuffled(entrants, order):
            entrant = entrants[name]
            if n < 3 or entrant.replay_ms <= 100:
                time.sleep(2e-3 * entrant.replay_ms)
                times[name].append(entrant.time(1) / entrant.launches)
    return {name: Timing(statistics.median(found), None, None) for name, found in times.items()}


# ----------------------------------------------------------------------------
# A shape


def shape_text(shape):
    return ",".join(map(str, shape))


def shape_of(text):
    numbers = text.split(",")
    if len(numbers) != 4 or not all(n.isdecimal() and int(n) > 0 for n in numbers):
        fail(f"{text}: a shape is B,T,NH,HS, such as 8,1024,12,64")
    return tuple(map(int, numbers))


def works(peer, inputs, shape, stream):
    """Whether the peer serves the shape, and in a CUDA graph; a line where it does not, whatever it raises."""
    try:
        trial = PeerOnInputs(peer, *inputs)
        Replays([trial.forward], stream)
        trial.forward()  # the graph's memory went with it
        Replays([trial.backward], stream)
        return True
    except Exception as error:  # noqa: BLE001 (a library raises what it likes, and the others go on)
        torch.use_deterministic_algorithms(False)
        why = next(iter(str(error).splitlines()), "no reason given")
        print(f"{peer.name}: left out at {shape_text(shape)}: {type(error).__name__}: {why}")
        return False


def measure(library, peers, shape, modes, meter, order):
    """{(direction, mode): {name: Timing}} and {name: relative errors}."""
    B, T, NH, HS = shape
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    sets = 1 + 2 * cache // (8 * B * T * NH * HS)  # qkv and out: 8 bytes for each number of out
    torch.manual_seed(42)
    inputs = [
        [torch.randn(B, T, *size, device="cuda").bfloat16() for size in ((3, NH, HS), (NH, HS))] for _ in range(sets)
    ]
    stream, timings = torch.cuda.Stream(), {}
    with torch.cuda.stream(stream):
        entrants = {OURS: [Ours(library, shape, *x) for x in inputs]}
        for peer in peers:
            if works(peer, inputs[0], shape, stream):
                entrants[peer.name] = [PeerOnInputs(peer, *x) for x in inputs]
        for direction, flops in FLOPS.items():
            # graphs of 2 ms or more at 300 TFLOP/s, but of no more than 200 launches
            ms = 1e3 * flops * B * NH * T * T * HS / 300e12
            repeats = max(1, min(round(2 / (sets * ms)), 200 // sets))
            graphs = {}
            for name, entrant in entrants.items():
                if direction == "backward" or name == OURS or not entrant[0].peer.deterministic:
                    graphs[name] = Replays([getattr(e, direction) for e in entrant] * repeats, stream)
            for mode in modes:
                timed = time_steady(graphs, meter, order) if mode == "steady" else time_rested(graphs, order)
                timings[direction, mode] = timed
            del graphs  # and their memory; what backward needs is computed again outside of them
            for entrant in entrants.values():
                for e in entrant if direction == "forward" else entrant[:1]:
                    e.forward()
        for entrant in entrants.values():
            entrant[0].backward()
        errors = relative_errors({name: entrant[0] for name, entrant in entrants.items()}, *inputs[0])
    return timings, errors


def best_peer(timings):
    """(name, its time / ours) of the fastest of the others; None where there are none."""
    others = {name: t.ms for name, t in timings.items() if name != OURS}
    name = min(others, key=others.get, default=None)
    return name and (name, others[name] / timings[OURS].ms)


def number(x, form):
    return "" if x is None else format(x, form)


def rows_of(shape, timings, errors, deterministic):
    """The rows of the CSV, less the columns that say where they were measured."""
    B, T, NH, HS = shape
    rows = []
    for (direction, mode), timed in timings.items():
        work = FLOPS[direction] * B * NH * T * T * HS
        peer, ratio = best_peer(timed) or ("", None)
        for name, t in timed.items():
            row = dict.fromkeys(COLUMNS, "")
            row.update(zip(RACE, (direction, B, T, NH, HS, mode)))
            row.update(provider=name, deterministic="yes" if deterministic(name, direction) else "no")
            row.update(ms=f"{t.ms:.5f}", tflops=f"{1e-9 * work / t.ms:.2f}", mj=number(t.mj, ".4g"))
            row.update(pj_per_flop=number(t.mj and 1e9 * t.mj / work, ".3f"), sm_mhz=number(t.mhz, ".0f"))
            row.update({label: f"{errors[name][label]:.3e}" for label in ERRORS[direction]})
            row.update(best_peer=peer, best_peer_over_ours=number(ratio, ".4f"))
            rows.append(row)
    return rows


# ----------------------------------------------------------------------------
# What is printed


def goal_of(shape, direction):
    """(at least, aim), or None where nothing is wanted of the shape."""
    _, T, _, HS = shape
    for goal in GOALS:
        if HS == goal.HS and goal.T[0] <= T <= goal.T[1]:
            return getattr(goal, direction)
    return None


def verdict(ratio, goal):
    least, aim = goal
    return "aim reached" if ratio >= aim else "reached" if ratio >= least else f"{least - ratio:.2f} short"


def summary(rows):
    """The lines of the table at the end, of all rows of one call."""
    lines = ["", f"{'B,T,NH,HS':16s} {'direction':9s} {'mode':7s} {'best peer / ours':17s} at least   aim"]
    for row in rows:
        if row["provider"] != OURS or not row["best_peer"]:
            continue
        shape = tuple(row[size] for size in ("B", "T", "NH", "HS"))
        ratio, goal = float(row["best_peer_over_ours"]), goal_of(shape, row["direction"])
        wanted = f"{goal[0]:8.2f} {goal[1]:5.2f}  {verdict(ratio, goal)}" if goal else ""
        against = f"{ratio:.3f} {row['best_peer']}"
        lines.append(f"{shape_text(shape):16s} {row['direction']:9s} {row['mode']:7s} {against:17s} {wanted}".rstrip())
    return lines


def print_rows(rows):
    for row in rows:
        shape = shape_text(row[size] for size in ("B", "T", "NH", "HS"))
        energy = f"{row['mj']:>7s} mJ {row['pj_per_flop']:>6s} pJ/FLOP {row['sm_mhz']} MHz" if row["mj"] else ""
        errors = " ".join(f"{label} {row[label]}" for label in ERRORS[row["direction"]])
        race = f"{shape:16s} {row['direction']:9s} {row['mode']:7s} {row['provider']:8s}"
        print(f"{race} {row['ms']:>9s} ms {row['tflops']:>7s} TFLOP/s {energy:38s} {errors}")
    sys.stdout.flush()


def main():
    parser = Parser(__doc__)
    parser.add_argument("shapes", nargs="*", help="B,T,NH,HS")
    parser.add_argument(
        "--library",
        type=Path,
        default=Path(ROOT) / "libattention.so",
        metavar="FILE",
        help="ours (default: %(default)s)",
    )
    parser.add_argument("--flash3", type=Path, metavar="FOLDER", help="where FlashAttention-3 lies")
    parser.add_argument("--flash4", type=Path, metavar="FOLDER", help="where FlashAttention-4 lies")
    parser.add_argument("--mode", choices=(*MODES, "both"), default="both", help="default: %(default)s")
    parser.add_argument("--output", metavar="FILE", help="the CSV; default: dev/cuda/leaderboard/<gpu>_libraries.csv")
    args = parser.parse_args()
    shapes = [shape_of(text) for text in args.shapes] or SHAPES
    if torch is None:
        fail("no Python package torch here: pip install torch")
    if not torch.cuda.is_available():
        fail("compare_libraries.py needs an NVIDIA GPU, and PyTorch sees none")
    if not args.library.exists():
        fail(f"{args.library} is missing: make libattention.so builds it")
    for flag, folder in (("--flash3", args.flash3), ("--flash4", args.flash4)):
        if folder is not None and not folder.is_dir():
            fail(f"{flag} {folder}: no such folder")
    about = gpu_provenance(torch.cuda.get_device_name())
    about |= {"cuda": torch.version.cuda, "torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}
    output = args.output or Path(__file__).parents[1] / "leaderboard" / f"{file_name(about['gpu'])}_libraries.csv"
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    library, peers = Library(args.library), find_peers(args.flash3, args.flash4)
    exact = {OURS, *(peer.name for peer in peers if peer.deterministic)}
    meter, order, all_rows = Meter(), random.Random(42), []
    for shape in shapes:
        timings, errors = measure(library, peers, shape, MODES if args.mode == "both" else [args.mode], meter, order)
        rows = rows_of(shape, timings, errors, lambda name, direction: direction == "forward" or name in exact)
        print_rows(rows)
        write_rows(output, COLUMNS, ("gpu", *RACE), [{**row, **about} for row in rows])
        all_rows += rows
        torch.cuda.empty_cache()
    print("\n".join(summary(all_rows)))


if __name__ == "__main__":
    run(main)
