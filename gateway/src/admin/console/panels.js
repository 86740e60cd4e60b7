// The lists below the pool: who waits, what runs, batches, events, and the cards of what may be absent.

import { cancelBatch, cancelRequest } from "./actions.js";
import { standOf } from "./detail.js";
import { takesWork } from "./pool.js";
import { byId, h, keyed, moment, setAttribute, setMoment, setText } from "./dom.js";
import { acu, ago, bytes, count, exactly, length, number, own, percent, reasonOf, stateOf } from "./words.js";

/** A table's row: cells by their labels, which stand before the values where the table is stacked on a phone. */
const row = (...labels) => h("tr", {}, labels.map((label) => h("td", { "data-label": label })));

/** Fills a table's body, and shows `none` instead where there is nothing. */
function table(id, items, keyOf, create, update) {
  const body = byId(id);
  body.closest("table").hidden = items.length === 0;
  const none = byId(`${id}-none`);
  if (none) none.hidden = items.length > 0;
  keyed(body, items, keyOf, create, (element, item) => {
    update(element, item);
    // What is cut for want of room is told when it is pointed at.
    for (const cell of element.children) if (!cell.firstElementChild && !cell.classList.contains("id")) setAttribute(cell, "title", cell.textContent);
  });
}

/** Lists of hundreds grow by so many lines a frame: `grow(items)` gives those that are to be there now. */
const LINES = 50;
function growing() {
  let n = 0;
  return (items) => {
    n = Math.min(items.length, n + LINES);
    return items.slice(0, n);
  };
}
const [requestLines, eventLines] = [growing(), growing()];

export function drawTotals({ totals, replicas }) {
  if (!totals) return;
  const state = (name) => totals.replicas?.[name] ?? 0;
  const all = replicas.size;
  setText(byId("n-ready"), `${number(state("ready"))} / ${number(all)}`);
  setText(byId("n-busy"), `${number(totals.busy)} / ${number(totals.slots)}`);
  setText(byId("n-flight"), number(totals.in_flight));
  setText(byId("n-queued"), number(totals.queued));
  const { used, limit } = totals.memory ?? {};
  setText(byId("n-memory"), bytes(used));
  setText(byId("n-limit"), limit ? `memory, of ${bytes(limit)}` : "memory");
}

export function drawRates({ points, everyS }) {
  const last = points.slice(-6);
  const seconds = last.length * everyS;
  const sum = (of) => last.reduce((total, point) => total + (of(point) ?? 0), 0);
  setText(byId("n-tokens"), seconds ? number(sum((p) => p.completion_tokens) / seconds) : "–");
  setText(byId("n-requests"), seconds ? number((sum((p) => p.requests) / seconds) * 60) : "–");
  setText(byId("n-failed"), seconds ? number((sum((p) => p.failed) / seconds) * 60) : "–");
}

/** How long a new request would wait; where no phone takes work, what becomes of it. */
function waitOf(seconds, isServed, { refused_after_s }) {
  if (Number.isFinite(seconds)) return length(seconds);
  return isServed || !Number.isFinite(refused_after_s) ? "–" : `no phone: refused after ${length(refused_after_s)}`;
}

export function drawQueue({ queue }) {
  const anyServed = (queue?.by_model ?? []).some((one) => one.slots > 0);
  const waits = (element, one) => {
    const [name, waiting, oldest, estimate] = element.children;
    setText(name, one.class ?? one.model ?? one.tenant);
    setText(waiting, number(one.waiting));
    setText(oldest, one.waiting && Number.isFinite(one.oldest_s) ? length(one.oldest_s) : "–");
    if (estimate) setText(estimate, waitOf(one.estimate_s, anyServed, queue));
  };
  table("by-class", queue?.by_class ?? [], (one) => one.class, () => row("class", "waiting", "oldest", "a new one would wait"), waits);
  const tenants = [...(queue?.by_tenant ?? [])];
  if (queue?.others) tenants.push({ tenant: "others", waiting: queue.others, oldest_s: null });
  table("by-tenant", tenants, (one) => one.tenant, () => row("tenant", "waiting", "oldest"), waits);
  table("by-model", queue?.by_model ?? [], (one) => one.model, () => row("model", "waiting", "a new one would wait", "ready phones"), (element, one) => {
    const [name, waiting, estimate, ready] = element.children;
    setText(name, one.model);
    setText(waiting, number(one.waiting));
    setText(estimate, waitOf(one.estimate_s, one.slots > 0, queue));
    setText(ready, `${number(one.ready)} with ${count(one.slots, "slot")}`);
    setAttribute(ready, "class", one.ready ? null : "alarm");
  });
}

