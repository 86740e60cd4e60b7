// The pool as a grid: a cell for each replica, kept for as long as the replica is there.

import { h, setAttribute, setText } from "./dom.js";
import { matches } from "./state.js";
import { isReady, standingOf } from "./pool.js";
import { kinds } from "./verdict.js";
import { STATES, count, number, own, stateOf } from "./words.js";

/** Sizes of cells, the largest first: [name, width, height with gaps], in px at a root font of 16. The largest that lets the pool fit is taken. */
const SIZES = [["xl", 196, 66], ["l", 148, 50], ["m", 50, 44], ["s", 32, 32], ["xs", 24, 24]];
/** Height that the grid should fit into, in px, at a root font of 16. */
const HEIGHT = 500;

const GROUPINGS = {
  state: standingOf,
  deployment: (r) => r.deployment ?? "",
  model: (r) => r.models?.[0] ?? "",
  none: () => "all",
};
const ORDER = Object.keys(STATES);

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

  /** `on.hover(id | null)` and `on.pick(id)`. */
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
    new ResizeObserver(() => this.#resize()).observe(root);
  }

  #idAt(target) {
    const cell = target instanceof Element ? target.closest("[data-id]") : null;
    return cell ? Number(cell.dataset.id) : null;
  }

  /** Takes in what changed: ids of replicas that are new, different or gone. */
  update(replicas, changed) {
    this.#replicas = replicas;
    const dirty = new Set();
    for (const id of changed) {
      const replica = replicas.get(id);
      if (replica) this.#draw(replica, dirty);
      else this.#drop(id, dirty);
    }
    this.#finish(dirty);
  }

  set grouping(grouping) {
    this.#grouping = own(GROUPINGS, grouping) ? grouping : "state";
    for (const group of this.#groups.values()) group.element.remove();
    this.#groups.clear();
    for (const cell of this.#cells.values()) cell.group = null;
    this.update(this.#replicas, [...this.#replicas.keys()]);
  }

  set filter(words) {
    this.#words = words;
    for (const [id, cell] of this.#cells) cell.element.hidden = !matches(this.#replicas.get(id), words);
    this.#finish(new Set(this.#groups.values()));
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

  /** Cells that are seen, of all. */
  get shown() {
    let shown = 0;
    for (const { element } of this.#cells.values()) shown += element.hidden ? 0 : 1;
    return { shown, all: this.#cells.size };
  }

  focus(id = this.#current) {
    (this.#cells.get(id) ?? this.#cells.get(this.#current))?.element.focus();
  }

  #draw(replica, dirty) {
    let cell = this.#cells.get(replica.id);
    if (!cell) {
      const [bar, letter, name, sub] = ["bar", "letter", "name", "sub"].map((kind) => h("span", { class: kind }));
      const element = h("button", { type: "button", class: "cell", role: "option", tabindex: "-1", "data-id": replica.id, "aria-selected": "false" }, bar, letter, name, sub);
      cell = { element, bar, letter, name, sub, group: null, drawn: "" };
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
      setText(cell.name, name);
      setAttribute(cell.element, "title", `${name}${model ? `, ${model}` : ""}`);
      setText(cell.sub, standing === "ready" || busy ? `${busy}/${usable} ${model}` : shown.word);
      cell.element.style.setProperty("--fill", working ? Math.min(1, working / Math.max(1, usable)).toFixed(2) : "0");
      setAttribute(cell.element, "aria-label", `${name}, ${shown.word}, ${number(busy)} of ${count(usable, "slot")} busy${fewer ? ", fewer" : ""}${amiss ? ", something to see to" : ""}`);
    }
    const key = GROUPINGS[this.#grouping](replica);
    if (cell.group?.key !== key) this.#move(replica.id, cell, key, dirty);
    else dirty.add(cell.group);
    cell.element.hidden = !matches(replica, this.#words);
  }

  #move(id, cell, key, dirty) {
    const hadFocus = document.activeElement === cell.element;
    this.#leave(id, cell, dirty);
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
    dirty.add(group);
    if (hadFocus) cell.element.focus({ preventScroll: true });
  }

  #leave(id, cell, dirty) {
    if (!cell.group) return;
    cell.group.ids.splice(cell.group.ids.indexOf(id), 1);
    dirty.add(cell.group);
  }

  #drop(id, dirty) {
    const cell = this.#cells.get(id);
    if (!cell) return;
    const hadFocus = document.activeElement === cell.element;
    this.#leave(id, cell, dirty);
    cell.element.remove();
    this.#cells.delete(id);
    if (this.#current !== id) return;
    this.#current = null;
    const next = this.#visible()[0];
    if (next) this.#rove(this.#idAt(next));
    if (hadFocus) next?.focus();
  }

  #makeGroup(key) {
    const [title, why, cells] = [h("span", { class: "group-title" }), h("span", { class: "group-why" }), h("div", { class: "cells" })];
    const heading = h("div", { class: "group-heading", role: "presentation" }, title, why);
    const element = h("div", { class: "group", role: "group" }, heading, cells);
    const group = { key, ids: [], element, title, why, cells };
    this.#groups.set(key, group);
    const place = (one) => (this.#grouping === "state" ? (ORDER.indexOf(one.key) + ORDER.length + 1) % (ORDER.length + 1) : 0);
    const after = [...this.#groups.values()].filter((one) => one !== group)
      .filter((one) => place(one) > place(group) || (place(one) === place(group) && String(one.key) > String(key)))
      .sort((a, b) => place(a) - place(b) || (String(a.key) < String(b.key) ? -1 : 1))[0];
    this.#root.insertBefore(element, after?.element ?? null);
    return group;
  }

  #finish(dirty) {
    for (const group of dirty) {
      if (!group.ids.length) {
        group.element.remove();
        this.#groups.delete(group.key);
        continue;
      }
      this.#head(group);
    }
    this.#resize();
  }

  #head(group) {
    const n = group.ids.length;
    const members = group.ids.map((id) => this.#replicas.get(id)).filter(Boolean);
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
    group.element.hidden = !members.some((r) => matches(r, this.#words));
  }

  #resize() {
    const rem = parseFloat(getComputedStyle(document.documentElement).fontSize) / 16;
    const width = this.#root.clientWidth / rem;
    if (!width) return;
    const room = HEIGHT - 40 * Math.min(3, this.#groups.size);
    const n = this.#cells.size;
    const fits = ([, w, height]) => Math.ceil(n / Math.max(1, Math.floor(width / w))) * height <= room;
    setAttribute(this.#root, "data-size", (SIZES.find(fits) ?? SIZES.at(-1))[0]);
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
