#!/usr/bin/env python3
"""Tests of dev/bench/loss.py: synthetic curves with known answers, a stand-in for the trainer, and ./train_gpt2.

python3 dev/test/scripts/test_loss.py          # 30 s; ends in 'N passed, N failed'
"""

import contextlib
import csv
import importlib.util
import io
import itertools
import math
import os
import random
import shlex
import subprocess
import sys
import time
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir, "bench"))

import loss

import unit
from data_common import TokenFile
from unit import program, refused

os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # the stand-ins for nvidia-smi know no other

# Trains nothing: the loss falls by .2 when tokens double, and scatters with the seed and, less, with the arm. -l is the
# number of nats added; --sooner x reaches each loss with 1/x of the tokens. Two at once on one GPU are an error.
TRAINER = """#!/usr/bin/env python3
import glob, math, os, random, sys, time
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
steps, every, out = int(flags["-x"]), int(flags["-v"]), flags["-o"]
gpu = os.path.join("FOLDER", "gpu" + os.environ.get("CUDA_VISIBLE_DEVICES", "none"))
with open("FOLDER/said", "a") as f:
    f.write(os.path.basename(gpu) + " " + " ".join(sys.argv[1:]) + "\\n")
os.mkdir(gpu)
time.sleep(float(flags.get("--sleep", 0)))
with open("FOLDER/busy", "a") as f:
    f.write(f"{len(glob.glob('FOLDER/gpu*'))} {os.getpid()}\\n")
os.rmdir(gpu)
os.makedirs(out, exist_ok=True)
if "-n" in flags:
    for name in ("model_00000001.bin", "state_00000001_00000.bin"):
        open(os.path.join(out, name), "w").write(flags["--seed"])
seed = flags.get("--seed") or open(flags["-e"]).read()
if flags.get("--fails-at") == seed:
    sys.exit("error: no memory")
if flags.get("--diverges-at") == seed:
    sys.exit(3)
noise = random.Random(int(seed)).gauss(0, 0.02) + random.Random(seed + " ".join(flags)).gauss(0, 0.0025)
with open(os.path.join(out, "main.log"), "w") as log:
    for step in range(1, steps + 1):
        ms = 999 if step == 1 else 100
        print(f"step {step}/{steps} | loss 1.0 | norm 1.0 | lr 1e-3 | {ms} ms | 5 tok/s")
        if step == steps or every and step % every == 0:
            x = 5 - 0.2 * math.log2(step * float(flags.get("--sooner", 1))) + float(flags.get("-l", 0)) + noise
            log.write(f"s:{step} tel:{x:.6f}\\n")
"""


def rows_of(arm, seed, runs, step_ms=100.0, curve="", watts=0):
    """Rows of an arm: `runs` is [(steps, loss)]; a step is of 1,000 tokens. No watts: no joules."""
    about = {"flags": "", "val_tokens": "20000000", "margin": "0.004", "curve": curve, "commit": "a"}
    return [
        {**about, "arm": arm, "seed": str(seed), "steps": str(s), "tokens": str(1000 * s), "loss": str(x)}
        | {"step_ms": str(step_ms), "joules": str(s * step_ms / 1000 * watts or "")}
        for s, x in runs
    ]


class Joules:
    """A stand-in for scaling.Energy: a GPU that has used 7 J more whenever it is asked."""

    def __init__(self, gpus):
        self.used = 7 * len(gpus)

    def joules(self):
        self.used += 7
        return self.used


def called(folder, *flags, gpus=2, arms=("base=", "worse=-l 0.01"), kind="NVIDIA H200"):
    """What loss.py writes with stand-ins for the trainer and nvidia-smi, as rows, and what it prints."""
    program(folder, "train", TRAINER.replace("FOLDER", folder))
    listed = "".join(f"echo 'GPU {i}: a (UUID: GPU-b{i})';" for i in range(gpus))
    kinds = "".join(f"echo {one};" for one in ([kind] * gpus if isinstance(kind, str) else kind))
    smi = f"-L) {listed}; *name*) {kinds}; *) echo 580 ;;"
    program(folder, "nvidia-smi", f"#!/bin/sh\ncase $* in {smi} esac\n")
    with contextlib.redirect_stdout(io.StringIO()), TokenFile(os.path.join(folder, "val.bin"), 256) as out:
        out.append(bytes(20000))
        out.finish()
    path, said = os.path.join(folder, "loss.csv"), io.StringIO()
    command = ["loss.py", "--output", path, "--trainer", os.path.join(folder, "train"), *flags]
    if arms and "--common" not in flags:
        command += ["--common", f"-e d12 -i t.bin -j {folder}/val.bin -b 4 -t 64 -d 512"]
    for arm in arms:
        command += ["--arm", arm]
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "COMMIT": "abcdef0"}
    environment, arguments = mock.patch.dict(os.environ, environment), mock.patch.object(sys, "argv", command)
    energy = mock.patch.object(loss, "Energy", Joules)
    with environment, arguments, energy, contextlib.redirect_stdout(said):
        loss.main()
    with open(path, newline="", encoding="utf-8") as f:
        return list(csv.DictReader(f)), said.getvalue()


