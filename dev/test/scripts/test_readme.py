#!/usr/bin/env python3
"""Tests of dev/bench/readme_tables.py: figures of README.md and docs/*.md are those of the committed files, and no
others; links lead somewhere; commands name what exists.

    python3 dev/test/scripts/test_readme.py          # ends in 'N passed, N failed'

Needs the standard library only. Works on a copy of the files that the script reads.
"""

import os
import re
import shutil
import subprocess
import sys

import unit

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
LEFT_BEHIND = [".git", "build", "__pycache__", "*.bin", "*.tmp", "shared", "train_gpt2cu", "test_gpt2cu"]


def script(folder, *arguments, code=0):
    """Runs the copy's script; returns what it wrote to stderr."""
    command = [sys.executable, os.path.join(folder, "dev", "bench", "readme_tables.py"), *arguments]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert result.returncode == code, f"exit code {result.returncode}, not {code}: {result.stderr}"
    assert code == 0 or "error:" in result.stderr, result.stderr
    return result.stderr


def edit(folder, path, change):
    """Applies a function to the text of a file of the copy; the text must change."""
    path = os.path.join(folder, path)
    old = unit.read(path)
    new = change(old)
    assert new != old, f"{path} did not change"
    unit.write(path, new)


def read(folder, path):
    return unit.read(os.path.join(folder, path))


def documents(folder):
    return ["README.md", *(f"docs/{name}" for name in sorted(os.listdir(os.path.join(folder, "docs"))))]


def refused(folder, path, added, words):
    """--check refuses a text at the end of a document in these words, and accepts the document without it."""
    before = read(folder, path)
    edit(folder, path, lambda text: text + added)
    said = script(folder, "--check", code=1)
    assert words in said, f"{path}: {added!r}: {said}"
    edit(folder, path, lambda text: before)


def test_what_the_script_writes_passes_its_check(folder):
    script(folder, "--check")
    before = {name: read(folder, name) for name in documents(folder)}
    assert len(before) >= 7
    script(folder)
    assert {name: read(folder, name) for name in before} == before


def test_README_is_short(folder):
    text = read(folder, "README.md")
    lines, words = text.count("\n"), len(text.split())
    assert lines <= 150 and words <= 2000, f"{lines} lines, {words} words"
    screen = text[: text.index("## Two commands")]
    assert "](dev/" in screen and not re.search(r"wgmma|TMA|`[lm]`", screen)


def test_a_figure_changed_in_README_is_refused(folder):
    edit(folder, "README.md", lambda text: text.replace("nats a byte", "bits a byte"))
    assert "nats a byte" in script(folder, "--check", code=1)


def test_a_measurement_that_is_not_shown_yet_is_refused(folder):
    edit(folder, "dev/bench/cpu_step.csv", lambda text: text.replace(",2070,", ",2071,"))
    assert "2,071" in script(folder, "--check", code=1)
    script(folder)
    script(folder, "--check")


def test_a_figure_without_a_file_is_refused(folder):
    for figure in ("12 ms", "1.79 nats", "500,000 tokens/s", "3 times", "90%", "two 7.5 GB"):
        refused(
            folder,
            "README.md",
            f"\nIt takes {figure}.\n",
            f"'{figure.removeprefix('two ')}' is a figure without a file",
        )
    refused(folder, "docs/running.md", "\nIt takes 12 ms.\n", "docs/running.md:")
    script(folder, "--check")


def test_a_link_that_leads_nowhere_is_refused(folder):
    for path, link, words in (
        ("README.md", "dev/gone.md", "dev/gone.md: no such file"),
        ("README.md", "docs/running.md#gone", "docs/running.md has no such heading"),
        ("README.md", "#gone", "README.md has no such heading"),
        ("docs/faults.md", "dev/LOG.md", "docs/faults.md: dev/LOG.md: no such file"),
        ("docs/faults.md", "../dev/gone.md", "docs/faults.md: ../dev/gone.md: no such file"),
        ("CONTRIBUTING.md", "README.md#several-gpus-several-machines", "README.md has no such heading"),
        ("dev/data/README.md", "../gone.md", "dev/data/README.md: ../gone.md: no such file"),
    ):
        refused(folder, path, f"\n[gone]({link})\n", words)
    edit(folder, "docs/faults.md", lambda text: text + "\n[log](../dev/LOG.md), [here](#what-is-not-covered)\n")
    script(folder, "--check")


