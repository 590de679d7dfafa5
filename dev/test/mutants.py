#!/usr/bin/env python3
"""Mutants: a seeded sample of small changes of the sources, each of which a check of `make test` should refuse.

    make mutants MUTANTS_FLAGS='--count 500 -j 2'           # CPU side; goes on where it was stopped
    make mutants MUTANTS_FLAGS='--gpu --count 100'          # .cu and .cuh, on a machine with a GPU
    make mutants MUTANTS_FLAGS="--files 'llmc/comm/*.h'"      # of these files only; the table stays as it is
    make mutants MUTANTS_FLAGS='--budget 60'                # a minute of checks for each; --again has all of them
    make mutants MUTANTS_FLAGS=--again                      # the gaps of the table once more: are they refused by now?

A line of code is drawn, then one of universalmutator's mutants of it: + for -, < for <=, a statement left out. make's
dependencies say which checks its file concerns: the test of the same name first, then the most specific. The first that
fails twice, or hangs, refuses the mutant. What does not compile, or compiles to what was there before, is not counted.
Survivors go to dev/test/mutants.csv without a verdict: write `gap`, or `equivalent` and the reason, or `gone` where the
line has left the tree since. An outcome is kept in build/mutants until its line changes.

Each job has a copy of the sources with a warm build. Mutants run as root in namespaces of their own, where all but
their copy is read-only: one that kills process -1 or removes / does no harm. Costs a `make test` to begin with, then
about a minute for each mutant and up to twenty for one that survives; 1 GB of disk for each job.
"""

import ast
import csv
import fnmatch
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "data"))

from data_common import Parser

try:
    from universalmutator import mutator
except ImportError:
    sys.exit("error: there is no universalmutator here: pip install -r .ci/requirements.txt")

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TABLE = os.path.join(ROOT, "dev", "test", "mutants.csv")
WORK = os.path.join(ROOT, "build", "mutants")
CLEAN = os.path.join(WORK, "clean")
C_LIKE = ["universal.rules", "c_like.rules"]
CUDA = [*C_LIKE, "cpp.rules"]
RULES = {".h": C_LIKE, ".c": C_LIKE, ".cu": CUDA, ".cuh": CUDA, ".sh": ["universal.rules"]}
RULES[".py"] = ["universal.rules", "python.rules"]
COLUMNS = ["side", "room", "file", "line", "original", "mutant", "verdict", "reason"]
READ_THE_TEXT = {"check-test_sources", "check-test_planted_table"}  # any change of the sources may displease them
NVCC_SECONDS, CC_SECONDS = 30, 3  # to compile a check's programs: a guess, which only orders the checks


def sources():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True)
    return [f for f in listed.stdout.decode().splitlines() if os.path.isfile(os.path.join(ROOT, f))]


def read(*path):
    with open(os.path.join(*path), "rb") as f:
        return f.read()


def lines_of(path):
    return read(CLEAN, path).decode().split("\n")


def digest(*words):
    return hashlib.sha256(b"\0".join(w if isinstance(w, bytes) else str(w).encode() for w in words)).hexdigest()


def refresh():
    """Makes CLEAN a copy of the sources; what did not change keeps its time."""
    for path in sources():
        copy = os.path.join(CLEAN, path)
        if not os.path.exists(copy) or read(copy) != read(ROOT, path):
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            shutil.copy(os.path.join(ROOT, path), copy)


def make(tree, *words, limit=None):
    """Runs make confined to `tree`, with an empty /tmp. Returns its exit code (None: it took too long) and output."""
    shutil.rmtree(tree + ".tmp", ignore_errors=True)
    os.makedirs(tree + ".tmp")
    mounts = 'mount --bind "$0" "$0" && mount --bind "$0.tmp" /tmp && mount -o remount,bind,ro /'
    confine = mounts + ' && cd "$0" && exec make "$@"'
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", confine, tree]
    command = [*namespaces, "-s", "--no-print-directory", *words]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, start_new_session=True, **pipes) as process:
        try:
            output = process.communicate(timeout=limit)[0].decode(errors="replace")
            return process.returncode, output
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, ""