def commands(folder):
    with open(os.path.join(folder, "said"), encoding="utf-8") as f:
        return f.read().splitlines()


# ----------------------------------------------------------------------------
# Statistics


def test_quantiles_are_student_s(_):
    table = {1: 6.3138, 2: 2.9200, 3: 2.3534, 4: 2.1318, 5: 2.0150, 7: 1.8946, 10: 1.8125, 20: 1.7247, 120: 1.6577}
    for df, t in table.items():
        assert abs(loss.t_quantile(df) - t) < 2e-3, (df, loss.t_quantile(df))
    mean, low, high = loss.interval([1.0, 2.0, 3.0, 4.0])  # 2.5 +- 2.3534 * 1.2910 / 2
    assert abs(mean - 2.5) < 1e-9 and abs(low - 0.98089) < 1e-4 and abs(high - 4.01911) < 1e-4, (low, high)
    assert loss.interval([1.0]) == (1.0, -math.inf, math.inf)


def test_what_an_interval_says(_):
    for low, high, said in (
        (-0.003, 0.004, "equal within 0.004"),
        (0.001, 0.003, "equal within 0.004"),
        (-0.005, 0.003, "undecided"),
        (0.001, 0.005, "higher, perhaps by less than 0.004"),
        (-0.02, -0.001, "lower, perhaps by less than 0.004"),
        (0.0041, 0.02, "higher by more than 0.004"),
        (-0.02, -0.005, "lower by more than 0.004"),
        (-math.inf, math.inf, "undecided"),
        (math.nan, math.nan, "undecided"),
    ):
        assert loss.verdict(low, high, 0.004) == said, (low, high, loss.verdict(low, high, 0.004))


def verdicts(difference, seeds, trials=1500):
    """Shares of the verdicts on arms that differ so: seeds scatter by .02, and runs of a seed by .0025."""
    draw, counts = random.Random(5), {}
    for _ in range(trials):
        pairs = [(x + draw.gauss(0, 0.0025), x + difference + draw.gauss(0, 0.0025))
                 for x in (draw.gauss(3, 0.02) for _ in range(seeds))]  # fmt: skip
        said = loss.difference_line("arm", pairs, 0.004).rpartition("pairs: ")[2]
        counts[said] = counts.get(said, 0) + 1 / trials
    return counts


def test_a_fault_of_a_hundredth_is_found_with_eight_seeds(_):
    counts = verdicts(0.01, 8)
    assert counts["higher by more than 0.004"] > 0.97 and "equal within 0.004" not in counts, counts
    counts = verdicts(-0.01, 8)
    assert counts["lower by more than 0.004"] > 0.97 and "equal within 0.004" not in counts, counts


def test_verdicts_are_wrong_as_often_as_they_may_be(_):
    at_margin = verdicts(0.004, 8)  # 5% and what 1,500 trials scatter by
    assert at_margin.get("equal within 0.004", 0) < 0.07 and at_margin["higher by more than 0.004"] < 0.07, at_margin
    assert verdicts(0, 8)["equal within 0.004"] > 0.75 and verdicts(0, 16)["equal within 0.004"] > 0.98


# ----------------------------------------------------------------------------
# Tokens, time and energy to equal loss


def curve(steps, sooner=1.0, noise=0.0):
    """Falls by .2 when tokens double."""
    return 5 - 0.2 * math.log2(steps * sooner) + noise


def ratios(rows):
    lines = loss.report(rows)
    return lines[2].strip() if len(lines) > 2 else lines


def test_known_curves_have_their_ratios(_):
    rows, schedules = [], []
    for seed, noise in enumerate((0.02, -0.01, 0.03), 1):
        points = " ".join(f"{step}:{curve(step, 1.5, noise)}" for step in (50, 100, 200, 400))
        base = rows_of("base", seed, [(1000, curve(1000, 1, noise))], watts=600)
        rows += base + rows_of("fast", seed, [(1000, curve(1000, 1.5, noise))], 102.0, points, 300)
        runs = [(steps, curve(steps, 1.5, noise)) for steps in (500, 1000, 700)]
        schedules += base + rows_of("fast", seed, runs, 102.0)
    said = "1.500 times fewer tokens (1.500 to 1.500), 1.471 times less time (1.471 to 1.471)"
    said = f"reaches the baseline's final loss with {said}"
    assert ratios(rows) == f"{said}, 2.941 times less energy (2.941 to 2.941)", ratios(rows)
    assert ratios(schedules) == said, ratios(schedules)  # its rows have no joules
    assert loss.report(rows)[1].startswith("fast: -0.11699 (-0.11699 to -0.11699) in 3 pairs: lower by more"), rows


