// The page: takes the feed in, and draws what changed, frame by frame.

import * as actions from "./actions.js";
import { chart } from "./chart.js";
import { Detail } from "./detail.js";
import { byId, h, keyed, setAttribute, setText, tickMoments } from "./dom.js";
import { Feed } from "./feed.js";
import { Grid } from "./grid.js";
import * as panels from "./panels.js";
import { standingOf } from "./pool.js";
import { apply, connectionChanged, emptyState, isLive, nowOf, wordsOf } from "./state.js";
import { verdict } from "./verdict.js";
import { STATES, ago, count, length, number } from "./words.js";

/** Silence after which what is shown is dimmed, in seconds: the feed writes at least every 15 s. */
const STALE = 25;
/** Time within a frame for drawing, in ms: the browser's own part of it, laying out and painting, takes as long again. */
const FRAME = 8;

const state = emptyState();
const changed = new Set();
const dirty = new Set(["verdict"]);
let [drawing, hovered, pinned, version, announced] = [0, null, null, null, ""];

const grid = new Grid(byId("grid"), {
  hover: (id) => {
    hovered = id;
    soon("detail");
  },
  pick: (id) => {
    pinned = pinned === id ? null : id;
    soon("detail");
  },
  redraw: () => {
    for (const id of state.replicas.keys()) changed.add(id);
    soon("pool", "cells");
  },
});
const detail = new Detail(byId("detail"), () => nowOf(state));

const CLASSES = ["interactive", "standard", "batch"];
const perSecond = (of) => (point) => (of(point) === null || of(point) === undefined ? null : of(point) / state.everyS);
const charts = [
  chart({
    title: "Tokens a second",
    series: [{ name: "written", value: perSecond((p) => p.completion_tokens) }, { name: "read", value: perSecond((p) => p.prompt_tokens) }],
    format: number,
  }),
  chart({
    title: "Time to first token, 95 of 100 within", logarithmic: true,
    series: CLASSES.map((name) => ({ name, value: (p) => p.ttft?.[name]?.[1] ?? null })), format: length,
  }),
  chart({
    title: "Slots and queue",
    series: [{ name: "slots", value: (p) => p.slots }, { name: "busy", value: (p) => p.busy }, { name: "waiting", value: (p) => p.queued }, { name: "ready phones", value: (p) => p.ready }],
    format: number,
  }),
];
byId("charts").append(...charts.map(({ element }) => element));

function soon(...parts) {
  for (const part of parts) dirty.add(part);
  // A hidden page gets no frames, and must not gather what it will not draw.
  drawing ||= document.hidden ? setTimeout(draw, 1000) : requestAnimationFrame(draw);
}

/** What is drawn, what matters most first. A part that answers false is not done, and goes on with the next frame. */
const PARTS = {
  verdict: drawVerdict,
  totals: () => panels.drawTotals(state),
  pool() {
    grid.update(state.replicas, changed);
    changed.clear();
    drawPool();
  },
  detail: drawDetail,
  cells: (now, isLate) => grid.drawSome(isLate),
  queue: (now) => panels.drawQueue(state, now),
  requests: (now) => panels.drawRequests(state, now),
  history(now) {
    panels.drawRates(state);
    for (const one of charts) one.update(state.points, now);
  },
  batches: (now) => panels.drawBatches(state, now),
  events: (now) => panels.drawEvents(state, now),
  advice: (now) => panels.drawAdvice(state, now),
  cost: () => panels.drawCost(state),
  deployments: (now) => panels.drawDeployments(state, now),
};
/** The parts of the page that show what an event tells of, if they are others than the one of its name. The verdict looks at everything. */
const SHOWN_BY = { pool: ["totals", "pool", "detail", "cells", "advice"], registration: [], hello: ["events", "history", "requests", "queue"] };

/** Draws for as long as a frame leaves time, and the rest with the next: nobody waits for a key or a click while a large pool is drawn. */
function draw() {
  drawing = 0;
  const [now, until] = [nowOf(state), performance.now() + FRAME];
  const isLate = () => !document.hidden && performance.now() > until;
  for (const [part, drawPart] of Object.entries(PARTS)) {
    if (dirty.delete(part) && drawPart(now, isLate) === false) dirty.add(part);
    if (isLate()) break;
  }
  // For whoever waits until the page shows what it was told.
  document.body.toggleAttribute("data-drawing", dirty.size > 0);
  if (dirty.size) soon();
}

function drawVerdict(now) {
  const found = verdict(state, now);
  keyed(byId("verdicts"), found, (one) => one.key, () => h("li", {}, h("strong", {}), h("span", { class: "what" }), h("span", { class: "todo" })), (element, one) => {
    setAttribute(element, "data-level", one.level);
    const [title, what, todo] = element.children;
    setText(title, one.title);
    setText(what, one.detail);
    setText(todo, one.next);
  });
  document.title = `${{ bad: "✖ ", warn: "▲ " }[found[0].level] ?? ""}${found[0].title} · huntgroup`;
  // Spoken only when something else is wrong, not when a number changes.
  const keys = found.map((one) => `${one.level} ${one.key}`).join("\n");
  if (keys !== announced) {
    announced = keys;
    setText(byId("announcement"), found.map((one) => `${one.title}. ${one.next}`).join(" "));
  }
}

