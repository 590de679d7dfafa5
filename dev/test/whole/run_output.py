#!/usr/bin/env python3
"""What a run shows: plain lines in a file, a progress line on a terminal, JSON lines with --log-json.

python3 dev/test/whole/run_output.py ./train_gpt2 build/train_gpt2_faults     # 5 s; the second: train_with_faults.c
"""

import json
import os
import pty
import re
import subprocess
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "scripts"))

import unit

TRAINER = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "train_gpt2")
FAULTS = os.path.abspath(sys.argv[2] if len(sys.argv) > 2 else "build/train_gpt2_faults")
PLOT = os.path.join(
    os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir, os.pardir, "scripts", "plot_run.py"
)
MODEL = "gpt2:l2c64h2t64"


def prepare(folder):
    """Tokens that are bytes, of this project's own text."""
    text = b"".join(open(__file__, "rb").readlines() * 4)  # noqa: SIM115
    for name in ("train", "val"):
        header = (20240520, 1, len(text))
        words = list(header) + [0] * (256 - len(header))
        with open(os.path.join(folder, f"{name}.bin"), "wb") as f:
            f.write(b"".join(w.to_bytes(4, "little") for w in words) + b"".join(bytes([c, 0]) for c in text))


def command(folder, *flags, trainer=None):
    data = ["-i", f"{folder}/train.bin", "-j", f"{folder}/val.bin", "-e", MODEL, "--vocab-size", 256, "-b", 2, "-t", 32]
    return [trainer or TRAINER, *map(str, [*data, "-l", 2e-3, "-m", 2, "-v", 4, "-s", 0, *flags])]


def train(folder, *flags, code=0, trainer=None, **environment):
    done = subprocess.run(
        command(folder, *flags, trainer=trainer),
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )
    assert done.returncode == code, (done.returncode, done.stdout[-500:], done.stderr)
    return done


def no_constant(name):
    raise AssertionError(f"{name} is no JSON")


def read_log(path):
    with open(path, encoding="utf-8") as f:
        text = f.read()
    assert text.endswith("\n")
    return [json.loads(line, parse_constant=no_constant) for line in text.splitlines()]


def steps_of(log):
    return [line for line in log if "loss" in line]


def test_a_line_of_json_for_each_step_validation_and_checkpoint(folder):
    path = f"{folder}/log.jsonl"
    train(folder, "-x", 8, "-n", 4, "-o", f"{folder}/run", "--log-json", path)
    log = read_log(path)
    assert log[0]["event"] == "start" and log[0]["steps"] == 8 and log[0]["settings"]["--seed"] == "42"
    assert [line["step"] for line in steps_of(log)] == list(range(8))
    assert {"norm", "lr", "ms", "tokens_per_second", "memory", "finite", "skipped"} <= steps_of(log)[0].keys()
    assert all("mfu" not in line or 0 < line["mfu"] <= 1 for line in steps_of(log))  # known on a GPU in the table
    assert all(line["finite"] and not line["skipped"] for line in steps_of(log))
    assert [line["step"] for line in log if "validation" in line] == [0, 4, 8]
    saved = [line for line in log if line.get("event") == "checkpoint"]
    assert [line["step"] for line in saved] == [4, 8] and all(os.path.exists(line["path"]) for line in saved)
    assert log[-1] == log[-1] | {"event": "end", "exit_code": 0, "step": 8}
    with open(f"{folder}/run/main.log", encoding="utf-8") as f:
        main = [line.split() for line in f]
    assert main[0][1] == f"run:{log[0]['run']}"
    for words in main:  # the same numbers, as far as main.log has them
        step = int(words[0][2:])
        if words[1].startswith("trl:"):
            line = steps_of(log)[step]
            loss, norm = float(words[1][4:]), float(words[3][5:])
            assert abs(loss - line["loss"]) < 6e-7 and abs(norm - line["norm"]) < 6e-5, (words, line)
        if words[1].startswith("tel:"):
            values = [line["validation"] for line in log if line["step"] == step and "validation" in line]
            assert len(values) == 1 and abs(values[0] - float(words[1][4:])) < 6e-7, (words, values)


def test_a_save_that_the_next_one_waits_for_has_its_line(folder):
    path = f"{folder}/log.jsonl"
    flags = ["-x", 8, "-n", 4, "-o", f"{folder}/run", "--log-json", path]
    train(folder, *flags, trainer=FAULTS, FAULT="slow-save@3:1")
    saved = [line for line in read_log(path) if line.get("event") == "checkpoint"]
    assert [line["step"] for line in saved] == [4, 8] and all(line["saved"] for line in saved), saved


def test_a_log_on_stdout_is_all_there_is_on_stdout(folder):
    done = train(folder, "-x", 3, "--log-json", "-")
    log = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["step"] for line in steps_of(log)] == [0, 1, 2] and log[-1]["event"] == "end"
    assert "step    3/3 | loss" in done.stderr


