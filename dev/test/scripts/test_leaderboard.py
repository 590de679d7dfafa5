#!/usr/bin/env python3
"""Tests of dev/cuda/bench: compete.sh with programs that only write rows, plot_leaderboard.py on figures made up here,
and of the pages in dev/cuda: tables as their CSVs say, links that lead somewhere.

python3 dev/test/scripts/test_leaderboard.py
"""

import contextlib
import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir, "cuda", "bench"))

import plot_leaderboard

import unit

COMPETE = Path(plot_leaderboard.__file__).parent / "compete.sh"
LEADERBOARDS = Path(plot_leaderboard.__file__).resolve().parents[1] / "leaderboard"
TRAINING = (
    "gpu,driver,cuda,date,commit,direction,variant,precision,B,T,NH,HS,config,trains,mode,"
    "ms,tflops,mj,pj_per_flop,sm_mhz,of_gemm,rel_err,deterministic"
)
DECODE = TRAINING.replace("tflops", "gb_per_s").replace("pj_per_flop", "pj_per_byte").replace("of_gemm", "of_read")
MATMUL = TRAINING.replace("direction", "group").replace("B,T,NH,HS", "R,IN,OUT").replace("of_gemm", "of_gemm,gb_per_s")
LIBRARIES = (
    "gpu,driver,cuda,torch,cudnn,date,commit,direction,B,T,NH,HS,mode,provider,deterministic,ms,tflops,mj,pj_per_flop,"
    "sm_mhz,out,out_from_64,dq,dk,dv,best_peer,best_peer_over_ours"
)


def row(direction, variant, shape, ms, rate, config="big", mode="steady", trains="yes"):
    share = ",0.5" if direction != "decode" else ",0.9"
    return (
        f"MADEUP,1.2,13.0,today,abc,{direction},{variant},bf16,{shape},{config},{trains},{mode},{ms},{rate},"
        f"{'1.5,2,1700' if mode == 'steady' else ',,'}{share},2e-3,yes"
    )


def matmul_row(group, variant, shape, ms, config="separate", mode="steady", trains="no"):
    return row(group, variant, shape, ms, 600, config, mode, trains).replace(",0.5,", ",0.8,1500.0,")


def libraries(path, shape="8,1024,12,64", modes=("steady",), direction="forward"):
    """Rows of compare_libraries.py: ours, cuDNN and a deterministic FlashAttention-2."""
    rows = [LIBRARIES]
    for mode in modes:
        for provider, tflops in (("ours", 353.4), ("cuDNN", 268.1), ("FA2 det", 171)):
            head = f"MADEUP,1.2,13.0,2.11,91900,today,abc,{direction},{shape},{mode},{provider}"
            rows.append(f"{head},yes,0.04,{tflops},,,,2e-3,2e-3,,,,cuDNN,1.3182")
    path.write_text("\n".join(rows) + "\n")


def board(folder):
    """A leaderboard of two variants and a page for it; returns the CSV's path."""
    path = Path(folder) / "gpu.csv"
    rows = [TRAINING]
    for shape in ("8,1024,12,64", "32,1024,12,64", "64,512,12,64"):
        for direction in ("forward", "backward"):
            rows += [row(direction, "naive", shape, 5, 2), row(direction, "wgmma", shape, 0.05, 300)]
    path.write_text("\n".join(rows) + "\n")
    path.with_name("README.md").write_text("# Before\n")
    return path


def run(path, plots=False):
    """plot_leaderboard.py on the CSV, with its plots or without. Returns the page."""
    drawn = {name: getattr(plot_leaderboard, name) for name in ("plot", "plot_decode", "plot_matmul")}
    if not plots:
        for name in drawn:
            setattr(plot_leaderboard, name, lambda *arguments: None)
    sys.argv = ["plot_leaderboard.py", str(path)]
    with contextlib.redirect_stdout(io.StringIO()):
        plot_leaderboard.main()
    for name, function in drawn.items():
        setattr(plot_leaderboard, name, function)
    return path.with_name("README.md").read_text()


