// One replica in full: what the feed says of it at once, and what only the admin API knows a moment later.

import { call, drain, remove, undrain } from "./actions.js";
import { address, h, keyed, moment, setAttribute, setMoment, setText } from "./dom.js";
import { standingOf } from "./pool.js";
import { remedyOf } from "./verdict.js";
import { acu, count, length, listed, number, own, reasonOf, stateOf } from "./words.js";

const PHASES = { queued: "waits", prefill: "reads its prompt", decode: "writes its answer" };
export const phaseOf = (phase) => own(PHASES, phase) ?? String(phase ?? "");

/** Its price a day, or the one that only it states of itself. */
export function priceOf(cost, claimed) {
  if (Number.isFinite(cost)) return `${acu(cost)} a day`;
  return Number.isFinite(claimed) ? `${acu(claimed)} a day as it says itself: counts nowhere until you state it (huntgroup replicas patch NAME --cost-acu-per-day N)` : null;
}

const FIELDS = { context_tokens: "context", expires_at: "end", cost_acu_per_day: "cost", prefill_rate: "reading speed", decode_rate: "writing speed" };

/** What an operator states of a phone that came by itself. */
export function heldOf(held) {
  const names = held.map((name) => own(FIELDS, name) ?? String(name).replaceAll("_", " "));
  return names.length ? `${listed(names)}: stated by an operator, whatever it says of ${names.length === 1 ? "this" : "these"} when it announces itself` : null;
}

/** What becomes of a request now. One without a phone waits for one, also in the middle of its answer. */
export const standOf = ({ phase, replica }) => (phase === "decode" && !replica ? "waits to go on" : phase === "prefill" && !replica ? PHASES.queued : phaseOf(phase));

/** When what only the API tells is asked for, in ms: once somebody stays with a phone, a while after it changed, and again and again. */
const [STAYS, SETTLED, AGAIN] = [120, 1_500, 10_000];

export class Detail {
  #root;
  #parts = null;
  #replica = null;
  #full = null;
  #fullFor = null;
  #timer = 0;
  #now = () => Date.now() / 1000;

  constructor(root, now) {
    this.#root = root;
    this.#now = now;
  }

  /** Shows a replica, or nothing. */
  show(replica) {
    const isOther = replica?.id !== this.#replica?.id;
    const hasMoved = replica?.state !== this.#replica?.state;
    this.#replica = replica;
    if (!replica) {
      clearTimeout(this.#timer);
      this.#root.hidden = true;
      return;
    }
    this.#parts ??= this.#build();
    this.#root.hidden = false;
    if (isOther) this.#full = null;
    this.#draw();
    if (isOther || hasMoved) this.#ask(isOther ? STAYS : SETTLED);
  }

  #ask(wait) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(async () => {
      const { id } = this.#replica ?? {};
      const full = await call("GET", `/admin/replicas/${id}`).catch(() => null);
      if (this.#replica?.id !== id) return;
      if (full) {
        [this.#full, this.#fullFor] = [full, id];
        this.#draw();
      }
      this.#ask(AGAIN);
    }, wait);
  }