def test_a_resumed_run_appends_to_whole_lines(folder):
    path = f"{folder}/log.jsonl"
    flags = ["-x", 8, "-n", 4, "-o", f"{folder}/run", "--log-json", path, "-y", 1, "--async-save", 0]
    train(folder, *flags, trainer=FAULTS, FAULT="kill@6", code=-9)
    with open(path, "a", encoding="utf-8") as f:
        f.write('{"time":1,"step":6,"lo')
    train(folder, *flags)
    log = read_log(path)
    assert [line["step"] for line in steps_of(log)][-4:] == [4, 5, 6, 7]
    assert [line["step"] for line in log if line.get("event") == "resume"] == [4]
    assert log[0]["event"] == "start" and log[-1]["event"] == "end"


def test_what_is_not_finite_is_null(folder):
    path = f"{folder}/log.jsonl"
    train(folder, "-x", 4, "--non-finite", "skip", "--log-json", path, trainer=FAULTS, FAULT="nan-gradient@3")
    bad = [line for line in steps_of(read_log(path)) if not line["finite"]]
    assert len(bad) == 1 and bad[0]["norm"] is None and bad[0]["skipped"], bad


def test_a_file_that_is_no_log_is_left_alone(folder):
    path = f"{folder}/notes.txt"
    with open(path, "w", encoding="utf-8") as f:
        f.write("mine")
    done = train(folder, "-x", 1, "--log-json", path, code=1)
    assert done.stderr.startswith("error: --log-json") and "notes.txt" in done.stderr and done.stderr.count("\n") == 1
    with open(path, encoding="utf-8") as f:
        assert f.read() == "mine"
    for text in ("my notes\n", "\n", '{"a": 1}\nmine'):
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        done = train(folder, "-x", 1, "--log-json", path, code=1)
        assert done.stderr.startswith("error: --log-json") and "notes.txt" in done.stderr, done.stderr
        with open(path, encoding="utf-8") as f:
            assert f.read() == text
    done = train(folder, "-x", 1, "--log-json", f"{folder}/none/log", code=1)
    assert "none/log" in done.stderr and "No such file" in done.stderr


def test_a_log_that_cannot_be_costs_no_run(folder):
    run = f"{folder}/run"
    train(folder, "-x", 2, "-n", 1, "-o", run)
    before = sorted(os.listdir(run))
    for path in (f"{folder}/none/log", f"{folder}/train.bin", f"{run}/main.log"):
        done = train(folder, "-x", 2, "-n", 1, "-o", run, "--overwrite", "--log-json", path, code=1)
        assert done.stderr.startswith("error: --log-json") and path in done.stderr, done.stderr
        assert sorted(os.listdir(run)) == before, path
    train(folder, "-x", 1, "-o", f"{folder}/new", "--log-json", f"{folder}/new/main.log", code=1)
    train(folder, "-x", 1, "-o", f"{folder}/new", "--log-json", f"{folder}/new/steps.jsonl")
    assert len(steps_of(read_log(f"{folder}/new/steps.jsonl"))) == 1


def test_a_run_keeps_its_log_in_its_folder(folder):
    run, path = f"{folder}/run", f"{folder}/log.jsonl"
    flags = ["-x", 8, "-n", 4, "-s", 4, "-g", 20, "-o", run, "--async-save", 0]
    train(folder, *flags, "-y", 1, "--log-json", path, trainer=FAULTS, FAULT="kill@6", code=-9)
    assert read_log(f"{run}/main.jsonl") == read_log(path), "of --log-json it is a copy"
    with open(f"{run}/main.jsonl", "a", encoding="utf-8") as f:
        f.write('{"time":1,"step":6,"lo')
    out = train(folder, *flags, "-y", 1).stdout
    log = read_log(f"{run}/main.jsonl")
    assert [line["step"] for line in steps_of(log)] == [*range(6), 4, 5, 6, 7] and log[-1]["event"] == "end"
    samples = [line["text"] for line in log if line.get("event") == "sample"]
    assert len(samples) == 3 and f"generating:\n---\n{samples[-1]}\n---\n" in out, samples
    done = subprocess.run([PLOT, run, "--html", f"{folder}/page.html"], check=True, capture_output=True, text=True)
    assert "tok/s" in done.stdout, done.stdout
    with open(f"{folder}/page.html", encoding="utf-8") as f:
        page = f.read()
    assert all(said in page for said in ("after step 8", "panel-tokens_per_second", "panel-memory_bytes")), "afterwards"
    train(folder, *flags, "--overwrite", "-x", 1)
    assert read_log(f"{run}/main.jsonl")[0]["event"] == "start"
    assert len(steps_of(read_log(f"{run}/main.jsonl"))) == 1, "of a new run it is a new one"
    for name in set(os.listdir(run)) - {"main.jsonl"}:
        os.remove(f"{run}/{name}")
    train(folder, *flags, "-x", 2)
    assert [line["step"] for line in steps_of(read_log(f"{run}/main.jsonl"))] == [0, 1], "also where no run is left"
    done = train(folder, "-x", 1, "-o", f"{folder}/new", "--log-json", f"{folder}/new/main.jsonl", code=1)
    assert "a run's own log has that name" in done.stderr and not os.path.exists(f"{folder}/new"), done.stderr