def test_tables_of_training(folder):
    text = run(board(folder))
    assert "\n## MADEUP" in text and "![forward](gpu_forward.svg)" in text, text
    assert "| 8,1024,12,64 | 2.0 | **300.0** | 0.05 | 1.5 | 2.00 |" in text, text
    assert "Decode" not in text and text.startswith("# Before")
    page = Path(folder) / "README.md"
    page.write_text(text.replace("300.0", "299.0") + "# After\n")
    assert run(Path(folder) / "gpu.csv") == text + "# After\n"  # replaced, not appended
    page.unlink()
    assert run(Path(folder) / "gpu.csv") == text.replace("# Before", "# Leaderboard")
    other = row("forward", "wgmma", "4,2048,12,64", 0.05, 300).replace("1.5,2,1700", ",,")
    page.with_name("gpu.csv").write_text(page.with_name("gpu.csv").read_text() + other + "\n")
    assert "| 4,2048,12,64 | – | **300.0** | 0.05 | – | – |" in run(Path(folder) / "gpu.csv"), "no energy is known"


def test_tables_of_decode(folder):
    path = board(folder)
    rows = [DECODE, row("decode", "naive", "1,256,12,64", 0.03, 100, trains="no")]
    rows += [
        row("decode", "split", shape, 0.004, 2500, config="256 keys") for shape in ("1,256,12,64", "64,1024,12,64")
    ]
    rows += [row("decode", "split", "64,1024,12,64", 0.0039, 2564, config="128 keys", trains="no")]
    rows += [row("decode", "split", "64,1024,12,64", 0.005, 2000, mode="rested")]
    path.with_name("gpu_decode.csv").write_text("\n".join(rows) + "\n")
    text = run(path)
    assert "| 1,256,12,64 | 100 | **2,500** | 4.0 | 90% | 1.5 |" in text, text
    assert "| 64,1024,12,64 | – | **2,564** | 3.9 | 90% | 1.5 |" in text, text
    assert "| 64,1024,12,64 | **2,000** | 5.0 | 90% | – |" in text, text
    assert "| 64,1024,12,64 | decode | bf16 | steady | 128 keys | 256 keys | 2.6% |" in text, text
    assert "![decode](gpu_decode.svg)" in text
    path.with_name("gpu_decode.csv").write_text("\n".join(r.replace(",0.9,2e-3", ",,2e-3") for r in rows) + "\n")
    assert "| 1,256,12,64 | 100 | **2,500** | 4.0 | – | 1.5 |" in run(path), "no share is known"


def test_tables_of_matmul(folder):
    path = board(folder)
    rows = [MATMUL, matmul_row("qkv", "cublaslt", "65536,768,2304", 0.4, trains="yes")]
    rows += [matmul_row("fc", "cublaslt", "4096,768,3072", 0.06, trains="yes")]
    rows += [matmul_row("fc", "cublaslt", "65536,768,3072", 0.9, trains="yes")]
    rows += [
        matmul_row("fc", "wgmma", "65536,768,3072", ms, config) for config, ms in (("128x256", 0.6), ("128x128", 0.7))
    ]
    rows += [matmul_row("fc", "cublaslt", "65536,768,3072", 0.8, mode="rested", trains="yes")]
    path.with_name("gpu_matmul.csv").write_text("\n".join(rows) + "\n")
    text = run(path)
    head = "| group | R,IN,OUT | cublaslt | wgmma | best | TFLOP/s | of GEMM | mJ | GB/s at least |"
    qkv = "| qkv | 65536,768,2304 | **0.4** | – | separate | 600 | 80% | 1.5 | 1,500 |"
    fc = "| fc | 65536,768,3072 | 0.9 | **0.6** | 128x256 | 600 | 80% | 1.5 | 1,500 |"
    small = "| fc | 4096,768,3072 | **0.06** | – | separate | 600 | 80% | 1.5 | 1,500 |"
    rule = "| --- |" + " ---: |" * 8
    assert "\n".join([head, rule, qkv, fc, small]) in text, text
    assert "| fc | 65536,768,3072 | **0.8** | separate | 600 | 80% | – | 1,500 |" in text, text
    path.with_name("gpu_matmul.csv").write_text("\n".join(r.replace(",0.8,1500", ",,1500") for r in rows) + "\n")
    assert "| fc | 65536,768,3072 | 0.9 | **0.6** | 128x256 | 600 | – | 1.5 | 1,500 |" in run(path), "no share is known"
    assert "![matmul](gpu_matmul.svg)" in text and "Rested, matmul, bf16, ms:" in text