def test_links_of_a_part_are_right_wherever_it_is(folder):
    part = re.compile(r"<!-- generated: cpu -->.*?<!-- end -->", re.DOTALL)
    assert "](../dev/bench/cpu_step.csv)" in part.search(read(folder, "docs/measured.md"))[0]
    edit(folder, "docs/measured.md", lambda text: part.sub("", text))
    assert "no document has <!-- generated: cpu -->" in script(folder, "--check", code=1)
    edit(folder, "README.md", lambda text: text + "\n<!-- generated: cpu -->\n<!-- end -->\n")
    script(folder)
    assert "](dev/bench/cpu_step.csv)" in part.search(read(folder, "README.md"))[0]
    script(folder, "--check")


def test_a_command_that_does_not_exist_is_refused(folder):
    for command, words in (
        ("./train_gpt3 -e d12", "./train_gpt3: no such program"),
        ("python3 dev/data/gone.py", "dev/data/gone.py: no such script"),
        ("scripts/gone.sh", "scripts/gone.sh: no such script"),
        ("make gone", "make gone: no such target"),
        ("make check-gone", "make check-gone: no such check"),
        ("make train_gpt2cu ATTENTION_GONE=mma", "no such variable"),
        ("make train_gpt2 && ./train_gpt2 -e d6 --gone", "no flag --gone"),
        ("srun ./train_gpt2cu -e d6 -zz 1", "no flag -zz"),
        ("./generate_gpt2 --prompt 'a --gone b' \\\n    --gone", "no flag --gone"),
        ("./generate_gpt2 -e log6 --overwrite --plan", "no flag --plan"),  # the trainers'
        ("scripts/plot_run.py log6 --gone", "no flag --gone"),
    ):
        refused(folder, "docs/running.md", f"\n```\n{command}\n```\n", words)
    refused(folder, "README.md", "\n```\nmake gone\n```\n", "README.md: make gone: no such target")
    for span, words in (
        ("--gone", "no program has a flag --gone"),
        ("make gone", "make gone: no such target"),
        ("python3 dev/data/gone.py", "no such script"),
        ("test_gone.sh", "`test_gone.sh`: no such file"),
        ("llmc/cpu_*.h", "`llmc/cpu_*.h`: no such file"),
    ):
        refused(folder, "docs/faults.md", f"\nSee `{span}`.\n", words)
    good = (
        "make check-test_cli check-faults attention_forward_mma PRECISION=FP32  # --gone\n"
        "./tokenize_gpt2 encode --endoftext | wc -l"
    )
    edit(folder, "docs/faults.md", lambda text: f"{text}\n```\n{good}\n```\n\n```text\n./gone --gone\n```\n")
    script(folder, "--check")


def test_markers_must_be_whole_and_known(folder):
    for change in (
        lambda text: text.replace("<!-- generated: speed -->", "<!-- generated: sped -->"),
        lambda text: text.replace("<!-- generated: speed -->", ""),
        lambda text: text[: text.rindex("<!-- end -->")],
    ):
        shutil.copy(os.path.join(ROOT, "docs", "measured.md"), os.path.join(folder, "docs"))
        edit(folder, "docs/measured.md", change)
        said = script(folder, "--check", code=1)
        assert "docs/measured.md: a marker" in said or "no document has <!-- generated: speed -->" in said, said


def test_bad_input_ends_in_one_line(folder):
    plot = [sys.executable, os.path.join(folder, "dev", "bench", "plot_scaling.py")]
    assert script(folder, "--nonsense", code=1).count("\n") == 1
    for arguments, words in (
        ([], "SCALING.csv"),
        ([os.path.join(folder, "README.md")], "README.md: a row has not as many columns"),
        ([os.path.join(folder, "dev", "bench", "nvidia-h200", "speed.csv")], "speed.csv has no column max_gpus"),
    ):
        done = subprocess.run([*plot, *arguments], check=False, capture_output=True, text=True)
        assert done.returncode == 1 and done.stderr.startswith("error: ") and words in done.stderr, done.stderr
        assert done.stderr.count("\n") == 1, done.stderr


