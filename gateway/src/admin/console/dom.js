// Making and keeping elements. Data gets into the page here, and only as text or as an attribute's value.

import { ago, exactly } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) if (child !== null && child !== undefined && child !== "") element.append(child);
  return element;
}

/** An element. Functions among the attributes listen to the event of that name; absent and false ones are left out. */
export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);

/** An element of a drawing. */
export const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

export const byId = (id) => document.getElementById(id);

/** Sets an element's text, and touches nothing if it is that already. */
export function setText(element, text) {
  const wanted = String(text ?? "");
  if (element.textContent !== wanted) element.textContent = wanted;
  return element;
}

/** Sets an attribute, or takes it away (null, false), and touches nothing if it is so already. */
export function setAttribute(element, name, value) {
  if (value === null || value === undefined || value === false) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
    return;
  }
  const wanted = value === true ? "" : String(value);
  if (element.getAttribute(name) !== wanted) element.setAttribute(name, wanted);
}

/** Hides an element, or shows it, and touches nothing if it is so already. */
export const setHidden = (element, isHidden) => {
  if (element.hidden !== isHidden) element.hidden = isHidden;
};

/** How much larger than usual letters are: 1 at a root font of 16 px. */
export const remOf = () => parseFloat(getComputedStyle(document.documentElement).fontSize) / 16;

/**
 * Makes the children of `parent` those of `items`, in their order. An element is kept as long as its key is there, so that focus, selection
 * and scroll position stay. `create(item)` makes one, `update(element, item)` brings it up to date.
 */
export function keyed(parent, items, keyOf, create, update) {
  if (!parent.keyedChildren) {
    // What the page had there before there was anything to show.
    parent.replaceChildren();
    parent.keyedChildren = new Map();
  }
  const known = parent.keyedChildren;
  const wanted = new Map();
  for (const item of items) if (!wanted.has(keyOf(item))) wanted.set(keyOf(item), item);
  // First what is gone: otherwise everything behind it would be in the wrong place, and be moved.
  for (const [key, element] of known) {
    if (wanted.has(key)) continue;
    element.remove();
    known.delete(key);
  }
  let place = parent.firstElementChild;
  for (const [key, item] of wanted) {
    let element = known.get(key);
    if (!element) {
      element = create(item);
      known.set(key, element);
    }
    update(element, item);
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
  }
}

/** A moment that is told as `3 min ago`, with the exact time as its title. */
export const moment = () => h("time", {});

/** Brings a moment up to date. */
export function setMoment(element, at, now) {
  if (element.moment !== at) {
    element.moment = at;
    setAttribute(element, "data-at", Number.isFinite(at) ? at : null);
    setAttribute(element, "datetime", Number.isFinite(at) ? new Date(at * 1000).toISOString() : null);
    setAttribute(element, "title", exactly(at));
  }
  setText(element, ago(at, now));
}

/** Brings all moments of the page up to date. */
export function tickMoments(now) {
  for (const element of document.querySelectorAll("time[data-at]")) setText(element, ago(element.moment, now));
}

/** An address: a link if it is one of https, and text otherwise. */
export function address(url) {
  let parsed = null;
  try {
    parsed = new URL(url);
  } catch {
    // Text it is.
  }
  if (parsed?.protocol !== "https:") return h("span", { class: "url" }, String(url));
  return h("a", { class: "url", href: parsed.href, target: "_blank", rel: "noopener noreferrer" }, String(url));
}