def test_the_committed_tables_are_those_of_their_files(folder):
    committed = LEADERBOARDS / "README.md"
    for file in (*LEADERBOARDS.glob("*.csv"), committed):
        shutil.copy(file, folder)
    gpus = re.findall("<!-- leaderboard (.*) -->", committed.read_text())
    assert "nvidia-h200" in gpus, gpus
    for gpu in gpus:
        assert run(Path(folder, f"{gpu}.csv")) == committed.read_text(), f"run plot_leaderboard.py on {gpu}.csv"


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]


def dead_links(page):
    """What a page names and does not exist: files and headings that it links to, and sources, which are anywhere under
    its folder, or else a path from dev/cuda or the root."""
    sources = re.findall(r"`([\w./]+\.(?:cuh?|[ch]|py|sh|txt))`", page.read_text())
    roots = LEADERBOARDS.parents[0], LEADERBOARDS.parents[2]
    known = {source for source in sources if any((root / source).exists() for root in roots)}
    dead = [source for source in sources if source not in known and not any(page.parent.rglob(source))]
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not link.startswith("http") and not (target.exists() and (not anchor or anchor in anchors(target))):
            dead.append(link)
    return dead


def test_links_of_the_pages_lead_somewhere(folder):
    page = Path(folder) / "page.md"
    page.write_text(
        "# Of wgmma: one tile\n[a](page.md) [b](#of-wgmma-one-tile) [c](gone.md) [d](page.md#gone) `gone.cu`\n"
    )
    assert dead_links(page) == ["gone.cu", "gone.md", "page.md#gone"]
    pages = list(LEADERBOARDS.parent.glob("**/*.md"))
    assert len(pages) >= 5, pages
    for page in pages:
        assert not (dead := dead_links(page)), f"{page}: {dead}"


def test_the_gains_of_the_steps_are_those_of_the_leaderboard(_):
    rows = plot_leaderboard.fastest(plot_leaderboard.read(LEADERBOARDS / "nvidia-h200.csv"))
    ms = {
        (r["variant"], r["precision"], r["direction"]): r["ms"]
        for r in rows
        if (r["shape"], r["mode"]) == (plot_leaderboard.OVERVIEW_SHAPE, "steady")
    }
    page = (LEADERBOARDS.parent / "README.md").read_text()
    steps = {"cublas": "naive", "flash1": "naive", "flash2": "flash1", "mma": "flash2", "wgmma": "mma"}
    for step, before in steps.items():
        precision = "bf16" if before in ("flash2", "mma") else "fp32"
        times = [(ms[before, precision, d], ms[step, precision, d]) for d in plot_leaderboard.DIRECTIONS]
        gains = ", ".join(f"{slow / fast:.1f} ×" for slow, fast in times)
        assert re.search(rf"^\| `{step}` \|.*\| {gains}( of {before})? \|$", page, re.MULTILINE), (step, gains)
    first = ", ".join(f"{ms['naive', 'fp32', d]:.3g} ms" for d in plot_leaderboard.DIRECTIONS)
    assert re.search(rf"^\| `naive` \|.*\| {first} \|$", page, re.MULTILINE), first


