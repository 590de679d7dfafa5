#!/usr/bin/env python3
"""Runs a command and sends it signals. Part of test_training.sh.

python3 dev/test/send_signal.py LOG STEP SIGNALS COMMAND...

Waits until LOG has the line of STEP (with STEP -1: until the command has written to stdout), sends the signals, which
are separated by commas, 0.4 s apart, and ends with the command's exit code, 128 and the signal where one ended it.
"""

import os
import signal
import subprocess
import sys
import time


def main():
    log, step, names, command = sys.argv[1], int(sys.argv[2]), sys.argv[3].split(","), sys.argv[4:]
    for name in names:
        signal.signal(getattr(signal, name), signal.SIG_DFL)  # a job in the background has SIGINT ignored
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    output = [child.stdout.readline()]
    deadline = time.monotonic() + 120
    while step >= 0 and child.poll() is None and time.monotonic() < deadline:
        if os.path.exists(log):
            with open(log, encoding="utf-8") as f:
                if f"s:{step} trl" in f.read():
                    break
        time.sleep(0.001)
    for i, name in enumerate(names):
        time.sleep(0.4 if i else 0)
        child.send_signal(getattr(signal, name))
    output.append(child.stdout.read())
    sys.stdout.buffer.write(b"".join(output))
    code = child.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
