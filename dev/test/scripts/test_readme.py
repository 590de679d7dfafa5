#!/usr/bin/env python3
"""Tests of dev/bench/readme_tables.py: README's figures are those of the committed files, and no others.

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
LEFT_BEHIND = shutil.ignore_patterns(".git", "build", "__pycache__", "*.bin", "shared", "train_gpt2cu", "test_gpt2cu")


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
    with open(path, encoding="utf-8") as f:
        old = f.read()
    new = change(old)
    assert new != old, f"{path} did not change"
    with open(path, "w", encoding="utf-8") as f:
        f.write(new)


def read(folder, path):
    with open(os.path.join(folder, path), encoding="utf-8") as f:
        return f.read()


def test_what_the_script_writes_passes_its_check(folder):
    script(folder, "--check")
    before = read(folder, "README.md")
    script(folder)
    assert read(folder, "README.md") == before


def test_a_figure_changed_in_README_is_refused(folder):
    edit(folder, "README.md", lambda text: text.replace("nats a byte", "bits a byte"))
    assert "nats a byte" in script(folder, "--check", code=1)


def test_a_measurement_that_README_does_not_show_yet_is_refused(folder):
    edit(folder, "dev/bench/cpu_step.csv", lambda text: text.replace(",2070,", ",2071,"))
    assert "2,071" in script(folder, "--check", code=1)
    script(folder)
    script(folder, "--check")


def test_a_figure_without_a_file_is_refused(folder):
    for figure in ("12 ms", "1.79 nats", "500,000 tokens/s", "3 times", "90%", "two 7.5 GB"):
        edit(folder, "README.md", lambda text, figure=figure: text + f"\nIt takes {figure}.\n")
        assert "without a file" in script(folder, "--check", code=1), figure
        edit(folder, "README.md", lambda text, figure=figure: text.replace(f"\nIt takes {figure}.\n", ""))
    script(folder, "--check")


def test_a_link_that_leads_nowhere_is_refused(folder):
    edit(folder, "README.md", lambda text: text + "\n[gone](dev/gone.md)\n")
    assert "dev/gone.md: no such file" in script(folder, "--check", code=1)


def test_markers_must_be_whole_and_known(folder):
    for change in (
        lambda text: text.replace("<!-- generated: speed -->", "<!-- generated: sped -->"),
        lambda text: text.replace("<!-- generated: speed -->", ""),
        lambda text: text[: text.rindex("<!-- end -->")],
    ):
        shutil.copy(os.path.join(ROOT, "README.md"), folder)
        edit(folder, "README.md", change)
        assert "README.md" in script(folder, "--check", code=1)


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
            "+0.10% ± 0.04 for 124M, 64 × 1024 (108.90 and 109.01 ms)",
        ),
        "dev/bench/nvidia-h200/plan_accuracy.csv": (
            [
                plan,
                f"d12,64,1024,-r 0,GPU,1000,1010,1.00,NVIDIA H200,{when},def5678",
                f"d12,4,1024,-r 0,GPU,1000,980,-2.00,NVIDIA H200,{when},def5678",
                f"d6,4,64,-r 0,GPU,500,450,-10.00,NVIDIA H200,{when},def5678",
            ],
            "GPU memory of 2 runs on NVIDIA H200 by -2.00% to +1.00%",
        ),
        "dev/bench/cpu_plan_accuracy.csv": (
            [plan, f"d12,1,1024,-r 0,host,2701,2705,0.15,AMD EPYC,{when},def5678"],
            "host memory of 1 run on AMD EPYC by +0.15% to +0.15%",
        ),
        "dev/bench/nvidia-h200/checkpoint_cost.csv": (
            [save, f"d48,8,1024,300.10,9.500,0.020,120.0,1.3,12.500,1.74,21.80,42,GPU,NVIDIA H200,580,{when},def5678"],
            "0.120 s of training in place of 9.500 s (1.3%) for 1558M, 8 × 1024, whose 21.8 GB are written in 12.5 s",
        ),
    }
    for path in new:
        if os.path.exists(os.path.join(folder, path)):
            os.remove(os.path.join(folder, path))
    script(folder)
    for name in ("step_cost", "plan_accuracy", "checkpoint_cost"):
        assert f"<!-- generated: {name} -->\n<!-- end -->\n" in read(folder, "README.md"), name
    for path, (lines, shown) in new.items():
        script(folder, "--check")
        with open(os.path.join(folder, path), "w", encoding="utf-8") as f:
            f.write("\n".join(lines) + "\n")
        assert shown in script(folder, "--check", code=1)  # it is measured and not shown
        script(folder)
        assert shown in read(folder, "README.md"), shown
    assert "450 MiB for 500 (GPU, NVIDIA H200)." in read(folder, "README.md")
    script(folder, "--check")


def test_other_bits_show(folder):
    edit(folder, "dev/bench/nvidia-h200/bits.csv", lambda text: re.sub(r"\byes\b", "no", text, count=1))
    script(folder)
    assert ": OTHER BITS; " in read(folder, "README.md")


def test_a_failed_check_shows(folder):
    path = "dev/bench/nvidia-h200/test_gpt2cu_124M_bf16.txt"
    edit(folder, path, lambda text: text.replace(", 0 failed", ", 1 failed"))
    assert "checks FAILED" in script(folder, "--check", code=1)
    edit(folder, path, lambda text: text.replace("1.761e-03", "nan"))
    assert path in script(folder, "--check", code=1)


def test_a_count_of_lines_stays_while_it_is_within_a_tenth(folder):
    script(folder, "--check")
    with open(os.path.join(folder, "train_gpt2.cu"), encoding="utf-8") as f:
        lines = f.read().count("\n")
    edit(folder, "train_gpt2.cu", lambda text: text + "\n" * (lines // 30))
    script(folder, "--check")
    edit(folder, "train_gpt2.cu", lambda text: text + "\n" * (lines // 2))
    assert "train_gpt2.cu" in script(folder, "--check", code=1)


def copy_of_the_project(folder):
    """What each test begins with. Counts of lines drift, so the script writes them anew."""
    shutil.copytree(ROOT, folder, ignore=LEFT_BEHIND, dirs_exist_ok=True)
    script(folder)


if __name__ == "__main__":
    sys.exit(unit.run(globals(), copy_of_the_project))