class Checks:
    """What each check depends on, from make's database, to which the compilers' .d files belong; and its seconds."""

    def __init__(self, names):
        command = ["make", "-C", CLEAN, "-pq", "checks"]
        database = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        self.needs, self.closures, self.seconds = {}, {}, {}
        scripts = {f: os.path.basename(f) for f in sources() if f.endswith((".py", ".sh"))}
        target = None
        for line in database.splitlines():
            rule = re.match(r"([^\s#:=%][^:=]*):(?!=)([^=]*)$", line)
            if rule:
                target = rule[1]
                self.needs.setdefault(target, set()).update(set(rule[2].split()) - {"|"})
            elif line.startswith("\t") and target in names:
                self.needs[target].update(f for f in scripts if f in line and f != "dev/test/check.sh")
        for path in scripts:  # a script needs those that it names or imports
            text = read(CLEAN, path).decode()
            for other, name in scripts.items():
                named = rf"(?<![\w.]){re.escape(name)}|^ *(import|from) .*\b{name[:-3]}\b"
                if other != path and re.search(named, text, re.M):
                    self.needs.setdefault(path, set()).add(other)
        self.names = [name for name in names if name not in READ_THE_TEXT]

    def closure(self, target):
        if target not in self.closures:
            found, waiting = set(), [target]
            while waiting:
                new = self.needs.get(waiting.pop(), set()) - found
                found |= new
                waiting += new
            self.closures[target] = found
        return self.closures[target]

    def built_from(self, path, check):
        """What make builds for `check` from `path`."""
        return {t for t in self.closure(check) if path in self.closure(t) and not t.endswith((".py", ".sh"))}

    def cost(self, check):
        """Seconds for a mutant: to compile the check's programs and to run it."""
        with_nvcc = any(t.endswith(".cu") for t in self.closure(check))
        return self.seconds.get(check, 0) + (NVCC_SECONDS if with_nvcc else CC_SECONDS)

    def of(self, path, budget):
        """The checks that depend on `path`, the one of the same name first, then those that depend on the fewest files,
        while they cost less than `budget` seconds together; at least one."""
        stem = os.path.splitext(os.path.basename(path))[0]
        folder = os.path.basename(os.path.dirname(path))

        def order(check):
            named = re.fullmatch(f"check-(test_)?({folder}_)?{re.escape(stem)}(_bf16|_fp32)?", check)
            return not named, len(self.closure(check)), self.cost(check)

        for n, check in enumerate(sorted((c for c in self.names if path in self.closure(c)), key=order)):
            budget -= self.cost(check)
            if n > 0 and budget < 0:
                return
            yield check

    def measure(self, names, jobs):
        """Runs these on the sources as they are, unless that was done. One that fails is named, and refuses nothing."""
        path = os.path.join(WORK, "seconds.csv")
        known = {(check, state): float(seconds) for check, state, seconds in read_rows(path)}
        files = set(sources())
        states = {name: digest(*(read(CLEAN, f) for f in sorted(self.closure(name) & files))) for name in names}
        left = [name for name in names if (name, states[name]) not in known]
        if left:
            print(f"{len(left)} checks on the sources as they are ...", flush=True)
            output = make(CLEAN, "-k", f"-j{jobs}", "--output-sync=target", *left)[1]
            print("\n".join(re.findall(r"^FAILED: .*|.*\*\*\* .*", output, re.M)))
            for name, seconds in re.findall(r"^(\S+) +([0-9.]+) s   ", output, re.M):
                known["check-" + name, states.get("check-" + name)] = float(seconds)
            with open(path, "w", encoding="utf-8") as f:
                csv.writer(f).writerows((*key, seconds) for key, seconds in known.items())
        self.seconds = {name: known[name, states[name]] for name in names if (name, states[name]) in known}
        self.names = [check for check in self.names if check in self.seconds]