def test_the_spread_is_that_of_the_seeds(_):
    rows = []
    for seed, sooner in enumerate((1.4, 1.5, 1.6), 1):
        rows += rows_of("base", seed, [(1000, curve(1000))])
        rows += rows_of("fast", seed, [(steps, curve(steps, sooner)) for steps in (500, 1000)])
    logs = [math.log(x) for x in (1.4, 1.5, 1.6)]
    mean, low, high = (f"{math.exp(x):.3f}" for x in loss.interval(logs))
    assert f"{mean} times fewer tokens ({low} to {high})" in ratios(rows) and low < "1.4" < "1.6" < high, ratios(rows)


def test_a_loss_that_is_not_reached_has_no_ratio(_):
    rows = rows_of("base", 1, [(1000, 3.0)]) + rows_of("base", 2, [(1000, 3.0)])
    slow = rows_of("slow", 1, [(500, 3.5), (1000, 3.1)]) + rows_of("slow", 2, [(500, 3.5), (1000, 2.9)])
    assert ratios(rows + slow) == "reaches the baseline's final loss with 1 of 2 seeds", ratios(rows + slow)
    early = rows_of("early", 1, [(500, 2.9), (1000, 2.5)]) + rows_of("early", 2, [(500, 2.9), (1000, 2.5)])
    assert "at least 2.000 times fewer tokens" in ratios(rows + early), ratios(rows + early)


def test_a_slower_arm_takes_more_times_the_time(_):
    rows = []
    for seed in (1, 2):
        rows += rows_of("base", seed, [(1000, curve(1000))])
        rows += rows_of("slow", seed, [(steps, curve(steps, 1.25)) for steps in (500, 1000)], 200.0)
    said = "with 1.250 times fewer tokens (1.250 to 1.250), 1.600 times the time (1.600 to 1.600)"
    assert said in ratios(rows), ratios(rows)


def test_one_seed_and_one_point_say_what_is_missing(_):
    rows = rows_of("base", 1, [(1000, 3.0)]) + rows_of("arm", 1, [(1000, 2.8)])
    assert loss.report(rows)[1] == "arm: -0.20000 with one seed; an interval needs two", loss.report(rows)
    assert ratios(rows).endswith("that needs --val-every, or several --steps"), ratios(rows)
    rows += rows_of("arm", 1, [(500, 3.5)])
    assert "(" not in ratios(rows) and "times fewer tokens, " in ratios(rows), ratios(rows)


def test_only_runs_of_equal_seeds_and_lengths_are_paired(_):
    rows = rows_of("base", 1, [(500, 9.0), (1000, 3.0)]) + rows_of("base", 2, [(500, 9.0)])
    rows += rows_of("base", 3, [(1000, 4.0)]) + rows_of("arm", 3, [(1000, 4.001)])
    rows += rows_of("arm", 1, [(500, 1.0), (1000, 3.001)]) + rows_of("arm", 2, [(500, 1.0)])
    lines = loss.report(rows)
    assert lines[0].startswith("base, the baseline: loss 3.50000 at 1,000,000 tokens"), lines
    assert lines[1].startswith("arm: +0.00100 (+0.00100 to +0.00100) in 2 pairs: equal within"), lines
    assert loss.report(rows_of("base", 1, [(9, 3.0)]) + rows_of("arm", 2, [(9, 3.0)]))[1] == (
        "arm: no run as long as the baseline's"
    )


def test_seeds_without_all_lengths_have_no_ratio(_):
    rows = [row for seed in (1, 2, 3) for row in rows_of("base", seed, [(1000, 3.0)])]
    rows += [row for seed in (1, 2) for row in rows_of("arm", seed, [(500, 3.0), (1000, 2.9)])]
    *_, ratio = loss.report(rows)
    for incomplete in ([(1000, 2.9)], [(500, 3.0)]):
        *_, left, said = loss.report(rows + rows_of("arm", 3, incomplete))
        assert left == "    not all lengths are measured, so not in the ratio: seed 3" and said == ratio, (left, said)


# ----------------------------------------------------------------------------
# Runs


def test_a_planted_fault_is_found_with_eight_seeds(folder):
    rows, said = called(folder, "--seeds", "8", "--steps", "20", arms=("base=", "same=-c 0", "worse=-l 0.01"))
    lines = {line.split(":")[0]: line for line in said.splitlines() if "pairs" in line}
    assert "higher" in lines["worse"] and "equal" not in lines["worse"] and "8 pairs" in lines["worse"], said
    assert "higher" not in lines["same"] and "lower" not in lines["same"], said
    assert len(rows) == 24 and {row["seed"] for row in rows} == set("12345678")
    first = rows[0]
    found = [first[name] for name in ("tokens", "step_ms", "joules", "val_tokens", "margin", "gpu", "commit")]
    assert found == ["10240", "100.000", "7", "19968", "0.004", "NVIDIA H200", "abcdef0"], first
    assert "note: validated on 19968 tokens; a result should have 10,000,000" in said
    for command in commands(folder):
        assert "-m 78 " in command and " -x 20 " in command and " -v 0 " in command, command


