"""A headless Chromium for tests, over the DevTools protocol on two pipes, with nothing but the standard library.

    with shared() as browser:             # raises unit.Skipped where there is no chromium
        page = browser.open(path, width=360, height=800, dark=True)
        page.value("document.title"), page.screenshot(), page.pdf(), page.said

Messages are JSON, each ended by a NUL; the browser reads file descriptor 3 and writes 4 (--remote-debugging-pipe).
"""

import base64
import collections
import contextlib
import json
import os
import select
import shutil
import struct
import subprocess
import tempfile
import time
import zlib

import unit

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--mute-audio"),
    *("--disable-extensions", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--remote-debugging-pipe",
]
PATIENCE = 60.0  # seconds that an answer may take, on a machine that does much else


class Browser:
    def __init__(self):
        program = next(filter(None, map(shutil.which, NAMES)), None)
        if program is None:
            raise unit.Skipped("no chromium")
        self.folder = tempfile.mkdtemp()
        read_commands, self.commands = os.pipe()
        self.answers, write_answers = os.pipe()
        redirect = f'exec "$@" 3<&{read_commands} 4>&{write_answers}'
        profile = [f"--user-data-dir={self.folder}/profile", "about:blank"]
        self.process = subprocess.Popen(
            ["bash", "-c", redirect, "bash", program, *FLAGS, *profile],
            pass_fds=(read_commands, write_answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": self.folder},
        )
        os.close(read_commands)
        os.close(write_answers)
        self.buffer, self.events, self.number = b"", [], 0

    def close(self):
        try:
            self.call("Browser.close")
            self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.wait()
            os.close(self.commands)
            os.close(self.answers)
            shutil.rmtree(self.folder, ignore_errors=True)

    def receive(self):
        """The next message of the browser."""
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self.buffer:
            ready = select.select([self.answers], [], [], max(0.0, deadline - time.monotonic()))[0]
            piece = os.read(self.answers, 1 << 16) if ready else b""
            assert piece, "chromium has ended" if ready else f"chromium did not answer within {PATIENCE:.0f} s"
            self.buffer += piece
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def call(self, method, session=None, **parameters):
        """What the browser answers to a command; events that come meanwhile are kept."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.commands, data) :]
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)

    def open(self, path, width=1280, height=900, dark=False, script=True):
        return Page(self, path, width, height, dark, script)


SHARED = []  # the browser that the tests of a program share: to start one takes longer than a test


@contextlib.contextmanager
def shared():
    if not SHARED:
        SHARED.append(Browser())
    SHARED[0].events.clear()
    yield SHARED[0]


def run(names):
    """unit.run, and the end of the browser."""
    try:
        return unit.run(names)
    finally:
        for browser in SHARED:
            browser.close()


class Page:
    """A page that is loaded, its errors and warnings in `said`, and what it asked for in `requests`."""

    def __init__(self, browser, path, width, height, dark, script):
        self.browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.call("Page.navigate", url="file://" + os.path.abspath(path))
        self.wait_for("Page.loadEventFired")

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def own_events(self):
        return [event for event in self.browser.events if event.get("sessionId") == self.session]

    def wait_for(self, method):
        while not any(event["method"] == method for event in self.own_events()):
            self.browser.events.append(self.browser.receive())

    @property
    def said(self):
        """Errors and warnings of the page, of any kind."""
        lines = []
        for event in self.own_events():
            parameters = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                details = parameters["exceptionDetails"]
                lines.append(details.get("exception", {}).get("description") or details["text"])
            elif event["method"] == "Log.entryAdded":
                lines.append(parameters["entry"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled":
                lines.append(str(parameters["args"]))
        return lines

    @property
    def requests(self):
        sent = [event for event in self.own_events() if event["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def value(self, expression):
        """The value of a JavaScript expression, which must be one that JSON can hold."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, (expression, result)
        return result["result"].get("value")

    def mouse(self, kind, x, y, **parameters):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **parameters)

    def drag(self, start, end):
        for kind, (x, y) in (
            ("mouseMoved", start),
            ("mousePressed", start),
            ("mouseMoved", end),
            ("mouseReleased", end),
        ):
            pressed = {"button": "left", "buttons": 1, "clickCount": 1} if kind != "mouseMoved" or (x, y) == end else {}
            self.mouse(kind, x, y, **pressed)

    def screenshot(self, box=None):
        """A PNG, as bytes: of a box (x, y, width, height) of the page, or of what stands in the window."""
        clip = {"clip": dict(zip(("x", "y", "width", "height"), box), scale=1)} if box else {}
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=bool(box), **clip)
        return base64.b64decode(answer["data"])

    def pdf(self):
        return base64.b64decode(
            self.call("Page.printToPDF", printBackground=True, paperWidth=8.27, paperHeight=11.69)["data"]
        )


# ----------------------------------------------------------------------------
# PNG (ISO/IEC 15948), as far as a screenshot needs it: 8 bits a channel, RGB or RGBA, not interlaced


def read_png(data):
    """(width, height, channels, rows): each row bytes."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed = 8, b""
    while at < len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        content = data[at + 8 : at + 8 + size]
        if kind == b"IHDR":
            width, height, depth, color, _, _, interlaced = struct.unpack(">IIBBBBB", content)
        if kind == b"IDAT":
            packed += content
        at += 12 + size
    channels = {2: 3, 6: 4}[color]
    assert depth == 8 and not interlaced
    raw, rows, before = zlib.decompress(packed), [], bytes(width * channels)
    for y in range(height):
        at = y * (width * channels + 1)
        before = unfiltered(raw[at], bytearray(raw[at + 1 : at + 1 + width * channels]), before, channels)
        rows.append(bytes(before))
    return width, height, channels, rows


def unfiltered(kind, row, before, step):
    """A row from its differences to the pixels on the left, above, and above on the left (section 9.2)."""
    for i in range(len(row)):
        left, up, corner = row[i - step] if i >= step else 0, before[i], before[i - step] if i >= step else 0
        if kind == 4:
            estimate = left + up - corner
            near = min((abs(estimate - value), order, value) for order, value in enumerate((left, up, corner)))
            row[i] = row[i] + near[2] & 255
        elif kind:
            row[i] = row[i] + (0, left, up, left + up >> 1)[kind] & 255
    return row


def colors(data):
    """How often each colour (r, g, b) stands in a PNG."""
    _, _, channels, rows = read_png(data)
    return collections.Counter(row[i : i + 3] for row in rows for i in range(0, len(row), channels))