# ---- Mutants


class Mutant:
    """Line `line` of `path`, `original`, is to read `mutant`."""

    def __init__(self, path, line, original, mutant):
        self.path, self.line, self.original, self.mutant = path, line, original, mutant
        self.key = path, original.strip(), mutant.strip()

    def write(self, tree):
        lines = lines_of(self.path)
        lines[self.line - 1] = self.mutant
        with open(os.path.join(tree, self.path), "w", encoding="utf-8", newline="") as f:
            f.write("\n".join(lines))


def draw(paths, seed):
    """One mutant of each line of code, in the order of a hash of the seed, the file and the line's text."""
    order, of_file = [], {}
    for path in paths:
        seen = {}
        for number, line in enumerate(lines_of(path), 1):
            seen[line] = seen.get(line, 0) + 1
            order.append((digest(seed, path, line, seen[line]), path, number, line))
    for _, path, number, line in sorted(order):
        if path not in of_file:
            of_file[path] = {}
            in_c = not path.endswith((".py", ".sh"))
            comment, ignored = (r"\s*//.*", r"\s*#(?!define)") if in_c else (r"\s*#.*", r"\s*#")
            code = [text + "\n" if '"' in text else re.sub(comment, "", text) + "\n" for text in lines_of(path)]
            with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
                rules = RULES[os.path.splitext(path)[1]]
                found = mutator.mutants_regexp(code, rules, ignorePatterns=["^" + ignored], ignoreStringOnly=True)
            for at, text, *_ in found:  # of two lines (`break;` after a statement) we make one
                of_file[path].setdefault(at, set()).add(re.sub(r"\n\s*", " ", text.rstrip()))
        mutants = sorted(of_file[path].get(number, ()), key=lambda text: digest(seed, text))
        if mutants:
            yield Mutant(path, number, line, mutants[0])


def is_docstring(statement):
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def meaning(tree, path):
    """What a source says, without comments, as far as is known without its checks. Raises SyntaxError."""
    text = read(tree, path)
    if path.endswith(".py"):
        syntax = ast.parse(text)
        for node in ast.walk(syntax):
            if isinstance(getattr(node, "body", None), list):
                node.body = [s for s in node.body if not isinstance(s, ast.Pass) and not is_docstring(s)]
        return ast.dump(syntax)
    if path.endswith(".sh"):
        command = ["bash", "--pretty-print", path]
    elif path.endswith((".h", ".c")) and not path.startswith(
        "dev/cuda/"
    ):  # a header compiles alone; all of its functions, types and macros are to be kept
        flags = "-std=c11 -D_GNU_SOURCE -I. -w -fopenmp -march=native -O1 -fkeep-inline-functions"
        debug = "-g3 -gno-column-info -fno-eliminate-unused-debug-types"
        command = ["cc", *flags.split(), *debug.split(), "-x", "c", "-S", path, "-o", "-"]
    else:
        return text  # the checks' programs will tell
    done = subprocess.run(command, cwd=tree, capture_output=True, check=False)
    if done.returncode:
        raise SyntaxError(done.stderr.decode())
    return done.stdout


def stripped(path):
    """A program without its symbols and debug information."""
    subprocess.run(["strip", "-R", ".note.gnu.build-id", "-o", path + ".stripped", path], check=True)
    return read(path + ".stripped")


