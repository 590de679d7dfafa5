// Makes the curves of the page answer: read-out, zoom and pan along x, smoothing, log axes, runs on and off. Without it the page
// shows them as they were drawn when it was written. The data are JSON in #data; see run_report.py for what they hold.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const SVG = "http://www.w3.org/2000/svg";
  const DAY = 86400;
  const state = {
    x: data.x, window: data.smooth, logX: data.logX, outliers: false, hidden: new Set(), logY: {}, view: null, at: null,
  };
  for (const panel of data.panels) state.logY[panel.id] = panel.log;
  const KEPT = "view of " + location.pathname;  // a page that is written again reloads, and stays as it was set

  // ---------------------------------------------------------------------------------------------------------------------
  // Numbers

  function short(v) {
    const size = Math.abs(v);
    for (const [limit, by, suffix] of [[1e12, 1e12, "T"], [1e9, 1e9, "G"], [1e6, 1e6, "M"], [1e4, 1e3, "k"]]) {
      if (size >= limit) return String(Number((v / by).toPrecision(4))) + suffix;
    }
    return size !== 0 && size < 1e-4 ? v.toExponential().replace(/(\.\d{3})\d*/, "$1") : String(Number(v.toPrecision(4)));
  }

  function duration(seconds) {
    const s = Math.round(seconds), two = (n) => String(n).padStart(2, "0");
    if (s < 60) return (seconds < 10 ? Number(seconds.toPrecision(2)) : s) + "s";
    if (s < 3600) return Math.floor(s / 60) + "m" + two(s % 60) + "s";
    if (s < DAY) return Math.floor(s / 3600) + "h" + two(Math.floor(s / 60) % 60) + "m";
    return Math.floor(s / DAY) + "d" + two(Math.floor(s / 3600) % 24) + "h";
  }

  function exact(v, panel) {
    if (panel.id === "memory_bytes") return Number((v / 2 ** 20).toPrecision(5)) + " MiB";
    if (panel.id === "tokens_per_second") return Math.round(v).toLocaleString("en");
    if (panel.id === "mfu") return (100 * v).toFixed(1) + "%";
    if (panel.id === "lr") return v.toExponential(3);
    return v.toFixed(4);
  }

  const xText = (v) => state.x === "time" ? duration(v) : short(v);

  function linearTicks(low, high, most) {
    if (!(high - low > 1e-9 * Math.max(Math.abs(low), Math.abs(high)))) return [low];
    const raw = (high - low) / Math.max(most, 1), power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw * (1 - 1e-9)) || 10 * power;
    const ticks = [];
    for (let i = Math.ceil(low / step - 1e-9); i <= Math.floor(high / step + 1e-9); i++) ticks.push(i * step);
    return ticks;
  }

  function timeTicks(low, high, most) {
    const steps = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, DAY];
    const raw = (high - low) / Math.max(most, 1);
    const step = steps.find((s) => s >= raw);
    if (raw < 1) return linearTicks(low, high, most);
    if (!step) return linearTicks(low / DAY, high / DAY, most).map((t) => t * DAY);
    const ticks = [];
    for (let t = Math.ceil(low / step) * step; t <= high; t += step) ticks.push(t);
    return ticks;
  }

  function logTicks(low, high, most) {
    const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
    const every = Math.max(1, Math.ceil((last - first) / most)), mantissas = last - first <= most / 2 ? [1, 2, 5] : [1];
    const ticks = [];
    for (let e = first; e <= last; e += every) for (const m of mantissas) ticks.push(m * 10 ** e);
    const inside = ticks.filter((t) => t >= low * (1 - 1e-9) && t <= high * (1 + 1e-9));
    return inside.length > 1 ? inside : linearTicks(low, high, most).filter((t) => t > 0);
  }

  // ---------------------------------------------------------------------------------------------------------------------
  // Curves. A series is {s: steps, v: means, lo, hi}; lo and hi are there where a point stands for several steps.

  // Index of the first step that is not below `step`
  function lowerBound(steps, step) {
    let low = 0, high = steps.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (steps[middle] < step) low = middle + 1; else high = middle;
    }
    return low;
  }

  function timeOf(run, step) {
    const { s, v } = run.time, i = lowerBound(s, step);
    if (i === s.length) return v[i - 1];
    const s0 = i ? s[i - 1] : 0, t0 = i ? v[i - 1] : 0;
    return s[i] > s0 ? t0 + (v[i] - t0) * (step - s0) / (s[i] - s0) : v[i];
  }

  function xOf(run, step) {
    if (state.x === "tokens") return step * run.tokens;
    return state.x === "time" ? timeOf(run, step) : step;
  }

  const knowsX = (run) => state.x === "step" || (state.x === "tokens" ? run.tokens > 0 : run.time !== null);

  // The exponential moving average with a time constant of `window` steps, unbiased at its beginning.
  function smooth(series, window) {
    if (window <= 1) return series.v;
    const { s, v } = series, out = new Array(v.length);
    let total = 0, weight = 0;
    for (let i = 0; i < v.length; i++) {
      const keep = Math.exp(-(i ? s[i] - s[i - 1] : 1) / window);
      total = keep * total + (1 - keep) * v[i];
      weight = keep * weight + (1 - keep);
      out[i] = total / weight;
    }
    return out;
  }

  const smoothed = new Map();
  function curveOf(run, key, panel) {
    const series = run.series[key];
    const window = panel.smooth && key !== "val_loss" ? state.window : 1;
    const id = data.runs.indexOf(run) + " " + key + " " + window + " " + state.x;
    if (!smoothed.has(id)) {
      if (smoothed.size > 400) smoothed.clear();
      smoothed.set(id, { x: series.s.map((step) => xOf(run, step)), y: smooth(series, window), window, series, run, key });
    }
    return smoothed.get(id);
  }

  const visibleRuns = () => data.runs.filter((run) => !state.hidden.has(run.id) && knowsX(run));

  function curvesOf(panel) {
    const curves = [];
    for (const run of visibleRuns()) {
      for (const key of panel.keys) if (run.series[key]) curves.push(curveOf(run, key, panel));
    }
    return curves;
  }

  function fullView() {
    let low = Infinity, high = -Infinity;
    for (const panel of data.panels) {
      for (const { x } of curvesOf(panel)) {
        low = Math.min(low, x[0]);
        high = Math.max(high, x[x.length - 1]);
      }
    }
    if (!(high >= low)) [low, high] = [0, 1]; // nothing is shown
    if (!state.logX) return high > low ? [low, high] : [low - 0.5, high + 0.5];
    if (!(high > 0)) return [0.1, 10]; // nothing has a logarithm
    low = Math.max(low, high > 1 ? 1 : high / 1e6);
    return high > low ? [low, high] : [low / 2, high * 2];
  }

  // What of a curve lies in the view, with a neighbour on each side
  function inView(curve, view) {
    return [Math.max(lowerBound(curve.x, view[0]) - 1, 0), Math.min(lowerBound(curve.x, view[1]) + 1, curve.x.length)];
  }

  // What a curve asks of its panel: all, but for outliers of at most a hundredth that would halve the rest's height.
  function extent(curve, view, log) {
    const [begin, end] = inView(curve, view), { lo, hi, v } = curve.series;
    const sorted = (values) => values.slice(begin, end).filter((y) => !log || y > 0).sort((a, b) => a - b);
    const lows = sorted(lo || v), highs = sorted(hi || v), ys = sorted(curve.y), n = ys.length;
    if (!n) return [Infinity, -Infinity];
    const low = Math.min(lows[0], ys[0]), high = Math.max(highs[highs.length - 1], ys[n - 1]), outer = Math.floor(n / 100);
    if (state.outliers || log || outer === 0) return [low, high];
    const innerLow = Math.min(lows[outer], ys[outer]), innerHigh = Math.max(highs[highs.length - 1 - outer], ys[n - 1 - outer]);
    const span = innerHigh - innerLow;
    return [innerLow - low > span ? innerLow : low, high - innerHigh > span ? innerHigh : high];
  }

  function rangeOf(curves, view, log) {
    const extents = curves.map((curve) => extent(curve, view, log));
    const low = Math.min(...extents.map((e) => e[0])), high = Math.max(...extents.map((e) => e[1]));
    if (!(high >= low)) return null;
    const size = Math.max(Math.abs(low), Math.abs(high)); // all values may be the same, but for rounding
    if (log) {
      const margin = high > low * (1 + 1e-6) ? (high / low) ** 0.04 : 2;
      return [low / margin, high * margin];
    }
    const margin = high - low > Math.max(1e-6 * size, 1e-200) ? 0.05 * (high - low) : 0.05 * size || 1;
    return [low - margin, high + margin];
  }

  // ---------------------------------------------------------------------------------------------------------------------
  // Drawing

  function node(name, attributes, parent) {
    const element = document.createElementNS(SVG, name);
    for (const key of Object.keys(attributes)) element.setAttribute(key, attributes[key]);
    if (parent) parent.appendChild(element);
    return element;
  }

  function text(parent, x, y, anchor, content) {
    node("text", { x, y, "text-anchor": anchor }, parent).textContent = content;
  }

  function scale(low, high, from, to, log) {
    const a = log ? Math.log(low) : low, b = log ? Math.log(high) : high;
    const f = (v) => from + (to - from) * ((log ? Math.log(Math.max(v, 1e-300)) : v) - a) / (b - a);
    f.invert = (p) => { const t = a + (b - a) * (p - from) / (to - from); return log ? Math.exp(t) : t; };
    return f;
  }

  const pixel = (v) => Math.round(Math.max(-1e5, Math.min(1e5, v)) * 10) / 10;

  function path(curve, values, begin, end, sx, sy, log) {
    let d = "";
    let pen = "M";
    for (let i = begin; i < end; i++) {
      if (log && !(values[i] > 0)) { pen = "M"; continue; }
      d += pen + pixel(sx(curve.x[i])) + " " + pixel(sy(values[i]));
      pen = "L";
    }
    return d;
  }

  function drawCurve(layer, curve, view, sx, sy, log) {
    const [begin, end] = inView(curve, view), { lo, hi, v } = curve.series, group = node("g", { class: curve.run.id }, layer);
    if (curve.key === "val_loss" || curve.key === "hellaswag") {
      node("path", { class: "validation", d: path(curve, v, begin, end, sx, sy, log) }, group);
      for (let i = begin; i < end && end - begin <= 150; i++) {
        node("circle", { class: "dot", cx: pixel(sx(curve.x[i])), cy: pixel(sy(v[i])), r: 2.6 }, group);
      }
      return;
    }
    if (lo) {
      let back = "";
      const low = log ? lo.map((value, i) => value > 0 ? value : v[i]) : lo;
      for (let i = end - 1; i >= begin; i--) back += "L" + pixel(sx(curve.x[i])) + " " + pixel(sy(low[i]));
      const front = path(curve, hi, begin, end, sx, sy, log);
      if (front) node("path", { class: "band", d: front + back + "Z" }, group);
    } else if (curve.window > 1) {
      node("path", { class: "raw", d: path(curve, v, begin, end, sx, sy, log) }, group);
    }
    node("path", { class: "curve", d: path(curve, curve.y, begin, end, sx, sy, log) }, group);
  }

  function drawMarks(layer, view, sx, top, bottom) {
    for (const run of visibleRuns()) {
      const group = node("g", { class: run.id }, layer);
      for (const [step, kind] of run.marks) {
        const x = xOf(run, step);
        if (!(x >= view[0] && x <= view[1])) continue;
        const p = pixel(sx(x));
        if (kind === "checkpoint") {
          node("path", { class: "saved", d: `M${p - 3} ${bottom}h6l-3 -5z` }, group);
        } else {
          node("path", { class: "mark " + kind, d: `M${p} ${top}V${bottom}` }, group);
        }
      }
    }
  }

  function drawAxes(svg, box, sx, sy, ticksX, ticksY) {
    for (const t of ticksY) {
      node("path", { class: "grid", d: `M${box.left} ${pixel(sy(t))}H${box.right}` }, svg);
      text(svg, box.left - 6, pixel(sy(t)) + 4, "end", short(t));
    }
    for (const t of ticksX) {
      node("path", { class: "axis", d: `M${pixel(sx(t))} ${box.bottom}v4` }, svg);
      text(svg, pixel(sx(t)), box.bottom + 16, "middle", xText(t));
    }
    node("path", { class: "axis", d: `M${box.left} ${box.bottom}H${box.right}` }, svg);
  }

  function draw(chart) {
    const { svg, panel } = chart, width = Math.max(svg.clientWidth, 200), height = width < 420 ? 210 : 260;
    const curves = curvesOf(panel), view = state.view || fullView();
    const log = state.logY[panel.id], range = rangeOf(curves, view, log) || (log ? [1, 10] : [0, 1]);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    while (svg.lastChild && svg.lastChild.nodeName !== "title") svg.removeChild(svg.lastChild);
    const ticksY = log ? logTicks(range[0], range[1], 6) : linearTicks(range[0], range[1], 5);
    const left = 14 + 6.4 * Math.max(...ticksY.map((t) => short(t).length), 2);
    const box = { left, right: width - 16, top: 6, bottom: height - 22 };
    const sx = scale(view[0], view[1], box.left, box.right, state.logX);
    const sy = scale(range[0], range[1], box.bottom, box.top, log);
    const room = Math.floor((box.right - box.left) / 62);
    const ticks = state.logX ? logTicks : state.x === "time" ? timeTicks : linearTicks;
    drawAxes(svg, box, sx, sy, ticks(view[0], view[1], room), ticksY);
    const clip = node("clipPath", { id: "clip-" + panel.id }, svg);
    node("rect", { x: box.left - 4, y: box.top, width: box.right - box.left + 8, height: box.bottom - box.top }, clip);
    const layer = node("g", { "clip-path": `url(#clip-${panel.id})` }, svg);
    drawMarks(layer, view, sx, box.top, box.bottom);
    for (const curve of curves) drawCurve(layer, curve, view, sx, sy, log);
    chart.cross = node("path", { class: "cross", d: "" }, svg);
    chart.dots = node("g", {}, layer);
    Object.assign(chart, { box, sx, sy, curves, view, width, log });
    if (state.at !== null) showCross(chart);
  }

  function drawAll() {
    for (const chart of charts) draw(chart);
    remember();
  }

  // ---------------------------------------------------------------------------------------------------------------------
  // The read-out

  function nearest(curve, x) {
    const i = lowerBound(curve.x, x);
    if (i === 0) return 0;
    return i === curve.x.length || x - curve.x[i - 1] < curve.x[i] - x ? i - 1 : i;
  }

  function showCross(chart) {
    while (chart.dots.firstChild) chart.dots.removeChild(chart.dots.firstChild);
    const p = state.at === null ? null : pixel(chart.sx(state.at));
    const inside = p !== null && p >= chart.box.left - 1 && p <= chart.box.right + 1;
    chart.cross.setAttribute("d", inside ? `M${p} ${chart.box.top}V${chart.box.bottom}` : "");
    if (!inside) return;
    for (const curve of chart.curves) {
      const i = nearest(curve, state.at), group = node("g", { class: curve.run.id }, chart.dots);
      const near = Math.abs(chart.sx(curve.x[i]) - p) < 40;
      if (near) node("circle", { class: "dot", cx: pixel(chart.sx(curve.x[i])), cy: pixel(chart.sy(curve.y[i])), r: 3.4 }, group);
    }
  }

  function head(curve, i) {
    const step = curve.series.s[i], parts = ["step " + step.toLocaleString("en")];
    if (curve.run.tokens) parts.push(short(step * curve.run.tokens) + " tokens");
    if (curve.run.time) parts.push(duration(timeOf(curve.run, step)));
    return parts.join(" · ");
  }

  function tipRow(curve, i, panel) {
    const row = document.createElement("div"), swatch = document.createElement("span");
    row.className = curve.run.id;
    swatch.className = "swatch";
    const name = document.createElement("span"), value = document.createElement("b");
    name.textContent = curve.run.name + (curve.key === "val_loss" ? ", validation" : "");
    const { lo, hi, v } = curve.series;
    let raw = "";
    if (lo && lo[i] !== hi[i]) raw = ` (${exact(lo[i], panel)} to ${exact(hi[i], panel)})`;
    else if (curve.window > 1) raw = ` (${exact(v[i], panel)})`;
    value.textContent = exact(curve.y[i], panel) + raw;
    row.append(swatch, name, value);
    return row;
  }

  function showTip(chart, y) {
    const tip = chart.tip, p = state.at === null ? null : chart.sx(state.at);
    tip.hidden = p === null || !chart.curves.length;
    if (tip.hidden) return;
    const rows = chart.curves.map((curve) => [curve, nearest(curve, state.at)])
      .filter(([curve, i]) => Math.abs(chart.sx(curve.x[i]) - p) < 40);
    tip.hidden = !rows.length;
    if (tip.hidden) return;
    const title = document.createElement("b");
    title.textContent = head(...rows.reduce((a, b) => Math.abs(a[0].x[a[1]] - state.at) <= Math.abs(b[0].x[b[1]] - state.at) ? a : b));
    tip.replaceChildren(title, ...rows.slice(0, 12).map(([curve, i]) => tipRow(curve, i, chart.panel)));
    const outer = chart.figure.getBoundingClientRect(), inner = chart.svg.getBoundingClientRect(), room = chart.figure.clientWidth;
    const at = inner.left - outer.left + p * inner.width / chart.width;
    const left = at + 16 + tip.offsetWidth < room ? at + 16 : at - 16 - tip.offsetWidth;
    tip.style.left = Math.max(4, Math.min(left, room - tip.offsetWidth - 4)) + "px";
    tip.style.top = Math.max(2, inner.top - outer.top + y - tip.offsetHeight - 12) + "px";
  }

  function readOut(chart, x, y) {
    state.at = x;
    for (const other of charts) {
      showCross(other);
      if (other !== chart) other.tip.hidden = true;
    }
    if (chart) showTip(chart, y);
  }

  // ---------------------------------------------------------------------------------------------------------------------
  // Zoom and pan, along x, of all charts together

  const inLog = (f, v) => state.logX ? f(Math.log(v)) : f(v);
  const fromLog = (v) => state.logX ? Math.exp(v) : v;

  function setView(low, high) {
    const full = fullView(), [a, b] = full.map((v) => inLog((w) => w, v));
    let l = inLog((w) => w, Math.max(low, state.logX ? 1e-300 : -Infinity)), h = inLog((w) => w, high);
    const span = Math.min(Math.max(h - l, (b - a) / 1e5), b - a);
    if (l < a) [l, h] = [a, a + span];
    if (h > b) [l, h] = [b - span, b];
    state.view = span >= (b - a) * 0.9999 ? null : [fromLog(l), fromLog(Math.max(h, l + span))];
    drawAll();
  }

  function zoom(factor, center) {
    const view = state.view || fullView(), [l, h] = view.map((v) => inLog((w) => w, v));
    const c = center === undefined ? (l + h) / 2 : inLog((w) => w, center);
    setView(fromLog(c + (l - c) * factor), fromLog(c + (h - c) * factor));
  }

  function pan(share) {
    const view = state.view || fullView(), [l, h] = view.map((v) => inLog((w) => w, v)), by = (h - l) * share;
    setView(fromLog(l + by), fromLog(h + by));
  }

  function place(chart, event) {
    const rect = chart.svg.getBoundingClientRect();
    const p = (event.clientX - rect.left) * chart.width / rect.width;
    const clamped = Math.max(chart.box.left, Math.min(chart.box.right, p));
    return { p: clamped, x: chart.sx.invert(clamped), y: event.clientY - rect.top };
  }

  function listen(chart) {
    const { svg } = chart, fingers = new Map();
    let from = null, chosen = null;
    svg.addEventListener("pointerdown", (event) => {
      fingers.set(event.pointerId, place(chart, event));
      svg.setPointerCapture(event.pointerId);
      if (event.pointerType === "mouse" && event.button === 0) from = { ...place(chart, event), view: state.view || fullView(), pans: event.shiftKey };
      if (event.pointerType !== "mouse") readOut(chart, place(chart, event).x, place(chart, event).y);
    });
    svg.addEventListener("pointermove", (event) => {
      const now = place(chart, event);
      if (fingers.size === 2 && fingers.has(event.pointerId)) return pinch(chart, fingers, event, now);
      if (fingers.has(event.pointerId)) fingers.set(event.pointerId, now);
      if (from && from.pans) {
        const before = chart.sx(from.x);
        return pan((before - now.p) / (chart.box.right - chart.box.left));
      }
      if (from && Math.abs(now.p - from.p) > 3) {
        chosen = chosen || node("rect", { class: "chosen" }, svg);
        chosen.setAttribute("x", Math.min(from.p, now.p));
        chosen.setAttribute("width", Math.abs(now.p - from.p));
        chosen.setAttribute("y", chart.box.top);
        chosen.setAttribute("height", chart.box.bottom - chart.box.top);
      }
      readOut(chart, now.x, now.y);
    });
    const release = (event) => {
      fingers.delete(event.pointerId);
      if (chosen && from && event.type === "pointerup") {
        const to = place(chart, event);
        if (Math.abs(to.p - from.p) > 5) setView(Math.min(from.x, to.x), Math.max(from.x, to.x));
      }
      if (chosen) chosen.remove();
      from = chosen = null;
    };
    svg.addEventListener("pointerup", release);
    svg.addEventListener("pointercancel", release);
    svg.addEventListener("pointerleave", () => { if (!from) readOut(null, null, 0); });
    svg.addEventListener("dblclick", () => { state.view = null; drawAll(); });
    svg.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return; // the page scrolls
      event.preventDefault();
      if (event.ctrlKey || event.metaKey) zoom(Math.exp(Math.sign(event.deltaY) * 0.2), place(chart, event).x);
      else if (state.view) pan(event.deltaX / chart.width);
    }, { passive: false });
    svg.addEventListener("keydown", (event) => key(chart, event));
  }

  function pinch(chart, fingers, event, now) {
    const other = [...fingers].find(([id]) => id !== event.pointerId)[1], before = fingers.get(event.pointerId);
    const was = Math.abs(before.p - other.p), is = Math.abs(now.p - other.p);
    if (was > 8 && is > 8) zoom(was / is, other.x);
    fingers.set(event.pointerId, place(chart, event));
  }

  function key(chart, event) {
    const view = state.view || fullView(), at = state.at === null ? fromLog((inLog((w) => w, view[0]) + inLog((w) => w, view[1])) / 2) : state.at;
    const actions = {
      ArrowLeft: () => event.shiftKey ? pan(-0.2) : move(-1), ArrowRight: () => event.shiftKey ? pan(0.2) : move(1),
      "+": () => zoom(0.6, at), "=": () => zoom(0.6, at), "-": () => zoom(1 / 0.6, at),
      0: () => { state.view = null; drawAll(); }, Escape: () => { state.view = null; drawAll(); readOut(null, null, 0); },
    };
    const move = (direction) => {
      const p = Math.max(chart.box.left, Math.min(chart.box.right, chart.sx(at) + direction * 4));
      readOut(chart, chart.sx.invert(p), 60);
    };
    if (!actions[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    actions[event.key]();
  }

  // ---------------------------------------------------------------------------------------------------------------------
  // The controls

  const $ = (id) => document.getElementById(id);

  function press(button, on) { button.setAttribute("aria-pressed", on ? "true" : "false"); }

  function showControls() {
    for (const button of document.querySelectorAll("button.run")) press(button, !state.hidden.has(button.dataset.run));
    for (const button of document.querySelectorAll("button[data-x]")) press(button, button.dataset.x === state.x);
    for (const button of document.querySelectorAll("button[data-log]")) press(button, state.logY[button.dataset.log]);
    press($("log-x"), state.logX);
    press($("outliers"), state.outliers);
    const index = data.windows.indexOf(state.window);
    $("smooth").value = index < 0 ? 0 : index;
    $("window").textContent = state.window > 1 ? short(state.window) + " steps" : "none";
  }

  function changed(resetView) {
    if (resetView) state.view = null;
    state.at = null;
    showControls();
    drawAll();
  }

  function openControls() {
    $("tools").hidden = false;
    for (const element of document.querySelectorAll(".live[hidden], button[data-log]")) element.hidden = false;
    for (const button of document.querySelectorAll("button.run")) button.addEventListener("click", () => {
      const id = button.dataset.run;
      if (!state.hidden.delete(id)) state.hidden.add(id);
      changed(false);
    });
    for (const button of document.querySelectorAll("button[data-x]")) button.addEventListener("click", () => {
      state.x = button.dataset.x;
      changed(true);
    });
    for (const button of document.querySelectorAll("button[data-log]")) button.addEventListener("click", () => {
      state.logY[button.dataset.log] = !state.logY[button.dataset.log];
      changed(false);
    });
    $("log-x").addEventListener("click", () => { state.logX = !state.logX; changed(true); });
    $("outliers").addEventListener("click", () => { state.outliers = !state.outliers; changed(false); });
    $("smooth").addEventListener("input", () => { state.window = data.windows[Number($("smooth").value)]; changed(false); });
    $("zoom-in").addEventListener("click", () => zoom(0.6));
    $("zoom-out").addEventListener("click", () => zoom(1 / 0.6));
    $("zoom-all").addEventListener("click", () => { state.view = null; drawAll(); });
  }

  function remember() {
    if (!data.follow) return;
    const { x, window, logX, outliers, logY, view } = state;
    try {
      const kept = { x, logX, outliers, logY, view, hidden: [...state.hidden], y: scrollY };
      if (window !== data.smooth) kept.window = window;  // else it grows with the run
      sessionStorage.setItem(KEPT, JSON.stringify(kept));
    } catch (error) { /* no storage: the page begins anew */ }
  }

  function recall() {
    try {
      const kept = data.follow && JSON.parse(sessionStorage.getItem(KEPT));
      if (!kept || (kept.window && !data.windows.includes(kept.window))) return;
      Object.assign(state, kept, { hidden: new Set(kept.hidden), logY: { ...state.logY, ...kept.logY }, at: null });
      addEventListener("load", () => scrollTo(0, kept.y));
    } catch (error) { /* as above */ }
  }

  const charts = data.panels.map((panel) => {
    const figure = $("panel-" + panel.id), svg = figure.querySelector("svg"), tip = document.createElement("div");
    tip.className = "tip";
    tip.hidden = true;
    figure.appendChild(tip);
    svg.classList.add("live");
    svg.setAttribute("tabindex", "0");
    return { panel, figure, svg, tip };
  });
  if (data.follow) setTimeout(() => { remember(); location.reload(); }, 1000 * data.follow);
  if (!charts.length) return; // there are no steps yet
  recall();
  openControls();
  showControls();
  drawAll();
  charts.forEach(listen);
  if (innerWidth < 560) for (const d of document.querySelectorAll("details")) d.open = false;
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; drawAll(); } });
  addEventListener("beforeprint", () => { for (const d of document.querySelectorAll("details")) d.open = true; });
})();
