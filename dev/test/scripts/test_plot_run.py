#!/usr/bin/env python3
"""Tests of scripts/plot_run.py: what it reads in the logs of runs, its numbers, and its pictures; seconds.

python3 dev/test/scripts/test_plot_run.py
"""

import importlib.util
import json
import math
import os
import subprocess
import sys
import time
import warnings
from unittest import mock

import run_logs
import unit
from run_logs import loss, main_log, plot, state_file, stdout, step_line, table, write

plot_run, run_curves, run_lines, run_log = map(run_logs.module, ("plot_run", "run_curves", "run_lines", "run_log"))


def read(*paths):
    return run_log.read_runs(list(paths))


def values(run, key):
    series = run.series[key]
    return dict(zip(series.steps, series.values))


def kinds(run):
    return [(step, kind) for step, kind, _ in run.events]


def test_main_log(folder):
    (run,) = read(write(f"{folder}/a/main.log", main_log()))
    assert run.name == "a" and run.run_id == "77" and run.unread_lines == 0
    assert values(run, "loss") == {step: round(loss(step), 6) for step in range(100)}
    assert values(run, "val_loss") == {step: round(loss(step) + 0.1, 6) for step in range(0, 100, 10)}
    assert values(run, "hellaswag")[90] == 0.34 and set(values(run, "norm").values()) == {1.0, 2.0, 3.0}
    assert set(values(run, "lr").values()) == {3e-4} and run.last_step() == 100


def test_a_damaged_first_line_is_left_unread(folder):
    for damaged in ("s:0 trl:? lr:1e-3 norm:1\n", "s:x trl:5.0 lr:1e-3 norm:1\n"):
        (run,) = read(write(f"{folder}/main.log", damaged + main_log(first=1, run=None)))
        assert sorted(values(run, "loss")) == list(range(1, 100)) and run.unread_lines == 1, run.unread_lines


def test_stdout_has_the_same_steps_as_main_log(folder):
    (run,) = read(write(f"{folder}/out.txt", stdout()))
    assert values(run, "loss") == {step: float(f"{loss(step):.6f}") for step in range(100)}
    assert sorted(values(run, "val_loss")) == list(range(0, 100, 10)) and values(run, "hellaswag") == {50: 0.3}
    assert run.samples == [(50, "ONCE\n---\nupon a time")], run.samples
    assert run.flags["learning-rate"] == "0.001" and run.facts["device"] == "NVIDIA H200, 132 SMs"
    assert "device" not in run.state and run.total_steps == 100 and run.unread_lines == 0
    assert values(run, "tokens_per_second")[7] == 5120.0, "512 tokens in 100 ms, not what the line has smoothed"
    assert abs(values(run, "time")[100] - 10.0) < 1e-9 and values(run, "mfu")[3] == 0.515


def test_the_line_with_z_scores_and_that_without(folder):
    (run,) = read(write(f"{folder}/out.txt", step_line(0) + step_line(60)))
    assert sorted(values(run, "loss")) == [0, 60] and values(run, "norm")[60] == 1.25


BEGIN = '{"time": 1.5, "step": %d, "event": "%s", "run": "77", "steps": 9, "tokens_per_step": 1024, "settings": %s}'


def test_json_lines(folder):
    lines = [
        BEGIN % (0, "start", '{"--seed": "42", "sum-order": "tree"}'),
        '{"time": 2, "step": 0, "validation": 5.5}',
        '{"time": 3, "step": 0, "loss": 5.25, "norm": 1, "lr": 1e-3, "ms": 50, "tokens_per_second": 9, "memory": 4096}',
        '{"time": 4, "step": 1, "loss": null, "norm": null, "finite": false, "skipped": true}',
        '{"time": 4, "step": 1, "event": "checkpoint", "saved": false, "message": "no space"}',
        '{"time": 5, "step": 2, "event": "end", "exit_code": 3, "message": "step 2/9: the loss is nan"}',
        '{"step": 2, "loss": 5.0',
        '{"step": true, "loss": 1}',
        '{"step": 99999999999999999999, "loss": 1}',
        "[1, 2]",
    ]
    (run,) = read(write(f"{folder}/log.jsonl", "\n".join(lines) + "\n"))
    assert values(run, "val_loss") == {0: 5.5} and values(run, "memory_bytes") == {0: 4096.0}
    assert values(run, "loss")[0] == 5.25 and math.isnan(values(run, "loss")[1]) and len(run.series["loss"]) == 2
    assert kinds(run) == [(1, "skip"), (1, "warning"), (1, "nan"), (1, "nan"), (2, "error")], run.events
    assert run.unread_lines == 4 and run.ended and run.total_steps == 9 and run.run_id == "77"
    assert run.state == {"seed": "42", "sum-order": "tree"} and run.tokens_per_step() == 1024