def try_mutant(m, tree, checks, budget):
    """What becomes of a mutant in a job's tree: 'does not compile', 'same', 'survived' or 'refused: CHECK'."""
    before, built, differs = meaning(tree, m.path), set(), m.path.endswith((".py", ".sh"))
    m.write(tree)
    try:
        if meaning(tree, m.path) == before:
            return "same"
        for check in checks.of(m.path, budget):
            built |= checks.built_from(m.path, check)
            programs = sorted(checks.built_from(m.path, check) & checks.needs[check])
            if programs:
                if make(tree, *programs)[0]:
                    return "does not compile"
                if all(stripped(os.path.join(tree, p)) == stripped(os.path.join(CLEAN, p)) for p in programs):
                    continue
                differs = True
            for _ in range(2):  # one failure may be a busy machine's
                if make(tree, check, limit=60 + 10 * checks.seconds[check])[0] == 0:
                    break
            else:
                return "refused: " + check.removeprefix("check-")
        return "survived" if differs else "same"
    except SyntaxError:
        return "does not compile"
    finally:  # as they were, with their times: nothing else need be built again
        for path in (m.path, *(t for t in built if os.path.isfile(os.path.join(CLEAN, t)))):
            shutil.copy2(os.path.join(CLEAN, path), os.path.join(tree, path))


def try_all(mutants, count, jobs, checks, budget, progress):
    """Tries mutants, each job in a tree of its own, until `count` are refused or survive. Returns those, with their
    outcomes, which are looked up in the file `progress` and added to it."""
    lock, counted, source = threading.Lock(), [], iter(mutants)
    outcomes = {tuple(key): outcome for *key, outcome in read_rows(progress)}

    def job(tree):
        shutil.rmtree(tree, ignore_errors=True)
        subprocess.run(["cp", "-a", CLEAN, tree], check=True)
        while True:
            with lock:
                m = next(source, None) if len(counted) < count else None
            if m is None:
                return
            begin, outcome = time.time(), outcomes.get(m.key) or try_mutant(m, tree, checks, budget)
            with lock:
                if outcome not in ("same", "does not compile"):
                    counted.append((m, outcome))
                if m.key in outcomes:
                    continue
                with open(progress, "a", encoding="utf-8", newline="") as f:
                    csv.writer(f).writerow([*m.key, outcome])
                print(f"{len(counted):4d} {m.path}:{m.line}: {outcome}, {time.time() - begin:.0f} s", flush=True)
                if outcome == "survived":
                    print(f"    - {m.key[1]}\n    + {m.key[2]}", flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(job, [os.path.join(WORK, f"job{n}") for n in range(jobs)]))
    return counted


# ---- The table