def test_gpus_work_in_parallel_each_on_one_run(folder):
    called(folder, "--seeds", "4", "--steps", "4", "--val-every", "2", arms=("base=--sleep 0.3", "other=--sleep 0.2"))
    used = [command.split()[0] for command in commands(folder)]
    assert len(used) == 8 and used.count("gpu0") >= 2 and used.count("gpu1") >= 2, used
    with open(os.path.join(folder, "busy"), encoding="utf-8") as f:
        assert {line.split()[0] for line in f} >= {"2"}, "only one GPU worked at a time"
    assert all("-v 2 " in command for command in commands(folder))


def test_another_kind_of_GPU_has_other_seeds(folder):
    called(folder, "--seeds", "1", "--steps", "4", arms=("base=", "other="))
    called(folder, "--seeds", "2", "--steps", "4", arms=("base=",), kind="NVIDIA H100")
    rows, said = called(folder, "--seeds", "3", "--steps", "4", arms=("base=", "other="))
    assert "note: seed 2 has runs on an NVIDIA H100; the others of it wait for one" in said, said
    kinds = {(row["arm"], row["seed"]): row["gpu"][-4:] for row in rows}
    assert kinds == {
        **{(arm, seed): "H200" for arm in ("base", "other") for seed in "13"},
        ("base", "2"): "H100",
    }, kinds


def test_an_arm_whose_seeds_are_on_another_kind_of_GPU_has_no_rows(folder):
    called(folder, "--seeds", "2", "--steps", "4", arms=("a=",), kind="NVIDIA H100")
    said = "c, the baseline, has no rows: all its seeds have runs on another kind of GPU"
    for arms in (("c=", "d="), ("c=", "a=")):
        refused(said, lambda arms=arms: called(folder, "--seeds", "2", "--steps", "4", arms=arms))
    _, said = called(folder, "--seeds", "2", "--steps", "4", arms=("a=", "c="))
    assert "c: no run as long as the baseline's" in said, said


def test_hidden_gpus_are_left_alone(folder):
    for visible, used in (("2,0", {"gpu2", "gpu0"}), ("GPU-b1", {"gpu1"}), (" 1", {"gpu1"})):
        with mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": visible}):
            called(folder, "--seeds", "2", "--steps", "4", arms=("base=--sleep 0.3",), gpus=3)
        assert {command.split()[0] for command in commands(folder)} == used, visible
        os.remove(os.path.join(folder, "loss.csv"))
        os.remove(os.path.join(folder, "said"))
    for visible in ("", "3", "GPU-c", "1", "0,0"):
        with mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": visible}):
            refused("--gpus 2: nvidia-smi shows", lambda: called(folder, "--gpus", "2", gpus=3))


def test_an_interrupted_call_continues(folder):
    arms = ("base=", "b=--fails-at 2")
    refused("exit code 1: no memory", lambda: called(folder, "--seeds", "3", "--steps", "4", arms=arms, gpus=1))
    before = commands(folder)
    assert len(before) == 4, before  # base and b with seed 1, base and b with seed 2
    os.remove(os.path.join(folder, "said"))
    rows, said = called(folder, "--seeds", "3", "--steps", "4", arms=("base=",), gpus=1)
    assert "1 runs, 1 at a time" in said and len(commands(folder)) == 1 and len(rows) == 4, said
    rows, said = called(folder, "--seeds", "3", "--steps", "4", arms=("base=",), gpus=1)
    assert "0 runs, 1 at a time" in said and len(commands(folder)) == 1 and len(rows) == 4, said
    assert called(folder, arms=())[1].startswith("base, the baseline: loss ")


def test_GPUs_of_several_kinds_are_refused(folder):
    kinds = ("NVIDIA A", "NVIDIA B")
    refused("GPUs of several kinds are here: NVIDIA A, NVIDIA B", lambda: called(folder, "--steps", "4", kind=kinds))
    with mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": "1"}):
        rows, _ = called(folder, "--seeds", "1", "--steps", "4", kind=kinds)
    assert {row["gpu"] for row in rows} == {"NVIDIA B"}, rows


def test_a_signal_after_a_failure_ends_the_runs(folder):
    called(folder, "--seeds", "1", "--steps", "4")  # writes the stand-ins
    command = [sys.executable, loss.__file__, "--output", f"{folder}/x.csv", "--trainer", f"{folder}/train"]
    command += ["--steps", "4", "--arm", "a=--fails-at 1", "--arm", "b=--sleep 60", "--seeds", "1"]
    command += ["--common", f"-i t -j {folder}/val.bin -b 4 -t 64 -d 512"]
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    os.remove(os.path.join(folder, "said"))
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment) as process:
        while not os.path.exists(f"{folder}/said") or len(commands(folder)) < 2:
            time.sleep(0.05)
        time.sleep(1)  # the first has failed by then
        process.terminate()
        start = time.monotonic()
        process.stderr.read()
    assert process.returncode == 1 and time.monotonic() - start < 20, process.returncode
    time.sleep(0.5)
    left = subprocess.run(["pgrep", "-f", f"{folder}/train"], stdout=subprocess.DEVNULL, check=False).returncode == 0
    assert not left, "a trainer is left"