def test_a_missing_file_is_named(folder):
    os.remove(os.path.join(folder, "dev", "bench", "nvidia-h200", "speed.csv"))
    assert "speed.csv" in script(folder, "--check", code=1)


def test_parts_that_are_empty_until_they_are_measured(folder):
    cost = "model,B,T,before_ms,now_ms,percent,percent_strays,rounds,steps,machine,date,before,commit"
    plan = "model,B,T,flags,memory,planned_mib,used_mib,percent,machine,date,commit"
    save = (
        "model,B,T,ms,blocking_s,stall_s,extra_ms,percent,write_s,gb_s,gb,steps_beside,snapshot,gpu,driver,date,commit"
    )
    when = "2026-01-02"
    new = {
        "dev/bench/nvidia-h200/step_cost.csv": (
            [cost, f"d12,64,1024,108.900,109.009,0.10,0.04,4,200,NVIDIA H200,{when},abc1234,def5678"],
            "+0.10% ± 0.04 for 124M, 64 × 1024 (108.90 ms without, 109.01 ms with)",
        ),
        "dev/bench/nvidia-h200/plan_accuracy.csv": (
            [
                plan,
                f"d12,64,1024,-r 0,GPU,1000,1010,1.00,NVIDIA H200,{when},def5678",
                f"d12,4,1024,-r 0,GPU,1000,980,-2.00,NVIDIA H200,{when},def5678",
                f"d6,4,64,-r 0,GPU,500,450,-10.00,NVIDIA H200,{when},def5678",
            ],
            "GPU memory of 2 runs on NVIDIA H200: -2.00% to +1.00%",
        ),
        "dev/bench/cpu_plan_accuracy.csv": (
            [plan, f"d12,1,1024,-r 0,host,2701,2705,0.15,AMD EPYC,{when},def5678"],
            "host memory of 1 run on AMD EPYC: +0.15% to +0.15%",
        ),
        "dev/bench/nvidia-h200/checkpoint_cost.csv": (
            [save, f"d48,8,1024,300.10,9.500,0.020,120.0,1.3,12.500,1.74,21.80,42,GPU,NVIDIA H200,580,{when},def5678"],
            "1558M, 8 × 1024: 0.120 s instead of 9.500 s (1.3%); 21.8 GB are written in 12.5 s",
        ),
    }
    edit(folder, "dev/LOG.md", lambda text: "")  # it links to them
    for path in new:
        if os.path.exists(os.path.join(folder, path)):
            os.remove(os.path.join(folder, path))
    script(folder)
    for name in ("step_cost", "plan_accuracy", "checkpoint_cost"):
        assert f"<!-- generated: {name} -->\n<!-- end -->\n" in read(folder, "docs/measured.md"), name
    for path, (lines, shown) in new.items():
        script(folder, "--check")
        unit.write(os.path.join(folder, path), "\n".join(lines) + "\n")
        assert shown in script(folder, "--check", code=1)  # it is measured and not shown
        script(folder)
        assert shown in read(folder, "docs/measured.md"), shown
    assert "450 MiB instead of 500 (GPU, NVIDIA H200)." in read(folder, "docs/measured.md")
    script(folder, "--check")


def test_what_trains_is_shown_though_another_was_faster(folder):
    def add(text):
        row = next(r for r in text.splitlines() if ",forward,wgmma,bf16,64,1024,12,64," in r and ",yes,steady," in r)
        columns = dict(zip(text.splitlines()[0].split(","), row.split(",")))
        columns.update(config="faster", trains="no", tflops="999.00")
        return text + ",".join(columns.values()) + "\n"

    edit(folder, "dev/cuda/leaderboard/nvidia-h200.csv", add)
    before = read(folder, "docs/measured.md")
    script(folder)
    assert read(folder, "docs/measured.md") == before


