#!/usr/bin/env python3
"""Steady training steps on one GPU and on several of the same machine, ours and PyTorch's DistributedDataParallel.

    make train_gpt2cu build/exchange_profile && dev/bench/scaling.py        # all GPUs; 8 minutes on two H200s
    dev/bench/scaling.py --gpus 2 --models d48 --rounds 1 --peers 0         # two of them, one model, not PyTorch
    dev/bench/scaling.py --fp8 1 --models d12 --others                      # in fp8, not PyTorch: scaling_fp8.csv

Each GPU has the same B and T (124M: 64 x 1024, 1558M: 8 x 1024) and there is no accumulation, so a step on N GPUs does
N times the work of one and should take as long. A round is of 1, 2, 4, ... and all GPUs; that on one takes another GPU
each time, as the slowest of N sets their pace. A run warms up for --warm-up seconds, to the power limit, and is timed
for --seconds: what passes between two lines of the trainer, as a pipe receives them. Joules are NVML's, of all GPUs.

Where build/exchange_profile is, a run of it says what a step on all GPUs waits for: a row of <gpu>/scaling_profile.csv.
A row of <gpu>/scaling.csv for each run, also of all GPUs with --exchange nccl, with --sum-order any, and with -z 0. The
rows of an earlier call with the same model and GPUs go. COMMIT=<hash> says what is measured where there is no git. A
table ends the call: beside each run what dev/scaling/model.py predicted for it, from steps on fewer GPUs.
"""

import ctypes
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "data"))
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "scaling"))

from measured import BENCH, file_name, gpu_name, gpu_provenance, output_of, write_rows
from readme_tables import SIZES, scaling_runs, thousands
from step_cost import write_tokens

import model as scaling_model
from data_common import ROOT, Parser, fail, positive_int, run

PROFILE = os.path.join(ROOT, "build", "exchange_profile")
SHAPES = {"d12": (64, 1024), "d48": (8, 1024), "d24": (32, 1024), "d36": (16, 1024)}
SLOWEST = {"d12": 0.108, "d24": 0.152, "d36": 0.158, "d48": 0.176}  # seconds of a step, about: how many to ask for
COLUMNS = [
    *["program", "model", "B", "T", "max_gpus", "gpus", "first_gpu", "zero", "sum_order", "exchange", "round", "ms"],
    *["tok_s", "joules", "mib"],
    *["warm_up", "steps", "state", "gpu", "driver", "cuda", "date", "commit"],
]
DEFAULTS = (1, "tree", "auto")  # -z, --sum-order, --exchange
OTHERS = {"nccl": (1, "tree", "nccl"), "any": (1, "any", "nccl"), "z0": (0, "tree", "auto")}
SPANS = ["step", "wait-gradients", "wait-weights", "wait-sums", "exchange-gradients", "exchange-weights"]
PROFILED = 20  # steps
PROFILE_COLUMNS = [
    *["model", "B", "T", "gpus", *(span.replace("-", "_") + "_ms" for span in SPANS), "warm_up", "steps", "state"],
    *["gpu", "driver", "cuda", "date", "commit"],
]


class Energy:
    """Joules that GPUs have taken, by NVML's counters; None where there are none."""

    def __init__(self, gpus):
        self.handles = []
        try:
            self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        if self.nvml.nvmlInit_v2() != 0:
            return
        for index in gpus:
            handle = ctypes.c_void_p()
            if self.nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) == 0:
                self.handles.append(handle)

    def joules(self):
        total, value = 0, ctypes.c_ulonglong()
        for handle in self.handles:
            if self.nvml.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(value)) != 0:
                return None
            total += value.value / 1000
        return total if self.handles else None


def gpus_here():
    """NVML's indices of the GPUs of this machine that CUDA_VISIBLE_DEVICES leaves"""
    lines = [line for line in output_of("nvidia-smi", "-L").split("\n") if line.startswith("GPU ")]
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return list(range(len(lines)))
    names = list(dict.fromkeys(name.strip() for name in chosen.split(",")))

    def is_named(name, i):
        return name == str(i) or (name.startswith("GPU-") and f"UUID: {name}" in lines[i])

    return [i for name in names for i in range(len(lines)) if is_named(name, i)]