def test_a_signal_ends_the_runs(folder):
    called(folder, "--seeds", "1", "--steps", "4")  # writes the stand-ins
    os.remove(os.path.join(folder, "said"))
    command = [sys.executable, loss.__file__, "--output", f"{folder}/x.csv", "--trainer", f"{folder}/train"]
    command += ["--steps", "4", "--arm", "a=--sleep 60", "--common", f"-i t -j {folder}/val.bin -b 4 -t 64 -d 512"]
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment) as process:
        while not all(os.path.exists(f"{folder}/gpu{i}") for i in range(2)):
            time.sleep(0.05)
        start = time.monotonic()
        process.terminate()
        errors = process.stderr.read().decode()
    assert time.monotonic() - start < 20 and process.returncode == 1, process.returncode
    assert errors == "error: interrupted by SIGTERM\n", errors
    assert len(commands(folder)) == 2, commands(folder)


def test_other_settings_under_the_same_name_are_refused(folder):
    called(folder, "--seeds", "1", "--steps", "4")
    common = ("--seeds", "2", "--steps", "4")
    other = ("base=", "worse=-l 0.02")
    refused("has arm worse with flags", lambda: called(folder, *common, arms=other))
    refused("with margin 0.004, not 0.005", lambda: called(folder, *common, "--margin", "0.005"))
    alone = ("third=-l 0.03",)
    refused("with margin 0.004, not 1", lambda: called(folder, *common, "--margin", "1", arms=alone))
    refused("has arm base with val_tokens 19968, not 768", lambda: called(folder, *common, "--val-tokens", "1000"))


def test_another_process_s_rows_of_the_same_name_stay(folder):
    """It has begun at the same time, with other flags: neither has seen rows of the other."""
    rows, _ = called(folder, "--seeds", "1", "--steps", "4")
    none, alone = mock.patch.object(loss, "other_settings", side_effect=[None, *3 * ["has others"]]), ("base=-l 1",)
    with none:
        said = f"{folder}/loss.csv has others; the new rows are in {folder}/loss.csv.new"
        refused(said, lambda: called(folder, "--seeds", "2", "--steps", "4", arms=alone))
    assert loss.read_rows(f"{folder}/loss.csv") == rows


def test_the_baseline_is_the_first_arm_of_the_last_command(folder):
    called(folder, "--seeds", "1", "--steps", "4", arms=("worse=-l 0.01",))
    called(folder, "--seeds", "1", "--steps", "4", arms=("base=", "worse=-l 0.01"))
    assert called(folder, arms=())[1].startswith("base, the baseline: loss ")


def test_a_run_that_diverges_is_a_row(folder):
    rows, said = called(folder, "--seeds", "2", "--steps", "4", arms=("base=", "high=--diverges-at 2"))
    assert [row["loss"] for row in rows if (row["arm"], row["seed"]) == ("high", "2")] == ["nan"], rows
    assert "high: diverged with 1 of 2 seeds" in said and "reaches" not in said, said


def test_seeds_with_which_the_baseline_diverges_have_no_pairs(folder):
    arms = ("base=--diverges-at 2", "other=")
    _, said = called(folder, "--seeds", "3", "--steps", "4", arms=arms)
    assert "diverged with 1 of 3 seeds, which have no pairs" in said and "in 2 pairs" in said, said


def test_a_program_starts_from_the_trainer_s_weights(folder):
    peer = program(folder, "peer", TRAINER.replace("FOLDER", folder).replace("999", "99"))
    arms = ("base=", f"peer={peer} --number {{seed}}0")
    rows, _ = called(folder, "--seeds", "2", "--steps", "6", arms=arms, gpus=1)
    weights, runs = commands(folder)[:2], commands(folder)[2:]
    assert all(f"--seed {seed} -x 1 -l 0" in weights[seed - 1] for seed in (1, 2)) and len(runs) == 4, weights
    starts = [command.split(" -e ")[-1].split()[0] for command in runs]
    assert starts[0] == starts[1] and starts[2] == starts[3] and starts[0] != starts[2], runs
    assert starts[0].endswith("1/model_00000001.bin"), starts
    assert "--number 10" in runs[1] and "--seed" not in runs[1] and "-v 6" in runs[1] and "--seed 1" in runs[0], runs
    assert [row["arm"] for row in rows] == ["base", "base", "peer", "peer"], rows
    assert rows[2]["flags"].startswith(peer), rows[2]
    alone = ("base=",)
    refused("has arm base with flags", lambda: called(folder, "--seeds", "3", "--steps", "6", arms=alone, gpus=1))


def test_batches_of_other_sizes_have_equal_tokens(folder):
    rows, said = called(folder, "--seeds", "2", "--tokens", "4096", "10240", arms=("base=", "twice=-d 1024"))
    found = sorted((row["arm"], int(row["steps"]), row["tokens"]) for row in rows if row["seed"] == "2")
    assert found == [("base", 8, "4096"), ("base", 20, "10240"), ("twice", 4, "4096"), ("twice", 10, "10240")], found
    assert "in 2 pairs" in said, said


