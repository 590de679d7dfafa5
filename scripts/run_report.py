"""A page that shows runs: one file of HTML with all it needs in it, made with nothing but Python's standard library.

The page holds the curves as SVG (run_svg.py), run_report.css, and run_report.js, which makes them answer. The script
reads what it draws from JSON in the page. Whatever a log holds is text there, never markup: a policy in the page's head
lets no script run but this one, by its hash, and lets nothing be loaded.
"""

import base64
import hashlib
import html
import json
import os
import time

import run_curves
import run_lines
import run_log
import run_svg

MOST_NUMBERS = 48000  # points of a metric in the page, of all runs together
LEAST_POINTS, MOST_POINTS = 100, 1500  # of one run's
MOST_EVENTS, MOST_SAMPLES = 200, 12  # of one run
LONGEST_SAMPLE, LONGEST_TEXT = 20000, 600  # characters
FRESH_SECONDS = 120  # a log that was written so long ago is one of a run that goes on
HERE = os.path.dirname(os.path.abspath(__file__))

KIND_NAMES = {"nan": "not finite", "skip": "update skipped"}


def plain(text):
    """A text without control characters and halves of surrogate pairs, which no page may hold."""
    text = "".join(c if c in "\n\t" or (c >= " " and not "\x7f" <= c < "\xa0") else "\ufffd" for c in text)
    return text.encode("utf-8", "replace").decode()


def text(content, most=LONGEST_TEXT):
    """Any text, for HTML, between tags or in an attribute."""
    content = plain(str(content))
    return html.escape(content if len(content) <= most else f"{content[:most]}…")


def script_json(value):
    """JSON that may stand in a <script>."""
    encoded = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return encoded.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def template(name):
    with open(os.path.join(HERE, name), encoding="utf-8") as f:
        return f.read()


# ----------------------------------------------------------------------------
# The data of the script


def rounded(value):
    return float(f"{value:.6g}")


def series_data(series, most):
    points = run_curves.buckets(series, most)
    result = {"s": [p[0] for p in points], "v": [rounded(p[1]) for p in points]}
    if any(p[2] != p[3] for p in points):
        result["lo"], result["hi"] = [rounded(p[2]) for p in points], [rounded(p[3]) for p in points]
    return result


def run_data(i, run, panels, most):
    keys = [key for panel in panels for key in run_curves.PANELS[panel] if run.has(key)]
    events = [e for e in run.events if e[1] in run_svg.MARKED and e[0] is not None]
    series_of_time = series_data(run.series["time"], most) if "time" in run.series else None
    return {
        "id": f"r{i}",
        "name": plain(run.name)[:200],
        "tokens": run.tokens_per_step() or 0,
        "time": series_of_time and {"s": series_of_time["s"], "v": series_of_time["v"]},
        "series": {key: series_data(run.series[key], most) for key in keys},
        "marks": list(dict.fromkeys((step, kind) for step, kind, _ in events[:MOST_EVENTS])),
    }


def smoothing_windows(runs, chosen):
    """What the slider offers: 1, 2, 5, 10... up to a fifth of the longest run, and what was chosen."""
    longest = max((run.last_step() for run in runs), default=0)
    windows = [n * 10**e for e in range(9) for n in (1, 2, 5)]
    return sorted({1, chosen, *(n for n in windows if n <= longest / 5)})


