#!/usr/bin/env python3
"""Tests of dev/cuda/bench/compare_libraries.py without a GPU: what is timed when, energy, rows, ratios and goals.

python3 dev/test/scripts/test_compare_libraries.py
"""

import contextlib
import io
import os
import random
import sys
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
    timings, log = timed("rested", {"a": 1.0, "long": 60.0})
    for before, entry in zip(log, log[1:]):
        if entry[1] == "time":
            assert before[1] == "sleep" and abs(before[2] - 2e-3 * 2 * {"a": 1.0, "long": 60.0}[entry[0]]) < 1e-9
    times = [entry[0] for entry in log if entry[1] == "time"]
    assert (times.count("a"), times.count("long")) == (9, 3), times
    assert timings["long"] == Timing(60.0, None, None)


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
    wanted = [shape for shape in compare_libraries.SHAPES if compare_libraries.goal_of(shape, "forward")]
    assert len(set(compare_libraries.SHAPES)) == len(compare_libraries.SHAPES) and len(wanted) >= 12


def error_of(*arguments):
    """The one line that a call ends with."""
    kept, sys.argv = sys.argv, ["compare_libraries.py", *arguments]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            compare_libraries.main()
    except SystemExit as ended:
        assert "\n" not in str(ended.code), ended.code
        return str(ended.code)
    finally:
        sys.argv = kept
    raise AssertionError(f"{arguments} went unnoticed")


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
    try:
        compare_libraries.flash(folder, "no_such_flash_attention", "--flash3")
    except SystemExit as ended:
        assert str(ended.code).startswith(f"error: --flash3 {folder}: no no_such_flash_attention"), ended.code
    else:
        raise AssertionError("a folder without FlashAttention went unnoticed")


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
        compare_libraries.Library(Path("empty.so"))
    except SystemExit as ended:
        assert str(ended.code).startswith("error: --library empty.so: ") and "too short" in str(ended.code), ended.code
    else:
        raise AssertionError("an empty library was loaded")
    finally:
        os.chdir(kept)


if __name__ == "__main__":
    sys.exit(unit.run(globals()))
