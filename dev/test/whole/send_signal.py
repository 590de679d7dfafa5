#!/usr/bin/env python3
"""Runs a command and sends it signals. Part of test_training.sh.

python3 dev/test/whole/send_signal.py LOG TEXT SIGNALS COMMAND...

Waits until LOG has TEXT (with an empty one: until the command has written to stdout), sends the signals, which are
separated by commas, and ends with the command's exit code, 128 and the signal where one ended it. Before each signal
but the first it waits for the trainer to announce what a second one does, and then 0.8 s: sooner, both count as one.
"""

import os
import signal
import subprocess
import sys
import time


def main():
    log, text, names, command = sys.argv[1], sys.argv[2], sys.argv[3].split(","), sys.argv[4:]
    for name in names:
        signal.signal(getattr(signal, name), signal.SIG_DFL)  # a job in the background has SIGINT ignored
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    output = [child.stdout.readline()]
    deadline = time.monotonic() + 120
    while text and child.poll() is None and time.monotonic() < deadline:
        if os.path.exists(log):
            with open(log, encoding="utf-8") as f:
                if text in f.read():
                    break
        time.sleep(0.001)
    for i, name in enumerate(names):
        if i:
            while output[-1] and b"ends at once" not in output[-1]:
                output.append(child.stdout.readline())
            time.sleep(0.8)
        child.send_signal(getattr(signal, name))
    output.append(child.stdout.read())
    sys.stdout.buffer.write(b"".join(output))
    code = child.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
