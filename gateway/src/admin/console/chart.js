// Lines over the last hour, as an SVG: axes, legend, the value under the pointer, and the same in words.

import { h, remOf, setAttribute, setText, svg } from "./dom.js";
import { clockTime } from "./words.js";

/** Margins at a root font of 16 px. */
const MARGINS = [46, 8, 8, 22];
const HOUR = 3600;

/** Round numbers from 0 to at least `highest`, three or four of them. */
function ticks(highest) {
  const raw = highest / 3;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= raw);
  return Array.from({ length: Math.ceil(highest / step - 1e-9) + 1 }, (_, i) => i * step);
}

/** Powers of ten around what is shown. */
function powers(lowest, highest) {
  const [from, to] = [Math.floor(Math.log10(lowest)), Math.max(Math.floor(Math.log10(lowest)) + 1, Math.ceil(Math.log10(highest)))];
  return Array.from({ length: to - from + 1 }, (_, i) => 10 ** (from + i));
}

/**
 * A chart of `series`: `[{ name, value(point) → number | null }]`, at most four. `format` writes a value, `logarithmic` spreads what differs
 * by powers of ten. Returns `{ element, update(points, now) }`.
 */
export function chart({ title, series, format, logarithmic = false }) {
  const drawing = svg("svg", { class: "plot", role: "img", tabindex: "0", focusable: "true" });
  const legend = h("ul", { class: "legend" });
  const entries = series.map(({ name }, i) => {
    const value = h("b", {});
    const entry = h("li", { class: `series-${i}` }, h("i", { "aria-hidden": "true" }), `${name} `, value);
    legend.append(entry);
    return value;
  });
  const readout = h("p", { class: "readout", "aria-live": "off" });
  const element = h("figure", { class: "chart" }, h("figcaption", {}, title), drawing, legend, readout);
  let [points, now, hovered] = [[], Date.now() / 1000, null];
  /** As laid out last: to ask for it while drawing lays the page out once more. */
  let [width, height, rem] = [0, 0, 1];

  const plot = (seen, shown) => {
    const [LEFT, RIGHT, TOP, BOTTOM] = MARGINS.map((margin) => margin * rem);
    const from = now - HOUR;
    const values = seen.flatMap((point) => series.map((one) => one.value(point))).filter((v) => Number.isFinite(v) && (!logarithmic || v > 0));
    const marks = logarithmic ? powers(Math.min(...values, 1), Math.max(...values, 1)) : ticks(Math.max(...values, 1e-9) || 1);
    const [low, high] = [marks[0], marks.at(-1)];
    const place = logarithmic ? (v) => Math.log(Math.max(v, low) / low) / Math.log(high / low) : (v) => v / high;
    const x = (at) => LEFT + ((at - from) / HOUR) * (width - LEFT - RIGHT);
    const y = (v) => TOP + (1 - place(v)) * (height - TOP - BOTTOM);
    const parts = marks.flatMap((mark) => [
      svg("line", { class: "rule", x1: LEFT, x2: width - RIGHT, y1: y(mark), y2: y(mark) }),
      svg("text", { class: "tick", x: LEFT - 6 * rem, y: y(mark) + 4 * rem, "text-anchor": "end" }, format(mark)),
    ]);
    for (let at = Math.ceil(from / 900) * 900; at <= now; at += 900) {
      if (x(at) > LEFT + 12 * rem && x(at) < width - 20 * rem) parts.push(svg("text", { class: "tick", x: x(at), y: height - 6 * rem, "text-anchor": "middle" }, clockTime(at, now)));
    }
    series.forEach((one, i) => {
      let [path, previous] = ["", null];
      for (const point of seen) {
        const value = one.value(point);
        if (!Number.isFinite(value)) {
          previous = null;
          continue;
        }
        // A gap of more than two steps is one: the gateway was away.
        const isNext = previous !== null && point.at - previous < 25;
        path += `${isNext ? "L" : "M"}${x(point.at).toFixed(1)} ${y(value).toFixed(1)}${isNext ? "" : "h.1"}`;
        previous = point.at;
      }
      if (path) parts.push(svg("path", { class: `line series-${i}`, d: path }));
    });
    if (shown) parts.push(svg("line", { class: "cursor", x1: x(shown.at), x2: x(shown.at), y1: TOP, y2: height - BOTTOM }));
    drawing.replaceChildren(...parts);
  };

  const draw = () => {
    const seen = points.filter((point) => point.at >= now - HOUR);
    const shown = hovered === null ? null : seen.reduce((best, point) => (!best || Math.abs(point.at - hovered) < Math.abs(best.at - hovered) ? point : best), null);
    if (width && height) plot(seen, shown);
    const written = (point) => series.map((one) => `${one.name} ${Number.isFinite(one.value(point)) ? format(one.value(point)) : "–"}`).join(", ");
    setText(readout, shown ? `${clockTime(shown.at, now)}: ${written(shown)}` : seen.length ? "" : "Nothing yet: a point comes every 10 s.");
    entries.forEach((entry, i) => setText(entry, seen.length && Number.isFinite(series[i].value(seen.at(-1))) ? format(series[i].value(seen.at(-1))) : "–"));
    setAttribute(drawing, "aria-label", `${title}, last hour. ${inWords(seen, series, format, now)}`);
  };

  const hover = (at) => {
    hovered = at;
    draw();
  };
  drawing.addEventListener("pointermove", (event) => {
    const box = drawing.getBoundingClientRect();
    const [LEFT, RIGHT] = MARGINS.map((margin) => margin * rem);
    hover(now - HOUR + ((event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT)) * HOUR);
  });
  drawing.addEventListener("pointerleave", () => hover(null));
  drawing.addEventListener("blur", () => hover(null));
  drawing.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -10, ArrowRight: 10, PageUp: -600, PageDown: 600 }[event.key];
    if (!step) return;
    event.preventDefault();
    hover(Math.min(now, Math.max(now - HOUR, (hovered ?? now) + step)));
    setAttribute(readout, "aria-live", "polite");
  });
  new ResizeObserver(([{ contentRect }]) => {
    [width, height, rem] = [contentRect.width, contentRect.height, remOf()];
    draw();
  }).observe(drawing);
  return {
    element,
    update(newPoints, newNow) {
      [points, now] = [newPoints, newNow];
      draw();
    },
  };
}

/** Now, the highest and the mean of each series. */
function inWords(points, series, format, now) {
  if (!points.length) return "Nothing yet.";
  return series.map(({ name, value }) => {
    const known = points.filter((point) => Number.isFinite(value(point)));
    if (!known.length) return `${name}: nothing.`;
    const top = known.reduce((best, point) => (value(point) > value(best) ? point : best));
    const mean = known.reduce((sum, point) => sum + value(point), 0) / known.length;
    return `${name}: ${format(value(known.at(-1)))} now, at most ${format(value(top))} at ${clockTime(top.at, now)}, ${format(mean)} on average.`;
  }).join(" ");
}
