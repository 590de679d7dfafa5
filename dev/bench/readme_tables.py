#!/usr/bin/env python3
"""Writes the figures of README.md and docs/*.md from the committed measurements, and checks links and commands.

    python3 dev/bench/readme_tables.py            # rewrites the generated parts
    python3 dev/bench/readme_tables.py --check    # fails if a generated part is out of date

A generated part is between <!-- generated: NAME --> and <!-- end -->; NAME is a function below. It may be in any of the
documents. Outside generated parts, a number with a unit of measurement is refused: every figure needs a file. Links of
all Markdown files are followed, anchors too. Commands in the documents may only use programs, scripts, make targets and
flags that exist.
"""

import csv
import difflib
import fnmatch
import glob
import itertools
import math
import os
import re
import shlex
import statistics
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "data"))

from data_common import ROOT, Parser

BENCH = "dev/bench"
H200 = f"{BENCH}/nvidia-h200"
LIBRARIES = {"cudnn": "cuDNN", "flash": "FlashAttention-2"}
PROVIDERS = {"FA2": "FlashAttention-2", "FA3": "FlashAttention-3", "FA4": "FlashAttention-4"}
SIZES = {"d6": "30M", "d12": "124M", "d24": "355M", "d36": "774M", "d48": "1558M"}


class Fault(Exception):
    """A committed file that is missing or does not hold what the documents need."""


def read_csv(path, columns=()):
    """The rows of a CSV file as dictionaries, with these columns at least; none where there is no such file."""
    try:
        with open(os.path.join(ROOT, path), newline="", encoding="utf-8") as f:
            rows = list(csv.DictReader(f))
    except FileNotFoundError:
        return []
    for row in rows:
        if None in row or None in row.values():
            raise Fault(f"{path}: a row has not as many columns as the head: {row}")
        for column in columns:
            if column not in row:
                raise Fault(f"{path} has no column {column}")
    return rows


def need(rows, path):
    if not rows:
        raise Fault(f"{path} is missing or empty; the head of {BENCH}/gpu_report.sh says how it is written")
    return rows


def thousands(value):
    return f"{round(float(value)):,}"


def provenance(row):
    """'NVIDIA H200, driver 580, CUDA 13.0, 2026-11-21, commit 310ce91'"""
    return f"{row['gpu']}, driver {row['driver']}, CUDA {row['cuda']}, {row['date']}, commit {row['commit']}"


def seconds_in_words(seconds):
    seconds = float(seconds)
    return f"{seconds:.0f} seconds" if seconds < 180 else f"{seconds / 60:.1f} minutes"


# ----------------------------------------------------------------------------
# The parts


def quickstart():
    gpu = [row for row in read_csv(f"{H200}/quickstart.csv") if row["text"] == "TinyShakespeare"]
    path = f"{BENCH}/quickstart.csv"
    cpu = need([row for row in read_csv(path) if row["text"] == "TinyShakespeare"], path)[-1]
    runs = [(f"an {row['gpu']}", row, f"{H200}/quickstart.csv") for row in gpu[-1:]]
    runs += [(f"{cpu['cores']} CPU cores ({cpu['machine']})", cpu, path)]
    said = [
        f"[{seconds_in_words(row['seconds'])}]({file}) and {row['disk_mib']} MiB of disk on {where}, reaching a "
        f"validation loss of {float(row['val_loss']):.2f}"
        for where, row, file in runs
    ]
    return f"The quickstart takes {'; '.join(said)} nats a byte."


def reference():
    said = []
    for precision in ("fp32", "bf16"):
        path = f"{H200}/test_gpt2cu_124M_{precision}.txt"
        try:
            with open(os.path.join(ROOT, path), encoding="utf-8") as f:
                text = f.read()
        except FileNotFoundError as error:
            raise Fault(f"{path} is missing") from error
        result = re.findall(r"^(\d+) passed, (\d+) failed", text, re.MULTILINE)
        errors = [float(x) for x in re.findall(r"^gradient of \S+ +([0-9.e+-]+)", text, re.MULTILINE)]
        if not result or not errors or not all(math.isfinite(x) for x in errors):
            raise Fault(f"{path} holds no result, or no finite gradient errors")
        passed, failed = result[-1]
        outcome = (
            f"{passed} checks passed" if failed == "0" else f"{failed} of {int(passed) + int(failed)} checks FAILED"
        )
        said.append(
            f"in [{precision}]({path}) {outcome}, and the largest relative error of a gradient is {max(errors):.1e}"
        )
    return f"On GPT-2 124M (B=4, T=256), {'; '.join(said)}."


def curves():
    path = f"{H200}/curves.csv"
    rows = need(read_csv(path), path)
    lines = [
        "| precision | B, T | largest learning rate | loss | largest difference, nats | mean |",
        "|---|---|---|---|---:|---:|",
    ]
    for row in rows:
        digits = 3 if float(row["largest"]) >= 1e-4 else 6
        mean = f"{float(row['mean']):.{digits}f}" if row["mean"] else "–"
        lines.append(
            f"| {row['precision']} | {row['B']}, {row['T']} | {row['learning_rate']} | {row['loss']} "
            f"| {float(row['largest']):.{digits}f} | {mean} |"
        )
    steps = rows[0]["steps"]
    return (
        f"{steps} steps of 124M on TinyShakespeare compared with PyTorch, from the same weights, batches and schedule, "
        f"one run of each ([curves.csv]({path}); {provenance(rows[0])}).\n\n" + "\n".join(lines)
    )