def visible(gpus):
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # NVML's
    return {**os.environ, **order, "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)), "OMP_WAIT_POLICY": "passive"}


def command_of(args, program, model, n, steps, folder):
    B, T = SHAPES[model]
    tokens = os.path.join(folder, "tokens.bin")
    command = [program, "-e", model, "-i", tokens, "-j", tokens, "-b", B, "-t", T, "-d", B * T * n]
    command += ["--fp8", 1] if args.fp8 else ["-r", 1]
    return list(map(str, [*command, "-x", steps, "-v", 0, "-m", 0, "-s", 0, "--gpus", n]))


def steps_of(args, model):
    """Steps to warm up, and to be timed"""
    warm_up, timed = (max(5, round(seconds / SLOWEST[model])) for seconds in (args.warm_up, args.seconds))
    return warm_up, args.steps or timed


def profiled(args, model, gpus, folder):
    """The row, without its provenance, of what a step on these GPUs waits for."""
    B, T = SHAPES[model]
    warm_up, _ = steps_of(args, model)
    command = command_of(args, args.profile, model, len(gpus), warm_up + PROFILED + 1, folder)
    environment = {**visible(gpus), "PROFILE": f"{warm_up}:{PROFILED}"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    found = dict(re.findall(r"^profile (\S+) ([\d.]+)$", done.stdout, re.M))
    if done.returncode or list(found) != SPANS:
        fail(f"{' '.join(command)}: exit code {done.returncode}: {(done.stderr.strip() or done.stdout)[-300:]}")
    print(f"{model}, {len(gpus)} GPUs: " + ", ".join(f"{span} {ms} ms" for span, ms in found.items()), flush=True)
    columns = {span.replace("-", "_") + "_ms": ms for span, ms in found.items()}
    size = {"model": model, "B": B, "T": T, "gpus": len(gpus)}
    return {**size, **columns, "warm_up": warm_up, "steps": PROFILED, "state": "steady"}


def ours(args, model, gpus, how, folder):
    """The columns ms to steps of a run of the trainer on these GPUs."""
    B, T = SHAPES[model]
    n = len(gpus)
    warm_up, steps = steps_of(args, model)
    command = command_of(args, args.trainer, model, n, warm_up + steps, folder)
    for flag, value in zip(("-z", "--sum-order", "--exchange"), how) if n > 1 else ():
        command += [flag, str(value)]
    energy, ends, joules, said, mib = Energy(gpus), [], [], [], 0
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=visible(gpus)
    ) as process:
        for line in process.stdout:
            said = [*said[-9:], line]
            if line.startswith("step "):
                ends.append(time.perf_counter())
                if len(ends) in (warm_up, warm_up + steps):
                    joules.append(energy.joules())
            found = re.match(r"\| memory +\| (\d+) MiB", line)
            mib = int(found[1]) if found else mib
    if process.returncode or len(ends) != warm_up + steps:
        fail(f"{' '.join(command)}: exit code {process.returncode}, {len(ends)} steps: {''.join(said).strip()}")
    seconds = (ends[-1] - ends[warm_up - 1]) / steps
    used = "" if None in joules else f"{(joules[1] - joules[0]) / steps:.2f}"
    return {**step_columns(seconds, n * B * T), "joules": used, "mib": mib, "warm_up": warm_up, "steps": steps}


def step_columns(seconds, tokens):
    return {"ms": f"{1000 * seconds:.3f}", "tok_s": round(tokens / seconds)}


def torch(args, model, gpus):
    """The same of PyTorch with its cuDNN attention; one GPU without DistributedDataParallel."""
    B, T = SHAPES[model]
    warm_up, steps = steps_of(args, model)
    script = [os.path.join(ROOT, "dev", "reference", "time_torch.py"), "--model", model, "--batch", str(B)]
    script += ["--time", str(T), "--sdpa", "cudnn", "--warm-up", str(warm_up), "--steps", str(steps)]
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={len(gpus)}"]
    command = [sys.executable, *(launcher if len(gpus) > 1 else []), *script]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=visible(gpus))
    found = re.search(r"^mean ([\d.]+) ms.* tok/s(?:, (\d+) MiB)?", done.stdout, re.M)
    if done.returncode or not found:
        fail(f"{' '.join(command)}: {(done.stderr.strip() or done.stdout).splitlines()[-1:]}")
    version = re.search(r"PyTorch (\d+\.\d+)", done.stdout)[0]
    columns = step_columns(float(found[1]) / 1000, len(gpus) * B * T)
    return version, {**columns, "joules": "", "mib": found[2] or "", "warm_up": warm_up, "steps": steps}


