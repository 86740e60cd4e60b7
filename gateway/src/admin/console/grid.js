// The pool as a grid: a cell for each replica, kept for as long as the replica is there.
//
// What is counted (groups, their sizes, what is shown) is counted of the replicas, at once. Cells are brought up to date a few at a time, as long as
// `drawSome` is given: a thousand in one piece hold the page up for a quarter of a second, and everybody who looks at it.

import { h, remOf, setAttribute, setHidden, setText } from "./dom.js";
import { matches } from "./state.js";
import { isReady, standingOf } from "./pool.js";
import { kinds } from "./verdict.js";
import { STATES, count, number, own, stateOf } from "./words.js";

/** Sizes of cells, the largest first: [name, width, height with gaps], in px at a root font of 16. The largest that lets the pool fit is taken. */
const SIZES = [["xl", 196, 66], ["l", 148, 50], ["m", 50, 44], ["s", 32, 32], ["xs", 24, 24]];
/** Height that the grid should fit into, in px, at a root font of 16. */
const HEIGHT = 500;
/** Sizes at which a cell has room for words. */
const NAMED = new Set(["xl", "l"]);

const GROUPINGS = {
  state: standingOf,
  deployment: (r) => r.deployment ?? "",
  model: (r) => r.models?.[0] ?? "",
  none: () => "all",
};
const ORDER = Object.keys(STATES);

const rankOf = (key) => (ORDER.indexOf(key) + ORDER.length + 1) % (ORDER.length + 1);

export class Grid {
  #root;
  #on;
  #cells = new Map();
  #groups = new Map();
  #grouping = "state";
  #words = [];
  #current = null;
  #selected = null;
  #replicas = new Map();
  /** Ids of replicas whose cells are not up to date. */
  #pending = new Set();
  /** As laid out last, in px at a root font of 16: to ask for it while drawing lays the page out once more. */
  #width = 0;
  /** Groups that have a replica. */
  #headings = 0;

  /** `on.hover(id | null)`, `on.pick(id)`, and `on.redraw()` where all replicas are to be given to `update` anew. */
  constructor(root, on) {
    this.#root = root;
    this.#on = on;
    root.addEventListener("pointerover", (event) => {
      if (event.pointerType === "mouse") on.hover(this.#idAt(event.target));
    });
    root.addEventListener("pointerleave", () => on.hover(null));
    root.addEventListener("focusin", (event) => {
      const id = this.#idAt(event.target);
      if (id === null) return;
      this.#rove(id);
      on.hover(id);
    });
    root.addEventListener("focusout", (event) => {
      if (!root.contains(event.relatedTarget)) on.hover(null);
    });
    root.addEventListener("click", (event) => {
      const id = this.#idAt(event.target);
      if (id !== null) on.pick(id);
    });
    root.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(([{ contentRect }]) => {
      this.#width = contentRect.width / remOf();
      this.#resize();
    }).observe(root);
  }

  #idAt(target) {
    const cell = target instanceof Element ? target.closest("[data-id]") : null;
    return cell ? Number(cell.dataset.id) : null;
  }

  /** Takes in what changed: ids of replicas that are new, different or gone. The most urgent are drawn first. */
  update(replicas, changed) {
    this.#replicas = replicas;
    const rank = (id) => rankOf(replicas.has(id) ? standingOf(replicas.get(id)) : "");
    for (const { id } of [...changed].map((id) => ({ id, rank: rank(id) })).sort((a, b) => a.rank - b.rank || a.id - b.id)) this.#pending.add(id);
    this.#regroup();
  }