def page_data(runs, panels, args):
    most = max(LEAST_POINTS, min(MOST_POINTS, MOST_NUMBERS // max(len(runs), 1) // 4))
    return {
        "x": args.x,
        "smooth": args.smooth,
        "logX": args.log_x,
        "follow": args.every if args.follow else 0,
        "windows": smoothing_windows(runs, args.smooth),
        "panels": [
            {
                "id": panel,
                "smooth": run_curves.METRICS[panel][2],
                "log": bool(args.log_y or run_curves.METRICS[panel][4]),
                "keys": run_curves.PANELS[panel],
            }
            for panel in panels
        ],
        "runs": [run_data(i, run, panels, most) for i, run in enumerate(runs)],
    }


# ----------------------------------------------------------------------------
# Head and summary


def condition(run):
    """(class of the badge, its text)"""
    last, total = run.last_step(), run.total_steps
    where = f"step {last:,}" + (f" of {total:,}" if total else "")
    if run.failed:
        return "bad", f"failed at {where}"
    if total and last >= total:
        return "good", f"finished, {last:,} steps"
    if run.ended:
        return "warn", f"stopped at {where}"
    if last == 0:
        return "", "no steps yet"
    return ("good", f"running, {where}") if time.time() - run.changed < FRESH_SECONDS else ("", where)


def badge(run):
    kind, content = condition(run)
    return f'<span class="badge {kind}">{text(content)}</span>'


def describe(run):
    """The model and where it was trained, in a line."""
    settings, facts = run.settings, run.facts
    parts = [settings.get("model")]
    if "parameters" in facts:
        count = run_lines.to_int(facts["parameters"])
        parts.append(f"{run_curves.short_number(count)} parameters" if count else None)
    parts += [facts.get("device") or settings.get("device"), settings.get("precision")]
    return " · ".join(text(part) for part in parts if part)


def size_text(count):
    for limit, unit in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB")):
        if count >= limit:
            return f"{count / limit:.4g} {unit}"
    return f"{count / 1024:.4g} KiB"


def memory_of(run, s):
    if "memory_bytes" in s:
        return size_text(s["memory_bytes"])
    planned = run.facts.get("GPU memory at the end") or run.facts.get("host memory at the end")
    if planned and planned.endswith(" used"):
        return planned.rpartition(", ")[2].removesuffix(" used")
    return run.facts.get("memory")


def values_of(run):
    """[(title, value, more)] of what is known of a run, the most telling first."""
    s, rows = run_curves.summary(run), []
    if "loss" in s:
        rows.append(("Training loss", f"{s['loss']:.4f}", f"mean of the last {s['loss_steps']} steps"))
    if "best" in s:
        rows.append(("Best validation loss", f"{s['best']:.4f}", f"at step {s['best_step']:,}"))
    if "hellaswag" in s:
        rows.append(("HellaSwag, best", f"{100 * s['hellaswag']:.2f}%", "accuracy"))
    if "tokens" in s:
        rows.append(("Tokens", run_curves.short_number(s["tokens"]), f"{run.tokens_per_step():,} a step"))
    if "time" in s:
        rows.append(("Training time", run_curves.duration(s["time"]), time_left(run, s)))
    if "tokens_per_second" in s:
        mfu = f", MFU {100 * s['mfu']:.1f}%" if "mfu" in s else ""
        rows.append(("Speed", run_curves.short_number(s["tokens_per_second"]), f"tokens/s, median{mfu}"))
    if memory_of(run, s):
        rows.append(("Memory", memory_of(run, s), ""))
    device = run.facts.get("device") or run.settings.get("device")
    if device:
        rows.append(("Device", device, run.settings.get("precision") or run.facts.get("precision", "")))
    return rows


def time_left(run, s):
    if run.ended or not s.get("time_left"):
        return "without validation"
    return f"about {run_curves.duration(s['time_left'])} left"


def cards(run):
    items = []
    for title, value, more in values_of(run):
        long = " long" if len(value) > 11 else ""
        items.append(
            f'<div><dt>{text(title)}</dt><dd><span class="value{long}">{text(value)}</span>'
            f'<span class="more">{text(more)}</span></dd></div>'
        )
    return f'<dl class="cards">{"".join(items)}</dl>' if items else ""


def table(head, rows):
    """A table that scrolls where it is too wide; its head and its rows are HTML."""
    body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="scroll" tabindex="0"><table>{body}</table></div>'


def swatch(name, most=LONGEST_TEXT):
    """A run's name behind its colour, which the element around it sets."""
    return f'<span class="swatch"></span> {text(name, most)}'


def summary_table(runs):
    """A row for each run."""
    values = [{title: value for title, value, _ in values_of(run)} for run in runs]
    titles = list(dict.fromkeys(title for row in values for title in row))
    best = {title: best_of(title, runs, values) for title in titles}
    head = "".join(f'<th class="{"number" if t != "Device" else ""}">{text(t)}</th>' for t in titles)
    rows = []
    for i, (run, row) in enumerate(zip(runs, values)):
        cells = []
        for title in titles:
            kind = "number" if title != "Device" else "long"
            kind += " best" if i in best[title] else ""
            cells.append(f'<td class="{kind}">{text(row.get(title, "-"))}</td>')
        name = f'<th scope="row" class="r{i}">{swatch(run.name)} {badge(run)}</th>'
        rows.append(f"<tr>{name}{''.join(cells)}</tr>")
    notes = [f"The training loss is the mean of the last {run_curves.LAST_STEPS} steps."] if LOSSES[0] in titles else []
    if len({run.vocabulary() for run in runs}) > 1:
        notes.append(
            "Losses of different vocabularies cannot be compared: a best one is marked among those of the same."
        )
    return table(f"<th>Run</th>{head}", rows) + (f'<p class="key">{" ".join(notes)}</p>' if notes else "")


LOSSES = ("Training loss", "Best validation loss")


def best_of(title, runs, values):
    """The indices of the runs that are best in a column; losses are compared within the same, known vocabulary."""
    order = max if title == "HellaSwag, best" else min if title in LOSSES else None
    groups = {}
    for i, row in enumerate(values):
        if order and title in row and (title not in LOSSES or runs[i].vocabulary()):
            key = runs[i].vocabulary() if title in LOSSES else None
            groups.setdefault(key, []).append((float(row[title].rstrip("%")), i))
    return {order(group)[1] for group in groups.values() if len(group) > 1}


def alerts(runs):
    """What went wrong, where it must not be missed."""
    lines = []
    for run in runs:
        wrong = [e for e in run.events if e[1] in ("error", "nan")]
        for step, kind, content in wrong[:3]:
            where = f"step {step:,}: " if step is not None and kind == "nan" else ""
            name = f"{text(run.name)}: " if len(runs) > 1 else ""
            lines.append(f'<p class="alert">{name}{where}{text(content)}</p>')
        if run.last_step() == 0:
            lines.append(f'<p class="alert warn">{text(run.name)} has no steps yet.</p>')
    return "".join(lines)


def page_head(runs):
    if len(runs) == 1:
        run = runs[0]
        parts = [f"<h1>{text(run.name)} {badge(run)}</h1>", f'<p class="under">{describe(run)}</p>']
        if run.total_steps and 0 < run.last_step() < run.total_steps:
            bar = f'max="{run.total_steps}" value="{run.last_step()}"'
            parts.append(f'<progress {bar} aria-label="steps done"></progress>')
        return "".join(parts) + alerts(runs) + cards(run)
    names = ", ".join(run.name for run in runs)
    head = f'<h1>{len(runs)} runs</h1><p class="under">{text(names)}</p>'
    return f"{head}{alerts(runs)}<h2>Summary</h2>{summary_table(runs)}"


# ----------------------------------------------------------------------------
# Curves


def button(label, pressed=True, **attributes):
    """A button; _ in an attribute's name is -. `pressed`: it is one that stays down."""
    more = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in attributes.items())
    return f'<button type="button"{more}{" aria-pressed=false" if pressed else ""}>{label}</button>'


def group(label, *content):
    return f'<div class="group" role="group" aria-label="{label}">{"".join(content)}</div>'


def tools(runs, args):
    known = {x: any(run_curves.x_of(run, x) for run in runs) for x in ("step", "tokens", "time")}
    x_buttons = [button(x, data_x=x, **({} if known[x] else {"disabled": ""})) for x in known]
    run_buttons = [button(swatch(r.name, 60), **{"class": f"run r{i}"}, data_run=f"r{i}") for i, r in enumerate(runs)]
    last = len(smoothing_windows(runs, args.smooth)) - 1
    slider = f'<input type="range" id="smooth" min="0" max="{last}" step="1"><output id="window" for="smooth"></output>'
    zoom = [
        button("−", False, id="zoom-out", aria_label="zoom out"),
        button("+", False, id="zoom-in", aria_label="zoom in"),
        button("all", False, id="zoom-all", aria_label="show all"),
        button("outliers", id="outliers"),
    ]
    groups = [
        group("runs", *run_buttons) if len(runs) > 1 else "",
        group("x axis", "<span>x</span>", *x_buttons, button("log", id="log-x", aria_label="logarithmic x axis")),
        group("smoothing", '<label for="smooth">smoothing</label>', slider),
        group("range", *zoom),
    ]
    return f'<div class="tools" id="tools" hidden>{"".join(groups)}</div>'


def figure(runs, panel, args, wide):
    title, unit, *_ = run_curves.METRICS[panel]
    svg = run_svg.panel_svg(runs, panel, args, text(f"{title} over {args.x}"))
    log = button("log", data_log=panel, aria_label=f"logarithmic {title.lower()}", hidden="")
    small = f" <small>{text(unit)}</small>" if unit else ""
    kind = ' class="wide"' if wide else ""
    return f'<figure id="panel-{panel}"{kind}><figcaption>{text(title)}{small}{log}</figcaption>{svg}</figure>'


def legend(runs, panels):
    names = ""
    if len(runs) > 1:
        names = " · ".join(f'<span class="r{i}">{swatch(r.name, 60)}</span>' for i, r in enumerate(runs))
        names = f'<p class="key">{names}</p>'
    kinds = {kind for run in runs for _, kind, _ in run.events}
    parts = ["line: training, smoothed, over its raw values" if "loss" in panels else ""]
    parts += ["dashed with dots: validation"] if any(run.has(run_curves.VALIDATION) for run in runs) else []
    parts += ["dotted upright: resumed there"] if "resume" in kinds else []
    parts += ["red upright: not finite, or the run's end with an error"] if kinds & {"nan", "error"} else []
    parts += ["▴ on the axis: a checkpoint"] if "checkpoint" in kinds else []
    use = "Drag to zoom, shift-drag to pan, double-click for all; pinch on a screen; arrows, + and − on the keyboard."
    return f'{names}<p class="key">{text("; ".join(filter(None, parts)))}.</p><p class="key live" hidden>{use}</p>'


def curves(runs, panels, args):
    if not panels:
        return ""
    figures = [figure(runs, panel, args, i == 0 and len(panels) % 2 == 1) for i, panel in enumerate(panels)]
    return f'<h2>Curves</h2>{tools(runs, args)}<div class="charts">{"".join(figures)}</div>{legend(runs, panels)}'


# ----------------------------------------------------------------------------
# Settings, samples, events


def settings_table(runs, rows, marked=()):
    head = "".join(f'<th class="name r{i}">{swatch(run.name)}</th>' for i, run in enumerate(runs))
    lines = []
    for name, values in rows:
        cells = "".join(f"<td>{text(value)}</td>" for value in values)
        kind = ' class="differs"' if name in marked else ""
        lines.append(f'<tr{kind}><th scope="row">{text(name)}</th>{cells}</tr>')
    return table(f"<th>Setting</th>{head}", lines)


def listing(runs, values, marked=()):
    """Names and values: a list for one run, a table for several. `values` are a dict for each run."""
    names = sorted({name for value in values for name in value})
    if len(runs) > 1:
        return settings_table(runs, [(name, [v.get(name, "-") for v in values]) for name in names], marked)
    items = (f"<div><dt>{text(name)}</dt><dd>{text(values[0][name])}</dd></div>" for name in names)
    return f'<dl class="scroll list">{"".join(items)}</dl>'


def settings(runs):
    """What the runs differ in, then all settings, then what each machine said."""
    if not any(run.settings or run.facts for run in runs):
        return ""
    parts = ["<h2>Settings</h2>"]
    differing = run_log.differences(runs) if len(runs) > 1 else []
    if sum(bool(run.settings) for run in runs) > 1:
        said = "The runs differ in these settings." if differing else "All settings are the same."
        parts.append(f'<p class="under">{said}</p>')
        parts.append(settings_table(runs, differing) if differing else "")
    unknown = [run.name for run in runs if not run.settings]
    if unknown:
        parts.append(f'<p class="under">Not known: {text(", ".join(unknown))} (no checkpoint, no captured stdout).</p>')
    opened = " open" if len(runs) == 1 else ""
    if any(run.settings for run in runs):
        table = listing(runs, [run.settings for run in runs], [name for name, _ in differing])
        parts.append(f"<details{opened}><summary>All settings</summary>{table}</details>")
    if any(run.facts for run in runs):
        table = listing(runs, [run.facts for run in runs])
        parts.append(f"<details{opened}><summary>Model, data and machine, as the run said</summary>{table}</details>")
    return "".join(parts)


def sample(run, i, step, content, runs):
    name = f"{swatch(run.name)} " if len(runs) > 1 else ""
    head = f"<h3>{name}<span>after step {step:,}</span></h3>"
    return f'<div class="sample r{i}">{head}<pre tabindex="0">{text(content, LONGEST_SAMPLE)}</pre></div>'


def samples(runs):
    """The last sample of each run, and those before it."""
    newest, older = [], []
    for i, run in enumerate(runs):
        taken = run.samples[-MOST_SAMPLES:]
        newest += [sample(run, i, *taken[-1], runs)] if taken else []
        older += [sample(run, i, *entry, runs) for entry in reversed(taken[:-1])]
    if not newest:
        return ""
    rest = ""
    if older:
        inside = f'<div class="samples">{"".join(older)}</div>'
        rest = f"<details><summary>{len(older)} earlier</summary>{inside}</details>"
    return f'<h2>Samples</h2><div class="samples">{"".join(newest)}</div>{rest}'


def chosen_events(run):
    """The events that matter most, in the order of their steps."""
    if len(run.events) <= MOST_EVENTS:
        return run.events
    order = sorted(range(len(run.events)), key=lambda i: (run_lines.KINDS.index(run.events[i][1]), i))
    return [run.events[i] for i in sorted(order[:MOST_EVENTS])]


def events(runs):
    rows = []
    for i, run in enumerate(runs):
        name = f'<th scope="row" class="r{i}">{swatch(run.name)}</th>' if len(runs) > 1 else ""
        for step, kind, content in chosen_events(run):
            where = "" if step is None else f"{step:,}"
            word = f'<span class="kind {kind}">{KIND_NAMES.get(kind, kind)}</span>'
            rows.append(f'<tr>{name}<td class="number">{where}</td><td>{word}</td><td>{text(content)}</td></tr>')
        if len(run.events) > MOST_EVENTS:
            rows.append(f"<tr>{name}<td></td><td></td><td>and {len(run.events) - MOST_EVENTS:,} more</td></tr>")
    if not rows:
        return ""
    first = "<th>Run</th>" if len(runs) > 1 else ""
    content = table(f'{first}<th class="number">Step</th><th>What</th><th></th>', rows)
    if len(rows) > 12:
        content = f"<details><summary>{len(rows)} events</summary>{content}</details>"
    return f"<h2>Events</h2>{content}"


def page_foot(runs):
    lines = []
    for run in runs:
        passed = f"; {run.unread_lines:,} lines of it are not the trainer's" if run.unread_lines else ""
        lines.append(f"<p>{text(run.name)}: {text(', '.join(run.sources))}{passed}</p>")
    date = time.strftime("%Y-%m-%d %H:%M", time.localtime())
    lines.append(f"<p>Written by flashgpt's scripts/plot_run.py, {date}. A step N is the state after N updates.</p>")
    return "".join(lines)


def color_rules(count):
    def rules(i):
        light, dark = run_curves.COLORS[i % len(run_curves.COLORS)]
        return f".r{i}{{--c:{light}}}", f".r{i}{{--c:{dark}}}"

    pairs = [rules(i) for i in range(count)]
    dark = "".join(pair[1] for pair in pairs)
    return "".join(pair[0] for pair in pairs) + f"@media screen and (prefers-color-scheme:dark){{{dark}}}"


def policy(script):
    """What the page may load and run: nothing but this script and its own style."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    style = "style-src 'unsafe-inline'"
    return f"default-src 'none'; {style}; script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def page(runs, args):
    """The page of these runs; args.x, .smooth, .log_x, .log_y, .follow and .every are what plot_run.py was told."""
    panels = [p for p, keys in run_curves.PANELS.items() if any(run.has(key) for run in runs for key in keys)]
    script, style = template("run_report.js"), template("run_report.css") + color_rules(len(runs))
    name = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    reload = f'<noscript><meta http-equiv="refresh" content="{args.every}"></noscript>' if args.follow else ""
    main = "".join((curves(runs, panels, args), settings(runs), samples(runs), events(runs)))
    data = script_json(page_data(runs, panels, args))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy(script)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(name, 100)}</title>{reload}\n<style>\n{style}</style></head>\n"
        f"<body><header>{page_head(runs)}</header><main>{main}</main><footer>{page_foot(runs)}</footer>\n"
        f'<script type="application/json" id="data">{data}</script>\n<script>{script}</script></body></html>\n'
    )