def has_torch():
    return importlib.util.find_spec("torch") is not None


def counts(n):
    """1, 2, 4, ... and n"""
    return [1 << i for i in range(n.bit_length()) if 1 << i < n] + [n]


def measure(rows, args, model, every, folder):
    """Appends the rows of a model, each as soon as it is there."""
    B, T = SHAPES[model]

    def add(program, gpus, round_, columns, how):
        how = dict(zip(("zero", "sum_order", "exchange"), how if len(gpus) > 1 else ("", "", "")))
        row = {"program": program, "model": model, "B": B, "T": T, "max_gpus": len(every), "gpus": len(gpus)}
        row.update(first_gpu=gpus[0], **how, round=round_, **columns, state="steady")
        rows.append(row)
        took = f"{columns['ms']} ms, {columns['tok_s']:,} tok/s" + (
            f", {columns['joules']} J" if columns["joules"] else ""
        )
        print(f"{program} {' '.join(map(str, how.values()))}, {model}, {len(gpus)} GPUs: {took}", flush=True)

    for round_ in range(args.rounds):
        for count in counts(len(every)):
            gpus = every[:count] if count > 1 else [every[round_ % len(every)]]
            add("flashgpt", gpus, round_, ours(args, model, gpus, DEFAULTS, folder), DEFAULTS)
    for name in args.others if len(every) > 1 else ():
        add("flashgpt", every, 0, ours(args, model, every, OTHERS[name], folder), OTHERS[name])
    for count in sorted({1, len(every)}) if args.peers else ():
        version, columns = torch(args, model, every[:count])
        add(version, every[:count], 0, columns, ("", "", ""))


def predictions():
    """{(model, GPUs, -z): percent of N times one} of what is measured here, before it is."""
    m, _, several = scaling_model.fitted(scaling_model.Machine())
    found = {}
    for model, (B, T) in SHAPES.items():
        for n in (2, 4, 8):
            fewer = scaling_model.fitted_to_fewer(n, m, several)
            for zero in (0, 1):
                setup = scaling_model.Setup(scaling_model.MODELS[model], n, B, T, zero=zero)
                found[model, n, zero] = 100 * scaling_model.efficiency(setup, fewer)
    return found


def table_of(runs, rows, predicted):
    """The runs of one GPU and of several, by model: what N GPUs give of N times one, and what was predicted."""
    line = "{:7} {:24} {:>4} {:>9} {:>10} {:>8} {:>8} {:>10}".format
    lines = [line("model", "", "GPUs", "ms", "tokens/s", "MiB", "of N x 1", "predicted")]
    for model in dict.fromkeys(row["model"] for row in rows):
        size = SIZES.get(model, model)
        for program in dict.fromkeys(row["program"] for row in rows if row["model"] == model):
            one = [r for r in rows if (r["model"], r["program"], int(r["gpus"])) == (model, program, 1)]
            ms = sum(float(r["ms"]) for r in one) / len(one)
            tokens = 1000 * SHAPES[model][0] * SHAPES[model][1] / ms
            lines.append(line(size, program, 1, f"{ms:.2f}", thousands(tokens), one[0]["mib"], "", ""))
            for several in (r for r in runs if (r["model"], r["program"]) == (model, program)):
                tree = program == "flashgpt" and "--" not in several["setting"]
                guess = predicted.get((model, int(several["gpus"]), int(several["zero"] or 1))) if tree else None
                took = f"{several['ms']:.2f}", thousands(several["tok_s"]), several["mib"], f"{several['percent']:.1f}%"
                name = f"{program} {several['setting']}".strip()
                lines.append(line(size, name, several["gpus"], *took, f"{guess:.1f}%" if guess else ""))
    return "\n".join(lines)