  /** Brings cells up to date until `isLate()`, but one at least. Returns whether all are. */
  drawSome(isLate) {
    for (const id of this.#pending) {
      this.#pending.delete(id);
      const replica = this.#replicas.get(id);
      if (replica) this.#draw(replica);
      else this.#drop(id);
      if (isLate()) break;
    }
    const isDone = this.#pending.size === 0;
    if (isDone) {
      for (const [key, { ids, element }] of this.#groups) {
        if (ids.length) continue;
        element.remove();
        this.#groups.delete(key);
      }
    }
    setAttribute(this.#root, "aria-busy", isDone ? null : "true");
    return isDone;
  }

  set grouping(grouping) {
    this.#grouping = own(GROUPINGS, grouping) ? grouping : "state";
    for (const group of this.#groups.values()) group.element.remove();
    this.#groups.clear();
    for (const cell of this.#cells.values()) cell.group = null;
    this.#on.redraw();
  }

  set filter(words) {
    this.#words = words;
    this.#on.redraw();
  }


  set selected(id) {
    if (id === this.#selected) return;
    const mark = (which, on) => {
      const cell = this.#cells.get(which);
      if (cell) setAttribute(cell.element, "aria-selected", on ? "true" : "false");
    };
    mark(this.#selected, false);
    this.#selected = id;
    mark(id, true);
  }

  /** Replicas that the filter lets through, of all. */
  get shown() {
    let shown = 0;
    for (const replica of this.#replicas.values()) shown += matches(replica, this.#words) ? 1 : 0;
    return { shown, all: this.#replicas.size };
  }

  focus(id = this.#current) {
    (this.#cells.get(id) ?? this.#cells.get(this.#current))?.element.focus();
  }

  #draw(replica) {
    let cell = this.#cells.get(replica.id);
    if (!cell) {
      const [bar, letter] = ["bar", "letter"].map((kind) => h("span", { class: kind }));
      const element = h("button", { type: "button", class: "cell", role: "option", tabindex: "-1", "data-id": replica.id, "aria-selected": String(replica.id === this.#selected) }, bar, letter);
      cell = { element, letter, text: null, group: null, drawn: "" };
      this.#cells.set(replica.id, cell);
      if (this.#current === null) this.#rove(replica.id);
    }
    const { busy = 0, usable = 0, limit, name } = replica;
    const [standing, model] = [standingOf(replica), replica.models?.[0] ?? ""];
    const working = busy + (replica.lingering ?? 0) + (replica.foreign ?? 0);
    const amiss = isReady(replica) && Boolean(replica.problem);
    const drawn = [standing, busy, working, usable, limit?.level, amiss, name, model].join("\n");
    if (drawn !== cell.drawn) {
      cell.drawn = drawn;
      const shown = stateOf(standing);
      const fewer = limit?.level === "fewer";
      setAttribute(cell.element, "data-state", own(STATES, standing) ? standing : "other");
      setAttribute(cell.element, "data-limit", fewer ? "fewer" : null);
      setAttribute(cell.element, "data-amiss", amiss);
      setText(cell.letter, shown.letter || (amiss ? "▲" : fewer ? "–" : ""));
      setAttribute(cell.element, "title", `${name}${model ? `, ${model}` : ""}`);
      cell.element.style.setProperty("--fill", working ? Math.min(1, working / Math.max(1, usable)).toFixed(2) : "0");
      setAttribute(cell.element, "aria-label", `${name}, ${shown.word}, ${number(busy)} of ${count(usable, "slot")} busy${fewer ? ", fewer" : ""}${amiss ? ", something to see to" : ""}`);
    }
    this.#write(cell, replica);
    const key = GROUPINGS[this.#grouping](replica);
    if (cell.group?.key !== key) this.#move(replica.id, cell, key);
    setHidden(cell.element, !matches(replica, this.#words));
  }

  /** The words in a cell, where it has room for any: most of a large pool's cells never have. */
  #write(cell, replica) {
    if (!NAMED.has(this.#root.dataset.size)) return;
    if (!cell.text) {
      cell.text = ["name", "sub"].map((kind) => h("span", { class: kind }));
      cell.element.append(...cell.text);
    }
    const { busy = 0, usable = 0, name } = replica;
    const standing = standingOf(replica);
    setText(cell.text[0], name);
    setText(cell.text[1], standing === "ready" || busy ? `${busy}/${usable} ${replica.models?.[0] ?? ""}` : stateOf(standing).word);
  }

  #move(id, cell, key) {
    const hadFocus = document.activeElement === cell.element;
    this.#leave(id, cell);
    const group = this.#groups.get(key) ?? this.#makeGroup(key);
    let [low, high] = [0, group.ids.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (group.ids[middle] < id) low = middle + 1;
      else high = middle;
    }
    const next = group.ids[low];
    group.ids.splice(low, 0, id);
    group.cells.insertBefore(cell.element, next === undefined ? null : this.#cells.get(next).element);
    cell.group = group;
    if (hadFocus) cell.element.focus({ preventScroll: true });
  }

  #leave(id, cell) {
    cell.group?.ids.splice(cell.group.ids.indexOf(id), 1);
  }

  #drop(id) {
    const cell = this.#cells.get(id);
    if (!cell) return;
    const hadFocus = document.activeElement === cell.element;
    this.#leave(id, cell);
    cell.element.remove();
    this.#cells.delete(id);
    if (this.#current !== id) return;
    this.#current = null;
    const next = this.#visible()[0];
    if (next) this.#rove(this.#idAt(next));
    if (hadFocus) next?.focus();
  }

  /** Brings the groups up to date with the replicas: which there are, and what stands above each. */
  #regroup() {
    const members = new Map([...this.#groups.keys()].map((key) => [key, []]));
    for (const replica of this.#replicas.values()) {
      const key = GROUPINGS[this.#grouping](replica);
      if (members.has(key)) members.get(key).push(replica);
      else members.set(key, [replica]);
    }
    for (const [key, some] of members) this.#head(this.#groups.get(key) ?? this.#makeGroup(key), some);
    this.#headings = [...members.values()].filter((some) => some.length).length;
    this.#resize();
  }

  #makeGroup(key) {
    const [title, why, cells] = [h("span", { class: "group-title" }), h("span", { class: "group-why" }), h("div", { class: "cells" })];
    const heading = h("div", { class: "group-heading", role: "presentation" }, title, why);
    const element = h("div", { class: "group", role: "group" }, heading, cells);
    const group = { key, ids: [], element, title, why, cells };
    this.#groups.set(key, group);
    const place = (one) => (this.#grouping === "state" ? rankOf(one.key) : 0);
    const after = [...this.#groups.values()].filter((one) => one !== group)
      .filter((one) => place(one) > place(group) || (place(one) === place(group) && String(one.key) > String(key)))
      .sort((a, b) => place(a) - place(b) || (String(a.key) < String(b.key) ? -1 : 1))[0];
    this.#root.insertBefore(element, after?.element ?? null);
    return group;
  }

  #head(group, members) {
    const n = members.length;
    let [title, why] = ["", ""];
    if (this.#grouping === "state") {
      title = `${stateOf(group.key).word} ${number(n)}`;
      const broken = kinds(members.filter((r) => r.problem));
      why = broken.slice(0, 3).map((one) => `${number(one.n)}: ${one.kind}`).join(" · ");
    } else {
      const ready = members.filter(isReady).length;
      title = this.#grouping === "none" ? "all" : group.key || `no ${this.#grouping}`;
      why = `${number(ready)} of ${number(n)} ready`;
    }
    setText(group.title, title);
    setText(group.why, why);
    setAttribute(group.why, "title", why || null);
    setAttribute(group.element, "aria-label", `${title}${why ? `: ${why}` : ""}`);
    setHidden(group.element, !members.some((r) => matches(r, this.#words)));
  }

  #resize() {
    if (!this.#width) return;
    const room = HEIGHT - 40 * Math.min(3, this.#headings);
    const n = this.#replicas.size;
    const fits = ([, w, height]) => Math.ceil(n / Math.max(1, Math.floor(this.#width / w))) * height <= room;
    const [size] = SIZES.find(fits) ?? SIZES.at(-1);
    if (size === this.#root.dataset.size) return;
    this.#root.dataset.size = size;
    for (const [id, cell] of this.#cells) if (this.#replicas.has(id)) this.#write(cell, this.#replicas.get(id));
  }

  #visible() {
    return [...this.#root.querySelectorAll(".group:not([hidden]) .cell:not([hidden])")];
  }

  #rove(id) {
    const before = this.#cells.get(this.#current);
    if (before) before.element.tabIndex = -1;
    this.#current = id;
    const cell = this.#cells.get(id);
    if (cell) cell.element.tabIndex = 0;
  }

  #key(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, Home: "first", End: "last", ArrowUp: "up", ArrowDown: "down" };
    const step = steps[event.key];
    if (step === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const cells = this.#visible();
    const at = cells.indexOf(document.activeElement);
    const to = typeof step === "number" ? cells[at + step] : step === "first" ? cells[0] : step === "last" ? cells.at(-1) : nearest(cells, at, step === "up");
    to?.focus();
  }
}

/** The cell in the next row above or below that is nearest in its column. */
function nearest(cells, at, isUp) {
  if (at < 0) return cells[0];
  const from = cells[at].getBoundingClientRect();
  let [best, bestRow, bestAway] = [null, null, Infinity];
  for (let i = at; isUp ? i >= 0 : i < cells.length; i += isUp ? -1 : 1) {
    const box = cells[i].getBoundingClientRect();
    if (isUp ? box.top > from.top - 2 : box.top < from.top + 2) continue;
    bestRow ??= box.top;
    if (Math.abs(box.top - bestRow) > 2) break;
    const away = Math.abs(box.left - from.left);
    if (away < bestAway) [best, bestAway] = [cells[i], away];
  }
  return best;
}
