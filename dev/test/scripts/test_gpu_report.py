#!/usr/bin/env python3
"""Tests of dev/bench/gpu_report.sh where there is no GPU: the programs that it runs are stand-ins of a few lines.

    python3 dev/test/scripts/test_gpu_report.py          # ends in 'N passed, N failed'

The stand-in of the trainer prints the lines that the report reads, in the words of llmc/run and train_gpt2.cu,
which a test compares. Needs bash and the standard library.
"""

import csv
import os
import re
import shutil
import statistics
import subprocess
import sys

import unit

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, os.path.join(ROOT, "dev", "data"))

import data_common  # noqa: E402 (the folder that has it is known now)

RESULTS = "dev/bench/nvidia-h200"
PYTHON = sys.executable

PROGRAMS = {
    "nvidia-smi": """case "$*" in *name*) echo "NVIDIA H200";; *driver*) echo 580.1;; esac""",
    "nvcc": """echo "Cuda compilation tools, release 13.0, V13.0.88" """,
    # one make for all: a test prints its checks, a trainer is the stand-in below
    "make": r"""
        mkdir -p build
        for a in "$@"; do case $a in
        build/test*) printf '#!/bin/bash\necho "gradient of wte  1e-06  2e-06  ok"\necho "3 passed, 0 failed"\n' > $a;;
        build/train*) cp "$FAKE/trainer" $a;;
        esac; done
        chmod +x build/t*""",
    # as llm.c's trainer prints it
    "llmc": r"""
        [ "$*" = "-e d48 -i $DATA/tiny_shakespeare_train.bin -j $DATA/tiny_shakespeare_train.bin -b 8 -t 1024 -x 250 \
-v 1000 -m 1 -s 0 -h 0 -r 0" ] || { echo "$*" >&2; exit 1; }
        echo "device memory usage: 47000 MiB / 143771 MiB"
        for ((i = 1; i <= 250; i++)); do
            if [ $i -le 50 ]; then ms=900.00; else ms=20$((i % 2)).00; fi
            echo "step $i/250 | loss 7.1 (+nanz)| norm 1.0 (+nanz)| lr 3.00e-04 | $ms ms | 51.2% bf16 MFU | 9 tok/s"
        done""",
    # steps 1 to 50 take 900 ms, the later ones 101 and 100 ms alternately
    "trainer": r"""
        x=250; n=0
        while [ $# -gt 0 ]; do
            case $1 in -x) x=$2;; -o) o=$2;; -n) n=$2;; --overwrite) shift; continue;; -*) ;;
            *) echo "error: $1 is no flag" >&2; exit 1;; esac
            shift 2 || exit 1
        done
        echo "| attention             | wgmma forward, mma backward      |"
        echo "| recompute             | 0                                |"
        echo "| memory                | 23940 MiB                        |"
        for ((i = 1; i <= x; i++)); do
            if [ $i -le 50 ]; then ms=900.00; else ms=10$((i % 2)).00; fi
            echo "step $i/$x | loss 7.1 (+0.1z) | norm 1.0 (-0.2z) | $ms ms | 51.2% MFU | 9 tok/s | 3s left"
        done
        [ -z "$o" ] || { mkdir -p $o; seq 0 $((x - 1)) | sed 's/.*/s:& trl:7.25 lr:0 norm:1/' > $o/main.log
            echo s:$x tel:6.5 >> $o/main.log; }
        [ $n = 0 ] || for s in 100 200; do echo weights > $o/model_00000$s.bin; date > $o/state_00000${s}_00000.bin
        done""",
    "date": "echo 2026-01-02",
    "python3": r"""
        case $1 in
        *write_reference.py) touch build/report/gpt2_124M{,_bf16,_debug_state}.bin;;
        *train_reference.py) while [ $# -gt 0 ]; do [ $1 != -o ] || o=$2; shift; done
            $FAKE/trainer -x 200 -o $o >$o.log 2>/dev/null || exit 1; sed -i '1s/7.25/7.27/' $o/main.log;;
        -c) exit ${NO_TORCHAO:-0};;
        *time_torch.py) echo "d12, B=64, T=1024, bfloat16, sdpa cudnn, torch.compile, PyTorch 2.11.0+cu130, NVIDIA H200"
            echo "mean 128.000 ms of 200 steps after 50 (median 127.00, fastest 126.00), 512,000 tok/s, 31000 MiB";;
        *plot_run.py) while [ $# -gt 0 ]; do case $1 in --output) touch $2; shift;; *) a+=("$1");; esac; shift; done
            exec $REAL_PYTHON "${a[@]}";;
        *tinyshakespeare.py) mkdir -p dev/data/tinyshakespeare; cd $_; touch tiny_shakespeare_{train,val}.bin;;
        *quickstart.py) echo head > $3; echo "$3: 30 s";;
        *) exec $REAL_PYTHON "$@";;
        esac""",
}