def is_ours(row):
    return row["program"].split()[0] == "flashgpt"


def is_fp8(row):
    return "--fp8" in row["program"] or "torchao" in row["program"]


def speed():
    path = f"{H200}/speed.csv"
    rows = need(read_csv(path), path)
    lines = [
        "| model, B × T | attention | `-r` | ms a step | tokens/s | MFU | MiB | steps timed |",
        "|---|---|---|---:|---:|---:|---:|---|",
    ]
    order = {model: n for n, model in enumerate(SIZES)}

    def place(row):
        return (order.get(row["model"], len(order)), -int(row["B"]), int(row["T"]), not is_ours(row))

    for row in sorted(rows, key=place):  # stable: those of a shape stay in their order
        attention = row["attention_forward"]
        if row["attention_backward"] != attention:
            attention += f", {row['attention_backward']} backward"
        compiled = ", torch.compile" if row["program"].startswith("PyTorch") else ""
        name = f"{row['program']}{compiled}, {LIBRARIES.get(attention, attention)}"
        if is_ours(row):
            flags = row["program"].partition(" ")[2]
            name = f"`{attention}`" + (f", `{flags}`" if flags else "")
        lines.append(
            f"| {SIZES.get(row['model'], row['model'])}, {row['B']} × {row['T']} | {name} | {row['recompute'] or '–'} "
            f"| {float(row['ms']):.1f} "
            f"| {thousands(row['tok_s'])} | {row['mfu'] + '%' if row['mfu'] else '–'} "
            f"| {thousands(row['mib']) if row['mib'] else '–'} | {row['steps']} after {row['warm_up']} |"
        )
    shown = dict.fromkeys(map(provenance, rows))  # each once, in order
    fp8 = ", or fp8 where a row says so" if any(map(is_fp8, rows)) else ""
    return (
        f"bf16{fp8}, one run of each ([speed.csv]({path})); MFU is of the GPU's dense peak in that precision: "
        f"{'; '.join(shown)}.\n\n" + "\n".join(lines)
    )


def bits():
    path = f"{H200}/bits.csv"
    same = {"yes": "the same bits", "no": "OTHER BITS"}
    said = [f"{row['what']}: {same[row['same']]}" for row in need(read_csv(path), path)]
    return (
        "Weights and moments of 124M in bf16 after 200 steps, compared with those of a first run "
        f"([bits.csv]({path})): {'; '.join(said)}."
    )