def test_a_trainer_that_stops_early_is_said(folder):
    text = TRAINER.replace("FOLDER", folder).replace("range(1, steps + 1)", "range(1, steps)")
    early = program(folder, "early", text)
    arms = ("b=", f"early={early}")
    said = "arm early, seed 1: 3 steps and 0 validations, not 4 steps"
    refused(said, lambda: called(folder, "--seeds", "1", "--steps", "4", arms=arms))


def test_an_arm_that_continues_another_has_its_first_steps(folder):
    arms = ("base=", "tail=base@0.5 -l 1", "late=base@0.75 -l 2")
    first = 1.0, 100, [(0, 8.0), (1, 7.0), (2, 6.0), (3, 5.0), (4, 4.0)]
    tails = {"tail": (3.0, 30, [(2, 6.0), (3, 2.0), (4, 1.5)]), "late": (5.0, 20, [(3, 5.0), (4, 1.0)])}
    asked = []

    def train(runs, arm, seed, steps, command, at, gpu):
        if not arm.continues:
            assert command[-4:] == ["-n", "1", "-nk", "4"], command
            for name in ("main.flags", *(f"{kind}_{step:08d}" for kind in ("model", "DONE") for step in (2, 3, 4))):
                unit.write(os.path.join(at, name), "")
        asked.append((arm.name, sorted(os.listdir(at)), command))
        return tails.get(arm.name, first)

    with mock.patch.object(loss.Runs, "train", train):
        rows, _ = called(folder, "--seeds", "1", "--steps", "4", arms=arms, gpus=1)
        again, _ = called(folder, "--seeds", "1", "--steps", "4", arms=arms, gpus=1)
    assert rows == again and len(asked) == 3, asked
    found = {row["arm"]: (row["loss"], row["step_ms"], row["joules"], row["curve"]) for row in rows}
    assert found["base"][:3] == ("4.0", "1.000", "100"), found
    assert found["tail"] == ("1.5", "2.000", "80", "0:8.000000 1:7.000000 2:6.000000 3:2.000000"), found
    assert found["late"][:3] == ("1.0", "2.000", "95"), found
    assert asked[1][1] == ["DONE_00000002", "main.flags", "model_00000002"], asked
    assert " ".join(asked[2][2][1:9]) == "-l 2 -y 1 --resume-anyway 1 -n 0", asked


def test_a_tail_begins_although_its_arm_diverges_later(folder):
    def train(runs, arm, seed, steps, command, at, gpu):
        if not arm.continues:
            for name in ("main.flags", "DONE_00000001"):
                unit.write(os.path.join(at, name), "")
        return (3.0, 9, [(4, 1.5)]) if arm.continues else (1.0, 5, [(4, math.nan)])

    arms = ("sound=", "base=-l 1", "early=base@0.25", "late=base@0.5")
    with mock.patch.object(
        loss.Runs, "train", lambda *all: (1.0, 1, [(4, 1.0)]) if all[1].name == "sound" else train(*all)
    ):
        rows, _ = called(folder, "--seeds", "1", "--steps", "4", arms=arms, gpus=1)
    found = {row["arm"]: (row["loss"], row["step_ms"]) for row in rows}
    assert found["base"] == found["late"] == ("nan", "nan") and found["early"] == ("1.5", "2.500"), found


def test_the_long_runs_are_whole_numbers_of_steps(folder):
    peer = program(os.path.join(folder), "llm c", "#!/bin/sh\n")
    program(folder, "python3", f'#!/bin/sh\nprintf "%s\\0" "$@" end >>{folder}/said\n')
    script = os.path.join(loss.ROOT, "dev/bench/losses.sh")
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "LLMC": peer}
    files = ["a b/it's_*.bin", "a b/val.bin", f"{folder}/l.csv"]
    names = "fp8 fp8-adamw fp8-355m adamw muon muon-english muon-355m documents quarter"
    for name in names.split():
        subprocess.run([script, name, *files], check=True, env=environment, cwd=folder)
    said = unit.read(f"{folder}/said")
    calls = [call.strip("\0").split("\0") for call in said.split("end\0") if "--arm" in call]
    assert len(calls) == 15, calls
    for call in calls:
        values = [(flag, call[i + 1]) for i, flag in enumerate(call) if flag.startswith("--")]
        args = mock.Mock(common=dict(values)["--common"], val_tokens=int(dict(values)["--val-tokens"]), steps=None)
        args.arm = [loss.Arm(text) for flag, text in values if flag == "--arm"]
        i = call.index("--tokens") + 1
        args.tokens = [int(text) for text in itertools.takewhile(str.isdigit, call[i:])]
        with mock.patch.object(loss, "tokens_of", lambda pattern: 10**8):
            runs = loss.Runs(args)
        assert runs.common[:4] == ["-i", files[0], "-j", files[1]], call
        for arm in args.arm:
            assert all(runs.begin(arm, steps) < steps for steps in runs.steps(arm)), call
            assert runs.settings(arm)["val_tokens"] == args.val_tokens, call  # the same whatever the batch
    refused_call = subprocess.run([script, "fp9", *files], capture_output=True, text=True, check=False)
    assert refused_call.returncode == 1 and refused_call.stderr.startswith("error: losses.sh: fp9: fp8, "), refused_call