def read_rows(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8", newline="") as f:
        return list(csv.reader(f))


def read_table():
    """The line of each side's summary, and the rows."""
    lines = read(TABLE).decode().splitlines() if os.path.exists(TABLE) else []
    rows = csv.DictReader(line for line in lines if not line.startswith("# "))
    return {line[2:5]: line for line in lines if line.startswith("# ")}, list(rows)


def write_table(side, drawn, rows, summaries):
    """Writes the table, with the summary of a side of which so many mutants were drawn; prints that."""
    verdicts = [row["verdict"] for row in rows if row["side"] == side]
    equivalent, since, gone = (verdicts.count(verdict) for verdict in ("equivalent", "refused", "gone"))
    left, judged = len(verdicts) - equivalent - since - gone, drawn - equivalent - gone
    share = 100 * (judged - left) / max(judged, 1)
    summaries[side] = (
        f"# {side}: {drawn} drawn; {drawn - len(verdicts)} refused; {len(verdicts)} survived: {equivalent} equivalent, "
        f"{since} refused by tests added since, {gone} gone, {left} gaps; "
        f"{share:.1f}% refused without the equivalent and the gone"
    )
    with open(TABLE, "w", encoding="utf-8", newline="") as f:
        f.writelines(summaries[s] + "\n" for s in sorted(summaries))
        table = csv.DictWriter(f, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(sorted(rows, key=lambda r: (r["side"], r["room"], r["file"], int(r["line"]))))
    print(summaries[side])


def enter(side, counted):
    """Enters the survivors of a sample, of which those that were judged before keep their verdict."""
    summaries, old = read_table()
    judged = {(r["file"], r["original"], r["mutant"]): (r["verdict"], r["reason"]) for r in old if r["side"] == side}
    rows = [row for row in old if row["side"] != side]
    for m, outcome in counted:
        if outcome == "survived":
            folder = os.path.dirname(m.path)
            values = (side, folder or "programs", m.path, m.line, *m.key[1:], *judged.get(m.key, ("", "")))
            rows.append(dict(zip(COLUMNS, values)))
    write_table(side, len(counted), rows, summaries)


def gaps(side):
    """The table's survivors that are not equivalent, where their lines are now."""
    for row in read_table()[1]:
        if row["side"] == side and row["verdict"] in ("", "gap"):
            lines = lines_of(row["file"])
            at = [n for n, line in enumerate(lines, 1) if line.strip() == row["original"]]
            if at:
                yield Mutant(
                    row["file"], min(at, key=lambda n: abs(n - int(row["line"]))), row["original"], row["mutant"]
                )
            else:
                print(f"{row['file']}:{row['line']}: there is no such line any more: {row['original']}")


def enter_refused(side, counted):
    summaries, rows = read_table()
    refused = {m.key: outcome.removeprefix("refused: ") for m, outcome in counted if outcome != "survived"}
    for row in rows:
        check = refused.get((row["file"], row["original"], row["mutant"]))
        if row["side"] == side and check:
            row.update(verdict="refused", reason=check)
    write_table(side, int(re.search(r"(\d+) drawn", summaries[side])[1]), rows, summaries)


def main():
    parser = Parser(__doc__.split("\n\n")[0])
    parser.add_argument("--gpu", action="store_true", help="the GPU side: .cu, .cuh and the headers of dev/cuda")
    parser.add_argument("--count", type=int, default=500, help="mutants that are refused or survive (500)")
    parser.add_argument("--seed", type=int, default=1, help="another seed draws other lines and mutants (1)")
    parser.add_argument("--files", default="*", help="only of files whose path matches this pattern")
    parser.add_argument("--again", action="store_true", help="the gaps of the table instead of a sample")
    parser.add_argument("-j", type=int, default=1, dest="jobs", help="mutants at a time (1)")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds of checks for one mutant (no limit)")
    parser.add_argument("--without", default="^$", help="without the checks that match this regular expression")
    parser.add_argument("--checks", required=True, help="those of this machine, as `make mutants` knows them")
    args = parser.parse_args()

    side = "gpu" if args.gpu else "cpu"
    paths = [p for p in sources() if os.path.splitext(p)[1] in RULES and not re.match(r"dev/test/|test_", p)]
    on_gpu = {p for p in paths if p.endswith((".cu", ".cuh")) or fnmatch.fnmatch(p, "dev/cuda/*.h")}
    paths = [p for p in paths if (p in on_gpu) == args.gpu and fnmatch.fnmatch(p, args.files)]
    refresh()
    mutants = list(gaps(side)) if args.again else draw(paths, args.seed)
    names = [check for check in args.checks.split() if not re.search(args.without, check)]
    needs = Checks(names).needs
    programs = {need for name in names for need in needs[name] if not need.endswith((".py", ".sh"))}
    code, output = make(CLEAN, "-k", f"-j{args.jobs}", *sorted(programs))
    if code:
        sys.exit(f"error: the sources do not build, or unshare is not allowed here: {output[-1000:]}")
    checks = Checks(names)  # once more, with what the compilers wrote of their dependencies
    concerned = {m.path for m in mutants} if args.again else set(paths)
    checks.measure([c for c in checks.names if concerned & checks.closure(c)], args.jobs)

    progress = os.devnull if args.again else os.path.join(WORK, f"{side}-{args.seed}.csv")
    counted = try_all(mutants, len(mutants) if args.again else args.count, args.jobs, checks, args.budget, progress)
    if args.again:
        enter_refused(side, counted)
    elif args.files == "*":
        enter(side, counted)
    else:
        print(f"{sum(outcome != 'survived' for _, outcome in counted)} of {len(counted)} refused")


if __name__ == "__main__":
    main()