def test_samples_in_json(folder):
    sample = '{"step": %d, "event": "sample", "text": "once\\n\\u0000upon"}'
    lines = [BEGIN % (0, "start", "{}"), '{"step": 0, "loss": 5}', sample % 1, '{"step": 1, "loss": 4}', sample % 2]
    again = [BEGIN % (1, "resume", "{}"), '{"step": 1, "loss": 4}', sample % 2]
    write(f"{folder}/main.jsonl", "\n".join([*lines, *again, ""]))
    (run,) = read(f"{folder}/main.jsonl")
    assert run.samples == [(2, "once\n\0upon")] and run.unread_lines == 0, "that of step 1 was written by what was lost"
    write(f"{folder}/main.log", "s:0 run:77\n")
    write(f"{folder}/out.txt", table() + step_line(0) + step_line(1) + "generating:\n---\nonce\n---\n" + step_line(2))
    (run,) = read(folder)
    assert [step for step, _ in run.samples].count(2) == 1, "both logs have it"


def test_mfu_above_100_percent_is_not_shown(folder):
    text = step_line(0).replace("51.5%", "1082.0%") + step_line(1) + step_line(2).replace("51.5%", "100.1%")
    (run,) = read(write(f"{folder}/out.txt", table() + text))
    assert values(run, "mfu") == {1: 0.515} and len(run.series["loss"]) == 3
    (run,) = read(write(f"{folder}/log.jsonl", BEGIN % (0, "start", "{}") + '\n{"step": 0, "loss": 5, "mfu": 10.8}\n'))
    assert "mfu" not in run.series and "mfu" not in run_curves.summary(run)


def test_the_loss_of_a_table_is_the_mean_of_the_last_20_steps(folder):
    (run,) = read(write(f"{folder}/a/main.log", main_log()))
    last = [round(loss(step), 6) for step in range(80, 100)]
    summary = run_curves.summary(run)
    assert abs(summary["loss"] - sum(last) / 20) < 1e-12 and summary["loss_steps"] == 20
    said = plot(f"{folder}/a")
    assert "loss, last 20" in said and f"{sum(last) / 20:.4f}" in said, said
    (run,) = read(write(f"{folder}/b/main.log", main_log(last=7)))
    assert run_curves.summary(run)["loss_steps"] == 7


def test_time_left_is_that_of_the_steps_that_are_timed(folder):
    slow = stdout(90, 95, resume=1, source="run/model_00000090.bin").replace("100.00 ms", "9000.00 ms", 1)
    (run,) = read(write(f"{folder}/out.txt", slow))  # the log of a run that was resumed: its first step warms up
    assert abs(run_curves.summary(run)["time_left"] - 5 * 0.1) < 1e-9


def test_names_of_runs(folder):
    for name in ("quickstart/model", "mine/model", "a/quickstart/model", "model/x"):
        write(f"{folder}/{name}/main.log", main_log(run=len(name)))
    names = [run.name for run in read(*(f"{folder}/{name}" for name in ("quickstart/model", "mine/model/main.log")))]
    assert names == ["quickstart", "mine"], names
    names = [run.name for run in read(f"{folder}/quickstart/model", f"{folder}/a/quickstart/model")]
    assert names == [f"{os.path.basename(folder)}/quickstart", "a/quickstart"], names
    assert [run.name for run in read(f"{folder}/model/x")] == ["x"]
    for top in ("b", "c"):  # which differ above the folder that a name is extended by
        write(f"{folder}/{top}/runs/y/main.log", main_log())
    names = [run.name for run in read(f"{folder}/b/runs/y/main.log", f"{folder}/c/runs/y/main.log")]
    assert names == ["runs/y (1)", "runs/y (2)"], names