def test_flags_stand_beside_bf16_but_not_in_READMEs_table(folder):
    def add(text):
        row = next(r for r in text.splitlines() if r.startswith("flashgpt,d12,64,1024,wgmma"))
        torch = next(r for r in text.splitlines() if r.startswith("PyTorch 2.11,d12,64,1024,cudnn"))
        rows = [row.replace("flashgpt", f"flashgpt {flags}") for flags in ("--fp8 1", "--documents 2")]
        rows.append(torch.replace("2.11", "2.11 with torchao"))
        return text + "\n".join(row.replace(row.split(",")[7], "999999") for row in rows) + "\n"

    edit(folder, "dev/bench/nvidia-h200/speed.csv", add)
    before = read(folder, "README.md")
    script(folder)
    shown = read(folder, "docs/measured.md")
    assert read(folder, "README.md") == before
    for flags in ("--fp8 1", "--documents 2"):
        assert f"| 124M, 64 × 1024 | `wgmma`, `{flags}` | 0 |" in shown
    assert "| 124M, 64 × 1024 | PyTorch 2.11 with torchao, torch.compile, cuDNN | – |" in shown


def test_attention_in_PyTorch_stands_beside_the_fastest_library(folder):
    """Of rows of two commits the later ones; where a file has none, nothing."""

    def add(text):
        rows = [row for row in text.splitlines() if ",1024,512,forward," in row]
        later = []
        for row, ms in zip(rows, ("1.0", "2.5", "3.0", "4.0")):
            cells = row.split(",")
            cells[5], cells[10] = "abc1234", ms
            later.append(",".join(cells))
        return text + "\n".join(later) + "\n"

    edit(folder, "dev/bench/nvidia-h200/torch_documents.csv", add)
    edit(folder, "dev/bench/nvidia-h200/torch_attention.csv", lambda text: text.splitlines(True)[0])
    script(folder)
    shown = read(folder, "docs/pytorch.md")
    row = next(line for line in shown.splitlines() if line.startswith("| 1024 | forward |"))
    assert row.split("|")[4].strip() == "2.50 × FlexAttention", row
    assert "commit abc1234" in shown and "<!-- generated: torch_steps -->\n<!-- end -->" in shown


def test_the_best_points_of_each_optimizer_are_shown(folder):
    def add(text):
        row = next(r for r in text.splitlines() if r.startswith("muon-"))
        columns = dict(zip(text.splitlines()[0].split(","), row.split(",")))
        columns.update(arm="muon-best", loss="1.001", flags=columns["flags"] + " -l 9e-3")
        return text + ",".join(columns.values()) + "\n"

    edit(folder, "dev/bench/nvidia-h200/tuning.csv", add)
    script(folder)
    best = next(line for line in read(folder, "docs/recipe.md").splitlines() if "| 1.001 |" in line)
    assert best.count("-l ") == 1 and " -l 9e-3" in best, best


def test_losses_are_compared_seed_by_seed(folder):
    """The baseline's runs without a partner do not count; one pair has no interval."""
    head = "arm,flags,steps,seed,tokens,loss,step_ms,joules,val_tokens,margin,curve,gpu,driver,cuda,date,commit\n"

    def row(arm, seed, loss, flags):
        flags = f"-e d12t4096 -i corpus/train.bin -t 4096 {flags}"
        return f"{arm},{flags},1,{seed},3000,{loss},1,,1,0.004,,NVIDIA H200,580,13.0,2026-01-02,abc1234\n"

    path = os.path.join(folder, "dev", "bench", "nvidia-h200", "fp8_loss.csv")
    muon = "--optimizer muon"
    text = head + row("a", 1, 2.0, muon) + row("a", 2, 2.5, muon) + row("a", 3, 9.0, muon) + row("b", 1, 3.0, "")
    unit.write(path, text + row("a-fp8", 2, 2.502, muon) + row("a-fp8", 1, 2.004, muon) + row("b-fp8", 1, 2.9, ""))
    script(folder)
    shown = read(folder, "docs/measured.md")
    muon, adamw = (f"| `--fp8 1` | 124M, T = 4096, `{name}`, corpus | 3,000 |" for name in ("muon", "adamw"))
    assert f"{muon} 2.2500 | 2.2530 | +0.0030 (-0.0033 to +0.0093) | 2 |" in shown
    assert f"{adamw} 3.0000 | 2.9000 | -0.1000 | 1 |" in shown
    unit.write(path, head)
    unit.write(path.replace("fp8", "documents"), head)
    script(folder)
    assert "<!-- generated: losses -->\n<!-- end -->\n" in read(folder, "docs/measured.md")