def test_bad_input_ends_in_one_line(folder):
    for flags, arms, words in (
        ([], ("base=",), "--steps says how many steps a run has"),
        (["--steps", "4", "4"], ("base=",), "--steps has a number twice"),
        (["--tokens", "512", "512"], ("base=",), "--tokens has a number twice"),
        (["--steps", "4", "--tokens", "512"], ("base=",), "--steps and --tokens: leave one of them out"),
        (
            ["--tokens", "512"],
            ("base=", "a=-d 1024"),
            "--tokens 512: no multiple of 1024, the tokens of a step of arm a",
        ),
        (["--steps", "4", "--margin", "nan"], ("base=",), "--margin nan: a number of nats above 0"),
        (["--steps", "4"], ("a=", "a=-c 1"), "two arms have the same name"),
        (["--steps", "4"], ("-l 1",), "is not a name and flags"),
        (["--steps", "4"], ("a=no/such/program -l 1",), "names a program, no/such/program, that is not there"),
        (["--steps", "4"], ("a=-b auto",), "--arm a: its flags or --common must have -b, as a number above 0"),
        (["--steps", "4"], ("a=-b 0",), "--arm a: its flags or --common must have -b, as a number above 0"),
        (["--steps", "4"], ("a=", "b=-j other.bin"), "-j in --arm b: all arms are validated on the same tokens"),
        (["--steps", "4"], ("a=", "b=--val-data=other.bin"), "--val-data=other.bin in --arm b: all arms are"),
        (["--steps", "4"], ("a=", "b=-o run"), "-o in --arm b: leave it out; this script sets it"),
        (["--steps", "4"], ("a=", "b=-x 9"), "-x in --arm b: leave it out; --steps or --tokens sets it"),
        (["--steps", "4"], ("a=--val-every=2",), "--val-every=2 in --arm a: leave it out; --val-every sets it"),
        (["--steps", "4"], ("a=", "b=c@0.5"), "--arm b: there is no arm c of the trainer that begins anew"),
        (["--steps", "4"], ("a=", "b=a@0.5", "c=b@.5"), "--arm c: there is no arm b of the trainer that begins anew"),
        (["--steps", "4"], ("a=", "b=a@0.9"), "--arm b: 0.9 of 4 steps is not a whole number of them"),
        (["--steps", "4"], ("a=-m 2",), "-m in --arm a: leave it out; --val-tokens sets it"),
        (["--steps", "4", "--common", "--seed 3 -b 4"], ("a=",), "--seed in --common: leave it out; --seeds sets it"),
        (["--steps", "4"], ("a=-l '",), "'a=-l '': No closing quotation"),
        (["--steps", "4"], ("a=dev -l 1",), "names a program, ./dev, that is not there"),
        (["--steps", "4", "--trainer", "dev"], ("a=",), "--trainer dev: not a program"),
        (["--steps", "4", "--trainer", "no/such"], ("a=",), "--trainer no/such: there is no such file"),
        (["--steps", "4", "--val-every", "-1"], ("a=",), "--val-every -1: must be 0 or more"),
        (["--steps", "4", "--plot", "a.xyz"], ("a=",), "--plot a.xyz: must end in .svg or .png"),
        (["--steps", "4", "--gpus", "3"], ("a=",), "--gpus 3: nvidia-smi shows 2 here"),
        (["--steps", "4", "--plot", "no/such/a.svg"], ("a=",), "--plot no/such/a.svg: there is no such folder"),
    ):
        refused(words, lambda flags=flags, arms=arms: called(folder, "--seeds", "1", *flags, arms=arms))
    refused("cannot read", lambda: called(folder, arms=()))
    unit.write(os.path.join(folder, "loss.csv"), "model,ms\nd12,1\n")
    refused("has no rows of this script", lambda: called(folder, "--seeds", "1", "--steps", "4"))
    os.remove(os.path.join(folder, "loss.csv"))
    called(folder, "--seeds", "1", "--steps", "4", "--val-every", "2")
    path = os.path.join(folder, "loss.csv")
    text = unit.read(path)
    for line, damaged in (
        (2, text.replace("100.000", "abc", 1)),
        (2, text.replace("100.000", "0.000", 1)),
        (2, text.replace("100.000", "nan", 1)),
        (2, text.replace(",4,", ",0,", 1)),
        (2, text.replace(",2:", ",-2:", 1)),
        (3, text[: text.rindex(",NVIDIA H200")]),
        (3, text[: text.rindex(",abcdef0") - 3]),
        (3, text.rstrip() + ",more"),
    ):
        unit.write(path, damaged)
        refused(f"loss.csv: line {line} is damaged", lambda: called(folder, arms=()))