/** Returns whether all of them are there; otherwise it is to be called again. */
export function drawRequests({ requests }, now) {
  const data = requests?.data ?? [];
  const more = (requests?.total ?? 0) - data.length;
  setText(byId("requests-count"), requests ? `${number(requests.total)}${more > 0 ? `, the ${number(data.length)} oldest shown` : ""}` : "");
  const create = (one) => {
    const element = row("since", "request", "tenant", "class", "model", "phase", "phone", "");
    element.children[0].append(moment());
    element.children[1].setAttribute("class", "id");
    const button = h("button", { type: "button", class: "small", click: () => cancelRequest(element.request) }, "Cancel");
    button.setAttribute("aria-label", `Cancel request ${one.id}`);
    element.lastElementChild.append(button);
    return element;
  };
  const lines = requestLines(data);
  table("requests-body", lines, (one) => one.id, create, (element, one) => {
    element.request = one;
    const [since, id, tenant, klass, model, phase, phone] = element.children;
    setMoment(since.firstElementChild, one.since, now);
    // Ids of one process begin alike.
    setText(id, one.id.length > 16 ? `…${one.id.slice(-12)}` : one.id);
    setAttribute(id, "title", one.id);
    setText(tenant, one.tenant);
    setText(klass, one.class);
    setText(model, one.model);
    setText(phase, `${standOf(one)}${one.content_events ? `, ${number(one.content_events)} pieces` : ""}${one.attempts > 1 ? `, ${number(one.attempts)} tries` : ""}`);
    setAttribute(phase, "data-phase", one.replica ? one.phase : "queued");
    setText(phone, one.replica ?? "–");
  });
  return lines.length === data.length;
}

const WAITS = { replica: "waits for a phone of its model", hours: "waits for its hours", memory: "waits for memory", disk: "waits for the disk" };

export function drawBatches({ batches }) {
  const create = (one) => {
    const element = row("batch", "tenant", "progress", "state", "done", "");
    element.children[0].setAttribute("class", "id");
    element.children[2].append(h("progress", {}), h("span", {}));
    const button = h("button", { type: "button", class: "small", click: () => cancelBatch(element.batch) }, "Cancel");
    button.setAttribute("aria-label", `Cancel batch ${one.id}`);
    element.lastElementChild.append(button);
    return element;
  };
  table("batches-body", batches?.data ?? [], (one) => one.id, create, (element, one) => {
    element.batch = one;
    const [id, tenant, progress, state, done, act] = element.children;
    const [bar, text] = progress.children;
    const ended = (one.completed ?? 0) + (one.failed ?? 0);
    setText(id, one.id);
    setAttribute(id, "title", one.id);
    setText(tenant, [one.tenant, one.model].filter(Boolean).join(", "));
    bar.max = Math.max(1, one.total ?? 0);
    bar.value = ended;
    setAttribute(bar, "aria-label", `${number(ended)} of ${number(one.total)} lines`);
    setText(text, `${number(ended)} / ${number(one.total)}${one.failed ? `, ${number(one.failed)} failed` : ""}`);
    setText(state, own(WAITS, one.waits_for) ?? `${String(one.state).replaceAll("_", " ")}${one.running ? `, ${number(one.running)} running` : ""}`);
    const isLate = Number.isFinite(one.eta_s) && Number.isFinite(one.expires_in_s) && one.eta_s > one.expires_in_s;
    setText(done, `${Number.isFinite(one.eta_s) ? `in ${length(one.eta_s)}` : "–"}${Number.isFinite(one.expires_in_s) ? `, has ${length(one.expires_in_s)}` : ""}${isLate ? ": too late" : ""}`);
    setAttribute(done, "class", isLate ? "alarm" : null);
    act.firstElementChild.hidden = !["validating", "in_progress"].includes(one.state);
  });
}

const EVENTS = { added: "added", changed: "stated anew", draining: "drains", drained: "is drained: nothing runs there", undrained: "takes work again", removed: "removed", moved: "moved to another address" };

function eventText(one) {
  if (one.event === "state" || (!one.event && one.to)) {
    return `${stateOf(one.from).word} → ${stateOf(one.to).word}: ${one.detail ?? reasonOf(one.reason)}`;
  }
  return [own(EVENTS, one.event) ?? String(one.event ?? "").replaceAll("_", " "), one.url ?? one.detail ?? ""].filter(Boolean).join(" ");
}

/** Returns whether all of them are there; otherwise it is to be called again. */
export function drawEvents({ events }, now) {
  const none = byId("events-none");
  none.hidden = events.length > 0;
  const lines = eventLines([...events].reverse());
  keyed(byId("events-list"), lines, (one) => `${one.number} ${one.at}`, (one) => {
    const to = one.to ? stateOf(one.to) : null;
    const mark = h("i", { class: "mark", "data-state": one.to ?? "other", "aria-hidden": "true" }, to?.letter ?? "·");
    return h("li", {}, mark, moment(), " ", h("b", {}, one.name), " ", eventText(one));
  }, (element, one) => setMoment(element.querySelector("time"), one.at, now));
  return lines.length === events.length;
}

