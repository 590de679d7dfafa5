#!/usr/bin/env python3
"""Tests of the page of scripts/plot_run.py --html: what it holds, and how it stands in a headless Chromium; 20 seconds.

python3 dev/test/scripts/test_report.py
"""

import html.parser
import json
import math
import os
import re
import sys
import time

import browser
import run_logs
from run_logs import HOSTILE, main_log, plot, state_file, stdout, write

run_curves, run_lines, run_report = (run_logs.module(name) for name in ("run_curves", "run_lines", "run_report"))

PANELS = ("loss", "hellaswag", "lr", "norm", "tokens_per_second", "mfu")
BOX = "(e => { const r = e.getBoundingClientRect(); return [r.left + scrollX, r.top + scrollY, r.width, r.height] })"


def two_runs(folder):
    """The page of a resumed run with all that a log can hold, and of a second one that differs."""
    write(f"{folder}/first/main.log", main_log())
    write(f"{folder}/first/stdout.txt", stdout(0, 60) + stdout(40, 100, resume=1, source="run/model_00000040.bin"))
    state_file(f"{folder}/first/state_00000100_00000.bin", learning_rate="0.001", total_batch="512")
    write(f"{folder}/second/main.log", main_log(last=80, run=78) + "s:80 trl:nan lr:3e-4 norm:nan\n")
    state_file(f"{folder}/second/state_00000080_00000.bin", learning_rate="0.003", total_batch="512")
    plot(f"{folder}/first", f"{folder}/second", "--html", f"{folder}/page.html")
    return f"{folder}/page.html"