def test_an_output_that_cannot_be_written_is_known_before_training(folder):
    unit.write(os.path.join(folder, "file"), "")
    os.symlink("nowhere", os.path.join(folder, "link"))
    for name, words in (
        ("file/new/l.csv", "/file is not a folder that can be written to"),
        ("link/l.csv", "/link is not a folder that can be written to"),
        ("new/", "names no file"),
    ):
        path = os.path.join(folder, name)
        said = refused(words, lambda path=path: called(folder, "--seeds", "1", "--steps", "4", "--output", path))
        assert f"--output {path}: " in said and not os.path.exists(os.path.join(folder, "said")), said


def test_a_validation_is_of_one_batch_at_least(folder):
    rows, said = called(folder, "--seeds", "1", "--steps", "4", "--val-tokens", "5")
    assert {row["val_tokens"] for row in rows} == {"256"} and "validated on 256 tokens" in said, said


def test_the_plot_has_a_line_for_each_arm(folder):
    if importlib.util.find_spec("matplotlib") is None:
        raise unit.Skipped("no matplotlib")
    from matplotlib.axes import Axes

    drawn, kept = [], Axes.plot
    patch = mock.patch.object(
        Axes, "plot", lambda axes, *xy, **how: drawn.append((how["label"], *xy)) or kept(axes, *xy, **how)
    )
    path = os.path.join(folder, "loss.svg")
    with patch:
        rows, _ = called(folder, "--seeds", "2", "--steps", "8", "16", "--plot", path)
    assert [name for name, _, _ in drawn] == ["base", "base", "worse", "worse"] and os.path.getsize(path) > 1000
    assert drawn[0][1] == [8 * 512 / 1e6, 16 * 512 / 1e6], drawn
    assert [round(60 * minutes, 6) for minutes in drawn[1][1]] == [0.8, 1.6], drawn
    ends = [float(row["loss"]) for row in rows if (row["arm"], row["steps"]) == ("base", "16")]
    assert abs(drawn[0][2][1] - sum(ends) / 2) < 1e-9, drawn


def test_tune_keeps_paths_with_spaces(folder):
    program(folder, "python3", '#!/bin/sh\nfor last; do :; done; printf %s "$last"\n')
    command = [os.path.join(loss.ROOT, "dev/bench/tune.sh"), "a b/it's_*.bin", "a b/val.bin", "tuning.csv"]
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    common = shlex.split(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)
    assert common[:7] == ["-e", "d12", "-i", command[1], "-j", command[2], "-t"], common


def test_the_trainer_itself(folder):
    trainer = os.path.join(loss.ROOT, "train_gpt2")
    if not os.path.exists(trainer):
        raise unit.Skipped("there is no train_gpt2")
    with contextlib.redirect_stdout(io.StringIO()):
        for name in ("train", "val"):
            with TokenFile(os.path.join(folder, f"{name}.bin"), 256) as out:
                out.append(bytes(random.Random(name).choices(b"the quick fox", k=8000)))
                out.finish()
    common = f"-e gpt2:l1c32h1t32 -i {folder}/train.bin -j {folder}/val.bin -b 4 -t 32 -d 128"
    command = [os.path.join(loss.ROOT, "dev/bench/loss.py"), "--common", common, "--gpus", "0", "--seeds", "2"]
    command += ["--steps", "6", "--val-every", "3", "--output", f"{folder}/loss.csv"]
    for arm in (
        "base=-l 1e-3",
        "same=-l 1e-3 --verify-every 2",
        "high=-l 1e-2",
        f"peer={shlex.quote(trainer)} -l 1e-3 --seed {{seed}} -s 0",
        "goes-on=base@0.5",
        "stands=base@0.5 -l 0",
    ):
        command += ["--arm", arm]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "2"}
    )
    assert done.returncode == 0, done.stderr
    with open(f"{folder}/loss.csv", newline="", encoding="utf-8") as f:
        losses = {(row["arm"], row["seed"]): (row["loss"], row["curve"]) for row in csv.DictReader(f)}
    assert len(losses) == 12 and len(set(losses.values())) == 6, losses
    for seed in "12":
        assert losses["base", seed] == losses["same", seed] == losses["peer", seed] != losses["high", seed], losses
        assert [point.split(":")[0] for point in losses["base", seed][1].split()] == ["0", "3"], losses
        assert losses["goes-on", seed] == losses["base", seed], losses
        loss_at_3 = losses["base", seed][1].split(":")[-1]
        assert float(losses["stands", seed][0]) == float(loss_at_3), losses  # no step after the third changes a weight
    assert unit.read(f"{folder}/loss.csv").count("base@0.5 -l 0") == 2
    assert "same: +0.00000 (+0.00000 to +0.00000) in 2 pairs: equal within 0.004" in done.stdout, done.stdout


if __name__ == "__main__":
    sys.exit(unit.run(globals()))
