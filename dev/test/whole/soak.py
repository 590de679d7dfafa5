#!/usr/bin/env python3
"""A trainer among faults: killed, stopped, out of disk, with damaged files. After each it resumes to the same bits.

    dev/test/whole/soak.py ./train_gpt2                              everything; about seven minutes on two cores
    dev/test/whole/soak.py ./train_gpt2 --short                      a few of each, 15 s: what `make test` runs
    dev/test/whole/soak.py ./train_gpt2 --only kill term --kill 500  some cases, so often; --help lists them

Each trial has its own folder and its own generator, seeded with --seed, the case and the trial's number. Ends with a
table and 'N passed, N failed'; the folder of a failed trial is kept, and its last commands are printed. Needs the
standard library, and root to mount a file system that fills up.
"""

import collections
import concurrent.futures
import contextlib
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir, "data"))

from data_common import Parser
from soak_trial import (
    MINUTES,
    ROOT,
    RUNS,
    Failure,
    References,
    Skipped,
    Trial,
    Watch,
    await_nobody,
    check_end,
    check_files,
    check_moment,
    claim,
    files_of,
    newest_step,
    read_log,
    same_files,
    steps_done,
)

# ----------------------------------------------------------------------------
# Cases. Each is a function of a trial that returns how many faults it has made, and fails by Failure.


