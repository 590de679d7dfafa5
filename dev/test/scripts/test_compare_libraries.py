#!/usr/bin/env python3
"""Tests of dev/cuda/bench/compare_libraries.py without a GPU: what is timed when, energy, rows, ratios and goals.

python3 dev/test/scripts/test_compare_libraries.py
"""

import contextlib
import functools
import io
import os
import random
import re
import sys
import types
from pathlib import Path
from typing import ClassVar

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir, "cuda", "bench"))

import compare_libraries
from compare_libraries import OURS, Reading, Timing

import unit


class FakeMeter:
    """A board that draws `watts` in all windows, and whose counter ticks every 20 ms."""

    def __init__(self, watts):
        self.watts = watts

    def read(self, seconds):
        return Reading(seconds, self.watts * (seconds // 0.02 * 0.02), 1500.0)


class FakeReplays:
    """A graph of two launches, each of which takes `ms`."""

    log: ClassVar = []  # (name, what, replays or seconds) of all graphs

    def __init__(self, name, ms):
        self.name, self.ms, self.launches, self.replay_ms = name, ms, 2, 2 * ms

    def replay(self, times):
        self.log.append((self.name, "replay", times))

    def time(self, times, idle=None):
        self.log.append((self.name, "time", times))
        return 2 * self.ms * times


def timed(mode, times, meter=None):
    """The timings of fake graphs {name: ms}, and what was done in which order; sleep and clock are made up."""
    now, log = [0.0], FakeReplays.log
    log.clear()

    def sleep(seconds):
        now[0] += seconds
        log.append((None, "sleep", seconds))

    class Idling(FakeReplays):
        def time(self, times, idle=None):
            ms = super().time(times)
            while idle and now[0] < Idling.end:
                idle()
            return ms

        def replay(self, times):
            super().replay(times)
            Idling.end = now[0] + 0.45

    kept = compare_libraries.time.sleep, compare_libraries.time.monotonic
    compare_libraries.time.sleep, compare_libraries.time.monotonic = sleep, lambda: now[0]
    try:
        graphs = {name: Idling(name, ms) for name, ms in times.items()}
        order = random.Random(1)
        if mode == "steady":
            timings = compare_libraries.time_steady(graphs, meter or FakeMeter(500), order)
        else:
            timings = compare_libraries.time_rested(graphs, order)
    finally:
        compare_libraries.time.sleep, compare_libraries.time.monotonic = kept
    return timings, list(log)


def test_steady_warms_up_alone_and_then_times(folder):
    timings, log = timed("steady", {"a": 1.0, "b": 2.0, "c": 0.5})
    done = [entry for entry in log if entry[0]]
    assert len(done) == 3 * 3 * 2, done
    for warm_up, window in zip(done[::2], done[1::2]):
        assert warm_up[0] == window[0] and (warm_up[1], window[1]) == ("replay", "time"), (warm_up, window)
    assert ("a", "replay", 125) in done and ("a", "time", 100) in done and ("b", "time", 50) in done
    rounds = [tuple(entry[0] for entry in done[n : n + 6 : 2]) for n in range(0, 18, 6)]
    assert all(sorted(r) == ["a", "b", "c"] for r in rounds) and len(set(rounds)) > 1, (
        rounds
    )  # not always the same order
    assert {name: t.ms for name, t in timings.items()} == {"a": 1.0, "b": 2.0, "c": 0.5}
    assert abs(timings["b"].mj - 1000) < 1e-6 and timings["b"].mhz == 1500  # 500 W for 2 ms


def test_rested_sleeps_for_two_replays(folder):
    timings, log = timed("rested", {"a": 0.75, "long": 60.0})
    for before, entry in zip(log, log[1:]):
        if entry[1] == "time":
            assert before[1] == "sleep" and abs(before[2] - 2e-3 * 2 * {"a": 0.75, "long": 60.0}[entry[0]]) < 1e-9
    times = [entry[0] for entry in log if entry[1] == "time"]
    assert (times.count("a"), times.count("long")) == (9, 3), times
    assert timings == {"a": Timing(0.75, None, None), "long": Timing(60.0, None, None)}, timings


def test_power_counts_from_tick_to_tick(folder):
    ticks = [Reading(0.05, 0, 1900), Reading(0.12, 70, 1500), Reading(0.13, 70, 1500), Reading(0.14, 80, 1500)]
    ticks += [Reading(0.20, 80, None), Reading(0.24, 150, 1500), None]
    watts, mhz = compare_libraries.power([ticks])
    assert abs(watts - 700) < 1e-6 and mhz == 1500, (watts, mhz)  # 70 J from .14 to .24; not what was before .1 s
    assert compare_libraries.power([[Reading(0.2, 5, None), Reading(0.3, 9, None)]]) == (None, None)  # one tick only
    assert compare_libraries.power([[None, None], []]) == (None, None)


def rows(ours, peers, shape=(64, 1024, 12, 64), direction="forward"):
    timings = {OURS: Timing(ours, 185.0, 1700), **{name: Timing(ms, None, None) for name, ms in peers.items()}}
    labels = dict.fromkeys(compare_libraries.ERRORS[direction], 2e-3)
    errors = dict.fromkeys(timings, labels)
    return compare_libraries.rows_of(shape, {(direction, "steady"): timings}, errors, lambda name, _: name == OURS)


def test_rows_have_the_best_peer_over_ours(folder):
    found = rows(0.25, {"cuDNN": 0.31, "FA2": 0.45})
    assert [row["provider"] for row in found] == [OURS, "cuDNN", "FA2"]
    for row in found:
        assert list(row) == compare_libraries.COLUMNS
        assert (row["best_peer"], row["best_peer_over_ours"]) == ("cuDNN", "1.2400"), row
    ours = found[0]
    assert (ours["ms"], ours["tflops"], ours["mj"], ours["pj_per_flop"]) == ("0.25000", "412.32", "185", "1.795"), ours
    assert (ours["out"], ours["dq"], ours["deterministic"], found[1]["mj"]) == ("2.000e-03", "", "yes", ""), found
    alone = rows(0.25, {})
    assert alone[0]["best_peer_over_ours"] == "" and len(compare_libraries.summary(alone)) == 2  # nothing to compare


def test_goals_are_held_against_the_ratios(folder):
    for peer, said in ((0.34, "aim reached"), (0.31, "reached"), (0.30, "0.02 short")):
        line = compare_libraries.summary(rows(0.25, {"cuDNN": peer}))[-1]
        assert line.endswith(f"1.22  1.35  {said}"), line
    assert compare_libraries.goal_of((4, 16384, 48, 64), "backward") == (1.00, 1.10)
    assert compare_libraries.goal_of((16, 1024, 16, 128), "forward") == (1.05, 1.15)
    assert compare_libraries.goal_of((64, 512, 12, 64), "forward") is None
    assert compare_libraries.summary(rows(0.25, {"cuDNN": 0.3}, (64, 512, 12, 64)))[-1].endswith("1.200 cuDNN")
    without = [shape for shape in compare_libraries.SHAPES if not compare_libraries.goal_of(shape, "forward")]
    assert len(set(compare_libraries.SHAPES)) == len(compare_libraries.SHAPES) and without == [(64, 512, 12, 64)]


def error_of(*arguments):
    """The one line that a call ends with."""
    kept, sys.argv = sys.argv, ["compare_libraries.py", *arguments]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            line = unit.refused("error: ", compare_libraries.main)
    finally:
        sys.argv = kept
    assert "\n" not in line, line
    return line


class FakeTorch:
    @staticmethod
    def use_deterministic_algorithms(wanted):
        assert not wanted

    class cuda:
        available = True

        @classmethod
        def is_available(cls):
            return cls.available


def test_errors_are_one_line(folder):
    assert "B,T,NH,HS" in error_of("8,1024,12") and "0,1,1,64" in error_of("0,1,1,64")
    kept = compare_libraries.torch
    try:
        compare_libraries.torch = None
        assert "pip install torch" in error_of()
        compare_libraries.torch = FakeTorch
        assert "make libattention.so" in error_of("--library", f"{folder}/none.so")
        library = f"{folder}/here.so"
        open(library, "w").close()
        assert "--flash3" in error_of("--library", library, "--flash3", f"{folder}/nothing")
        FakeTorch.cuda.available = False
        assert "needs an NVIDIA GPU" in error_of()
    finally:
        compare_libraries.torch = kept
    nothing = f"error: --flash3 {folder}: no no_such_flash_attention"
    unit.refused(nothing, compare_libraries.flash, folder, "no_such_flash_attention", "--flash3")


def test_a_peer_that_raises_anything_is_left_out(folder):
    class Raising:
        def __init__(self, peer, error):
            self.error = error

        def forward(self):
            if self.error:
                raise self.error

        backward = forward

    def says(error):
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            served = compare_libraries.works(compare_libraries.Peer("FA9", True, None), [error], (1, 8, 2, 64), None)
        return served, output.getvalue()

    kept = compare_libraries.torch, compare_libraries.PeerOnInputs, compare_libraries.Replays
    compare_libraries.torch, compare_libraries.PeerOnInputs = FakeTorch, Raising
    compare_libraries.Replays = lambda calls, stream: [call() for call in calls]
    try:
        assert says(None) == (True, "")
        for error in (AssertionError(), TypeError("no such argument\nsecond line"), RuntimeError("no kernel")):
            served, line = says(error)
            assert not served and line.count("\n") == 1 and line.startswith("FA9: left out at 1,8,2,64: "), line
            assert type(error).__name__ in line and "second" not in line, line
    finally:
        compare_libraries.torch, compare_libraries.PeerOnInputs, compare_libraries.Replays = kept


def test_a_library_of_this_folder_is_loaded_by_its_name(folder):
    kept = os.getcwd()
    os.chdir(folder)
    try:
        open("empty.so", "w").close()
        line = unit.refused("error: --library empty.so: ", compare_libraries.Library, Path("empty.so"))
        assert "too short" in line, line
    finally:
        os.chdir(kept)


@contextlib.contextmanager
def replaced(**names):
    """compare_libraries with other things under some of its names."""
    kept = {name: getattr(compare_libraries, name) for name in names}
    vars(compare_libraries).update(names)
    try:
        yield
    finally:
        vars(compare_libraries).update(kept)


def test_arguments_are_those_of_the_header(folder):
    made = {name: types.SimpleNamespace() for name in ("scratch_bytes", "error", "forward", "backward")}
    fake = types.SimpleNamespace(**{f"attention_{name}": function for name, function in made.items()})
    kept, compare_libraries.ctypes.CDLL = compare_libraries.ctypes.CDLL, lambda path: fake
    try:
        compare_libraries.Library(Path("any.so"))
    finally:
        compare_libraries.ctypes.CDLL = kept
    header = Path(compare_libraries.ROOT, "dev", "cuda", "libattention.h").read_text()
    for name in ("scratch_bytes", "forward", "backward"):
        said = re.search(rf"^\w+ attention_{name}\(([^)]*)\);", header, re.M)[1].split(",")
        types_of = [
            compare_libraries.ctypes.c_void_p if "*" in word else compare_libraries.ctypes.c_int for word in said
        ]
        assert made[name].argtypes == types_of, name


def need_torch():
    if compare_libraries.torch is None:
        raise unit.Skipped("no torch")
    return compare_libraries.torch


def test_errors_are_relative_to_attention_in_fp64(folder):
    torch = need_torch()
    torch.manual_seed(1)
    B, T, NH, HS = 2, 70, 3, 8
    qkv, dout = torch.randn(B, T, 3, NH, HS).double().requires_grad_(), torch.randn(B, T, NH, HS).double()
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
    scores = (q @ k.transpose(2, 3) * HS**-0.5).masked_fill(torch.ones(T, T).triu(1) > 0, float("-inf"))
    out = (scores.softmax(-1) @ v).transpose(1, 2)
    (dqkv,) = torch.autograd.grad(out, qkv, dout)
    right, wrong = object.__new__(compare_libraries.Ours), object.__new__(compare_libraries.Ours)
    right.out, right.dqkv, wrong.out, wrong.dqkv = out.detach(), dqkv, out.detach().clone(), 1.5 * dqkv
    wrong.out[:, :64] *= 2  # rows from 64 on are right
    errors = compare_libraries.relative_errors({"right": right, "wrong": wrong}, qkv.detach(), dout)
    assert max(errors["right"].values()) < 1e-12, errors
    found = {label: round(x, 6) for label, x in errors["wrong"].items()}
    assert found.pop("out") > 0.9 and found == {"out_from_64": 0, "dq": 0.5, "dk": 0.5, "dv": 0.5}, found


def test_a_shape_runs_all_that_is_timed_and_compared(folder):
    log = []

    class Entrant:
        def __init__(self, *arguments):
            self.peer = arguments[0]
            self.name = OURS if len(arguments) == 4 else self.peer.name

        def forward(self):
            log.append((self.name, "forward"))

        def backward(self):
            log.append((self.name, "backward"))

    def on_cpu(function, *size, device):
        assert device == "cuda"
        return function(*size)

    def errors(entrants, *inputs):
        assert all(log.index((name, "forward")) < log.index((name, "backward")) for name in entrants), log
        assert [tuple(x.shape) for x in inputs] == [(1, 8, 3, 2, 4), (1, 8, 2, 4)]
        return dict.fromkeys(entrants, 0)

    torch = need_torch()
    device = types.SimpleNamespace(L2_cache_size=1000)
    cuda = {"get_device_properties": lambda index: [device, None][index], "Stream": object}
    cuda["stream"] = lambda stream: contextlib.nullcontext()
    fake = types.SimpleNamespace(cuda=types.SimpleNamespace(**cuda), manual_seed=torch.manual_seed)
    fake.randn = functools.partial(on_cpu, torch.randn)
    peers = [compare_libraries.Peer(name, det, None) for name, det in (("a", False), ("a det", True), ("bad", False))]
    names = {"torch": fake, "Ours": Entrant, "PeerOnInputs": Entrant, "Replays": lambda calls, stream: len(calls)}
    names |= {
        "time_steady": lambda graphs, *_: graphs,
        "time_rested": lambda graphs, _: graphs,
        "relative_errors": errors,
    }
    with replaced(works=lambda peer, *_: peer.name != "bad", **names):
        timings, found = compare_libraries.measure(None, peers, (1, 8, 2, 4), ["steady", "rested"], None, None)
    # 512 bytes of inputs: four sets hold more than twice L2, and 200 launches are 50 of each
    expected = {"forward": {OURS: 200, "a": 200}, "backward": {OURS: 200, "a": 200, "a det": 200}}
    assert timings == {(d, mode): graphs for d, graphs in expected.items() for mode in ("steady", "rested")}, timings
    assert found == dict.fromkeys((OURS, "a", "a det"), 0), found


def test_peers_are_pytorchs_and_those_of_the_folders(folder):
    Path(folder, "flash_attn_interface.py").write_text(
        "def flash_attn_func(q, k, v, causal, deterministic): return deterministic\n"
    )
    attention = types.ModuleType("torch.nn.attention")
    attention.SDPBackend = types.SimpleNamespace(FLASH_ATTENTION=1, CUDNN_ATTENTION=2)
    attention.sdpa_kernel = None
    parents = {name: sys.modules.get(name) or types.ModuleType(name) for name in ("torch", "torch.nn")}
    kept, path = dict(sys.modules), list(sys.path)
    sys.modules.update({**parents, "torch.nn.attention": attention})
    deterministic = types.SimpleNamespace(fill_uninitialized_memory=True)
    try:
        fake = types.SimpleNamespace(utils=types.SimpleNamespace(deterministic=deterministic))
        with replaced(torch=fake), contextlib.redirect_stdout(io.StringIO()) as said:
            peers = compare_libraries.find_peers(folder, None)
    finally:
        sys.modules.clear()
        sys.modules.update(kept)
        sys.path[:] = path
    names = [(peer.name, peer.deterministic) for peer in peers]
    assert names == [("cuDNN", False), ("FA2", False), ("FA2 det", True), ("FA3", False), ("FA3 det", True)], names
    assert [peer.attention(1, 2, 3) for peer in peers[3:]] == [False, True]
    assert all(callable(peer.attention) for peer in peers), peers
    assert (
        not deterministic.fill_uninitialized_memory and said.getvalue() == "FA4: left out, --flash4 names no folder\n"
    )


def test_the_meter_reads_the_first_gpu_by_its_bus(folder):
    class Nvml:
        def nvmlInit_v2(self):
            return 0

        def nvmlDeviceGetHandleByPciBusId_v2(self, name, device):
            return 0 if name == b"00000001:0a:02.0" else 1

        def nvmlDeviceGetTotalEnergyConsumption(self, device, millijoules):
            millijoules._obj.value = 2500
            return 0

        def nvmlDeviceGetClockInfo(self, device, clock, mhz):
            mhz._obj.value = 1700
            return clock != 1

    buses = [types.SimpleNamespace(pci_domain_id=1, pci_bus_id=10, pci_device_id=2)]
    buses += [types.SimpleNamespace(pci_domain_id=1, pci_bus_id=11, pci_device_id=2)]
    fake = types.SimpleNamespace(cuda=types.SimpleNamespace(get_device_properties=lambda index: buses[index]))
    kept, compare_libraries.ctypes.CDLL = compare_libraries.ctypes.CDLL, lambda name: Nvml()
    try:
        with replaced(torch=fake):
            assert compare_libraries.Meter().read(0.25) == Reading(0.25, 2.5, 1700)
            buses.reverse()
            assert compare_libraries.Meter().read(0.25) is None, "a GPU that NVML does not know"
    finally:
        compare_libraries.ctypes.CDLL = kept


if __name__ == "__main__":
    sys.exit(unit.run(globals()))