/** A card of facts that may be absent: hidden without rows. Rows are `[label, value, alarm]`. */
function card(id, rows, note = "") {
  const element = byId(id);
  element.hidden = rows.length === 0;
  if (!rows.length) return;
  keyed(element.querySelector("dl"), rows, ([label]) => label, ([label]) => h("div", {}, h("dt", {}, label), h("dd", {})), (line, [, value, alarm]) => {
    setText(line.lastElementChild, value);
    setAttribute(line.lastElementChild, "class", alarm ? "alarm" : null);
  });
  setText(element.querySelector(".note"), note);
}

export function drawDeployments({ deployments }, now) {
  const data = (deployments?.data ?? []).slice(0, 12);
  card("deployments", data.map((one) => {
    const left = Number.isFinite(one.ends_at) ? one.ends_at - now : one.ends_in_s;
    const ends = Number.isFinite(left) ? (left > 0 ? `ends in ${length(left)}` : `ended ${length(-left)} ago`) : "no end known";
    const share = one.share_of_ready_slots;
    const cost = Number.isFinite(one.cost_acu_per_day) ? `, ${acu(one.cost_acu_per_day)} a day` : "";
    return [one.deployment ?? "none", `${ends}; ${count(one.replicas?.length ?? 0, "phone")}, ${count(one.slots, "slot")}${Number.isFinite(share) ? `, ${percent(share)} of the ready slots` : ""}${cost}`, Number.isFinite(left) && left < 3600];
  }));
}

export function drawCost({ cost }) {
  const rows = [];
  const add = (label, value, text = acu) => {
    if (Number.isFinite(value)) rows.push([label, text(value)]);
  };
  if (cost?.replicas?.priced || Number.isFinite(cost?.per_day)) {
    add("The pool now", cost.per_day, (n) => `${acu(n)} a day`);
    add(`In the last ${cost.window === "all" ? length((cost.to ?? 0) - (cost.from ?? 0)) : cost.window}`, cost.total);
    const share = (n) => `${acu(n)}${cost.total ? `, ${percent(n / cost.total)}` : ""}`;
    add("for answers", cost.used, share);
    add("wasted", cost.wasted, share);
    add("idle", cost.idle, share);
    add("One answer", cost.per_request?.total);
    add("A million tokens", cost.per_million_tokens?.total);
  }
  const unpriced = cost?.replicas?.unpriced;
  card("cost", rows, unpriced ? `${count(unpriced, "phone")} ${unpriced === 1 ? "states" : "state"} no price and ${unpriced === 1 ? "is" : "are"} in no amount.` : "");
}

const WANTED = { more: "more phones", fewer: "fewer would do", enough: "enough", unattainable: "out of reach" };

/** Phones that take work, by model. */
function servingBy(replicas) {
  const serving = new Map();
  for (const replica of replicas.values()) {
    if (takesWork(replica)) for (const model of replica.models ?? []) serving.set(model, (serving.get(model) ?? 0) + 1);
  }
  return serving;
}

/** What is wanted of a model, in one line. */
function wantedOf({ verdict, now, wanted, wanted_last_look: last, kinds, confidence }, serving = 0) {
  const ways = (kinds ?? []).map((kind) => `${number(kind.phones)} ${kind.kind} more`).join(" or ");
  const differs = Number.isFinite(last) && last !== wanted ? `the last look alone wants ${number(last)}` : "";
  // What is there need not be of use now.
  const served = serving < (now?.phones ?? 0) ? ` (${serving ? number(serving) : "none"} serving)` : "";
  return [`${own(WANTED, verdict) ?? String(verdict)}: ${number(now?.phones)} now${served}, ${number(wanted)} wanted`, ways, differs, confidence === "low" ? "not sure of it yet" : ""]
    .filter(Boolean).join("; ");
}

/** When the advice was worked out: it grows old where looks fail or take long. */
const adviceAt = moment();

export function drawAdvice({ advice, replicas }, now) {
  const models = (advice?.data ?? []).filter((one) => one.verdict !== "unknown").slice(0, 12);
  const card = byId("advice");
  card.hidden = models.length === 0;
  const serving = servingBy(models.length ? replicas : new Map());
  const create = ({ model }) => h("div", {}, h("dt", {}, model), h("dd", {}, h("strong", {}), h("details", {}, h("summary", {}, "Why"), h("ul", {}))));
  keyed(card.querySelector("dl"), models, (one) => one.model, create, (line, one) => {
    const [wanted, why] = line.lastElementChild.children;
    setText(wanted, wantedOf(one, serving.get(one.model)));
    const isShort = one.verdict === "more" || one.verdict === "unattainable" || (one.now?.phones > 0 && !serving.get(one.model));
    setAttribute(wanted, "class", isShort ? "alarm" : null);
    const reasons = one.reasons ?? [];
    why.hidden = reasons.length === 0;
    keyed(why.lastElementChild, reasons, (reason) => reason, () => h("li", {}), setText);
  });
  setMoment(adviceAt, advice?.at, now);
  card.querySelector(".note").replaceChildren(...(models.length ? [`From the requests of the last ${length(advice.window_s)}, looked at `, adviceAt, "."] : []));
}