# a trainer whose first checkpoint, 2 GB of step 80, is written beside three steps of 110 ms
SAVES = r"""#!/bin/bash
while [ $# -gt 0 ]; do case $1 in -x) x=$2;; -o) o=$2;; esac; shift; done
mkdir -p $o
echo "| snapshot              | GPU                              |"
for ((i = 1; i <= x; i++)); do
    case $i,$o in 8[123],*async) ms=110.00;; *) ms=100.00;; esac
    echo "step $i/$x | loss 7.1 (+0.1z) | norm 1.0 (-0.2z) | $ms ms | 51.2% MFU | 9 tok/s | 3s left"
    case $i,$o in
    83,*async) truncate -s 2000000000 $o/model_00000080.bin
        echo "wrote checkpoint 00000080 to $o (0.010 s, and 0.800 s beside training)";;
    40,*blocking) echo "wrote checkpoint 00000040 to $o (1.500 s, and 0.000 s beside training)";;
    esac
done
"""


def report(folder, *arguments, code=0, script="gpu_report.sh", **settings):
    """Runs the copy's report, or a script beside it, with the stand-ins first on PATH; returns its output."""
    fake = os.path.join(folder, "fake")
    for name, text in PROGRAMS.items():
        unit.program(fake, name, "#!/bin/bash\n" + text)
    env = {**os.environ, "PATH": f"{fake}:{os.environ['PATH']}", "FAKE": fake, "REAL_PYTHON": PYTHON}
    result = subprocess.run(
        [f"dev/bench/{script}", *arguments],
        cwd=folder, env={**env, "COMMIT": "abc1234", **settings}, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == code, f"exit code {result.returncode}, not {code}:\n{result.stdout}{result.stderr}"
    return result.stdout + result.stderr


def rows(folder, name):
    with open(os.path.join(folder, RESULTS, name), newline="", encoding="utf-8") as f:
        found = list(csv.DictReader(f))
    assert found and all(None not in row and None not in row.values() for row in found), found
    assert {(row["gpu"], row["driver"], row["cuda"], row["date"], row["commit"]) for row in found} == {
        ("NVIDIA H200", "580.1", "13.0", "2026-01-02", "abc1234")
    }
    return found


def test_every_section_writes_its_file(folder):
    shutil.rmtree(os.path.join(folder, RESULTS))
    report(folder)
    speed = rows(folder, "speed.csv")
    shapes = [
        *[("d12", "64", "1024"), ("d24", "32", "1024"), ("d36", "16", "1024"), ("d48", "8", "1024")],
        *[("d12", "32", "1024"), ("d12", "4", "1024"), ("d12", "4", "4096"), ("d12", "2", "8192")],
    ]
    ours = {(row["model"], row["B"], row["T"]): row for row in speed if row["program"] == "flashgpt"}
    assert sorted(ours) == sorted(shapes), speed
    report(folder, "--only", "speed")  # the stand-ins of the variants call themselves what the trainer does
    again = rows(folder, "speed.csv")
    others = ["flashgpt --fp8 1"] * 4 + ["PyTorch 2.11"] * 2 + ["PyTorch 2.11 with torchao"] * 2
    others += ["flashgpt --documents 1"] * 2
    assert [row["program"] for row in again] == others + ["flashgpt"] * len(shapes), again
    first = ours["d12", "64", "1024"]
    assert (first["ms"], first["tok_s"], first["mfu"]) == ("100.500", "652100", "51.2"), first
    assert (first["attention_forward"], first["attention_backward"], first["mib"]) == ("wgmma", "mma", "23940")
    *_, torchao = (row for row in speed if row["program"] == "PyTorch 2.11 with torchao")
    assert [row["recompute"] for row in (first, torchao)] == ["0", ""]
    assert (torchao["ms"], torchao["tok_s"], torchao["mib"]) == ("128.000", "512000", "31000")
    curves = {(row["precision"], row["loss"]): (row["largest"], row["mean"]) for row in rows(folder, "curves.csv")}
    assert curves == {
        **{(p, "training"): ("0.020000", "0.000100") for p in ("fp32", "bf16")},
        **{(p, "validation"): ("0.000000", "0.000000") for p in ("fp32", "bf16")},
    }, curves
    assert [row["same"] for row in rows(folder, "bits.csv")] == ["yes", "yes"]
    for name in ("curves.svg", "curves_fp32.svg", "quickstart.csv"):
        assert os.path.exists(os.path.join(folder, RESULTS, name)), name
    with open(os.path.join(folder, RESULTS, "test_gpt2cu_124M_bf16.txt"), encoding="utf-8") as f:
        assert f.readline() == "# NVIDIA H200, driver 580.1, CUDA 13.0, 2026-01-02, commit abc1234\n"


def test_peers_at_other_shapes(folder):
    """PyTorch with one backend, and llm.c where its trainer is named."""
    data = "dev/data/tinyshakespeare"
    settings = {"SHAPES": "d48,8,1024", "SDPA": "cudnn", "LLMC": os.path.join(folder, "fake", "llmc"), "DATA": data}
    shutil.rmtree(os.path.join(folder, RESULTS))
    report(folder, "--only", "peers", **settings)
    shown = [
        tuple(row[c] for c in ("program", "model", "B", "T", "attention_forward", "ms", "mfu", "mib", "recompute"))
        for row in rows(folder, "speed.csv")
    ]
    assert shown == [
        ("PyTorch 2.11", "d48", "8", "1024", "cudnn", "128.000", "", "31000", ""),
        ("llm.c", "d48", "8", "1024", "cudnn", "200.500", "", "47000", "0"),
    ], shown


def test_fp8_beside_bf16_and_the_peers(folder):
    """With torchao and without; of torchao's flags and ours, the programs' names tell."""
    for without, peers in (("0", ["PyTorch 2.11", "PyTorch 2.11 with torchao"]), ("1", ["PyTorch 2.11"])):
        shutil.rmtree(os.path.join(folder, RESULTS))
        report(folder, "--only", "fp8", SHAPES="d48,8,1024", SDPA="cudnn", NO_TORCHAO=without)
        found = rows(folder, "speed.csv")
        assert [row["program"] for row in found] == ["flashgpt", "flashgpt --fp8 1", *peers], found
        assert {(row["model"], row["attention_forward"]) for row in found[:2]} == {("d48", "wgmma")}


def test_documents_beside_rows(folder):
    """The lengths are FineWeb's, as torch_documents.py draws them."""
    shutil.rmtree(os.path.join(folder, RESULTS))
    report(folder, "--only", "documents")
    shown = [(row["program"], row["B"], row["T"]) for row in rows(folder, "speed.csv")]
    programs, shapes = ("flashgpt", "flashgpt --documents 1"), (("64", "1024"), ("2", "8192"))
    assert shown == [(program, *shape) for shape in shapes for program in programs], shown
    tokens = data_common.read_token_file(os.path.join(folder, "build", "report", "documents_train.bin"))[0]
    begins = [i for i, token in enumerate(tokens) if token == 50256]
    lengths = [end - begin for begin, end in zip(begins, [*begins[1:], len(tokens)])]
    assert begins[0] == 0 and min(tokens) >= 0 and max(tokens) == 50256
    assert 380 < statistics.median(lengths) < 426 and 640 < statistics.mean(lengths) < 740


def test_other_bits_are_reported(folder):
    trainer = PROGRAMS["trainer"]
    PROGRAMS["trainer"] = trainer.replace("echo weights >", "echo $RANDOM$RANDOM$RANDOM >")
    try:
        report(folder, "--only", "bits")
    finally:
        PROGRAMS["trainer"] = trainer
    assert [row["same"] for row in rows(folder, "bits.csv")] == ["no", "no"]


def test_a_section_that_fails_keeps_its_file_and_the_others_go_on(folder):
    before = unit.read(os.path.join(folder, RESULTS, "speed.csv"))
    trainer = PROGRAMS["trainer"]
    PROGRAMS["trainer"] = trainer.replace("$ms ms |", "$ms milliseconds |")
    try:
        said = report(folder, "--only", "speed", "--only", "bits", code=1)
    finally:
        PROGRAMS["trainer"] = trainer
    assert "speed FAILED" in said and "0 step lines with ms, not 200" in said, said
    assert unit.read(os.path.join(folder, RESULTS, "speed.csv")) == before
    rows(folder, "bits.csv")


def test_wrong_arguments_and_no_GPU_end_in_one_line(folder):
    assert "--only needs a section" in report(folder, "--only", code=1)
    assert "--only sped: no such section" in report(folder, "--only", "sped", code=1)
    assert "--fast: unknown" in report(folder, "--fast", code=1)
    smi = PROGRAMS["nvidia-smi"]
    try:
        for PROGRAMS["nvidia-smi"] in ("echo no devices >&2; exit 9", "echo It cannot find the driver; exit 9"):
            for script in ("gpu_report.sh", "checkpoint_cost.sh"):
                assert report(folder, code=1, script=script) == "error: nvidia-smi shows no GPU here\n"
    finally:
        PROGRAMS["nvidia-smi"] = smi


def test_what_a_checkpoint_costs_other_models_stays(folder):
    path = os.path.join(folder, RESULTS, "checkpoint_cost.csv")
    for name in ("README.md", "Makefile", "dev/README"):  # what it trains on
        unit.write(os.path.join(folder, name), "text\n\n" * 1000)
    unit.program(folder, "train_gpt2cu", SAVES)
    before = unit.read(path).splitlines()
    assert "error: d13: no such model" in report(folder, "d12", "d13", code=1, script="checkpoint_cost.sh")
    report(folder, "d12", script="checkpoint_cost.sh")
    after = unit.read(path).splitlines()
    measured = "d12,32,1024,100.00,1.500,0.010,40.0,2.7,0.800,2.50,2.00,3,GPU,NVIDIA H200,580.1,13.0,"
    assert after[0] == before[0] and after[1].startswith(measured) and after[1].endswith(",abc1234"), after
    assert after[2:] == [row for row in before if row.startswith("d48,")] != [], after
    unit.write(path, "model,other\nd48,1\n")
    assert "checkpoint_cost.csv has other columns" in report(folder, "d12", code=1, script="checkpoint_cost.sh")
    assert unit.read(path) == "model,other\nd48,1\n"
    assert unit.read(f"{path}.new").splitlines() == after[:2]


def test_the_trainers_lines_are_those_that_the_report_reads(folder):
    trainer = unit.read(os.path.join(folder, "llmc", "run", "step.h"))
    trainer += unit.read(os.path.join(folder, "llmc", "run", "open.h"))
    assert '" | %.1f%% MFU"' in unit.read(os.path.join(folder, "llmc", "model", "gpu_peaks.h"))
    steps = re.findall(r'"step [^"]*"', trainer)  # the terminal's line is shorter
    assert any("| %.2f ms%s |" in step for step in steps), steps
    assert re.search(r'print_table_row\("memory", "%.0f MiB', trainer)
    assert re.search(
        r'n->attention, sizeof\(n->attention\), "%s forward, %s backward"',
        unit.read(os.path.join(folder, "train_gpt2.cu")),
    )
    assert 'print_table_row("attention", "%s", n->attention);' in trainer


def what_the_report_reads(folder):
    for part in ("dev/bench", "dev/data", "dev/reference", "llmc", "scripts"):
        shutil.copytree(os.path.join(ROOT, part), os.path.join(folder, part))
    shutil.copy(os.path.join(ROOT, "train_gpt2.cu"), folder)


if __name__ == "__main__":
    sys.exit(unit.run(globals(), what_the_report_reads))