def test_peers(folder):
    path = Path(folder) / "gpu_libraries.csv"
    libraries(path, modes=("rested", "steady"))
    peers = plot_leaderboard.peers_of(plot_leaderboard.read_libraries(path))
    assert peers == {("cuDNN", "forward"): {(8, 1024, 12, 64): 268.1}}, peers
    points = {(8, 1024, 12, 64): 1.0, (32, 1024, 12, 64): 2.0, (64, 1024, 12, 64): 3.0}
    points |= {(1, 8192, 12, 64): 4.0, (32, 1024, 16, 128): 5.0}
    assert plot_leaderboard.peer_curve(points) == [(1024, 32, 2.0), (8192, 1, 4.0)]  # the tokens nearest to the plot's
    path.write_text(path.read_text().replace(",ours,", ",theirs,"))
    assert "has no row of provider ours" in refused(plot_leaderboard.read_libraries, path)


def refused(read, path):
    """The line with which a reader ends."""
    line = unit.refused("error: ", read, path)
    assert "\n" not in line, line
    return line


def test_what_is_no_leaderboard_is_refused_in_one_line(folder):
    path = board(folder)
    good = path.read_text()
    for read in plot_leaderboard.read, plot_leaderboard.read_libraries:
        path.write_text(f"{good.splitlines()[0]}\n")
        assert f"{path} has no rows" in refused(read, path)
        path.write_text("# A text\n\nof some lines\n")
        assert f"{path}, line 2: no column " in refused(read, path)
        path.write_bytes(bytes(range(256)))
        assert f"cannot read {path}: it is not text" in refused(read, path)
        assert "Is a directory" in refused(read, path.parent)
    path.write_text(good.replace(",300,", ",fast,"))
    assert "line 3: tflops is 'fast', not a number" in refused(plot_leaderboard.read, path)
    path.write_text(good + "cut,off\n")
    assert "line 14: no column" in refused(plot_leaderboard.read, path)
    path.write_text(good.replace("steady", "tired"))
    assert "mode tired: must be one of steady, rested" in refused(plot_leaderboard.read, path)


def test_tables_of_libraries(folder):
    path = board(folder)
    libraries(path.with_name("gpu_libraries.csv"), modes=("rested", "steady"))
    text = run(path)
    assert "torch 2.11, cuDNN 91900, today, commit abc" in text, text
    for title in ("Steady, forward, bf16, TFLOP/s:", "Rested, forward, bf16, TFLOP/s:"):
        after = text.rsplit(title, 1)[1]
        assert after.startswith("\n\n| B,T,NH,HS | ours | cuDNN | FA2 det | ratio |"), after
        assert "| 8,1024,12,64 | 353.4 | 268.1 | 171.0 | 1.318 |" in after, after


def test_summary_of_libraries(folder):
    path = Path(folder) / "gpu_libraries.csv"
    rows = [LIBRARIES]
    for direction, shape, ratio, ours in (
        ("forward", "8,1024,12,64", 1.3, "1e-3,2e-3,,,"),
        ("forward", "4,512,12,64", 1.5, "3e-3,2.2e-3,,,"),
        ("forward", "8,2048,12,64", 1.1, ",,,,"),
        ("backward", "1,8192,12,128", 0.97, ",,1e-3,1e-3,2e-3"),
    ):
        head = f"MADEUP,1.2,13.0,2.11,91900,today,abc,{direction},{shape},steady"
        rows.append(f"{head},ours,yes,0.04,353,,,,{ours},cuDNN,{ratio}")
        for peer in ("cuDNN,yes", "FA2,no"):
            errors = "2e-3,2e-3,,,," if direction == "forward" else ",,1e-3,2e-3,2e-3,"
            rows.append(f"{head},{peer},0.05,300,,,,{errors},")
    path.write_text("\n".join(rows) + "\n")
    lines = "\n".join(plot_leaderboard.libraries_summary(plot_leaderboard.read_libraries(path)))
    assert "| HS, T | forward, steady | backward, steady |" in lines, lines
    assert "| 64, up to 1024 | 1.30 to 1.50 | – |\n| 64, up to 4096 | 1.10 | – |\n" in lines, lines
    assert "| 128, above 4096 | – | 0.97 |" in lines, lines
    errors = "`out` 0.50 to 1.50, `out_from_64` 1.00 to 1.10, `dq` 1.00, `dk` 0.50, `dv` 1.00"
    assert f"Errors against fp64, ours over the smallest of theirs: {errors}." in lines, lines