function drawPool() {
  const { shown, all } = grid.shown;
  setText(byId("pool-count"), shown === all ? count(all, "phone") : `${number(shown)} of ${count(all, "phone")} shown`);
  const none = byId("grid-none");
  none.hidden = shown > 0 || !state.seen.has("pool");
  setText(none, all ? "No phone has all of these words." : "No phone yet. Add one, or let phones register themselves.");
  const counts = new Map();
  for (const name of [...state.replicas.values()].map(standingOf)) counts.set(name, (counts.get(name) ?? 0) + 1);
  keyed(byId("key"), Object.entries(STATES), ([name]) => name,
    ([name, { letter, word, means, signs }]) => h("div", {}, h("dt", {}, h("i", { class: "mark", "data-state": name, "aria-hidden": "true" }, letter), h("b", {}), ` ${word}`), h("dd", {}, [means, signs].filter(Boolean).join(" "))),
    (element, [name]) => {
      setText(element.querySelector("b"), number(counts.get(name) ?? 0));
      setAttribute(element, "class", counts.get(name) ? null : "absent");
      setAttribute(element, "title", counts.get(name) ? null : STATES[name].means);
    });
}

function drawDetail() {
  const id = pinned ?? hovered;
  const replica = state.replicas.get(id) ?? null;
  detail.show(replica);
  grid.selected = pinned;
  byId("key").hidden = Boolean(replica);
  byId("side-close").hidden = pinned === null;
  setText(byId("side-title"), replica ? "Phone" : "What the signs mean");
  setText(byId("side-hint"), replica && pinned === null ? "press it to keep this open" : "");
  byId("side").classList.toggle("pinned", pinned !== null);
}

function drawStanding() {
  const { phase, heardAt } = state.connection;
  const silent = heardAt === null ? Infinity : Date.now() / 1000 - heardAt;
  const isFresh = isLive(state) && silent < STALE;
  setText(byId("link"), { live: "live", connecting: "connecting", lost: "not connected", refused: "refused", token: "token needed" }[phase]);
  setAttribute(byId("link"), "data-phase", phase === "live" && !isFresh ? "lost" : phase);
  setText(byId("as-of"), isFresh || heardAt === null ? "" : `as of ${ago(heardAt, Date.now() / 1000)}`);
  document.body.classList.toggle("stale", !isFresh && state.hello !== null);
}

const askToken = actions.prepareToken(() => feed.start());
const openAdding = actions.prepareAdding((replica) => {
  pinned = replica.id;
  soon("detail");
});
actions.whenTokenIsNeeded(() => {
  feed.stop();
  feedChanged("token", {});
});

function feedChanged(phase, facts) {
  connectionChanged(state, phase, facts);
  if (phase === "token") {
    const wasWrong = actions.token.get() !== null;
    actions.token.forget();
    askToken(wasWrong);
  }
  drawStanding();
  soon("verdict");
}

const feed = new Feed("/admin/watch", actions.headers, {
  connection: feedChanged,
  heard: () => {
    state.connection.heardAt = Date.now() / 1000;
  },
  event: (name, data) => {
    const part = apply(state, name, data, changed);
    // Gone; one that was added a moment ago and was not told of yet stays.
    if (part === "pool" && changed.has(pinned) && !state.replicas.has(pinned)) pinned = null;
    if (part === "hello") {
      version ??= data.version;
      byId("update").hidden = version === data.version;
      setText(byId("about"), `huntgroup ${data.version}, running since ${new Date(data.started_at * 1000).toLocaleString("en-GB")}`);
    }
    if (part) soon("verdict", ...(SHOWN_BY[part] ?? [part]));
    if (part === "pool") document.body.classList.remove("blank");
    drawStanding();
  },
});

setInterval(() => {
  if (document.hidden) return;
  tickMoments(nowOf(state));
  drawStanding();
  drawVerdict(nowOf(state));
}, 1000);
document.addEventListener("visibilitychange", () => {
  if (document.hidden) return;
  feed.hurry();
  soon("history");
});
addEventListener("online", () => feed.hurry());

byId("group").addEventListener("change", ({ target }) => {
  grid.grouping = target.value;
});
const filter = byId("filter");
filter.addEventListener("input", () => {
  grid.filter = wordsOf(filter.value);
});
byId("side-close").addEventListener("click", () => unpin());
byId("add-open").addEventListener("click", openAdding);
byId("help-open").addEventListener("click", () => byId("help").showModal());
byId("help-close").addEventListener("click", () => byId("help").close());
byId("forget").addEventListener("click", () => {
  actions.token.forget();
  byId("help").close();
  feed.start();
});
byId("reload").addEventListener("click", () => location.reload());

function unpin() {
  const id = pinned;
  pinned = null;
  soon("detail");
  grid.focus(id);
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const typing = event.target instanceof Element && event.target.closest("input, select, textarea");
  if (event.key === "Escape" && event.target === filter && filter.value) {
    filter.value = "";
    filter.dispatchEvent(new Event("input"));
  } else if (event.key === "Escape" && event.target === filter) grid.focus();
  else if (event.key === "Escape" && pinned !== null) unpin();
  else if (event.key === "/" && !typing) {
    event.preventDefault();
    filter.focus();
    filter.select();
  } else if (event.key === "?" && !typing) byId("help").showModal();
});

const THEMES = [["auto", "Colours: auto", "as the system has them"], ["light", "Colours: light", "light"], ["dark", "Colours: dark", "dark"]];
function setTheme(name) {
  const [theme, text, words] = THEMES.find(([one]) => one === name) ?? THEMES[0];
  setAttribute(document.documentElement, "data-theme", theme === "auto" ? null : theme);
  setText(byId("theme"), text);
  byId("theme").setAttribute("aria-label", `Colours: ${words}`);
  return theme;
}
let theme = setTheme(kept("huntgroup.theme"));
byId("theme").addEventListener("click", () => {
  theme = setTheme(THEMES[(THEMES.findIndex(([one]) => one === theme) + 1) % THEMES.length][0]);
  kept("huntgroup.theme", theme);
});
function kept(name, value) {
  try {
    if (value !== undefined) localStorage.setItem(name, value);
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

drawStanding();
soon("verdict", ...SHOWN_BY.pool);
feed.start();