def cpu():
    path = f"{BENCH}/cpu_step.csv"
    lines = [
        "| B, T | CPU | ours, ms | llm.c, ms | llm.c / ours | peak memory: ours, llm.c | date, commit |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    latest = {(row["cpu"], row["B"], row["T"]): row for row in need(read_csv(path), path)}
    for row in latest.values():
        lines.append(
            f"| {row['B']}, {row['T']} | {row['cpu']}, {row['cores']} cores | {thousands(row['ms'])} "
            f"| {thousands(row['ms_llmc'])} | {row['ratio']} "
            f"| {thousands(row['peak_mib'])}, {thousands(row['peak_mib_llmc'])} MiB | {row['date']}, {row['commit']} |"
        )
    return f"Medians of interleaved steps of 124M, the latest run of each shape ([all runs]({path})):\n\n" + "\n".join(
        lines
    )


# Parts that are empty until they are measured


def software(row):
    """Driver and CUDA of a row, where they were recorded."""
    driver, cuda = row.get("driver"), row.get("cuda")
    return (f", driver {driver}" if driver else "") + (f", CUDA {cuda}" if cuda else "")


def step_cost():
    """What the guards of a run cost a step."""
    path = f"{H200}/step_cost.csv"
    rows = read_csv(path)
    if not rows:
        return ""
    said = []
    for row in rows:
        shape = f"{SIZES.get(row['model'], row['model'])}, {row['B']} × {row['T']}"
        strays = f" ± {float(row['percent_strays']):.2f}" if int(row["rounds"]) > 1 else ""
        ratio = f"{float(row['percent']):+.2f}%{strays}"
        said.append(
            f"{ratio} for {shape} ({float(row['before_ms']):.2f} ms without, {float(row['now_ms']):.2f} ms with)"
        )
    first = rows[0]
    many = f"Steady, means of {first['rounds']} rounds of {first['steps']} steps after 50, ± the deviation of a round"
    once = f"Steady, means of {first['steps']} steps after 50, one round"
    return (
        f"Time of a step with all checks on, compared with commit {first['before']} without them: {'; '.join(said)}. "
        f"{many if int(first['rounds']) > 1 else once} "
        f"([step_cost.csv]({path}); {first['machine']}{software(first)}, {first['date']}, commit {first['commit']})."
    )


def plan_accuracy():
    """Memory as taken and as planned: in percent where it is much, else in MiB."""
    much, little = [], []
    for path in (f"{H200}/plan_accuracy.csv", f"{BENCH}/cpu_plan_accuracy.csv"):
        rows = read_csv(path)
        large = [row for row in rows if int(row["planned_mib"]) >= 512]
        for kind in dict.fromkeys(row["memory"] for row in large):
            here = [float(row["percent"]) for row in large if row["memory"] == kind]
            runs = f"{len(here)} run{'s' * (len(here) != 1)} on {rows[0]['machine']}"
            link = f"[{os.path.basename(path)}]({path})"
            much.append(f"- {kind} memory of {runs}: {min(here):+.2f}% to {max(here):+.2f}% ({link})")
        for row in rows:
            if row not in large:
                little.append(
                    f"{row['used_mib']} MiB instead of {row['planned_mib']} ({row['memory']}, {row['machine']})"
                )
    if not much:
        return ""
    small = f"\n\nIn small models, threads and libraries weigh more: {'; '.join(little)}." if little else ""
    return "Memory that runs used, compared with what `--plan` said:\n\n" + "\n".join(much) + small


def checkpoint_cost():
    """How long a save in the background delays training, compared with a save that training waits for."""
    path = f"{H200}/checkpoint_cost.csv"
    rows = read_csv(path)
    if not rows:
        return ""
    said = []
    for row in rows:
        shape = f"{SIZES.get(row['model'], row['model'])}, {row['B']} × {row['T']}"
        said.append(
            f"- {shape}: {float(row['extra_ms']) / 1000:.3f} s instead of {float(row['blocking_s']):.3f} s "
            f"({float(row['percent']):.1f}%); {float(row['gb']):.1f} GB are written in {float(row['write_s']):.1f} s "
            f"from a snapshot in {row['snapshot']} memory"
        )
    first = rows[0]
    return (
        "How long a save in the background delays training, compared with a save that training waits for "
        f"([checkpoint_cost.csv]({path}); {first['gpu']}{software(first)}, {first['date']}, commit {first['commit']}):"
        "\n\n" + "\n".join(said)
    )


def scaling_runs(path):
    """[{model, program, setting, gpus, ms, ms_one, percent, ...}]: several GPUs beside one, means over the rounds."""
    groups, names = {}, ("model", "max_gpus", "program", "gpus", "zero", "sum_order", "exchange")
    for row in read_csv(path, names):
        key = tuple(row[name] for name in names)
        groups.setdefault(key, []).append(row)
    runs = []
    for (model, most, program, gpus, zero, order, exchange), rows in groups.items():
        one = groups.get((model, most, program, "1", "", "", ""))
        if gpus == "1" or not one:
            continue
        ms, ms_one = (statistics.mean(float(row["ms"]) for row in some) for some in (rows, one))
        setting = [f"-z {zero}"] * (zero == "0") + [f"--sum-order {order}"] * (order == "any")
        setting += [f"--exchange {exchange}"] * (exchange == "nccl")
        columns = {"program": program, "setting": " ".join(setting), "ms": ms, "ms_one": ms_one}
        columns.update(percent=100 * ms_one / ms, tok_s=float(rows[0]["tok_s"]) * float(rows[0]["ms"]) / ms)
        runs.append({**rows[0], **columns, "mib_one": one[0]["mib"], "rounds": len(rows)})
    return runs


def scaling():
    """Several GPUs beside one."""
    runs, files, waits, profiles = [], [], [], []
    for precision, name, flag in (("bf16", "scaling", ""), ("fp8", "scaling_fp8", "--fp8 1 ")):
        path, profile = f"{H200}/{name}.csv", f"{H200}/{name}_profile.csv"
        found = [{**run, "setting": f"{flag}{run['setting']}".strip()} for run in scaling_runs(path)]
        runs += found
        files += [f"{precision} ([{name}.csv]({path}))"] * bool(found)
        rows = [{**row, "precision": precision} for row in read_csv(profile)]
        waits += rows
        profiles += [f"[{precision}]({profile})"] * bool(rows)
    if not runs:
        return ""
    lines = [
        "| model, B × T a GPU | GPUs | | ms on one | ms on all | tokens/s | of N × 1 | MiB a GPU: one, all |",
        "|---|---:|---|---:|---:|---:|---:|---|",
    ]
    for run in runs:
        name = f"{run['program']} DDP" if run["program"] != "flashgpt" else run["setting"] and f"`{run['setting']}`"
        mib = f"{thousands(run['mib_one'])}, {thousands(run['mib'])}" if run["mib"] and run["mib_one"] else "–"
        lines.append(
            f"| {SIZES.get(run['model'], run['model'])}, {run['B']} × {run['T']} | {run['gpus']} | {name} "
            f"| {run['ms_one']:.2f} | {run['ms']:.2f} | {thousands(run['tok_s'])} | {run['percent']:.1f}% | {mib} |"
        )
    shown = dict.fromkeys(map(provenance, runs))
    said = []
    for row in waits:
        ms = {name[:-3]: float(value) for name, value in row.items() if name.endswith("_ms")}
        said.append(
            f"{SIZES.get(row['model'], row['model'])} in {row['precision']} on {row['gpus']} waits "
            f"{ms['wait_gradients']:.2f} ms for gradients, {ms['wait_weights']:.2f} for weights and "
            f"{ms['wait_sums']:.2f} for norm and losses, out of "
            f"{ms['exchange_gradients'] + ms['exchange_weights']:.1f} ms of transfers"
        )
    exposed = (
        f"\n\nExposed communication in one step (profiles: {', '.join(profiles)}): {'; '.join(said)}." if said else ""
    )
    plot = f"{H200}/scaling.svg"
    image = f"\n\n![Several GPUs beside one]({plot})" if os.path.exists(os.path.join(ROOT, plot)) else ""
    return (
        f"Steady-state steps in {' and '.join(files)} without accumulation, alternating between one GPU and all: "
        f"{'; '.join(shown)}.\n\n" + "\n".join(lines) + exposed + image
    )


def tuning(shown=6):
    """The best points of AdamW and of Muon, one seed each."""
    paths = find(f"{BENCH}/*/tuning.csv")
    rows = [row for path in paths for row in read_csv(path)]
    if not rows:
        return ""
    lines = ["| | nats | ms a step |", "|---|---:|---:|"]
    counts = []
    for optimizer in ("adamw", "muon"):
        points = sorted((r for r in rows if r["arm"].startswith(optimizer)), key=lambda r: float(r["loss"]))
        counts.append(f"{len(points)} of `{optimizer}`")
        for row in points[:shown]:
            words = row["flags"][row["flags"].index("--optimizer") :].split()
            flags = " ".join(f"{flag} {value}" for flag, value in dict(zip(words[::2], words[1::2])).items())
            lines.append(f"| `{flags}` | {float(row['loss']):.3f} | {float(row['step_ms']):.1f} |")
    links = ", ".join(f"[{os.path.basename(os.path.dirname(path))}]({path})" for path in paths)
    return (
        f"124M, T=1024, {thousands(rows[0]['tokens'])} tokens of C sources, one seed, validation on "
        f"{thousands(rows[0]['val_tokens'])}; the best {shown} of each, of {' and '.join(counts)} "
        f"(all: {links}).\n\n" + "\n".join(lines)
    )


def losses():
    """What a setting does to the loss: arms NAME-SETTING beside NAME, seed by seed, of the files of loss.py."""
    from loss import interval  # which imports this file

    lines, shown, validated = [], {}, {}
    settings = ("documents", "masked", "`--documents 2`"), ("fp8", "fp8", "`--fp8 1`")
    for file, setting, flags in settings:
        path = f"{H200}/{file}_loss.csv"
        runs, pairs = {(row["arm"], row["steps"], row["seed"]): row for row in read_csv(path)}, {}
        for (arm, steps, seed), row in runs.items():
            if (f"{arm}-{setting}", steps, seed) in runs:
                pairs.setdefault((arm, steps), []).append((row, runs[f"{arm}-{setting}", steps, seed]))
        for found in pairs.values():
            row = found[0][0]
            base, losses_with = ([float(row["loss"]) for row in column] for column in zip(*found))
            mean, low, high = interval([x - y for x, y in zip(losses_with, base)])
            between = f" ({low:+.4f} to {high:+.4f})" if len(found) > 1 else ""
            words = ["--recipe", "adamw", *shlex.split(row["flags"])]
            values = dict(zip(words, words[1:]))  # of a flag, the last
            model, corpus, T, optimizer = (values[flag] for flag in ("-e", "-i", "-t", "--recipe"))
            optimizer, corpus = values.get("--optimizer", optimizer), os.path.basename(os.path.dirname(corpus))
            lines.append(
                f"| {flags} | {SIZES[model.partition('t')[0]]}, T = {T}, `{optimizer}`, {corpus} "
                f"| {thousands(row['tokens'])} | {statistics.mean(base):.4f} | {statistics.mean(losses_with):.4f} "
                f"| {mean:+.4f}{between} | {len(found)} |"
            )
            for row in (row for pair in found for row in pair):
                shown.setdefault(f"[{file}_loss.csv]({path})", {})[provenance(row)] = None
            validated.setdefault(thousands(round(int(row["val_tokens"]), -6)), {})[corpus] = None
    if not lines:
        return ""
    sources = ". ".join(f"{path}: {'; '.join(places)}" for path, places in shown.items())
    tokens = ", ".join(f"{count} tokens of {' and '.join(corpora)}" for count, corpora in validated.items())
    head = "| setting | model, corpus | tokens | without | with | difference (90% interval) | seeds |"
    return (
        "Validation loss in nats a token after a whole schedule, of runs with the same seeds, by `dev/bench/loss.py`, "
        f"on {tokens}. `--documents 2` keeps attention within documents in validation, too. {sources}.\n\n"
        f"{head}\n|---|---|---:|---:|---:|---:|---:|\n" + "\n".join(lines)
    )


# Files of loss.py whose arms are compared as wholes, and the baseline in each
COMPARISONS = {"optimizers": "adamw-16k", "english": "adamw-16k", "355m": "adamw-16k", "quarter": "llm.c"}


def equal_loss():
    """When arms reach the loss that a baseline ends with, as loss.py reports it."""
    from loss import report  # which imports this file

    parts = []
    for file, baseline in COMPARISONS.items():
        path = f"{H200}/{file}_loss.csv"
        rows = read_csv(path)
        flags = {}  # of an arm: words, without the program and the weights that it is given
        for row in rows:
            text = row["flags"]
            flags[row["arm"]] = shlex.split(text[text.index("-i ") :].removesuffix(" -e '{weights}'"))
        if baseline not in flags or len(flags) < 2:
            continue
        arms = [baseline, *(arm for arm in flags if arm != baseline)]
        same = len(list(itertools.takewhile(lambda words: len(set(words)) == 1, zip(*flags.values())))) // 2 * 2
        values = dict(zip(flags[baseline][:same:2], flags[baseline][1:same:2]))
        model, corpus = SIZES[values["-e"]], os.path.basename(os.path.dirname(values["-i"]))
        settings = ", ".join(f"{arm} with `{shlex.join(flags[arm][same:])}`" for arm in arms)
        places = "; ".join(dict.fromkeys(map(provenance, rows)))
        lines = "\n".join(["```text", *report(rows, arms), "```"])
        parts.append(f"**{model}, {corpus}:** {settings} ([{file}_loss.csv]({path}): {places}).\n\n{lines}")
    if not parts:
        return ""
    lead = "When runs reach the loss with which a baseline ends, as `dev/bench/loss.py` reports it."
    return "\n\n".join([lead, *parts])


def generation():
    """Speed of generation, beside transformers'."""
    path = f"{H200}/generate.csv"
    rows = read_csv(path)
    if not rows:
        return ""
    lines = [
        "| model, batch | | tokens/s | µs a step | ms to the first token |",
        "|---|---|---:|---:|---:|",
    ]
    for row in sorted(rows, key=lambda row: (list(SIZES).index(row["model"]), int(row["batch"]))):
        lines.append(
            f"| {SIZES[row['model']]}, {row['batch']} | {row['who']} | {thousands(row['tokens_per_s'])} "
            f"| {thousands(row['step_us'])} | {float(row['first_token_ms']):.1f} |"
        )
    shown = dict.fromkeys(map(provenance, rows))
    sizes = {(row["prompt"], row["new"]) for row in rows}
    tokens = "; ".join(f"a prompt of {prompt} tokens and {new} new ones" for prompt, new in sorted(sizes))
    return (
        f"Greedy, bf16, random weights, {tokens}, medians of five rounds ([generate.csv]({path})): "
        f"{'; '.join(shown)}.\n\n" + "\n".join(lines)
    )


def speeds():
    """README's table: of each measurement one shape or two, ours and others'."""
    head = (
        "In bf16, on NVIDIA H200s except for the last row. Attention is compared with the fastest other library. "
        "[All tables](docs/measured.md) have versions, commits and the commands that measured them. Generation was "
        "measured before its kernels became fewer, and [is slower now](docs/measured.md#generation)."
    )
    table = [head, "", "| | flashgpt | others |", "|---|---:|---|"]

    def add(what, path, ours, others):
        table.append(f"| [{what}]({path}) | {ours} | {', '.join(f'{who} {value}' for who, value in others)} |")

    path, shapes = f"{H200}/speed.csv", {}
    for row in need(read_csv(path), path):
        if is_fp8(row) or (is_ours(row) and row["program"] != "flashgpt"):
            continue
        best = shapes.setdefault((row["model"], row["B"], row["T"]), {})
        best[row["program"]] = max(best.get(row["program"], 0), float(row["tok_s"]))
    for (model, B, T), best in shapes.items():
        others = sorted(((value, who) for who, value in best.items() if who != "flashgpt"), reverse=True)
        if others:
            what = f"training {SIZES.get(model, model)}, {B} × {T}, tokens/s"
            add(what, path, thousands(best["flashgpt"]), [(who, thousands(value)) for value, who in others])
    path = f"{H200}/scaling.csv"
    for ours in scaling_runs(path):
        others = [r for r in scaling_runs(path) if r["program"] != "flashgpt"]
        others = [r for r in others if (r["model"], r["gpus"]) == (ours["model"], ours["gpus"])]
        if others and ours["program"] == "flashgpt" and not ours["setting"]:
            size = f"{SIZES.get(ours['model'], ours['model'])}, {ours['B']} × {ours['T']} a GPU"
            what = f"training {size}, {ours['gpus']} GPUs, tokens/s"
            add(what, path, thousands(ours["tok_s"]), [(f"{r['program']} DDP", thousands(r["tok_s"])) for r in others])
    path = "dev/cuda/leaderboard/nvidia-h200_libraries.csv"
    rows = [r for r in read_csv(path) if r["mode"] == "steady" and [r[c] for c in ("B", "T", "NH", "HS")] == LIKE_124M]
    for ours in rows:
        peers = [r for r in rows if r["direction"] == ours["direction"] and r["provider"] == ours["best_peer"]]
        if ours["provider"] == "ours" and peers:
            peer = PROVIDERS.get(ours["best_peer"], ours["best_peer"])
            what = f"attention {ours['direction']}, as in 124M, TFLOP/s"
            add(
                what,
                path,
                f"{float(ours['tflops']):.0f}",
                [(peer, f"{float(peers[0]['tflops']):.0f}")],
            )
    path = f"{H200}/generate.csv"
    rows = [row for row in read_csv(path) if (row["model"], row["batch"]) == ("d12", "1")]
    for ours in (row for row in rows if row["who"] == "flashgpt"):
        others = [(row["who"], thousands(row["tokens_per_s"])) for row in rows if row is not ours]
        add("generating with 124M, one sequence, tokens/s", path, thousands(ours["tokens_per_s"]), others)
    path = f"{BENCH}/cpu_step.csv"
    row = [row for row in need(read_csv(path), path) if (row["B"], row["T"]) == ("4", "64")][-1]
    what = f"training 124M on {row['cores']} CPU cores, 4 × 64, ms a step"
    add(what, path, thousands(row["ms"]), [("llm.c", thousands(row["ms_llmc"]))])
    return "\n".join(table)


LIKE_124M = ["64", "1024", "12", "64"]
MODES = {
    "steady": "at the power limit, as while training",
    "rested": "each timed CUDA graph after a sleep twice as long",
}
SHAPES = ["64,1024,12,64", "4,4096,48,64", "4,16384,48,64", "4,4096,16,128"]


def attention():
    """What trains at a few shapes, in every mode that the leaderboard has."""
    path = "dev/cuda/leaderboard/nvidia-h200.csv"
    rows = [row for row in need(read_csv(path), path) if row["precision"] == "bf16"]
    there = {row["mode"] for row in rows}
    modes = [mode for mode in ("steady", "rested") if mode in there]
    columns = [(direction, mode) for direction in ("forward", "backward") for mode in modes]
    lines = [
        "| B,T,NH,HS | " + " | ".join(f"{d}, {mode}" for d, mode in columns) + " |",
        "|---|" + "---:|" * len(columns),
    ]
    chosen = []
    for shape in SHAPES:
        cells = []
        for direction, mode in columns:
            here = [
                row
                for row in rows
                if row["direction"] == direction
                and row["mode"] == mode
                and ",".join(row[size] for size in ("B", "T", "NH", "HS")) == shape
            ]
            here = [row for row in here if row["trains"] == "yes"] or here
            best = max(need(here, f"{path}, {direction} {shape}"), key=lambda row: float(row["tflops"]))
            cells.append(best)
        chosen.append((shape, cells))
    best = [row for _, cells in chosen for row in cells]
    shown = dict.fromkeys(provenance(row) for row in best)  # where and when, in the order of the table
    variants = dict.fromkeys(row["variant"] for row in best)
    for shape, cells in chosen:
        names = [f"`{row['variant']}` " if len(variants) > 1 else "" for row in cells]
        figures = [f"{name}{float(row['tflops']):.0f}" for name, row in zip(names, cells)]
        lines.append(f"| {shape} | {' | '.join(figures)} |")
    what = "what trains" if len(variants) > 1 else f"`{variants.popitem()[0]}`, the variant that trains there"
    how = "; ".join(f"{mode}: {MODES[mode]}" for mode in modes)
    return (
        f"TFLOP/s of {what}, in bf16, counting the causal half; {how} ([leaderboard]({path})): {'; '.join(shown)}.\n\n"
        + "\n".join(lines)
    )


def torch_steps():
    """A PyTorch training step with our attention and with SDPA's."""
    path = f"{H200}/torch_attention.csv"
    rows, steps = read_csv(path, ("model", "B", "T", "attention", "ms", "sdpa_over_this")), {}
    for row in rows:
        steps.setdefault((row["model"], int(row["T"]), row["B"]), {})[row["attention"]] = row
    if not steps:
        return ""
    others = list(dict.fromkeys(row["attention"] for row in rows if row["attention"] != "ours"))
    lines = [
        f"| model, B × T | ours | {' | '.join(others)} | the better of these / ours |",
        "|---|---:|" + "---:|" * len(others) + "---:|",
    ]
    for (model, T, B), of in sorted(steps.items()):
        ms = [f"{float(of[name]['ms']):.1f}" for name in ("ours", *others)]
        ratio = float(of["ours"]["sdpa_over_this"])
        lines.append(f"| {SIZES.get(model, model)}, {B} × {T} | {' | '.join(ms)} | {ratio:.2f} × |")
    shown = dict.fromkeys(f"PyTorch {row['torch']}, {provenance(row)}" for row in rows)
    head = f"Milliseconds of a step with `torch.compile`, bf16 autocast and AdamW ([all]({path}); {'; '.join(shown)})"
    return f"{head}:\n\n" + "\n".join(lines)


def torch_documents():
    """Attention over documents beside the best library of each row."""
    path = f"{H200}/torch_documents.csv"
    rows = read_csv(path, ("T", "lengths", "direction", "provider", "ms", "best_peer_over_this"))
    if not rows:
        return ""
    lengths = list(dict.fromkeys(row["lengths"] for row in rows))
    lines = ["| T | | " + " | ".join(lengths) + " |", "|---:|---|" + "---|" * len(lengths)]
    for T in sorted({int(row["T"]) for row in rows}):
        for direction in ("forward", "backward"):
            cells = []
            for some in lengths:
                here = [r for r in rows if (r["T"], r["lengths"], r["direction"]) == (str(T), some, direction)]
                ms = {row["provider"]: float(row["ms"]) for row in here}  # the latest of each
                ours, best = ms.pop("ours", None), min(ms, key=ms.get, default=None)
                cells.append(f"{ms[best] / ours:.2f} × {best.removesuffix(' varlen')}" if ours and best else "–")
            lines.append(f"| {T} | {direction} | {' | '.join(cells)} |")
    shown = dict.fromkeys(f"PyTorch {row['torch']}, {provenance(row)}" for row in rows)
    peers = ", ".join(dict.fromkeys(row["provider"] for row in rows if row["provider"] != "ours"))
    return (
        f"How many times as fast as the fastest of {peers}, for documents of so many tokens, or of FineWeb's lengths "
        f"(log-normal): 65,536 tokens, 12 heads of 64, steady ([all]({path}); {'; '.join(shown)}).\n\n"
        + "\n".join(lines)
    )


# name, what it is, the files whose lines count
PLACES = [
    ("`train_gpt2.cu`, `.c`", "the GPU and the CPU trainer: forward, backward and update", "train_gpt2.*"),
    (
        "`generate_gpt2.*`, `tokenize_gpt2.c`",
        "from prompt to text; from text to tokens",
        "generate_gpt2.* tokenize_gpt2.c",
    ),
    (
        "`dev/cuda/`",
        "attention, GEMMs and decoding: every variant with its contract, check and benchmark",
        "dev/cuda/*.* dev/cuda/*/*.*",
    ),
    ("`llmc/run/`", "the training loop; its flags, launch, resume, plan and logs", "llmc/run/*"),
    (
        "`llmc/checkpoint/`, `generate/`",
        "checkpoints, and the thread that writes them; prompts, samples and scores",
        "llmc/checkpoint/* llmc/generate/*",
    ),
    (
        "`llmc/exchange/`, `cuda/`, `cpu/`, `files/`",
        "tensors between GPUs; kernels and PTX; models, Hugging Face's folders, token files",
        "llmc/exchange/* llmc/cuda/* llmc/cpu/* llmc/files/*",
    ),
    (
        "`llmc/comm/`, `model/`, `text/`",
        "processes: meeting, TCP, watching each other; GPT-2's tables, sizes and layouts; the tokenizer",
        "llmc/comm/* llmc/model/* llmc/text/*",
    ),
    ("`llmc/base/`", "command lines, JSON, checked files, signals, errors", "llmc/base/*"),
    (
        "`test_gpt2.*`, `dev/test/`",
        "the trainers against PyTorch's dumps; unit and end-to-end tests",
        "test_gpt2.* dev/test/*.* dev/test/*/*",
    ),
    (
        "`dev/data/`, `dev/reference/`",
        "datasets; PyTorch's model, which writes the dumps",
        "dev/data/* dev/reference/*",
    ),
    (
        "`dev/bench/`, `dev/scaling/`, `scripts/`",
        "measurements; a model of thousands of GPUs; quickstart, launch scripts, plots of runs",
        "dev/bench/* dev/scaling/* scripts/*",
    ),
]


def places(old=""):
    """What is where, and how long. A count stays while it is within a tenth of the truth: few commits change it."""
    table = ["| | | lines |", "|---|---|---:|"]
    for name, what, patterns in PLACES:
        paths = [path for pattern in patterns.split() for path in glob.glob(os.path.join(ROOT, pattern))]
        count = sum(map(count_lines, paths))
        shown = rounded(count)
        before = re.search(re.escape(f"| {name} | {what} | ") + r"([\d,]+) \|", old)
        if before and abs(int(before[1].replace(",", "")) - count) <= 0.1 * count:
            shown = before[1]
        table.append(f"| {name} | {what} | {shown} |")
    return "\n".join(table)


def count_lines(path):
    if not path.endswith((".c", ".h", ".cu", ".cuh", ".py", ".sh")):
        return 0
    with open(path, encoding="utf-8") as f:
        return sum(1 for _ in f)


def rounded(count):
    """Two digits that count: 5,312 becomes 5,300."""
    step = 10 ** max(len(str(count)) - 2, 0)
    return f"{round(count / step) * step:,}"


# ----------------------------------------------------------------------------
# The documents

REQUIRED = (quickstart, reference, curves, speed, bits, cpu, attention, places)
OPTIONAL = (
    speeds,
    step_cost,
    plan_accuracy,
    checkpoint_cost,
    scaling,
    tuning,
    losses,
    equal_loss,
    generation,
    torch_steps,
    torch_documents,
)
PARTS = {f.__name__: f for f in (*REQUIRED, *OPTIONAL)}
PART = re.compile(r"(<!-- generated: (\w+) -->\n)(.*?)\n?<!-- end -->", re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(#[^)\s]*)?\)")
# a number with a unit of measurement
FIGURE = re.compile(
    r"\d[\d.,]*\s?(?:ms|µs|seconds?|minutes?|hours?|tok/s|tokens/s|[KMG]i?B|nats|TFLOP/s|GFLOP/s|%|times|×|W|J)(?![\w/])"
)


def read(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as f:
        return f.read()


def find(*patterns):
    """The files that match, relative to the root."""
    paths = {path for pattern in patterns for path in glob.glob(os.path.join(ROOT, pattern), recursive=True)}
    return sorted(os.path.relpath(path, ROOT) for path in paths)


def generate(name, text):
    """A document's text with every part written anew."""
    found = [match[2] for match in PART.finditer(text)]
    unknown = [part for part in found if part not in PARTS]
    if unknown or text.count("<!-- generated:") != len(found):
        raise Fault(f"{name}: a marker without its end, or a part that does not exist: {', '.join(unknown) or '?'}")

    above = os.path.relpath(".", os.path.dirname(name) or ".")  # the parts name files from the root

    def written(match):
        body = places(match[3]) if match[2] == "places" else PARTS[match[2]]()
        body = LINK.sub(lambda link: f"]({os.path.normpath(os.path.join(above, link[1]))}{link[2] or ''})", body)
        return f"{match[1]}{body}\n<!-- end -->" if body else f"{match[1]}<!-- end -->"

    return PART.sub(written, text)


def missing_parts(texts):
    """Required parts that no document has."""
    found = {match[2] for text in texts for match in PART.finditer(text)}
    return [f"no document has <!-- generated: {part.__name__} -->" for part in REQUIRED if part.__name__ not in found]


def prose(text):
    """A text without its code blocks, in lines of the same numbers."""
    return re.sub(r"^```.*?^```", lambda match: "\n" * match[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE)


def stray_figures(name, text):
    """Figures outside of the generated parts and of code."""
    text = prose(PART.sub(lambda match: "\n" * match[0].count("\n"), text))
    return [
        f"{name}:{number}: '{match[0]}' is a figure without a file; generate it or leave it out"
        for number, line in enumerate(re.sub(r"`[^`\n]*`", "", text).split("\n"), 1)
        for match in FIGURE.finditer(line)
    ]


def anchors(text):
    """The anchors of a text's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.*?) *$", prose(text), re.MULTILINE)
    return {"#" + re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def missing_links(name, text):
    """Links into the repository that lead nowhere."""
    for link, anchor in sorted(set(LINK.findall(prose(text)))):
        target = os.path.normpath(os.path.join(os.path.dirname(name), link)) if link else name
        if not os.path.exists(os.path.join(ROOT, target)):
            yield f"{name}: {link}: no such file"
        elif anchor and anchor not in anchors(read(target)):
            yield f"{name}: {link}{anchor}: {target} has no such heading"


FLAG_TABLES = {
    "train_gpt2": ("llmc/run/flags.h", "llmc/model/flags.h"),
    "generate_gpt2": ("llmc/generate/flags.h", "llmc/model/flags.h"),
    "tokenize_gpt2": ("tokenize_gpt2.c",),
    "test_gpt2": (),
}
FOREIGN_FLAGS = {"--help", "--pty"}  # every program's; srun's
CODE = re.compile(r"[\w*][\w.*/-]*\.(?:c|h|cu|cuh|sh|py|md|csv|svg)\b")  # files of ours in code


def flags_of(paths):
    return {flag for path in paths for flag in re.findall(r'"(--?[a-z][\w-]*)', read(path))} | FOREIGN_FLAGS


def missing_targets(words):
    """Of the arguments of make, the targets and variables that the Makefile and its checks.mk do not have."""
    text = read("Makefile") + read("dev/test/checks.mk")
    targets = {word for rule in re.findall(r"^([^\t#=\n]*?):(?!=)", text, re.MULTILINE) for word in rule.split()}
    for word in words:
        name, assigned, _ = word.partition("=")
        if assigned and not re.search(rf"\b{name}\b", text):
            yield f"make {word}: the Makefile has no such variable"
        elif check := re.fullmatch(r"check-(\w+)", name):  # a name in the Makefile, or a test's file
            if not re.search(rf"\b{check[1]}\b", text) and not find(f"dev/test/*/{check[1]}.*"):
                yield f"make {word}: no such check"
        elif not assigned and name not in targets and not find(f"dev/**/{name}.cu"):
            yield f"make {word}: no such target"


def command_faults(words):
    """What a command names that does not exist: a program, a script, a target, a flag."""
    flags = None
    for n, word in enumerate(words):
        program = word.removeprefix("./").removesuffix("cu")
        if word == "make":
            yield from missing_targets([w for w in words[n + 1 :] if not w.startswith("-")])
            return
        if re.fullmatch(r"(\./)?(scripts|dev)/\S+\.(py|sh)", word):
            if not find(word):
                yield f"{word}: no such script"
                return
            flags = flags_of(find(f"{os.path.dirname(word)}/*.py", f"{os.path.dirname(word)}/*.sh"))
        elif program in FLAG_TABLES or re.fullmatch(r"\./\w+", word):
            if program not in FLAG_TABLES:
                yield f"{word}: no such program"
                return
            flags = flags_of(FLAG_TABLES[program])
        elif flags is not None and re.fullmatch(r"--?[a-z][\w-]*", word) and word not in flags:
            yield f"{' '.join(words[:n])}: no flag {word}"


def missing_commands(name, text):
    """Commands, flags and files of the code, in blocks and in lines, that do not exist."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    blocks = "".join(block for language, block in fences if not language)  # ```text is what is printed
    spans = re.findall(r"`([^`\n]+)`", prose(text))
    runs = [span for span in spans if re.match(r"(\./\w+ |make |python3 |scripts/|dev/)", span)]
    lines = re.sub(r"(^|\s)#.*", "", blocks.replace("\\\n", " "), flags=re.MULTILINE).split("\n") + runs
    for line in lines:
        for command in re.split(r"&&|[|;<>()]", line):
            for fault in command_faults(re.findall(r"""'[^']*'|"[^"]*"|\S+""", command)):
                yield f"{name}: {fault}"
    known = flags_of([path for paths in FLAG_TABLES.values() for path in paths])
    known |= flags_of(find("scripts/*.py", "dev/*/*.py"))
    here = [os.path.basename(path) for path in find("*.*", "scripts/*.*", "dev/**/*.*", "llmc/*/*.*")]
    for span in spans:
        for flag in re.findall(r"(?<![\w-])--?[a-z][\w-]*", span):
            if flag not in known:
                yield f"{name}: `{span}`: no program has a flag {flag}"
        for path in CODE.findall(span.replace("path/to/llm.c", "")):
            if not (find(path) if "/" in path else fnmatch.filter(here, path)):
                yield f"{name}: `{span}`: no such file"


def main():
    parser = Parser(__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a document is not up to date")
    args = parser.parse_args()
    stale, texts = [], {}
    try:
        for name in find("README.md", "docs/*.md"):
            old = read(name)
            texts[name] = generate(name, old)
            if texts[name] != old and args.check:
                both = (text.splitlines(True) for text in (old, texts[name]))
                sys.stderr.writelines(difflib.unified_diff(*both, name, "generated"))
                stale.append(name)
            elif texts[name] != old:
                with open(os.path.join(ROOT, name), "w", encoding="utf-8") as f:
                    f.write(texts[name])
    except Fault as fault:
        sys.exit(f"error: {fault}")
    if stale:
        sys.exit(f"error: not what the measurements say: {', '.join(stale)}; run python3 dev/bench/readme_tables.py")
    faults = missing_parts(texts.values())
    for name, text in texts.items():
        faults += [*stray_figures(name, text), *missing_commands(name, text)]
    for name in find("*.md", "docs/*.md", "dev/**/*.md"):
        faults += missing_links(name, texts.get(name) or read(name))
    if faults:
        sys.exit("error: " + "\n".join(faults))


if __name__ == "__main__":
    main()