def test_plots_have_peers_decode_and_matmul(folder):
    if importlib.util.find_spec("matplotlib") is None:
        raise unit.Skipped("no matplotlib")
    path = board(folder)
    libraries(path.with_name("gpu_libraries.csv"), "8,2048,12,64")
    no_share = row("decode", "naive", "1,256,12,64", 0.03, 100).replace(",0.9,2e-3", ",,2e-3")
    decode = [DECODE, row("decode", "split", "1,256,12,64", 0.004, 2500), no_share]
    path.with_name("gpu_decode.csv").write_text("\n".join(decode) + "\n")
    matmul = [matmul_row("fc", variant, "4096,768,3072", 0.06) for variant in ("cublaslt", "wgmma")]
    path.with_name("gpu_matmul.csv").write_text("\n".join([MATMUL, *matmul]) + "\n")
    run(path, plots=True)
    boards = ("forward", "backward", "decode", "matmul")
    forward, backward, decode, matmul = (path.with_name(f"gpu_{d}.svg").read_text() for d in boards)
    assert "cuDNN, steady" in forward and "FlashAttention-2" not in forward and "B 8" in forward
    assert "cuDNN" not in backward and "a kernel that only reads" in decode
    assert "fc 4096,768,3072" in matmul and "wgmma" in matmul
    assert all("<!-- 0 -->" in picture for picture in (forward, backward)), "they begin at 0"


def program(path, header, rows):
    """A stand-in for a variant: appends these rows to the file after --csv, and its arguments to `said`."""
    path.write_text(
        '#!/bin/bash\necho "$(basename "$0") $*" >> said\n'
        'while [ "$1" != --csv ]; do shift; done\n'
        f'[ -s "$2" ] || echo \'{header}\' > "$2"\n' + "".join(f"echo '{r}' >> \"$2\"\n" for r in rows)
    )
    path.chmod(0o755)