def text_of(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def data_of(page):
    """The data of the script."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page)[1])


class Checker(html.parser.HTMLParser):
    """Elements of a page: that each is closed, which there are, and what they refer to."""

    VOID = ("meta", "input", "br", "link", "img")

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.links, self.handlers = [], [], [], []
        self.feed(page)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        assert all(re.fullmatch("[a-zA-Z][a-zA-Z-]*", name) for name, _ in attributes), (tag, attributes)
        self.links += [value for name, value in attributes if name in ("src", "href", "srcset", "action")]
        self.handlers += [name for name, _ in attributes if name.startswith("on")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes another element"


# ----------------------------------------------------------------------------
# The file


def test_the_page_holds_all_of_itself(folder):
    page = text_of(two_runs(folder))
    checker = Checker(page)
    assert checker.links == [] and checker.handlers == [] and "@import" not in page and "url(#" in page
    assert not re.search(r"(https?:)?//(?!www\.w3\.org/2000/svg)[a-z0-9.]+\.[a-z]{2,}", re.sub(r"\s// .*", "", page))
    assert checker.tags.count("script") == 2 and checker.tags.count("svg") == len(PANELS)
    for panel in PANELS:
        assert f'id="panel-{panel}"' in page
    data = data_of(page)
    assert [run["name"] for run in data["runs"]] == ["first", "second"]
    assert data["runs"][0]["series"]["loss"]["s"] == list(range(100))
    assert data["runs"][1]["series"]["loss"]["s"] == list(range(80)), "NaN is no point"
    assert [40, "resume"] in data["runs"][0]["marks"] and [80, "nan"] in data["runs"][1]["marks"]


def test_an_axis_goes_from_the_first_step_to_the_last(folder):
    page = text_of(two_runs(folder))
    for panel in ("loss", "lr", "norm"):
        svg = re.search(rf'id="panel-{panel}".*?<svg.*?</svg>', page, re.DOTALL)[0]
        box = re.search(r'<clipPath [^>]*><rect x="([\d.]+)" [^>]*?width="([\d.]+)"', svg)
        left, right = float(box[1]) + 4, float(box[1]) + float(box[2]) - 4
        xs = [float(x) for d in re.findall(r'class="curve" d="M([^"]*)"', svg) for x in re.findall(r"([\d.]+) ", d)]
        assert (min(xs), max(xs)) == (left, right), (panel, left, right, min(xs), max(xs))


def test_a_curve_fills_its_panel_and_no_more(folder):
    page = text_of(two_runs(folder))
    for panel in ("loss", "norm"):
        svg = re.search(rf'id="panel-{panel}".*?<svg.*?</svg>', page, re.DOTALL)[0]
        box = re.search(r'<clipPath [^>]*><rect [^>]*?y="([\d.]+)" [^>]*?height="([\d.]+)"', svg)
        top, height = float(box[1]), float(box[2])
        ys = [float(y) for d in re.findall(r'class="curve" d="M([^"]*)"', svg) for y in re.findall(r" ([\d.-]+)", d)]
        assert top <= min(ys) and max(ys) <= top + height and max(ys) - min(ys) > height / 2, (panel, top, height)


def test_what_the_page_says(folder):
    page = text_of(two_runs(folder))
    for said in ("NVIDIA H200, 132 SMs", "upon a time", "the loss is nan", "resumed at step 40", "finished, 100 steps"):
        assert said in page, said
    assert re.search(r"learning-rate</th><td>0.001</td><td>0.003</td>", page)
    assert re.search(r'<tr class="differs"><th scope="row">learning-rate', page)
    assert '<tr class="differs"><th scope="row">total-batch' not in page
    write(f"{folder}/half.txt", stdout(0, 40))
    plot(f"{folder}/half.txt", "--html", f"{folder}/half.html")
    assert 'max="100" value="40"' in text_of(f"{folder}/half.html") and "about 6s left" in text_of(
        f"{folder}/half.html"
    )
    old = time.time() - 3600
    os.utime(f"{folder}/half.txt", (old, old))
    assert "running, step 40" in text_of(f"{folder}/half.html")
    plot(f"{folder}/half.txt", "--html", f"{folder}/half.html")
    assert "running" not in text_of(f"{folder}/half.html")


def best_cells(page):
    """{name of a run: what is marked as best in its row}"""
    rows = re.findall(r'<tr><th scope="row" class="r\d">.*?</span> (\w+) <span.*?</th>(.*?)</tr>', page)
    return {name: re.findall(r'<td class="number best">(.*?)</td>', cells) for name, cells in rows}


def test_the_condition_of_a_run(folder):
    def said(out):
        write(f"{folder}/out.txt", out)
        return run_report.condition(run_report.run_log.read_runs([f"{folder}/out.txt"])[0])

    assert said(stdout(0, 60)) == ("good", "running, step 60 of 100")
    assert said(stdout(0, 100))[0] == "good" and "finished" in said(stdout(0, 100))[1]
    assert said(stdout(0, 60) + "host memory: 9 MiB planned, 8 MiB used\n") == ("warn", "stopped at step 60 of 100")


def test_a_failed_run_that_was_resumed_has_not_failed(folder):
    begin, step = '{"step": %d, "event": "%s", "run": "77", "steps": 100}\n', '{"step": 59, "loss": 5.0}\n'
    end = '{"step": 60, "event": "end", "exit_code": 1}\n'
    logs = {
        "out.txt": (stdout(0, 60) + "error: no\n", stdout(40, 60, resume=1, source="run/model_00000040.bin")),
        "log.jsonl": (begin % (0, "start") + step + end, begin % (40, "resume") + step),
    }
    write(f"{folder}/run/main.log", main_log(0, 60))
    for name, (failed, resumed) in logs.items():
        for text, condition in ((failed, "failed at"), (failed + resumed, "running,"), (2 * failed, "failed at")):
            path = write(f"{folder}/{name}", text)
            run = run_report.run_log.read_runs([path])[0]
            assert run_report.condition(run)[1] == f"{condition} step 60 of 100", run_report.condition(run)
            assert "error" in [kind for _, kind, _ in run.events], "the page's alert"
            os.utime(path, (time.time() - 60, time.time() - 60))  # before main.log: the stdout of an earlier job
            run = run_report.run_log.read_runs([f"{folder}/run", path])[0]
            assert run.failed == (name == "log.jsonl" and condition == "failed at"), (name, condition)
            os.utime(path)
            assert run_report.run_log.read_runs([f"{folder}/run", path])[0].failed == (condition == "failed at")


def test_losses_of_different_vocabularies_are_not_compared(folder):
    runs = {"a": (256, 3), "b": (256, 2), "c": (50257, 1), "d": (50257, 4), "e": (None, 0), "g": (None, 5)}
    for name, (size, more) in runs.items():
        write(
            f"{folder}/{name}/main.log",
            main_log(run=more + 1).replace("trl:", f"trl:{more}").replace("tel:", f"tel:{more}"),
        )
        if size:
            state_file(f"{folder}/{name}/state_00000100_00000.bin", model=f"V {size}, Vp 50304, L 2")
    page = f"{folder}/page.html"

    def best(*names):
        plot(*(f"{folder}/{name}" for name in names), "--html", page)
        return {name: len(cells) for name, cells in best_cells(text_of(page)).items() if name in names}

    assert best("a", "b") == {"a": 0, "b": 3}
    assert "cannot be compared" not in text_of(page) and "mean of the last 20 steps" in text_of(page)
    assert best("a", "b", "c", "d", "e") == {"a": 0, "b": 2, "c": 2, "d": 0, "e": 1}, "of equal HellaSwags the last"
    assert "Losses of different vocabularies cannot be compared" in text_of(page)
    assert best("a", "c") == {"a": 0, "c": 1}
    assert best("e", "g") == {"e": 0, "g": 1}, "nobody knows whether they have the same"
    stated = write(
        f"{folder}/f/out.txt", stdout().replace("| device ", "| vocabulary V (Vp)     | 256 (256) |\n| device ")
    )
    (run,) = run_logs.module("run_log").read_runs([stated])
    assert run.vocabulary() == 256


def test_names_and_samples_stay_text(folder):
    name = HOSTILE.replace("/", "\u2215")[:80]
    raw = stdout(0, 60).replace("ONCE", f"{HOSTILE}\x00\x1b]0;x\x07 end").encode() + b"warning: \xff\xfe<b>bold\n"
    write(os.path.join(folder, name, "main.log"), main_log())
    write(os.path.join(folder, name, "out.txt"), raw)
    state_file(os.path.join(folder, name, "state_00000100_00000.bin"), seed=HOSTILE)
    plot(os.path.join(folder, name), "--html", f"{folder}/page.html", "--labels", HOSTILE)
    page = text_of(f"{folder}/page.html")
    checker = Checker(page)
    assert checker.tags.count("script") == 2 and "img" not in checker.tags and checker.handlers == []
    assert "\x00" not in page and "\x1b" not in page and "&lt;b&gt;bold" in page
    assert data_of(page)["runs"][0]["name"] == run_report.plain(HOSTILE)
    with browser.shared() as b:
        tab = b.open(f"{folder}/page.html")
        assert tab.value("document.title").startswith("</script>") and tab.said == [], tab.said
        assert tab.value("document.querySelector('.sample pre').textContent.includes('onerror=alert')")


def test_a_million_steps_make_a_small_page(folder):
    run = run_logs.module("run_log").Run("big", folder)
    for key in ("loss", "lr", "norm", "ms", "tokens_per_second", "mfu"):
        series = run.series[key] = run_lines.Series()
        series.steps.extend(range(1000000))
        series.values.extend(math.sin(step * 0.37) + 2.0 for step in range(1000000))
    run.series["loss"].values[123456] = 99.0
    run.events = [(step, "skip", "skipping the update") for step in range(5000)] + [(7, "error", "it ended")]
    run.samples = [(step, "x" * 100000) for step in range(500)]
    args = run_logs.arguments(run_curves.default_window([run]))
    start = time.monotonic()
    page = run_report.page([run], args)
    assert len(page) < 1_000_000, len(page)
    assert time.monotonic() - start < 30
    series = data_of(page)["runs"][0]["series"]["loss"]
    assert len(series["s"]) <= run_report.MOST_POINTS and max(series["hi"]) == 99.0
    assert "it ended" in page and "4,801 more" in page


def test_following_writes_again_what_has_changed(folder):
    log = write(f"{folder}/main.log", main_log(last=10))
    before = run_logs.module("plot_run").stamp([log])
    assert run_logs.module("plot_run").stamp([log]) == before
    write(log, main_log(last=11))
    assert run_logs.module("plot_run").stamp([log]) != before
    args = run_logs.arguments(1)
    args.follow = True
    page = run_report.page(run_logs.module("run_log").read_runs([log]), args)
    assert data_of(page)["follow"] == 5 and '<noscript><meta http-equiv="refresh" content="5">' in page


# ----------------------------------------------------------------------------
# In a browser


def points_of(tab, panel):
    """How many points each curve of a panel has, as it stands in the page."""
    paths = f"[...document.querySelectorAll('#panel-{panel} path.curve')]"
    return tab.value(f"{paths}.map(p => p.getAttribute('d').split(/[ML]/).length - 1)")


def test_the_curves_in_the_page(folder):
    path = two_runs(folder)
    with browser.shared() as b:
        tab = b.open(path)
        assert tab.said == [], tab.said
        assert tab.requests == ["file://" + path], tab.requests
        for panel, points in (("loss", [100, 80]), ("lr", [100, 81]), ("norm", [100, 80]), ("mfu", [100])):
            assert points_of(tab, panel) == points, (panel, points_of(tab, panel))
        assert tab.value("document.querySelectorAll('#panel-loss path.validation').length") == 2
        assert tab.value("document.querySelectorAll('#panel-loss .mark.nan').length") == 1
        assert tab.value("document.querySelectorAll('#panel-loss .mark.resume').length") == 1


def test_without_a_script_the_curves_are_there_too(folder):
    path = two_runs(folder)
    with browser.shared() as b:
        tab = b.open(path, script=False)
        found = browser.colors(tab.screenshot((0, 300, 1200, 600)))
        assert len(colored(found)) > 20 and tab.said == []


def colored(counts):
    """The colours that are no grey, as letters and the lines of a grid are."""
    return [color for color in counts if max(color) - min(color) > 40]


def test_it_is_drawn_at_both_widths_and_in_the_dark(folder):
    path = two_runs(folder)
    with browser.shared() as b:
        for width, dark in ((1280, False), (360, False), (360, True)):
            tab = b.open(path, width, 800, dark)
            assert tab.said == [], (width, tab.said)
            assert tab.value("document.documentElement.scrollWidth") <= width
            for panel in ("loss", "lr", "tokens_per_second"):
                box = tab.value(f"{BOX}(document.querySelector('#panel-{panel} svg'))")
                found = browser.colors(tab.screenshot(box))
                background = max(found, key=found.get)
                assert (max(background[:3]) < 64) == dark, (panel, background)
                assert len(colored(found)) > 5 and len(found) > 15, (width, panel, len(found))


def test_it_answers(folder):
    path = two_runs(folder)
    with browser.shared() as b:
        tab = b.open(path)
        tab.value("document.getElementById('panel-loss').scrollIntoView()")
        left, top, width, height = tab.value(
            "(e => { const r = e.getBoundingClientRect(); "
            "return [r.left, r.top, r.width, r.height] })"
            "(document.querySelector('#panel-loss svg'))"
        )
        middle = top + height / 2
        tab.mouse("mouseMoved", left + width / 2, middle)
        tip = tab.value("document.querySelector('#panel-loss .tip').textContent")
        assert "first" in tip and "second, validation" in tip and "step " in tip, tip
        tab.drag((left + width * 0.4, middle), (left + width * 0.6, middle + 5))
        zoomed = points_of(tab, "loss")
        assert 15 <= zoomed[0] <= 35 and points_of(tab, "lr")[0] == zoomed[0], zoomed
        tab.value("document.getElementById('zoom-all').click()")
        assert points_of(tab, "loss") == [100, 80]
        tab.value("document.querySelector('button.run.r1').click()")
        assert points_of(tab, "loss") == [100]
        before = tab.value("document.querySelector('#panel-loss path.curve').getAttribute('d')")
        tab.value("(s => { s.value = s.max; s.dispatchEvent(new Event('input')) })(document.getElementById('smooth'))")
        smooth = tab.value("document.querySelector('#panel-loss path.curve').getAttribute('d')")
        assert smooth != before
        for control in ("[data-log=loss]", "#log-x", "[data-x=tokens]", "[data-x=time]", "#outliers", "#zoom-in"):
            tab.value(f"document.querySelector('{control}').click()")
            now = tab.value("document.querySelector('#panel-loss path.curve').getAttribute('d')")
            assert now and "NaN" not in now and "Infinity" not in now, (control, now[:100])
        tab.value("document.querySelector('#panel-loss svg').focus()")
        for key in ("ArrowRight", "+", "-", "0", "Escape"):
            tab.call("Input.dispatchKeyEvent", type="keyDown", key=key)
        assert tab.said == [], tab.said


def test_logarithmic_axes_of_what_has_no_logarithm(folder):
    steps = 4000
    lines = [f"s:{i} trl:{2 + third:.6f} lr:0 norm:0\n" for i in range(steps) for third in (i / steps,)]
    first = write(f"{folder}/first/main.log", "".join(lines))
    second = write(f"{folder}/second/main.log", "".join(lines).replace("trl:", "trl:1"))
    begin = '{"step": 0, "event": "start", "run": "7", "steps": 9, "tokens_per_step": 64}\n'
    step = write(f"{folder}/step.jsonl", begin + '{"step": 0, "loss": 5.0, "norm": 0, "lr": 0, "ms": 200}\n')
    page = f"{folder}/page.html"
    for arguments in ([step], [step, "--x", "time"], [step, "--x", "tokens"], [first, second, "--difference"]):
        plot(*arguments, "--html", page, "--log-x", "--log-y")
        text = text_of(page)
        assert "nan" not in "".join(re.findall(r' d="[^"]*"', text)), arguments
        with browser.shared() as b:
            tab = b.open(page)
            tab.value("for (const run of document.querySelectorAll('button.run')) run.click()")  # nothing is shown
            assert tab.said == [], arguments


def test_it_prints(folder):
    path = two_runs(folder)
    with browser.shared() as b:
        tab = b.open(path)
        pdf = tab.pdf()
        assert pdf.startswith(b"%PDF-") and 2 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 8
        tab.call("Emulation.setEmulatedMedia", media="print")
        tab.call("Emulation.setDeviceMetricsOverride", width=690, height=1000, deviceScaleFactor=1, mobile=False)
        width = tab.value("document.documentElement.scrollWidth")
        assert width <= 690 and tab.said == [], (width, tab.said)


def test_a_page_that_reloads_stays_as_it_was_set(folder):
    log, page = f"{folder}/main.log", f"{folder}/page.html"
    now = "[document.getElementById('window').textContent, document.querySelector('[data-log=norm]').ariaPressed]"

    def follow(steps):
        args = run_logs.arguments(1 if steps < 1000 else 20)
        args.follow, args.every = True, 600
        runs = run_logs.module("run_log").read_runs([write(log, main_log(last=steps) if steps else "s:0 tel:5.0\n")])
        write(page, run_report.page(runs, args))

    def reload(tab):
        tab.browser.events.clear()
        tab.call("Page.reload")
        tab.wait_for("Page.loadEventFired")
        return tab.value(now)

    follow(0)
    with browser.shared() as b:
        tab = b.open(page)
        follow(1000)
        assert reload(tab) == ["20 steps", "true"], "what nobody has set is as the page has it"
        tab.value("document.querySelector('[data-log=norm]').click()")
        tab.value("(s => { s.value = s.max; s.dispatchEvent(new Event('input')) })(document.getElementById('smooth'))")
        assert reload(tab) == ["200 steps", "false"] and tab.said == [], tab.said


def test_a_page_without_steps(folder):
    plot(write(f"{folder}/main.log", ""), "--html", f"{folder}/page.html")
    with browser.shared() as b:
        assert b.open(f"{folder}/page.html").said == []


if __name__ == "__main__":
    sys.exit(browser.run(globals()))
