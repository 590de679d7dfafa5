"""What the Python tests have in common, as unit.h has it for those in C.

A test is a function test_*(folder) with an empty folder of its own; it fails by an exception. The file ends with

    if __name__ == "__main__":
        sys.exit(unit.run(globals()))
"""

import importlib.util
import os
import sys
import tempfile
import traceback


class Skipped(Exception):
    """A test that cannot run here, and why."""


def need(*packages):
    """Ends a test without its tests, and says why, where one of these packages is not installed."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        print(f"skipped: {' and '.join(missing)} not installed for {sys.executable}")
        sys.exit(0)


def write(path, content):
    """Writes text or bytes to a file, whose folder it makes; returns the path."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "wb") as f:
        f.write(content if isinstance(content, bytes) else content.encode())
    return path


def read(path):
    """The text of a file."""
    with open(path, encoding="utf-8") as f:
        return f.read()


def program(folder, name, text):
    """Writes a stand-in for a program; returns its path."""
    path = write(os.path.join(folder, name), text)
    os.chmod(path, 0o755)
    return path


def refused(words, function, *arguments, error=SystemExit):
    """Checks that a call ends with an error that says these words; returns all that it says."""
    try:
        function(*arguments)
    except error as ended:
        assert words in str(ended), ended
        return str(ended)
    raise AssertionError(f"nothing was said of {words}")


def run(names, prepare=lambda folder: None):
    """Runs the tests among `names`, each after prepare(folder). Ends in 'N passed, N failed'; returns the exit code."""
    passed = failed = 0
    skipped = set()
    for name, test in list(names.items()):
        if not name.startswith("test_"):
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                prepare(folder)
                test(folder)
                passed += 1
                outcome = "ok"
            except Skipped as reason:
                skipped.add(str(reason))
                outcome = f"skipped: {reason}"
            except (Exception, SystemExit):  # noqa: BLE001 (whatever went wrong, the other tests go on)
                failed += 1
                outcome = f"FAILED\n{traceback.format_exc()}"
        print(f"{name[5:].replace('_', ' '):70s} {outcome}", flush=True)
    print(f"{passed} passed, {failed} failed" + (f", skipped: {'; '.join(sorted(skipped))}" if skipped else ""))
    return 1 if failed else 0