def compete(folder, *variants, smi="echo Made Up", **environment):
    """compete.sh of a copy in the folder, whose GPU is called Made Up; returns what it printed and its exit code."""
    for room in ("bench", "decode", "matmul"):
        os.makedirs(f"{folder}/dev/cuda/{room}", exist_ok=True)
    os.makedirs(f"{folder}/build", exist_ok=True)
    shutil.copy(COMPETE, f"{folder}/dev/cuda/bench")
    path = Path(folder) / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{smi}\n")
    path.chmod(0o755)
    settings = dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}", **environment)
    done = subprocess.run(
        ["bash", f"{folder}/dev/cuda/bench/compete.sh", *variants],
        env=settings,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr, done.returncode


def test_compete_enters_both_boards(folder):
    output, code = compete(folder, "split")
    assert code == 1 and "build variants first" in output, output
    Path(folder, "dev/cuda/decode/attention_decode_split.cu").touch()
    Path(folder, "dev/cuda/attention_forward_mma.cu").touch()
    program(
        Path(folder, "build/attention_forward_mma_bf16"), TRAINING, [row("forward", "mma", "8,1024,12,64", 0.05, 300)]
    )
    old = [row("decode", "split", "1,256,12,64", 0.004, 2500), row("decode", "split", "8,256,12,64", 0.004, 2500)]
    program(Path(folder, "build/attention_decode_split_bf16"), DECODE, old)
    output, code = compete(folder)
    boards = [Path(folder, f"dev/cuda/leaderboard/made-up{x}.csv") for x in ("", "_decode")]
    assert code == 0 and "1 rows" in output and "2 rows" in output, output
    assert boards[0].read_text().startswith(TRAINING) and boards[1].read_text().startswith(DECODE)
    said = Path(folder, "said").read_text().splitlines()
    assert "--shape 256,16384,12,64" in said[-1] and "--shape 2,16384,12,64" not in said[-1], said
    assert "--shape 2,16384,12,64" in said[0] and "--shape 256,16384,12,64" not in said[0], said

    new = row("decode", "split", "1,256,12,64", 0.003, 3000, config="other")
    program(Path(folder, "build/attention_decode_split_bf16"), DECODE, [new])
    output, code = compete(folder, "split", DIRECTIONS="decode", SHAPES="1,256,12,64")
    assert code == 0, output
    assert boards[1].read_text().splitlines() == [DECODE, old[1], new]  # of the same shape: replaced
    assert len(boards[0].read_text().splitlines()) == 2


def test_compete_enters_matmul(folder):
    output, code = compete(folder, "cublaslt")
    assert code == 1 and "build variants first" in output, output
    for name in ("bench", "matmul_cublaslt", "matmul_wgmma"):
        Path(folder, f"dev/cuda/matmul/{name}.cu").touch()
    old = [matmul_row(group, "cublaslt", "65536,768,3072", 0.9, trains="yes") for group in ("fc", "weight")]
    for precision in ("bf16", "fp32"):
        rows = old if precision == "bf16" else [r.replace("bf16", "fp32") for r in old]
        program(Path(folder, f"build/matmul_cublaslt_{precision}"), MATMUL, rows)
    program(Path(folder, "build/matmul_wgmma_bf16"), MATMUL, [matmul_row("fc", "wgmma", "65536,768,3072", 0.6)])
    output, code = compete(folder)
    board = Path(folder, "dev/cuda/leaderboard/made-up_matmul.csv")
    assert code == 0 and "5 rows" in output, output
    assert board.read_text().splitlines()[0] == MATMUL
    assert not Path(folder, "dev/cuda/leaderboard/made-up.csv").exists()
    said = {line.split()[0]: line for line in Path(folder, "said").read_text().splitlines()}
    assert said["matmul_cublaslt_bf16"].endswith(
        "--model 65536,768 --model 4096,768 --model 32768,1024 --model 16384,1280 --model 8192,1600"
    )
    assert said["matmul_cublaslt_fp32"].endswith("csv --model 4096,768")

    # the same group, variant, precision, shape and mode: replaced, whatever the configuration is
    new = matmul_row("fc", "wgmma", "65536,768,3072", 0.5, config="128x256")
    program(Path(folder, "build/matmul_wgmma_bf16"), MATMUL, [new])
    output, code = compete(folder, "wgmma", DIRECTIONS="matmul", SHAPES="65536,768,3072 8,1024,12,64", GROUPS_OF="fc")
    assert code == 0 and "5 rows" in output, output
    assert board.read_text().splitlines()[-1] == new and board.read_text().count(",wgmma,") == 1
    assert Path(folder, "said").read_text().endswith("csv --shape 65536,768,3072 --group fc\n")
    # and of no shape of matmul's, nothing is raced
    output, code = compete(folder, "wgmma", SHAPES="8,1024,12,64")
    assert code == 1 and "nothing raced" in output, output


def test_compete_refuses_other_columns(folder):
    Path(folder, "dev/cuda/leaderboard").mkdir(parents=True)
    Path(folder, "dev/cuda/leaderboard/made-up_decode.csv").write_text(TRAINING + "\n")
    Path(folder, "build").mkdir()
    program(Path(folder, "build/attention_decode_split_bf16"), DECODE, [row("decode", "split", "1,256,12,64", 1, 1)])
    output, code = compete(folder, "split", DIRECTIONS="decode")
    assert code != 0 and "other columns" in output, output
    assert Path(folder, "dev/cuda/leaderboard/made-up_decode.csv").read_text() == TRAINING + "\n"


def test_compete_needs_a_driver(folder):
    said = compete(folder, "split", smi="echo It cannot find the driver; exit 9")
    assert said == ("error: nvidia-smi shows no GPU here\n", 1), said


def sanitize(folder, *variants, tool="exit 0", programs=(), **environment):
    """sanitize.sh of a copy in the folder with a stand-in for compute-sanitizer: its output, code and calls."""
    os.makedirs(f"{folder}/dev/cuda/bench", exist_ok=True)
    os.makedirs(f"{folder}/build", exist_ok=True)
    shutil.copy(COMPETE.with_name("sanitize.sh"), f"{folder}/dev/cuda/bench")
    stand_ins = {"compute-sanitizer": f'echo "$*" >>said.$2\n{tool}', "make": 'cp "build/${2#*racecheck_}" "$2"'}
    for name, text in {**stand_ins, **{f"build/{name}": "" for name in programs}}.items():
        path = Path(folder, name)
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)
    done = subprocess.run(
        ["bash", f"{folder}/dev/cuda/bench/sanitize.sh", *variants],
        env=dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}", TMPDIR=folder, **environment),
        capture_output=True,
        text=True,
        check=False,
    )
    said = {path.suffix[1:]: path.read_text().splitlines() for path in Path(folder).glob("said.*")}
    assert not list(Path(folder).glob("tmp.*")), "logs stay behind"
    return done.stdout, done.stderr, done.returncode, said