def test_a_log_of_the_folder_that_is_no_log(folder):
    run = f"{folder}/run"
    train(folder, "-x", 2, "-n", 1, "-o", run)
    with open(f"{run}/main.jsonl", "w", encoding="utf-8") as f:
        f.write("mine\n")
    done = train(folder, "-x", 3, "-n", 1, "-o", run, "-y", 1, "--resume-anyway", code=1)
    assert done.stderr == f"error: {run}/main.jsonl: this is not a log of JSON lines; move it away\n", done.stderr
    unit.write(f"{run}/main.jsonl", '{"time":"' + "x" * (1 << 20) + '"}')  # no line of a log is as long
    done = train(folder, "-x", 3, "-n", 1, "-o", run, "-y", 1, "--resume-anyway", code=1)
    assert "not a log of JSON lines" in done.stderr and os.path.getsize(f"{run}/main.jsonl") > 1 << 20, done.stderr
    unit.write(f"{folder}/config.json", '{"layers":12}')  # without a newline: as an incomplete line of a log
    done = train(folder, "-x", 1, "--log-json", f"{folder}/config.json", code=1)
    assert "not a log of JSON lines" in done.stderr, done.stderr
    assert unit.read(f"{folder}/config.json") == '{"layers":12}'
    os.mkfifo(f"{folder}/pipe")
    done = train(folder, "-x", 1, "--log-json", f"{folder}/pipe", code=1)
    assert f"--log-json: {folder}/pipe: it is a named pipe, whose reader" in done.stderr, done.stderr
    os.remove(f"{run}/main.jsonl")
    os.mkfifo(f"{run}/main.jsonl")
    done = train(folder, "-x", 3, "-n", 1, "-o", run, "-y", 1, "--resume-anyway", code=1)
    assert "main.jsonl: it is a pipe or a device, not a file; move it away" in done.stderr, done.stderr


def test_a_full_disk_does_not_end_the_run(folder):
    if not os.path.exists("/dev/full"):
        raise unit.Skipped("no /dev/full")
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            command(folder, "-x", 2, "--log-json", "-"), check=False, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 0 and "warning: cannot write the log on stdout: No space" in done.stderr, done.stderr


# ----------------------------------------------------------------------------
# On a terminal


def on_terminal(folder, *flags, term="xterm", trainer=None, **environment):
    """What the run writes to a terminal of 80 columns."""
    master, slave = pty.openpty()
    environment = os.environ | {"TERM": term} | environment
    run = subprocess.Popen(command(folder, *flags, trainer=trainer), stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    output = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        output += piece
    os.close(master)
    return run.wait(), output.decode().replace("\r\n", "\n")


def screen(output):
    """The lines that stand there in the end: what a carriage return and \\033[K leave."""
    lines = []
    for line in output.split("\n"):
        shown = ""
        for part in line.split("\r"):
            erased = "\033[K" in part
            text = part.replace("\033[K", "")
            shown = text if erased else text + shown[len(text) :]
        lines.append(shown)
    return lines


def test_a_file_has_plain_lines(folder):
    out = train(folder, "-x", 4).stdout
    assert "\r" not in out and "\033" not in out
    steps = [line for line in out.splitlines() if line.startswith("step ")]
    assert len(steps) == 4 and steps[0].endswith("| ? left"), "the first step warms up: nothing follows from its time"
    assert all(re.fullmatch(r".* \| \d+[smhd0-9]* left", line) for line in steps[1:]), steps
    assert train(folder, "-x", 1).stdout.count("| 0s left\n") == 1


def test_a_terminal_has_one_line(folder):
    code, output = on_terminal(folder, "-x", 12, "-v", 6)
    assert code == 0 and "\rstep 1/12 | loss " in output
    lines = screen(output)
    steps = [line for line in lines if line.startswith("step ")]
    assert [line.split()[1] for line in steps] == ["6/12", "12/12"], steps
    shown = [part for line in output.split("\n") for part in line.split("\r") if part.startswith("step 1/")]
    assert shown and all(len(part.removesuffix("\033[K")) < 80 for part in shown), shown
    assert any(line.startswith("val loss") for line in lines)


def test_a_dumb_terminal_has_plain_lines(folder):
    code, output = on_terminal(folder, "-x", 4, term="dumb")
    assert code == 0 and "\033" not in output
    assert len([line for line in output.split("\n") if line.startswith("step ")]) == 4


def test_a_signal_and_an_error_begin_on_a_line_of_their_own(folder):
    code, output = on_terminal(folder, "-x", 20, "-v", 0, trainer=FAULTS, FAULT="term@4")
    lines = screen(output)
    assert code == 0 and any(line.startswith("SIGTERM: ending after this step") for line in lines), lines
    assert any(line.startswith("stopped by SIGTERM after step 5/20") for line in lines), lines
    code, output = on_terminal(folder, "-x", 20, trainer=FAULTS, FAULT="nan-gradient@3")
    assert code == 3 and any(line.startswith("error: step 4/20") for line in screen(output)), output


if __name__ == "__main__":
    sys.exit(unit.run(globals(), prepare))