  #build() {
    const part = (tag, attributes, ...children) => h(tag, attributes, ...children);
    const parts = {
      name: part("h3", {}), badge: part("span", { class: "badge" }), since: moment(), why: part("p", { class: "why" }), problem: part("p", { class: "problem" }),
      next: part("p", { class: "next" }), facts: part("dl", { class: "facts" }), doing: part("ul", { class: "doing" }), history: part("ol", { class: "history" }),
      drain: part("button", { type: "button", click: () => drain(this.#replica) }, "Drain …"),
      undrain: part("button", { type: "button", click: () => undrain(this.#replica) }, "Undrain …"),
      remove: part("button", { type: "button", class: "danger", click: () => remove(this.#replica) }, "Remove …"),
      nothing: part("p", { class: "quiet" }, "Nothing runs there."), url: part("p", { class: "where" }),
    };
    this.#root.replaceChildren(
      h("div", { class: "who" }, parts.badge, parts.name), parts.url,
      h("p", { class: "since" }, parts.since, " ", parts.why), parts.problem, parts.next,
      h("div", { class: "buttons" }, parts.drain, parts.undrain, parts.remove),
      h("h4", {}, "What it does now"), parts.nothing, parts.doing, parts.facts, h("h4", {}, "What happened to it"), parts.history,
    );
    return parts;
  }

  #draw() {
    const [r, parts, now] = [this.#replica, this.#parts, this.#now()];
    const full = this.#fullFor === r.id ? this.#full : null;
    const standing = standingOf(r);
    const shown = stateOf(standing);
    setText(parts.name, r.name);
    setText(parts.badge, `${shown.letter ? `${shown.letter} ` : ""}${shown.word}`);
    setAttribute(parts.badge, "data-state", standing);
    if (parts.url.shown !== r.url) {
      parts.url.shown = r.url;
      parts.url.replaceChildren(address(r.url));
    }
    setMoment(parts.since, r.since_s, now);
    setText(parts.why, `${r.reason ? `${reasonOf(r.reason)}. ` : ""}${shown.means}`);
    setText(parts.problem, r.problem ?? "");
    const limit = r.limit?.level === "fewer" ? `It gets less work: ${r.limit.reason}. ` : "";
    const { next, again } = remedyOf(r);
    const advice = [r.reason === "relay_down" ? "Wait for its relay, or check the way to it: this phone is not to blame." : r.problem && next ? "" : shown.next, again ? `${again.charAt(0).toUpperCase()}${again.slice(1)}.` : ""].join(" ");
    setText(parts.next, `${limit}${advice}`);
    parts.drain.hidden = r.draining || r.removing;
    parts.undrain.hidden = !r.draining || r.removing;
    parts.remove.hidden = Boolean(r.removing);
    const doing = r.doing ?? [];
    parts.nothing.hidden = doing.length > 0 || Boolean(r.lingering || r.foreign);
    const asides = [[r.lingering, "slot", "may still work for a request that was broken off"], [r.foreign, "slot", "busy with work that is not ours"]]
      .filter(([n]) => n).map(([n, what, text]) => ({ request: text, text: `${count(n, what)} ${text}` }));
    keyed(parts.doing, [...doing, ...asides], (one) => one.request, (one) => (one.text ? h("li", {}) : h("li", {}, h("b", {}), " ", h("span", {}), " ", moment())), (element, one) => {
      if (one.text) return setText(element, one.text);
      const [phase, what, at] = element.children;
      setText(phase, phaseOf(one.phase));
      setText(what, `${one.class}, ${one.tenant}, ${one.model}, ${one.request}`);
      return setMoment(at, one.since, now);
    });
    keyed(parts.facts, this.#facts(r, full, now), ([label]) => label, ([label]) => h("div", {}, h("dt", {}, label), h("dd", {})), (element, [, value]) => setText(element.lastElementChild, value));
    const history = (full?.history ?? []).slice(-12).reverse();
    keyed(parts.history, history, (one) => `${one.at} ${one.to}`, () => h("li", {}, moment(), " ", h("span", {})), (element, one) => {
      setMoment(element.firstElementChild, one.at, now);
      setText(element.lastElementChild, `${stateOf(one.from).word} → ${stateOf(one.to).word}: ${one.detail ?? reasonOf(one.reason)}`);
    });
  }

  #facts(r, full, now) {
    const left = (at) => (Number.isFinite(at) ? (at > now ? `in ${length(at - now)}` : `${length(now - at)} ago`) : null);
    const speed = (measured, assumed) => (Number.isFinite(measured) ? `${number(measured)} tokens/s` : Number.isFinite(assumed) ? `${number(assumed)} tokens/s, assumed` : null);
    const attempts = Object.entries(full?.attempts ?? {}).filter(([, n]) => n).sort((a, b) => b[1] - a[1]);
    const labels = Object.entries(full?.labels ?? {}).map(([name, value]) => (value ? `${name}=${value}` : name));
    const report = full?.report;
    const phone = report ? [
      Number.isFinite(report.battery) ? `battery ${number(report.battery)} %${report.charging ? ", charging" : ""}` : null,
      Number.isFinite(report.temperature) ? `${number(report.temperature)} °C` : null, report.metered ? "metered network" : null, report.screen_on ? "screen on" : null,
    ].filter(Boolean).join(", ") : null;
    return [
      ["Slots", `${number(r.busy)} busy of ${number(r.usable)}${r.usable !== r.slots ? ` usable now, ${number(r.slots)} in all` : ""}`],
      ["Models", (r.models ?? []).join(", ")],
      ["Reads", speed(r.prefill, r.prefill_assumed)],
      ["Writes", speed(r.decode, r.decode_assumed)],
      ["Answers", `${number(r.answers)} whole, ${number(r.failures)} failed`],
      ["How attempts ended", attempts.slice(0, 6).map(([name, n]) => `${name.replaceAll("_", " ")} ${number(n)}`).join(", ")],
      ["Tried again", left(r.penalty_until)],
      ["Last probe", full?.last_probe ? `${full.last_probe.detail} (${length(full.last_probe.took_ms / 1000)})` : null],
      ["Engine", [r.dialect, full?.build].filter(Boolean).join(", ")],
      ["Context", full?.context_tokens ? count(full.context_tokens, "token") : null],
      ["Phone says", phone],
      ["Limit", r.limit?.level && r.limit.level !== "none" ? `${r.limit.level}: ${r.limit.reason}` : null],
      ["Deployment", r.deployment], ["Processor", r.processor ?? full?.processor], ["Ends", left(r.expires_at)],
      ["Costs", priceOf(r.cost, full?.claimed_cost_acu_per_day)],
      ["Verified", r.verification && r.verification !== "none" ? r.verification : null], ["Stated by", r.source], ["Held", heldOf(full?.held ?? [])], ["Labels", labels.join(", ")], ["Number", `#${r.id}`],
    ].filter(([, value]) => value !== null && value !== undefined && value !== "");
  }
}