def test_sanitize_takes_what_is_built_through_four_tools(folder):
    clean = "memcheck clean, racecheck clean, initcheck clean, synccheck clean\n"
    programs = ["attention_forward_naive_fp32", "matmul_wgmma_bf16", "attention_forward_wgmma_bf16"]
    said, _, code, calls = sanitize(folder, "naive", "wgmma", programs=programs, QUICK="1")
    shapes = [f"attention_forward_wgmma_bf16 -b 1 -h 2 -t 400 -d {d}: " for d in (64, 96, 128)]
    shapes = [
        "attention_forward_naive_fp32 -b 1 -h 2 -t 130 -d 64: ",
        *shapes,
        "matmul_wgmma_bf16 -r 400 -i 392 -o 456: ",
    ]
    assert (code, said) == (0, "".join(shape + clean for shape in shapes)), said
    program = "--error-exitcode 1 build/{}matmul_wgmma_bf16 --check-only -r 400 -i 392 -o 456"
    assert calls["racecheck"][-1] == "--tool racecheck --kernel-name kns=wgmma " + program.format("racecheck_"), calls
    assert calls["memcheck"][-1] == "--tool memcheck --kernel-name kns=wgmma " + program.format(""), calls
    assert calls["initcheck"][-1] == "--tool initcheck " + program.format(""), calls


def test_sanitize_names_the_tool_that_found_something(folder):
    tool = 'case $2 in synccheck) echo "a barrier"; exit 1 ;; initcheck) exec sleep 60 ;; esac'
    said, errors, code, _ = sanitize(
        folder, "mma", tool=tool, programs=["attention_backward_mma_bf16"], LIMIT="1", QUICK="1"
    )
    verdict = "memcheck clean, racecheck clean, initcheck NOT DONE in 1 s, synccheck FAILED"
    assert code == 1 and said.splitlines()[0].endswith(verdict) and "a barrier" in errors, (said, errors)
    _, errors, code, _ = sanitize(folder, "flash2")
    assert (code, errors) == (1, "error: no program of flash2 in build/: run make variants\n"), errors


if __name__ == "__main__":
    sys.exit(unit.run(globals()))