def main():
    parser = Parser(__doc__)
    here = gpus_here()
    parser.add_argument("--gpus", type=positive_int, default=len(here) or None, metavar="N", help="default: all")
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=["d12", "d48"], help="default: d12 d48")
    parser.add_argument("--fp8", type=int, choices=[0, 1], default=0, help="1: in fp8 (default: %(default)s)")
    parser.add_argument("--rounds", type=positive_int, default=2, metavar="N", help="default: %(default)s")
    parser.add_argument("--warm-up", type=float, default=8, metavar="SECONDS", help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=8, help="that are timed (default: %(default)s)")
    parser.add_argument("--steps", type=positive_int, metavar="N", help="so many are timed, in place of --seconds")
    parser.add_argument("--peers", type=int, choices=[0, 1], default=1, help="1: PyTorch, too (default)")
    parser.add_argument(
        "--others", nargs="*", choices=OTHERS, default=list(OTHERS), help="of all GPUs, too (default: nccl any z0)"
    )
    parser.add_argument("--trainer", default=os.path.join(ROOT, "train_gpt2cu"), help="default: ./train_gpt2cu")
    parser.add_argument(
        "--profile", metavar="FILE", default=PROFILE, help="'' for none (default: build/exchange_profile)"
    )
    parser.add_argument("--output", metavar="FOLDER", help="default: dev/bench/<gpu>")
    args = parser.parse_args()
    if not here or args.gpus > len(here):
        fail(f"nvidia-smi shows {len(here) or 'no'} GPUs here" + (f"; --gpus is {args.gpus}" if args.gpus else ""))
    if not os.path.exists(args.trainer):
        fail(f"{args.trainer} is not there: make train_gpt2cu")
    args.peers = args.peers and not args.fp8
    if args.peers and not has_torch():
        print("PyTorch: skipped, this Python has none")
        args.peers = 0
    common = gpu_provenance(gpu_name())
    place = args.output or os.path.join(BENCH, file_name(common["gpu"]))
    of = "scaling_fp8" if args.fp8 else "scaling"
    path, measured = os.path.join(place, f"{of}.csv"), []
    predicted = {} if args.fp8 else predictions()  # the model of a step is of bf16
    with tempfile.TemporaryDirectory() as folder:
        write_tokens(os.path.join(folder, "tokens.bin"), 50257, 4 << 20)
        for model in args.models:  # written as soon as they are there
            every, rows = here[: args.gpus], []
            try:
                measure(rows, args, model, every, folder)
            finally:  # what was measured before a run failed is kept
                rows = [{**row, **common} for row in rows]
                if rows:
                    write_rows(path, COLUMNS, ("model", "max_gpus", "gpu"), rows)
            measured += rows
            if len(every) > 1 and args.profile and os.path.exists(args.profile):
                row = {**profiled(args, model, every, folder), **common}
                write_rows(os.path.join(place, f"{of}_profile.csv"), PROFILE_COLUMNS, ("model", "gpus", "gpu"), [row])
    runs = [r for r in scaling_runs(os.path.relpath(path, ROOT)) if int(r["max_gpus"]) == args.gpus]
    print(table_of(runs, measured, predicted))


if __name__ == "__main__":
    run(main)