def test_numbers_beyond_all_that_a_run_has(folder):
    huge, digits = 10**400, "1" * 5000
    step = '{"step": %d, "loss": %s, "norm": 1e308, "ms": 1e308, "memory": 1e308}'
    steps = [step % (i, huge if i == 3 else 1e308) for i in range(4000)]
    begin = {"step": 0, "event": "start", "run": "7", "steps": huge, "tokens_per_step": huge, "parameters": huge}
    files = {
        "a.jsonl": "\n".join([json.dumps(begin), *steps]) + "\n",
        "b.txt": step_line(0).replace("1/100", f"{digits}/1") + step_line(0).replace("1/100", f"1/{digits}"),
        "c.txt": table(steps=huge, total=huge) + f"| {'parameters':21s} | {huge} |\n" + step_line(0, huge),
        "d.log": "".join(f"s:{i} trl:{(-1) ** i}e308 lr:1e308 norm:1e308\n" for i in range(4000)),
    }
    for name, content in files.items():
        path = write(f"{folder}/{name}", content)
        out = plot(path, "--html", f"{folder}/page.html")
        assert out.startswith("run "), out
        (run,) = read(path)
        assert run.last_step() in (1, 4000) and not run.total_steps and not run.tokens_per_step(), name
    (run,) = read(f"{folder}/a.jsonl")
    assert set(values(run, "loss").values()) == {math.inf} and 3 not in values(run, "loss")


def test_a_resumed_run_in_json(folder):
    steps = ['{"step": %d, "loss": %d}' % (step, step) for step in range(8)]  # noqa: UP031 (braces)
    again = [BEGIN % (5, "resume", "{}"), '{"step": 5, "loss": 50}']
    (run,) = read(write(f"{folder}/log.jsonl", "\n".join([BEGIN % (0, "start", "{}"), *steps, *again, ""])))
    assert values(run, "loss") == {**{step: step for step in range(5)}, 5: 50} and kinds(run) == [(5, "resume")]


def test_what_is_not_finite_is_an_event_and_no_point(folder):
    text = main_log(0, 3) + "s:3 trl:nan lr:1e-3 norm:-nan\ns:4 trl:inf lr:1e-3 norm:1.0\n" + main_log(5, 8, run=0)
    (run,) = read(write(f"{folder}/main.log", text))
    assert kinds(run) == [(3, "nan"), (3, "nan")], run.events
    assert [step for step, _ in run.get("loss")] == [0, 1, 2, 5, 6, 7] and run.unread_lines == 0


def test_a_resumed_run_counts_as_it_was_written_last(folder):
    text = main_log(0, 60) + "s:40 tel:9.000000\ns:40 trl:8.000000 lr:1e-3 norm:1.0\n"
    (run,) = read(write(f"{folder}/main.log", text))
    losses = values(run, "loss")
    assert list(losses) == list(range(41)) and losses[40] == 8.0 and losses[39] == round(loss(39), 6)
    assert values(run, "val_loss")[40] == 9.0 and max(values(run, "hellaswag")) == 30
    assert kinds(run) == [(40, "resume")], run.events


def test_a_resumed_run_in_one_stdout(folder):
    text = stdout(0, 60) + table(resume=1, source="run/model_00000040.bin") + "val loss 7.000000\n" + step_line(40)
    (run,) = read(write(f"{folder}/out.txt", text))
    assert list(values(run, "loss")) == list(range(41)) and values(run, "val_loss")[40] == 7.0
    assert kinds(run) == [(40, "resume")] and run.samples == [], "that of step 50 was written by what was lost"


def test_a_line_counts_when_it_has_its_end(folder):
    (run,) = read(write(f"{folder}/main.log", main_log(0, 5) + "s:5 trl:4.1"))
    assert len(run.series["loss"]) == 5 and run.unread_lines == 0
    (run,) = read(
        write(f"{folder}/main.log", main_log(0, 5) + "s:5 trl:4.s:5 trl:4.5 lr:1e-3 norm:1.0\ns:6 trl:4.25\n")
    )
    assert values(run, "loss")[6] == 4.25 and 5 not in values(run, "loss") and run.unread_lines == 1