def test_arms_are_reported_beside_their_baseline(folder):
    """Whatever the order of the rows; flags that all have are not repeated, and programs are known by their names."""
    head = "arm,flags,steps,seed,tokens,loss,step_ms,joules,val_tokens,margin,curve,gpu,driver,cuda,date,commit\n"
    common, weights = "-i 'corpus/train_*.bin' -j corpus/val.bin -t 1024 -e d12", "-e '{weights}'"

    def row(arm, flags, steps, loss):
        where = "NVIDIA H200,580,13.0,2026-01-02,abc1234"
        return f"{arm},{flags},{steps},1,{steps}000,{loss},100,,10000000,0.004,,{where}\n"

    adamw, muon = f"{common} -b 16 -d 16384 --recipe adamw", f"{common} -b 32 -d 32768 --recipe muon"
    muons = row("muon-32k", muon, 500, 3.2) + row("muon-32k", muon, 1000, 2.8)
    path = os.path.join(folder, "dev", "bench", "nvidia-h200", "optimizers_loss.csv")
    unit.write(path, head + muons)
    script(folder)
    assert "<!-- generated: equal_loss -->\n<!-- end -->\n" in read(folder, "docs/recipe.md")
    unit.write(path, head + muons + row("adamw-16k", adamw, 1000, 3.0))
    peer = row("llm.c", f"build/llmc {common} -b 64 -l 6e-4 {weights}", 1000, 3.0)
    ours = row("flashgpt", f"{common} -b 64 --fp8 1 {weights}", 500, 3.2)
    unit.write(path.replace("optimizers", "quarter"), head + ours + peer)
    script(folder)
    shown = read(folder, "docs/recipe.md")
    said = "adamw-16k with `-b 16 -d 16384 --recipe adamw`, muon-32k with `-b 32 -d 32768 --recipe muon` ("
    assert f"a baseline ends, as `dev/bench/loss.py` reports it.\n\n**124M, corpus:** {said}" in shown
    assert "adamw-16k, the baseline: loss 3.00000 at 1,000,000 tokens\n" in shown
    assert "    reaches the baseline's final loss with 1.414 times fewer tokens, 1.414 times less time\n```" in shown
    assert "**124M, corpus:** llm.c with `-l 6e-4`, flashgpt with `--fp8 1` (" in shown


def test_other_bits_show(folder):
    edit(folder, "dev/bench/nvidia-h200/bits.csv", lambda text: re.sub(r"\byes\b", "no", text, count=1))
    script(folder)
    assert ": OTHER BITS; " in read(folder, "docs/measured.md")


def test_a_failed_check_shows(folder):
    path = "dev/bench/nvidia-h200/test_gpt2cu_124M_bf16.txt"
    edit(folder, path, lambda text: text.replace(", 0 failed", ", 1 failed"))
    assert "checks FAILED" in script(folder, "--check", code=1)
    edit(folder, path, lambda text: text.replace("1.761e-03", "nan"))
    assert path in script(folder, "--check", code=1)


def test_a_count_of_lines_stays_while_it_is_within_a_tenth(folder):
    edit(folder, "README.md", lambda text: re.sub(r"\| [\d,]+ \|$", "| 1 |", text, flags=re.MULTILINE))
    script(folder)  # counts them anew
    lines = unit.read(os.path.join(folder, "train_gpt2.cu")).count("\n")
    edit(folder, "train_gpt2.cu", lambda text: text + "\n" * (lines // 30))
    script(folder, "--check")
    edit(folder, "train_gpt2.cu", lambda text: text + "\n" * (lines // 2))
    assert "train_gpt2.cu" in script(folder, "--check", code=1)


def copy_of_the_project(folder):
    """What each test begins with. Counts of lines drift, so the script writes them anew."""
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*LEFT_BEHIND), dirs_exist_ok=True)
    script(folder)


if __name__ == "__main__":
    sys.exit(unit.run(globals(), copy_of_the_project))