def strike(trial, process, watch, reference):
    """Waits for a random moment: of the time that a run takes, or after an event in the folder. True: it still runs."""
    if trial.random.random() < 0.3:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(trial.random.uniform(0, reference.seconds))
    else:
        watch.wait(process, trial.random.randint(1, reference.events // 2))
        time.sleep(trial.random.choice([0, 0, trial.random.uniform(0, 0.003)]))
    return process.poll() is None


def moment_of(folder):
    """Where a run was when it was killed, as far as its folder shows."""
    names = os.listdir(folder)
    if any(name.endswith(".tmp") for name in names):
        return "writing a file"
    if not any(name.startswith("model_") for name in names):
        return "opening or first step"
    return "between files"


def case_kill(trial):
    """kill -9 at random moments, again and again until the run ends"""
    run = "large" if trial.index % 5 == 4 else "small"
    reference = trial.soak.references[run]
    kills = 0
    while kills < CASES["kill"].faults:
        trial.empty_folder()
        newest, ended = -1, False
        while not ended:
            with Watch(trial.folder) as watch:
                process = trial.start(trial.command(run, "-n", 1, "-nk", 2, "-y", 1))
                if kills < CASES["kill"].faults and strike(trial, process, watch, reference):
                    process.kill()
                    process.wait()
                    kills += 1
                    trial.note(moment_of(trial.folder))
                else:
                    trial.finish(process)
                    ended = True
            newest = check_moment(trial.folder, reference, newest)
        check_end(trial.folder, reference, most=2)
    return kills


def stop(trial, process, number, before, seconds, last):
    """Sends TERM, INT or USR1, with `seconds`, one more so much later: the run ends as it should, and loses no step."""
    process.send_signal(number)
    if seconds is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        start = time.monotonic()
        process.send_signal(trial.random.choice([signal.SIGTERM, signal.SIGINT]))
    code = trial.finish(process, None)
    done, newest = steps_done(trial.folder), newest_step(trial.folder)
    too_late = done == last  # without -n the end of the last step saves nothing, and a signal may come after it
    names = [name for name in os.listdir(trial.folder) if name.endswith(".tmp")]
    if (read_log(trial.folder), newest) == before:  # not a step was done; before main() the signal itself ends the run
        trial.note("before the first step")
        claim(
            code in (0, -number, 128 + signal.SIGTERM, 128 + signal.SIGINT), f"exit code {code} before the first step"
        )
    elif code in (128 + signal.SIGTERM, 128 + signal.SIGINT) and seconds is not None:
        trial.note("a second one")
        claim(time.monotonic() - start < 10, f"{time.monotonic() - start:.1f} s from the second signal to the end")
    else:
        trial.note(f"{number.name}")
        claim(code == 0, f"exit code {code} after {number.name}: {trial.last_line()}")
        claim(newest == done or too_late, f"{number.name} came in step {done}, and checkpoint {newest} is the newest")
    claim(not names or code == -number, f"{' '.join(names)} stays after {number.name}")


def case_term(trial):
    """SIGTERM, SIGINT, SIGUSR1 at random moments, with -n and without, some with a second signal soon after"""
    run = "slow" if trial.index % 5 == 4 else "small"  # where there is time for a second signal
    reference = trial.soak.references[run]
    signals, wanted = 0, CASES["term"].faults
    while signals < wanted:
        trial.empty_folder()
        newest, ended = -1, False
        while not ended:
            every = ["-n", 4, "-nk", 2] if signals >= wanted or trial.random.random() < 0.5 else []
            before = read_log(trial.folder), newest
            with Watch(trial.folder) as watch:
                process = trial.start(trial.command(run, "-y", 1, *every))
                if signals < wanted and strike(trial, process, watch, reference):
                    number = trial.random.choice([signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
                    second = trial.random.choice([None, None, 0]) if run == "small" else trial.random.uniform(0.6, 0.8)
                    second = None if number == signal.SIGUSR1 else second
                    stop(trial, process, number, before, second, 0 if every else reference.steps)
                    signals += 1
                else:
                    trial.finish(process)
                    ended = newest_step(trial.folder) == reference.steps  # it may have had no -n
            newest = check_moment(trial.folder, reference, newest)
        check_end(trial.folder, reference)
    return signals


def await_checkpoint(trial, process, step):
    """Waits until that checkpoint is whole, or the run has ended."""
    end = time.monotonic() + 60 * MINUTES
    while newest_step(trial.folder) < step and process.poll() is None and time.monotonic() < end:
        time.sleep(0.0005)


def halt_after(trial, command, step, **settings):
    """Starts a run and halts it (SIGSTOP) after that checkpoint, with a third of its steps to come."""
    for _ in range(20):
        process = trial.start(command, **settings)
        await_checkpoint(trial, process, step)
        process.send_signal(signal.SIGSTOP)
        if process.poll() is None and step <= newest_step(trial.folder) and steps_done(trial.folder) <= 16:
            return process
        process.send_signal(signal.SIGCONT)  # this machine was busy elsewhere: once more
        trial.finish(process)
        trial.empty_folder()
    raise Failure(f"no run could be halted soon after its checkpoint {step}")


def case_full(trial):
    """A disk that is full to files above a size: from the start, later on, or for a while"""
    reference = trial.soak.references["small"]
    largest = max(os.path.getsize(os.path.join(reference.folder, name)) for name in files_of(reference.steps)) >> 10
    kilobytes = trial.random.randint(64, largest - 1)
    how = ("from the start", "later on", "for a while")[trial.index % 3]
    command = trial.command("small", "-n", 4, "-y", 1)
    room_again = False
    if how == "from the start":
        process = trial.start(command, limit=kilobytes)
    else:
        process = halt_after(trial, command, 4, limit="unlimited")
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (kilobytes << 10, resource.RLIM_INFINITY))
        process.send_signal(signal.SIGCONT)
    if how == "for a while":
        while process.poll() is None and "was not written" not in trial.text():
            time.sleep(0.0005)
        process.send_signal(signal.SIGSTOP)
        if process.poll() is None:
            room_again = steps_done(trial.folder) < 20
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        process.send_signal(signal.SIGCONT)
    code = trial.finish(process, None)
    newest = check_moment(trial.folder, reference, -1 if how == "from the start" else 4)
    trial.note(how)
    claim(code == (0 if newest == reference.steps else 4), f"exit code {code}, the newest checkpoint is {newest}")
    claim(newest == reference.steps or not room_again, "the last checkpoint was not written, and there was room again")
    claim(how == "for a while" or code == 4, f"exit code {code}, and the last checkpoint did not fit")
    claim("was not written" in trial.text(), "no save was said to have failed")
    claim(not any(name.endswith(".tmp") for name in os.listdir(trial.folder)), "a .tmp stays")
    claim(steps_done(trial.folder) == reference.steps, f"the run ended at step {steps_done(trial.folder)}")
    trial.go(command)
    check_end(trial.folder, reference)
    return 1


@contextlib.contextmanager
def mounted(trial, kilobytes):
    """A file system of that size, mounted on the trial's folder; skipped where that may not be."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", trial.folder]
    if subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode != 0:
        raise Skipped("no file system may be mounted here")
    try:
        yield (
            lambda options: subprocess.run(["mount", "-o", f"remount,{options}", trial.folder], check=False).returncode
        )
    finally:
        subprocess.run(["umount", "-l", trial.folder], check=True)


def case_tmpfs(trial):
    """A full file system, of growing sizes: the run continues and keeps what is whole; with room again it resumes"""
    reference = trial.soak.references["small"]
    checkpoint = sum(os.path.getsize(os.path.join(reference.folder, name)) for name in files_of(reference.steps)) >> 10
    kilobytes = 32 + int(3.5 * checkpoint * trial.random.random())
    command = trial.command("small", "-n", 4, "-nk", 2, "-y", 1)
    with mounted(trial, kilobytes) as remount:
        code = trial.go(command, None)
        newest = check_moment(trial.folder, reference)
        claim(code == (0 if newest == reference.steps else 4), f"exit code {code}, the newest checkpoint is {newest}")
        claim(code == 0 or "was not written" in trial.text(), "no save was said to have failed")
        trial.note("all saved" if code == 0 else "an earlier one kept" if newest >= 0 else "none fits")
        remount("size=64m")
        trial.go(command)
        check_end(trial.folder, reference, most=2)
    return 1


@contextlib.contextmanager
def renamed(trial):
    os.rename(trial.folder, trial.folder + ".away")
    yield
    shutil.rmtree(trial.folder, ignore_errors=True)
    os.rename(trial.folder + ".away", trial.folder)


@contextlib.contextmanager
def deleted(trial):
    os.rename(trial.folder, trial.folder + ".away")  # at once, whatever is being written
    shutil.rmtree(trial.folder + ".away")
    yield
    shutil.rmtree(trial.folder, ignore_errors=True)  # the run may have made it again
    os.makedirs(trial.folder)


@contextlib.contextmanager
def not_permitted(trial):
    os.chmod(trial.folder, 0o555)
    yield
    os.chmod(trial.folder, 0o755)


@contextlib.contextmanager
def read_only(trial):  # the same files, mounted once more on top: files that are open may still be written
    command = ["mount", "-o", "bind,ro", trial.folder, trial.folder]
    if subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode != 0:
        raise Skipped("no file system may be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", trial.folder], check=True)


LOSSES = (renamed, deleted, not_permitted, read_only)


def lose(trial, loss):
    """Takes the folder away from a run that has written a checkpoint, and gives it back when the run has ended."""
    reference = trial.soak.references["small"]
    command = trial.command("small", "-n", 4, "-y", 1)
    user = 65534 if loss is not_permitted and os.geteuid() == 0 else None  # root is always permitted
    if user is not None:
        os.chown(trial.folder, user, user)
    try:
        process = halt_after(trial, command, 4, user=user)
    except PermissionError as error:
        raise Skipped(f"no other user may run {trial.soak.trainer}") from error
    with loss(trial):
        process.send_signal(signal.SIGCONT)
        code = trial.finish(process, None)
        newest = newest_step(trial.folder) if os.path.isdir(trial.folder) else -1
        if os.path.isdir(trial.folder):
            check_files(trial.folder, reference)
    claim(code == (0 if newest == reference.steps else 4), f"exit code {code}, the newest checkpoint is {newest}")
    claim(code == 0 or "was not written" in trial.text(), "no save was said to have failed")
    check_moment(trial.folder, reference, -1 if loss is deleted else 4)
    trial.go(command, user=user)
    check_end(trial.folder, reference)


def fill_log(trial, command):
    """Runs with a main.log that is full from the first checkpoint to the second, or later: what it lacks comes then."""
    log = os.path.join(trial.folder, "main.log")
    for _ in range(20):
        process = halt_after(trial, command, 4)
        os.rename(log, log + ".away")
        os.symlink("/dev/full", log)
        process.send_signal(signal.SIGCONT)
        await_checkpoint(trial, process, 8)
        os.replace(log + ".away", log)
        in_time = process.poll() is None
        trial.finish(process)
        if in_time and steps_done(trial.folder) > 0 and "can be written again" in trial.text():
            return
        trial.empty_folder()
    raise Failure("no run was as slow as it takes to empty a disk")


def silence(trial, what):
    """Runs with a main.log or a stdout that cannot be written: that is said, and nothing else is lost."""
    reference = trial.soak.references["small"]
    command = trial.command("small", "-n", 4, "-y", 1)
    if what == "main.log":
        fill_log(trial, command)
        check_end(trial.folder, reference)
    elif what == "stdout":
        with open("/dev/full", "wb") as full:
            trial.go(command, stdout=full)
    else:  # a pipe that nobody reads, as behind `| head`
        read, write = os.pipe()
        os.close(read)
        with os.fdopen(write, "wb") as closed:
            trial.go(command, stdout=closed)
    claim(f"cannot write {what.split()[-1]}" in trial.text().replace(trial.folder + "/", ""), f"{what} fails unsaid")
    same_files(trial.folder, reference.folder, files_of(reference.steps))


def case_lost(trial):
    """A folder that is renamed, deleted, read-only or not permitted in mid-run; a main.log or stdout that is full"""
    ways = [*LOSSES, "main.log", "stdout", "a closed stdout"]
    how = ways[trial.index % len(ways)]
    trial.note(how if isinstance(how, str) else how.__name__.replace("_", " "))
    if isinstance(how, str):
        silence(trial, how)
    else:
        lose(trial, how)
    return 1


def damage(trial, folder, step):
    """Does something to a checkpoint that makes it useless."""
    name = trial.random.choice(files_of(step))
    path = os.path.join(folder, name)
    size = os.path.getsize(path)
    how = trial.random.choice(["flip", "flip", "flip", "cut", "appended", "zeros", "missing", "other step"])
    trial.note(how)
    with open(path, "r+b") as f:
        if how == "flip":
            at = trial.random.randrange(size * 8)
            f.seek(at // 8)
            byte = f.read(1)[0] ^ 1 << at % 8
            f.seek(at // 8)
            f.write(bytes([byte]))
        elif how == "cut":
            f.truncate(trial.random.randrange(size))
        elif how == "appended":
            f.seek(0, os.SEEK_END)
            f.write(b"\0")
        elif how == "zeros":
            f.seek(trial.random.randrange(1024, size - 4096))
            f.write(bytes(4096))
    if how == "missing":
        os.remove(path)
    elif how == "other step":
        shutil.copy(path.replace(f"{step:08d}", f"{step - 4:08d}"), path)


def case_damaged(trial):
    """A newest checkpoint that is damaged: -y 1 names it and takes the whole one before it"""
    reference = trial.soak.references["small"]
    for step in (4, 8, 12, 16):
        for name in files_of(step):
            shutil.copy(os.path.join(reference.folder, name), trial.folder)
        with open(os.path.join(trial.folder, f"DONE_{step:08d}"), "wb"):
            pass
    with open(os.path.join(trial.folder, "main.log"), "wb") as f:
        f.write(reference.log)
    whole = trial.random.choice([8, 12])  # the checkpoints after it are damaged
    damaged = range(whole + 4, 17, 4)
    for step in reversed(damaged):  # one may take the place of the next
        damage(trial, trial.folder, step)
    trial.go(trial.command("small", "-n", 4, "-y", 1))
    for step in damaged:
        said = re.search(rf"^note: .*_{step:08d}", trial.text(), re.M)
        claim(said, f"checkpoint {step} was passed over in silence, or not at all")
    claim(f"model_{whole:08d}.bin" in trial.text(), f"the run did not resume from step {whole}")
    check_end(trial.folder, reference)
    return len(damaged)


def end_by(trial, fault, policy, step):
    """A run with the fault in that step ends before it; without the fault it goes on to the reference's bits."""
    reference = trial.soak.references["small"]
    code = 5 if fault == "flip" else 3
    flags = ["--verify-every", 1] if fault == "flip" else []
    number = trial.random.randrange(2) if "gradient" in fault else 0  # the micro-step
    command = trial.command("small", "-n", 4, "-y", 1, "--non-finite", policy, *flags)
    trial.go([trial.soak.faulty, *command[1:]], code, FAULT=f"{fault}@{step}:{number}")
    claim(
        f"step {step + 1}/{reference.steps}" in trial.last_line(),
        f"the last line does not say the step: {trial.last_line()}",
    )
    # the state before the step, unless a weight was wrong, or nobody knows what was
    whole = step if code == 3 and fault != "nan-weight" else step // 4 * 4
    claim(
        newest_step(trial.folder) == (whole or -1), f"checkpoint {newest_step(trial.folder)} is the newest, not {whole}"
    )
    check_files(trial.folder, reference)
    trial.go(trial.command("small", "-n", 4, "-y", 1))
    check_end(trial.folder, reference)


def skip(trial, step):
    """Updates that are skipped: a run that is killed on the way and resumes has the bits of one that is not."""
    faults = ",".join(
        f"{trial.random.choice(['nan-gradient', 'inf-gradient', 'nan-loss', 'inf-loss'])}@{at}"
        for at in {step, min(step + 1, 23), trial.random.randrange(24)}
    )
    whole = os.path.join(trial.home, "whole")
    flags = ["-n", 4, "-y", 1, "--non-finite", "skip"]
    trial.go([trial.soak.faulty, *trial.command("small", *flags, folder=whole)[1:]], FAULT=faults)
    command = [trial.soak.faulty, *trial.command("small", *flags)[1:]]
    with Watch(trial.folder) as watch:
        process = trial.start(command, FAULT=faults)
        strike(trial, process, watch, trial.soak.references["small"])
        process.kill()
        process.wait()
    trial.go(command, FAULT=faults)
    same_files(trial.folder, whole, [*files_of(24), "main.log"])
    claim("skipping the update" in trial.text(), "no update was skipped")


def case_number(trial):
    """A number that is not finite, or a flipped bit, at a random step: stop, or skip; the weights never have it"""
    if not os.path.exists(trial.soak.faulty):
        raise Skipped(f"there is no {os.path.relpath(trial.soak.faulty, ROOT)}")
    kinds = ["nan-gradient", "skip", "nan-weight", "flip", "inf-loss", "skip", "inf-gradient", "nan-loss"]
    kind = kinds[trial.index % len(kinds)]
    step = trial.random.randrange(24)
    trial.note(kind)
    if kind == "skip":
        skip(trial, step)
    else:
        end_by(trial, kind, "stop" if kind != "nan-weight" else trial.random.choice(["stop", "skip"]), step)
    return 1


class Memory(threading.Thread):
    """Samples the memory of a process and, with `gpu`, of the GPU, with the steps that it has done."""

    def __init__(self, process, folder, gpu):
        super().__init__(daemon=True)
        self.process, self.folder, self.gpu = process, folder, gpu
        self.samples = []  # step, KiB of the process, MiB of the GPU
        self.start()

    def run(self):
        query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        while self.process.poll() is None:
            step, device = steps_done(self.folder), 0
            if self.gpu:
                device = int(subprocess.run(query, capture_output=True, check=True).stdout.split()[0])
            with contextlib.suppress(OSError), open(f"/proc/{self.process.pid}/status", encoding="ascii") as f:
                resident = re.search(r"RssAnon:\s+(\d+)", f.read())  # pages of files come and go
                if resident:
                    self.samples.append((step, int(resident[1]), device))
            time.sleep(0.05)

    def growth(self, steps):
        """KiB of the process and MiB of the GPU that were added after half of the steps; two saves come before."""
        self.join()
        before = [sample for sample in self.samples if steps // 4 < sample[0] <= steps // 2]
        after = [sample for sample in self.samples if steps // 2 < sample[0]]
        claim(before and after, f"only {len(before)} and {len(after)} samples of memory in the halves of the run")
        return [max(s[i] for s in after) - max(s[i] for s in before) for i in (1, 2)]


def case_long(trial):
    """A long run again, with 1, 2 and 4 threads and with --verify-every: the same bits, and memory stays flat"""
    reference = trial.soak.references["long"]
    verify = ["--verify-every", 100]
    ways = [(1, verify), (1, [])] if trial.soak.gpu else [(2, verify), (4, []), (1, []), (1, verify)]
    threads, flags = ways[trial.index % len(ways)]
    process = trial.start(trial.command("long", "-n", reference.steps // 8, *flags), threads=threads)
    memory = Memory(process, trial.folder, trial.soak.gpu)
    trial.finish(process)
    host, device = memory.growth(reference.steps)
    trial.note(f"OMP_NUM_THREADS {threads}{', verified' if flags else ''}: memory +{host} KiB,")
    claim(host <= 1024, f"the process grew by {host} KiB after half of its steps")
    claim(device <= 2, f"it takes {device} MiB more of the GPU after half of its steps")
    check_end(trial.folder, reference)
    return 1


def children_of(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as f:
            return list(map(int, f.read().split()))
    except OSError:
        return []


def case_several(trial):
    """kill -9, SIGSTOP and SIGTERM to any of several processes at random moments; another number of them goes on"""
    reference = trial.soak.references["several"]
    counts = trial.soak.counts
    if counts[-1] == 1:
        raise Skipped("fewer than two GPUs")
    faults, wanted = 0, CASES["several"].faults
    while faults < wanted:
        trial.empty_folder()
        newest, ended = -1, False
        while not ended:
            count = trial.random.choice(counts)
            several = [trial.soak.flag, count, "--fault-timeout", 12]
            with Watch(trial.folder) as watch:
                process = trial.start(trial.command("several", "-n", 1, "-nk", 2, "-y", 1, *several))
                struck = faults < wanted and strike(trial, process, watch, reference)
                if struck:
                    victim = trial.random.choice([process.pid, *children_of(process.pid)])
                    number = trial.random.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
                    if number == signal.SIGSTOP and victim == process.pid:
                        number = signal.SIGTERM  # nobody can tell that a launcher stands still
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(victim, number)
                    trial.note(
                        f"{signal.Signals(number).name} to {'the first' if victim == process.pid else 'a child'}"
                    )
                    trial.finish(process, None)
                    await_nobody(trial.folder, 20)
                    faults += 1
                else:
                    trial.finish(process)
                    ended = newest_step(trial.folder) == reference.steps
            newest = check_moment(trial.folder, reference, newest)
        check_end(trial.folder, reference, most=2)
    return faults


Case = collections.namedtuple(
    "Case", "run long short faults"
)  # function, faults of the long form and the short, of a trial
CASES = {
    "kill": Case(case_kill, 200, 10, 5),
    "term": Case(case_term, 50, 6, 3),
    "full": Case(case_full, 20, 3, 1),
    "tmpfs": Case(case_tmpfs, 20, 2, 1),
    "lost": Case(case_lost, 14, 7, 1),
    "damaged": Case(case_damaged, 200, 4, 1),
    "number": Case(case_number, 40, 4, 1),
    "several": Case(case_several, 100, 4, 4),
    "long": Case(case_long, 4, 1, 1),
}

# ----------------------------------------------------------------------------
# The program


class Soak:
    def __init__(self, arguments, home):
        self.trainer = shutil.copy(arguments.trainer, home)  # make may build another one, and any user may run this one
        self.gpu = "cu" in os.path.basename(arguments.trainer)
        gpus = subprocess.run(["nvidia-smi", "-L"], check=False, capture_output=True) if self.gpu else None
        self.flag = "--gpus" if self.gpu else "--processes"
        self.counts = [n for n in (1, 2, 4) if not self.gpu or n <= gpus.stdout.count(b"GPU ")]
        # the same with faults inside: build/train_gpt2_faults, build/train_gpt2cu_faults_bf16
        name = re.sub(r"^(train_gpt2(?:cu)?)", r"\1_faults", os.path.basename(arguments.trainer))
        self.faulty = os.path.join(ROOT, "build", name)
        self.seed = arguments.seed
        self.home = home
        self.data = os.path.join(home, "text")
        self.references = References(self)
        sources = [os.path.join(ROOT, name) for name in ("train_gpt2.c", "train_gpt2.cu", "llmc")]
        data = [sys.executable, os.path.join(ROOT, "dev/data/text.py"), "--tokenizer", "bytes", "--output", self.data]
        subprocess.run([*data, *sources], check=True, stdout=subprocess.DEVNULL)

    def trial(self, name, index):
        """Makes a trial: its faults, what was seen, and why it failed or was skipped."""
        trial = Trial(self, name, index)
        try:
            faults, why = CASES[name].run(trial), None
        except Skipped as reason:
            faults, why = 0, reason
        except (Failure, OSError, subprocess.SubprocessError) as failure:
            commands = "".join(f"\n  {command}" for command in trial.commands[-2:])
            print(f"FAILED: {trial.name}: {failure}\n  {trial.home} is kept; its last commands:{commands}", flush=True)
            return 1, trial.seen, failure
        shutil.rmtree(trial.home)
        return faults, trial.seen, why

    def case(self, name, wanted, jobs):
        """Makes the trials of a case, some at a time; its row of the table: tried, passed, seconds, notes."""
        start = time.monotonic()
        tried = failed = 0
        seen = collections.Counter()
        trials = range(-(-wanted // CASES[name].faults))
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            for faults, notes, why in pool.map(lambda index: self.trial(name, index), trials):
                tried += faults
                failed += why is not None and not isinstance(why, Skipped)
                seen.update({f"skipped ({why})": 1} if isinstance(why, Skipped) else notes)
        seconds = time.monotonic() - start
        print(f"{name}: {tried} tried, {failed} failed, {seconds:.1f} s", flush=True)
        return tried, tried - failed, seconds, ", ".join(f"{what} {times}" for what, times in sorted(seen.items()))


def parse():
    parser = Parser(__doc__.splitlines()[0])
    parser.add_argument("trainer", help="./train_gpt2 or build/train_gpt2cu_bf16")
    parser.add_argument("--short", action="store_true", help="a few of each case")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), help="some cases alone")
    parser.add_argument(
        "--jobs", type=int, default=min(os.cpu_count(), 12), help="trials at a time; default %(default)s"
    )
    parser.add_argument("--seed", type=int, default=10)
    parser.add_argument("--steps", type=int, help="steps of the long run; default 10000, in short 1000")
    for name, case in CASES.items():
        text = f"{case.run.__doc__}; default {case.long}, in short {case.short}"
        parser.add_argument(f"--{name}", type=int, metavar="N", help=text)
    return parser.parse_args()


def main():
    arguments = parse()
    # in the background of a shell it is ignored, and by the trainers then, too
    signal.signal(signal.SIGINT, signal.default_int_handler)
    steps = arguments.steps or (1000 if arguments.short else 10000)
    RUNS["long"] = (RUNS["long"][0], steps, max(steps // 8, 1))
    home = tempfile.mkdtemp(prefix="soak-")
    os.chmod(home, 0o755)  # for the user without permission
    print(f"{arguments.trainer}, seed {arguments.seed}, {arguments.jobs} jobs, in {home}", flush=True)
    soak = Soak(arguments, home)
    rows = {}
    for name in arguments.only:
        wanted = getattr(arguments, name)
        if wanted is None:
            wanted = CASES[name].short if arguments.short else CASES[name].long
        rows[name] = soak.case(name, wanted, 1 if name == "long" and soak.gpu else arguments.jobs)
    print(f"\n{'case':8s} {'tried':>6s} {'passed':>6s} {'s':>7s}")
    for name, (tried, passed, seconds, notes) in rows.items():
        print(f"{name:8s} {tried:6d} {passed:6d} {seconds:7.1f}   {notes}")
    passed, failed = sum(row[1] for row in rows.values()), sum(row[0] - row[1] for row in rows.values())
    if not failed:
        shutil.rmtree(home)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