def test_what_a_terminal_showed(folder):
    text = "validation  50.0%, 3s left\r\x1b[Kval loss 5.000000\r\n\x1b[32m" + step_line(0)
    (run,) = read(write(f"{folder}/out.txt", text))
    assert values(run, "val_loss") == {0: 5.0} and len(run.series["loss"]) == 1 and run.unread_lines == 0


def test_empty_logs_are_runs_without_steps(folder):
    for text in ("", "s:0 run:77\n", "s:0 tr"):
        said = plot(write(f"{folder}/main.log", text), "--html", f"{folder}/page.html")
        assert "has no steps yet" in said, said


def test_what_is_no_log_is_refused_in_one_line(folder):
    foreign = write(f"{folder}/notes.txt", "dear diary\n")
    assert "notes.txt is no log of a run" in plot(foreign, code=1)
    assert "no log of a run" in plot(write(f"{folder}/x.bin", bytes(range(256)) * 1000), code=1)
    assert "cannot read" in plot(f"{folder}/missing", code=1)
    os.makedirs(f"{folder}/empty")
    assert "empty holds no run" in plot(f"{folder}/empty", code=1)
    log = write(f"{folder}/main.log", main_log())
    assert "must end in .png, .svg, .pdf" in plot(log, "--output", "a.jpg", code=1)
    assert "--x time: " in plot(log, "--x", "time", code=1)
    assert "--x tokens: " in plot(log, "--x", "tokens", code=1)
    assert "cannot write" in plot(log, "--html", f"{folder}/none/page.html", code=1)
    os.mkfifo(f"{folder}/pipe.html")
    assert "pipe.html: it is a pipe or a device" in plot(log, "--html", f"{folder}/pipe.html", code=1)
    assert not os.path.isfile(f"{folder}/pipe.html")  # which stays as it is
    assert "--html '': the value is empty" in plot(log, "--html", "", code=1)
    assert "notes.txt: the name must end in .html, .htm" in plot(log, "--html", foreign, code=1)
    assert unit.read(foreign) == "dear diary\n"
    assert "2 names for 1 runs" in plot(log, "--labels", "a", "b", code=1)
    for flag, name in (("--output", "log.svg"), ("--html", "log.html")):
        os.link(log, f"{folder}/{name}")
        for path in (f"{folder}/{name}", f"{folder}/../{os.path.basename(folder)}/{name}"):
            for read_from in (folder, log):
                assert f"{name}: it is a file of the run" in plot(read_from, flag, path, code=1)
    assert unit.read(log) == main_log()
    assert "--follow writes" in plot(log, "--follow", code=1)
    assert "--difference is of two runs" in plot(log, "--difference", code=1)
    assert "--smooth" in plot(log, "--smooth", "0", code=1)
    assert "--smooth 1" in plot(log, "--smooth", "1e10", code=1)
    assert "--every 86401: at most 86400 s" in plot(log, "--every", "86401", code=1)


def test_stdout_that_cannot_be_written_ends_in_one_line(folder):
    log = write(f"{folder}/main.log", main_log())
    script = os.path.join(run_logs.ROOT, "scripts", "plot_run.py")
    for arguments in ([log], ["--help"], [log, "--html", f"{folder}/page.html"]):
        with open("/dev/full", "wb") as full:
            done = subprocess.run(
                [sys.executable, script, *arguments], check=False, stdout=full, stderr=subprocess.PIPE, text=True
            )
        assert done.stderr == "error: cannot write standard output: No space left on device\n", done.stderr
        assert done.returncode == 1, done.returncode
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, script]  # nobody wants to read it
    assert subprocess.run([*closed, log], check=False, capture_output=True).stderr == b""
    done = subprocess.run([*closed, f"{folder}/missing"], check=False, capture_output=True)
    assert b"error: cannot read" in done.stderr


def test_names_that_stdout_cannot_encode(folder):
    name = os.fsencode(folder) + "/é\udcff".encode("utf-8", "surrogateescape")
    os.makedirs(name)
    unit.write(name + b"/main.log", main_log())
    script = os.path.join(run_logs.ROOT, "scripts", "plot_run.py")
    for encoding in ("ascii", "utf-8"):
        command = [sys.executable, script, name, "--html", name + b"/page.html"]
        environment = {**os.environ, "PYTHONIOENCODING": f"{encoding}:strict", "PYTHONUTF8": "1"}
        done = subprocess.run(command, check=False, capture_output=True, env=environment)
        assert done.returncode == 0 and b"\\udcff/page.html" in done.stdout, done.stderr


def test_pipes_in_the_folder_of_a_run_are_not_waited_for(folder):
    write(f"{folder}/main.log", main_log())
    os.mkfifo(f"{folder}/steps.jsonl")
    script = os.path.join(run_logs.ROOT, "scripts", "plot_run.py")
    command = [sys.executable, script, folder]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert " 100 " in done.stdout, done.stdout
    os.remove(f"{folder}/main.log")
    os.mkfifo(f"{folder}/main.log")
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "there is no main.log" in done.stderr, done.stderr


def test_following_waits_where_a_log_is_replaced(folder):
    log, page = write(f"{folder}/run/main.log", main_log(last=10)), f"{folder}/page.html"
    script = os.path.join(run_logs.ROOT, "scripts", "plot_run.py")
    command = [sys.executable, script, f"{folder}/run", "--html", page, "--follow", "--every", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def read_until(text):
        for line in process.stdout:
            if text in line:
                return line
        raise AssertionError(f"plot_run.py ended, with exit code {process.wait()}")

    read_until("page.html")
    os.remove(log)
    assert read_until("waiting").startswith("note: ")
    write(log, main_log(last=77))
    before, end = os.stat(page).st_ino, time.monotonic() + 60
    while os.stat(page).st_ino == before and time.monotonic() < end:
        time.sleep(0.1)
    process.terminate()  # as Ctrl-C, which a job in the background may have ignored
    assert process.wait(60) == 0
    process.stdout.close()
    assert "step 77" in unit.read(page)


def test_following_does_not_follow_what_it_writes(folder):
    write(f"{folder}/main.log", main_log(last=10))
    os.symlink(folder, f"{folder}/link")
    outputs = ["--html", f"{folder}/page.html", "--output", f"{folder}/link/curves.svg"]
    waits = mock.patch.object(time, "sleep", side_effect=[None, None, KeyboardInterrupt])
    pictures = mock.patch.object(plot_run, "draw", lambda runs, args: write(args.output, ""))
    with waits, pictures, mock.patch.object(plot_run, "write", wraps=plot_run.write) as writes:
        plot(folder, *outputs, "--follow")
    assert writes.call_count == 2, "at the beginning, and at the end"


def test_settings_of_state_files_and_their_differences(folder):
    for name, rate in (("a", "0.001"), ("b", "0.002")):
        write(f"{folder}/{name}/main.log", main_log(run=len(name)))
        state_file(f"{folder}/{name}/state_00000050_00000.bin", learning_rate="0.5", seed="1")
        state_file(f"{folder}/{name}/state_00000100_00000.bin", learning_rate=rate, seed="42", batch="4", time="8")
        write(f"{folder}/{name}/DONE_00000100", "")
    a, b = read(f"{folder}/a", f"{folder}/b")
    assert a.state["learning-rate"] == "0.001" and a.tokens_per_step() == 32
    assert run_log.differences([a, b]) == [("learning-rate", ["0.001", "0.002"])]
    assert (100, "checkpoint") in kinds(a)
    said = plot(f"{folder}/a", f"{folder}/b")
    assert "settings that differ" in said and "0.002" in said and "seed" not in said, said


def test_flags_that_a_table_leaves_out_are_compared_as_defaults(folder):
    def tables(**of_tables):
        for name, of_table in of_tables.items():
            write(os.path.join(folder, f"{name}.txt"), stdout(**of_table))
        return run_log.read_runs([os.path.join(folder, f"{name}.txt") for name in of_tables])

    short, long = {"run": 1, "rate": None, "others": 40}, {"run": 2, "rate": "0.002", "others": 39}
    assert run_log.differences(tables(a=short, b=long)) == [("learning-rate", ["default", "0.002"])]
    assert "other flags" not in tables(a=short)[0].flags
    assert run_log.differences(tables(a=short, b=short)) == []
    assert run_log.differences(tables(a=short, b={"run": 2, "rate": "0.0003"})) == []  # it may be the default
    tables(a=short, b=long)
    state_file(os.path.join(folder, "c", "state_00000100_00000.bin"), learning_rate="0.0003")
    write(os.path.join(folder, "c", "main.log"), main_log(run=3))
    runs = run_log.read_runs([os.path.join(folder, name) for name in ("a.txt", "b.txt", "c")])
    assert run_log.differences(runs) == []
    for name, of_table in (("d", short), ("e", long)):  # a table beside the log of its run
        write(os.path.join(folder, name, "main.log"), main_log(run=of_table["run"]))
        write(os.path.join(folder, name, "stdout.txt"), stdout(**of_table))
    runs = run_log.read_runs([os.path.join(folder, name) for name in ("d", "e")])
    assert run_log.differences(runs) == [("learning-rate", ["default", "0.002"])], run_log.differences(runs)


def test_damaged_state_files_are_said_and_the_rest_is_shown(folder):
    write(f"{folder}/main.log", main_log())
    state = write(f"{folder}/state_00000100_00000.bin", b"short")
    (run,) = read(folder)
    assert run.state == {} and any("ends inside its header" in text for _, _, text in run.events)
    state_file(state, seed="1")
    with open(state, "r+b") as f:
        f.seek(4 * 42)
        f.write(b"\xff\xff\xff\x7f")
    (run,) = read(folder)
    assert run.state == {} and any("is damaged" in text for _, _, text in run.events)


def test_a_captured_stdout_joins_the_folder_of_its_run(folder):
    write(f"{folder}/run/main.log", main_log())
    out = write(f"{folder}/out.txt", stdout())
    other = write(f"{folder}/other.txt", stdout(run=78))
    run, second = read(f"{folder}/run", out, other)
    assert "ms" in run.series and "ms" in second.series and second.name == "other.txt"
    assert values(run, "norm")[2] == 3.0, "main.log's"
    write(f"{folder}/run/stdout.txt", stdout())
    (run,) = read(f"{folder}/run")
    assert "ms" in run.series and run.sources == ["main.log", "stdout.txt"]
    write(f"{folder}/run/other.txt", stdout(run=78, last=200))
    (again,) = read(f"{folder}/run/main.log")
    assert again.sources == run.sources, "the stdout of another run"


def test_samples_may_hold_what_looks_like_a_log(folder):
    fake = 'generating:\n---\nstep 1/2\n---\ns:9 trl:1.0\n---\n{"step": 7, "loss": 1}\n\n---\n'
    (run,) = read(write(f"{folder}/out.txt", table() + step_line(0) + fake + step_line(1)))
    assert list(values(run, "loss")) == [0, 1] and len(run.samples) == 1
    assert run.samples[0][1].startswith("step 1/2\n---\ns:9"), run.samples


def test_difference(folder):
    a = write(f"{folder}/a/main.log", main_log())
    b = write(f"{folder}/b/main.log", main_log().replace("s:7 trl:", "s:7 trl:1"))
    said = plot(a, b, "--difference", "--labels", "ours", "PyTorch")
    assert "training loss, 100 steps: largest difference 10.000000 (step 7: " in said, said
    assert "mean 0.100000" in said and "validation loss, 10 steps: largest difference 0.000000" in said
    assert "vocabular" not in said
    for name, size in (("a", 256), ("b", 50257)):
        state_file(f"{folder}/{name}/state_00000100_00000.bin", model=f"V {size}, Vp 50304, L 2")
    said = plot(a, b, "--difference")
    assert "note: vocabularies of 256 and 50257: their losses cannot be compared" in said, said
    c = write(f"{folder}/c/main.log", main_log(200, 210))
    assert "have no step in common" in plot(a, c, "--difference", code=1)


def test_buckets_keep_the_extremes_and_are_bounded(folder):
    series = run_lines.Series()
    for step in range(100000):
        series.add(step, 50.0 if step == 77777 else math.nan if step == 5 else math.sin(step))
    points = run_curves.buckets(series, 500)
    assert len(points) == 500 and max(p[3] for p in points) == 50.0
    assert all(low <= mean <= high for _, mean, low, high in points)
    assert [p[0] for p in points] == sorted({p[0] for p in points})
    assert len(run_curves.buckets(series, 1 << 20)) == 99999


def test_smoothing_is_the_same_for_a_few_points_as_for_all(folder):
    series = run_lines.Series()
    for step in range(5000):
        series.add(step, 5.0 * math.exp(-step / 1500.0))
    fine = dict(run_curves.smooth(run_curves.buckets(series, 5000), 200))
    for step, value in run_curves.smooth(run_curves.buckets(series, 250), 200)[20:]:
        assert abs(value - fine[step]) <= 0.03 * fine[step], (step, value, fine[step])
    assert run_curves.smooth([(0, 4.0, 4.0, 4.0), (1, 2.0, 2.0, 2.0)], 10)[0] == (0, 4.0), "unbiased at its beginning"


def test_every_color_is_two(folder):
    pairs = [color for pair in run_curves.COLORS for color in pair]
    assert len(pairs) == 16 and all(len(color) == 7 and color[0] == "#" for color in pairs), pairs


def test_ticks(folder):
    assert run_curves.linear_ticks(0.0, 10.0, 5) == [0, 2, 4, 6, 8, 10]
    assert run_curves.linear_ticks(2.0, 2.0, 5) == [2.0]
    assert run_curves.time_ticks(0.0, 7000.0, 6) == [0, 1200, 2400, 3600, 4800, 6000]
    assert run_curves.time_ticks(0.0, 0.9, 4)[-1] < 1 and run_curves.time_ticks(0.0, 9e6, 4)[1] % 86400 == 0
    for value in (0.0, 0.515, -3.0, 1e9):  # a constant, but for its last bit
        low, high = run_curves.widened(value, math.nextafter(value, math.inf))
        assert low < value < high and 1 < len(run_curves.linear_ticks(low, high, 5)) < 12, (value, low, high)
    assert run_curves.log_ticks(0.5, 200.0, 8) == [0.5, 1, 2, 5, 10, 20, 50, 100, 200]
    assert run_curves.log_ticks(1.8, 3.7, 5) == [2.0, 2.5, 3.0, 3.5] and run_curves.log_ticks(2.0, 2.0, 5) == [2.0]
    assert [run_curves.duration(s) for s in (12, 200, 3720, 183600)] == ["12s", "3m20s", "1h02m", "2d03h"]


def test_pictures(folder):
    if importlib.util.find_spec("matplotlib") is None:
        assert "pip install matplotlib" in plot(write(f"{folder}/main.log", main_log()), "--output", "a.png", code=1)
        raise unit.Skipped("no matplotlib")
    write(f"{folder}/a/main.log", main_log() + main_log(40, 70, run=0))
    write(f"{folder}/a/out.txt", stdout())
    b = write(f"{folder}/$b^{{<x/main.log", main_log(last=20) + "s:20 trl:nan lr:0 norm:nan\n")
    picture = f"{folder}/curves.svg"
    assert picture in plot(f"{folder}/a", b, "--output", picture, "--x", "step", "--log-x")
    text = unit.read(picture)
    assert text.count("<path") > 20 and "mathdefault" not in text and "$" not in text.replace("$b^{", "")
    assert all(f"<!-- {number} -->" in text for number in (1, 10, 100)), "steps on a logarithmic axis"
    plot(f"{folder}/a", "--output", f"{folder}/curves.png", "--x", "tokens", "--log-y")
    with open(f"{folder}/curves.png", "rb") as f:
        assert len(f.read()) > 10000
    plot(write(f"{folder}/new/main.log", ""), "--output", f"{folder}/empty.png")
    one = write(f"{folder}/one/main.log", "s:0 trl:5.0 lr:0 norm:0\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plot(one, "--output", f"{folder}/one.png", "--log-x", "--log-y")
    os.mkfifo(f"{folder}/pipe.png")
    assert "pipe.png: it is a pipe or a device" in plot(f"{folder}/a", "--output", f"{folder}/pipe.png", code=1)
    assert sorted(name for name in os.listdir(folder) if name.endswith(".tmp")) == []


if __name__ == "__main__":
    sys.exit(unit.run(globals()))
