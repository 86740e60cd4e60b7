// What is wrong and what to do, in words, the worst first. Pure: the state and the time in, sentences out.

import { isComing, isMissing, isPaused, standingOf, takesWork, tally } from "./pool.js";
import { isLive, nowOf } from "./state.js";
import { ago, clockTime, count, length, listed, number, percent, bytes, stateOf } from "./words.js";

/** Share of the pool out of service that is an emergency, and the one that is worth a look. */
const MOST = 0.5;
const MANY = 0.2;
/** Share of the pool on probation that is worth a word. */
const SOME = 0.1;
/** How long somebody who sits before a screen may wait, in seconds, and everybody else but batches. */
const PATIENCE = { interactive: 15, standard: 180 };
/** Deployments that end within this many seconds are spoken of, if they are at least this share of the ready slots. */
const ENDS_SOON = 3600;
const MUCH_ENDS = 0.1;
/** Models without a phone that are told one by one. */
const MODELS_TOLD = 4;
/** Share of requests that failed in the last minutes, of at least so many. */
const FAILING = 0.1;
const FEW = 10;
/** Phones that cannot be reached and went within so many seconds of each other, about a probe's interval, have one cause, from so many on. */
const AT_ONCE = 20;
const NO_CHANCE = 3;
/** A gateway is told to have been started for so many seconds. */
const JUST_STARTED = 120;
/** Refused announcements of phones are spoken of for so many seconds. */
const REFUSED_LATELY = 3600;

const RANK = { bad: 0, warn: 1, unknown: 2, well: 3 };
const hostOf = (url) => {
  try {
    return new URL(url).hostname;
  } catch {
    return "";
  }
};
/** The host of a `host:port`, which may be an address of version 6. */
const relayHost = (relay) => String(relay).replace(/:\d+$/, "");
const isBehind = (replica, relay) => {
  const [host, at] = [relayHost(relay), hostOf(replica.url)];
  return at === host || at.endsWith(`.${host}`);
};

/** The relay that a phone is behind, as the gateway names it: what follows the first label. */
function relayOf(replica) {
  try {
    const { hostname, port, protocol } = new URL(replica.url);
    const rest = /^[\d.]+$|^\[/.test(hostname) || !hostname.includes(".") ? hostname : hostname.slice(hostname.indexOf(".") + 1);
    return `${rest}:${port || (protocol === "https:" ? 443 : 80)}`;
  } catch {
    return "";
  }
}

/** What a phone says of itself, in its own words: no diagnosis, and no advice to follow. */
const SAID = /^the phone says: (.*)$/s;

/** A problem cut to what several phones share: what stands before the advice and the details. */
export function kindOf(problem) {
  const text = String(problem ?? "");
  const said = text.match(SAID)?.[1];
  const kind = said ? `the phone says “${said}”` : text.split(/[;:(]/)[0].trim();
  return kind.length > 70 ? `${kind.slice(0, 69)}…` : kind;
}

/** What is out of service, by what is wrong with it: `[{ kind, n, cause, next, again }]`, the most frequent first. */
export function kinds(replicas) {
  const found = new Map();
  for (const replica of replicas) {
    const kind = kindOf(replica.problem) || "no reason known";
    const one = found.get(kind) ?? { kind, n: 0, ...remedyOf(replica) };
    one.n += 1;
    found.set(kind, one);
  }
  return [...found.values()].sort((a, b) => b.n - a.n);
}

/** Of what stands behind the kind in a problem's text: what is to be done, or to be looked at. The rest is the likely cause. */
const TO_DO = /\?|\b(restart|set|state|open|add|check|look|huntgroup)\b/i;

/** The likely cause of a replica's problem, what to do about it, and what happens by itself, each as far as it says: `{ cause, next, again }`. */
export function remedyOf(replica) {
  const text = String(replica.problem ?? "");
  const at = text.search(/[;:]/);
  const rest = at < 0 ? "" : text.slice(at + 1).trim();
  const again = replica.problem_next ?? "";
  if (SAID.test(text)) return { cause: "", next: "", again };
  return TO_DO.test(rest) ? { cause: "", next: rest, again } : { cause: rest, next: "", again };
}

const inBrackets = (found, shown = 3) => {
  if (!found.length) return "";
  const rest = found.slice(shown).reduce((n, one) => n + one.n, 0);
  const parts = found.slice(0, shown).map((one) => `${number(one.n)}: ${one.kind}`);
  if (rest) parts.push(`${number(rest)} otherwise`);
  return parts.join(" · ");
};
const upper = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const sentence = (text) => (!text || /[.?!]$/.test(text) ? text : `${text}.`);

/**
 * The verdict: `[{ key, level, title, detail, next }]` with `level` of `bad`, `warn`, `unknown` or `well`, the worst first and never empty.
 * `key` stays the same as long as the same thing is wrong.
 */
export function verdict(state, now = nowOf(state)) {
  const unreachable = ofConnection(state, now);
  if (unreachable) return [unreachable];
  const pool = tally(state);
  const found = [
    ...ofProcess(state), ...ofRelays(state, pool, now), ...ofCertificates(pool), ...ofModels(state, pool), ...ofPool(state, pool, now), ...ofQueue(state, pool),
    ...ofFailures(state, now), ...ofChain(state, now), ...ofDeployments(state, now), ...ofBatches(state), ...ofRegistration(state, now),
  ];
  // Where something is amiss, but nothing bad, it is good to know that the rest works.
  if (!found.some((one) => one.level === "bad") && (pool.ready.length || pool.probation.length || !found.length)) found.push(allWell(state, pool, found.length > 0));
  const told = found.map((one, at) => ({ detail: "", next: "", ...one, at })).sort((a, b) => RANK[a.level] - RANK[b.level] || a.at - b.at);
  // What is to be done is not told twice in a row: on a small screen the same again is what one has to scroll past.
  return told.map((one, at) => (one.next && one.next === told[at - 1]?.next ? { ...one, next: "As above." } : one));
}

function ofConnection(state, now) {
  const { phase, since, message, retryAt } = state.connection;
  const at = clockTime(since + state.skew, now);
  const retry = retryAt ? ` Next try in ${length(Math.max(1, Math.round(retryAt / 1000 + state.skew - now)))}.` : "";
  const known = state.hello ? " What is shown below is what was last heard." : "";
  if (phase === "token") return { key: "token", level: "unknown", title: "The admin token is needed", detail: "", next: "Enter it to see the pool." };
  if (phase === "refused") {
    return { key: "refused", level: "bad", title: "The gateway refuses this page", detail: `${sentence(upper(message ?? ""))}${retry}${known}`, next: "" };
  }
  if (phase === "lost" || (phase === "connecting" && state.connection.wasLost)) {
    return {
      key: "lost", level: "bad", title: `Gateway not reachable since ${at}, trying again`, detail: `${sentence(upper(message ?? ""))}${retry}${known}`.trim(),
      next: "Does its process run, and can this machine reach it? Its log says why it ended.",
    };
  }
  if (!isLive(state)) return { key: "connecting", level: "unknown", title: "Connecting to the gateway …", detail: "", next: "" };
  return null;
}

function ofProcess({ totals }) {
  const found = [];
  if (totals?.store_ok === false) {
    found.push({
      key: "store", level: "bad", title: "The gateway cannot write to its store",
      detail: "Requests are still answered. Changes of the pool and of keys are refused, and would not survive a restart.",
      next: "Is the disk full, or read-only? Look at store.path and the log.",
    });
  }
  if (totals?.draining) {
    found.push({
      key: "leaving", level: "warn", title: "This gateway is shutting down: it finishes what runs and takes nothing new",
      detail: `${count(totals.in_flight ?? 0, "request")} still in flight.`, next: "Nothing, if that was meant. Otherwise start it again once it has ended.",
    });
  }
  const { used, limit } = totals?.memory ?? {};
  if (limit && used / limit >= 0.85) {
    found.push({
      key: "memory", level: used / limit >= 0.95 ? "bad" : "warn", title: `Memory runs short: ${bytes(used)} of ${bytes(limit)}`,
      detail: "Kept answers and idle connections go first, then new requests are refused.", next: "Give the gateway more memory, or fewer requests at once.",
    });
  }
  return found;
}

function ofRelays(state, pool, now) {
  const { totals, queue } = state;
  const idle = pool.serves ? "" : ` No phone takes work: requests fail ${failsAfter(state)}.`;
  const waiting = (queue?.by_model ?? []).reduce((sum, one) => sum + ((one.ready ?? 0) === 0 ? (one.waiting ?? 0) : 0), 0);
  return (totals?.relays_down ?? []).map((relay) => {
    const hit = pool.replicas.filter((r) => r.reason === "relay_down" && isBehind(r, relay));
    const unreachable = hit.length ? hit : [...pool.out, ...pool.missing].filter((r) => isBehind(r, relay));
    // Phones that were out before it keep the time at which they went.
    const fell = mostAtOnce(hit.map((r) => r.since_s));
    const when = fell ? ` since ${clockTime(fell.from, now)}` : "";
    const seen = inBrackets(kinds(unreachable.filter((r) => r.problem)), 2);
    return {
      key: `relay ${relay}`, level: "bad", title: `Relay ${relay} is down: ${count(unreachable.length, "phone")} unreachable${when}`,
      detail: `None of its phones can be reached through it${seen ? ` (${seen})` : ""}, so none of them is blamed: they come back with it, without a penalty.${waiting ? ` ${count(waiting, "request")} wait${waiting === 1 ? "s" : ""} meanwhile.` : ""}${idle}`,
      next: `Wait, or check the way to it: does this machine reach ${relay}? If other networks reach it, the fault is here.`,
    };
  });
}

/** A refused certificate: what is wrong with it, the rule, what to do. */
const REFUSED = /^its certificate is refused, ([^:]+): ([^;]+); (.+)$/s;

/** Relays none of whose phones is used, since all that are away show a certificate that breaks one rule: `[{ relay, away, breach, rule, next }]`. */
export function refusedCertificates(pool) {
  const found = new Map();
  for (const replica of [...pool.out, ...pool.missing, ...pool.unreached]) {
    const [, breach, rule, next] = String(replica.problem ?? "").match(REFUSED) ?? [];
    const relay = relayOf(replica);
    const one = found.get(relay) ?? { relay, breach, rule, next, away: [] };
    one.away.push(replica);
    found.set(relay, { ...one, breach: one.breach === breach ? breach : undefined });
  }
  const isOne = ({ relay, breach, away }) => breach && away.length >= NO_CHANCE && !pool.replicas.some((r) => takesWork(r) && relayOf(r) === relay);
  return [...found.values()].filter(isOne);
}

const ofCertificates = (pool) =>
  refusedCertificates(pool).map(({ relay, breach, rule, next, away }) => ({
    key: `certificate ${relay}`, level: "bad", title: `The certificate of ${relay} is refused, ${breach}: ${count(away.length, "phone")} cannot be used`,
    detail: `The rule: ${rule}. The way to it is open.`, next: `${sentence(upper(next))} All its phones show the same, so look at it first, and not at one of them.`,
  }));

function modelsOf(state, pool) {
  const models = new Map();
  const of = (name) => {
    if (!models.has(name)) models.set(name, { model: name, ready: 0, all: [], waiting: 0 });
    return models.get(name);
  };
  for (const replica of pool.replicas) {
    for (const name of replica.models ?? []) {
      const model = of(name);
      model.all.push(replica);
      if (takesWork(replica)) model.ready += 1;
    }
  }
  for (const row of state.queue?.by_model ?? []) {
    const model = of(row.model);
    model.waiting = row.waiting ?? 0;
    model.ready = Math.max(model.ready, row.ready ?? 0);
  }
  return [...models.values()];
}

function ofModels(state, pool) {
  if (!pool.replicas.length) return [];
  const unserved = modelsOf(state, pool).filter((model) => model.ready === 0);
  // Where nothing at all is ready the pool is what is to be spoken of, and each model only for what waits.
  const told = pool.serves ? unserved : unserved.filter((model) => model.waiting > 0);
  const down = state.totals?.relays_down ?? [];
  const refused = new Set(refusedCertificates(pool).flatMap((one) => one.away));
  const isExplained = (model) => model.all.length > 0 && model.all.every((r) => refused.has(r) || down.some((relay) => isBehind(r, relay)));
  const worst = told.filter((model) => !isExplained(model)).sort((a, b) => b.waiting - a.waiting);
  return worst.slice(0, MODELS_TOLD).map(({ model, all, waiting }) => {
    const coming = all.filter(isComing).length;
    const broken = kinds(all.filter((r) => r.problem));
    const standing = all.length
      ? `${all.length === 1 ? "The only phone" : `All ${number(all.length)} phones`} that could: ${inBrackets(broken) || listed([...new Set(all.map((r) => stateOf(standingOf(r)).word))])}.`
      : "No phone of the pool has it.";
    const next = coming ? `Wait: ${count(coming, "phone")} of it ${coming === 1 ? "is" : "are"} coming.`
      : all.length ? remedyFor(all.filter((r) => r.problem), all.some(isPaused) ? "Charge or cool one of them, or add another." : all.some((r) => r.draining) ? "Undrain one of them, or add another." : SEE_ONE)
      : "Add a phone that serves it, or name it under [models] if phones call it otherwise.";
    return {
      key: `model ${model}`, level: waiting > 0 ? "bad" : "warn",
      title: `No phone serves ${model}${waiting > 0 ? `: ${count(waiting, "request")} wait${waiting === 1 ? "s" : ""}` : " now"}`, detail: standing, next,
    };
  });
}

/** How long a request is kept waiting for a phone where there is none. */
const failsAfter = ({ queue }) => (Number.isFinite(queue?.refused_after_s) ? `after ${length(queue.refused_after_s)}` : "after a while");

/**
 * Of phones that are out, those that went at one moment, where that is nearly all: `{ n, span }`, or null. One cause has taken them. When those went
 * that are not back after a restart nobody has seen.
 */
export function atOnce(out) {
  const best = mostAtOnce(out.filter((r) => r.reason === "hard_failure" && !isMissing(r)).map((r) => r.since_s));
  return best && best.n >= NO_CHANCE && best.n >= 0.8 * out.length ? { n: best.n, span: best.span } : null;
}

/** The moment at which the most of these times lie: `{ from, n, span }`, in seconds; the later one of two alike, or null without a time. */
function mostAtOnce(times) {
  const sorted = times.filter(Number.isFinite).sort((a, b) => a - b);
  let best = null;
  for (let [from, to] = [0, 0]; to < sorted.length; to += 1) {
    while (sorted[to] - sorted[from] > AT_ONCE) from += 1;
    const n = to - from + 1;
    if (!best || n >= best.n) best = { from: sorted[from], n, span: sorted[to] - sorted[from] };
  }
  return best;
}

function ofPool(state, pool, now) {
  const all = pool.replicas.length;
  if (!all) {
    const waits = state.totals?.queued ? ` ${count(state.totals.queued, "request")} wait.` : "";
    return [{ key: "empty", level: "warn", title: "No phone is in the pool", detail: `Requests cannot be answered.${waits}`, next: "Add one (the button above), or let phones register themselves." }];
  }
  const down = state.totals?.relays_down ?? [];
  // What a relay explains is not told again as so many broken phones.
  const refused = new Set(refusedCertificates(pool).flatMap((one) => one.away));
  const unexplained = (list) => list.filter((r) => !refused.has(r) && !down.some((relay) => r.reason === "relay_down" || isBehind(r, relay)));
  const [out, missing, unreached] = [pool.out, pool.missing, pool.unreached].map(unexplained);
  const counted = all - pool.draining.length;
  const told = { state, pool, now, all, counted, out, missing, unreached };
  const found = pool.serves ? ofAway(told) : ofNothing(told, down.length > 0 || refused.size > 0);
  if (pool.wrong.length && pool.wrong.length < all) {
    const broken = kinds(pool.wrong);
    found.push({
      key: "misconfigured", level: "warn", title: `${count(pool.wrong.length, "phone")} ${pool.wrong.length === 1 ? "needs" : "need"} you: misconfigured`,
      detail: inBrackets(broken), next: sentence(upper(broken[0].next)) || (pool.wrong.length === 1 ? "Correct what is stated about it; it does not get well by itself." : "Correct what is stated about them; they do not get well by themselves."),
    });
  }
  if (pool.paused.length / all >= MANY && pool.serves) {
    const reasons = kinds(pool.paused.map((r) => ({ problem: r.limit.reason })));
    found.push({ key: "paused", level: "warn", title: `${number(pool.paused.length)} of ${number(all)} phones rest (${inBrackets(reasons, 2)})`, next: "Charge or cool them; they work again by themselves." });
  }
  return found;
}

/** What to do about phones that are away: what their commonest problem asks for, but first what they have in common. */
function remedyFor(away, otherwise) {
  const [first] = kinds(away);
  const burst = atOnce(away);
  const asked = first?.next ? sentence(upper(first.next)) : burst ? "" : otherwise;
  return [burst ? sharedBy(away) : "", asked, sentence(upper(first?.again ?? ""))].filter(Boolean).join(" ");
}

/** What a probe found of phones that were reached through their relay, and do not serve. */
const REACHED = new Set(["closed", "web_page", "certificate", "bad_status", "engine_error", "strange_answer"]);

/** What phones that went at one moment may share. */
function sharedBy(away) {
  const reached = away.filter((r) => REACHED.has(r.finding)).length;
  return 2 * reached > away.length ? "One cause took them, and not the relay: it answers. Look at what else they share (the app and its version, the model, the deployment)."
    : "One cause took them: look at what they share (the relay, the network, the deployment) before you look at one of them.";
}

const SEE_ONE = "Look at one of them: is it on, has it a network, is its app open?";
const REACH = "Does this machine reach them: its network, its DNS, a firewall? If others reach them, the fault is here. Otherwise look at one: is it on, is its app open?";
const likely = (away) => {
  const cause = kinds(away)[0]?.cause;
  return cause ? `Most likely ${cause}.` : "";
};
const restartedAt = ({ hello }, now) => (Number.isFinite(hello?.started_at) ? ` (${clockTime(hello.started_at, now)})` : "");

/** When phones went out: at once, or how many of them lately. */
function whenOf(out, now) {
  const burst = atOnce(out);
  if (burst) return `${burst.n === out.length ? `All ${number(burst.n)}` : `${number(burst.n)} of them`} went out within ${length(Math.max(1, Math.ceil(burst.span)))}.`;
  const newest = out.filter((r) => now - r.since_s < 900).length;
  return `${newest === out.length ? "All" : newest ? number(newest) : "None"} of them went in the last 15 min.`;
}

/** No phone takes work: the one thing to say, with all the reasons there are. */
function ofNothing({ state, pool, now, all, out, missing, unreached }, isExplained) {
  const away = [...missing, ...out, ...unreached];
  const rest = pool.coming.length + pool.draining.length;
  const isJustStarted = now - (state.hello?.started_at ?? 0) < JUST_STARTED;
  if (pool.coming.length && !away.length && rest === all) {
    return [{
      key: "none", level: "warn", title: `No phone is ready yet: ${count(pool.coming.length, "phone")} coming`,
      detail: `${isJustStarted ? `The gateway was started ${ago(state.hello.started_at, now)}. ` : ""}Requests wait for one, and fail ${failsAfter(state)}.`, next: "Wait: they are probed now.",
    }];
  }
  // Its phones are all that there are: it has said so.
  if (isExplained && !away.length) return [];
  const parts = [
    [missing.length, `${count(missing.length, "phone")} not back since the restart${restartedAt(state, now)}`], [out.length, `${number(out.length)} out`],
    [unreached.length, `${number(unreached.length)} never reached`], [pool.wrong.length, `${number(pool.wrong.length)} misconfigured`],
    [pool.paused.length, `${number(pool.paused.length)} resting`], [pool.draining.length, `${number(pool.draining.length)} draining`], [pool.coming.length, `${number(pool.coming.length)} coming`],
  ];
  const why = inBrackets(kinds([...away, ...pool.wrong]));
  const told = parts.filter(([n]) => n).map(([, text]) => text).join(" · ");
  const next = missing.length > out.length ? remedyFor(missing, REACH) : away.length ? remedyFor(away, SEE_ONE)
    : pool.wrong.length ? remedyFor(pool.wrong, "Correct what is stated about them; they do not get well by themselves.")
    : pool.paused.length ? "Charge or cool them; they work again by themselves." : "Undrain those that should work.";
  return [{
    key: "none", level: "bad", title: `No phone takes work: requests fail ${failsAfter(state)}`,
    detail: [`${sentence(told)}${why ? ` ${sentence(upper(why))}` : ""}`, out.length > 1 ? whenOf(out, now) : "", likely(away)].filter(Boolean).join(" "), next,
  }];
}

/** Phones that are away while others work. */
function ofAway({ state, pool, now, all, counted, out, missing, unreached }) {
  const found = [];
  const share = counted ? (out.length + missing.length) / counted : 0;
  const level = share >= MOST ? "bad" : "warn";
  const stand = `${number(pool.ready.length)} of ${count(all, "phone")} ready.`;
  if (missing.length) {
    found.push({
      key: "missing", level, title: `${number(missing.length)} of ${count(counted, "phone")} ${missing.length === 1 ? "has" : "have"} not come back since the restart${restartedAt(state, now)}: ${kinds(missing).length > 1 ? inBrackets(kinds(missing), 2) : kinds(missing)[0].kind}`,
      detail: `${missing.length === 1 ? "It was" : "They were"} in the pool before it; ${stand} ${likely(missing)}`.trim(), next: remedyFor(missing, REACH),
    });
  }
  if (counted && out.length / counted >= MANY && out.length > 1) {
    const part = out.length / counted;
    const name = part >= 0.995 ? "The whole pool is" : part >= 0.6 ? "Most of the pool is" : part >= 0.4 ? "Half the pool is" : "Many phones are";
    found.push({
      key: "out", level, title: `${name} out: ${number(out.length)} of ${number(counted)} (${inBrackets(kinds(out), 2)})`,
      detail: [whenOf(out, now), upper(stand), likely(out)].filter(Boolean).join(" "), next: remedyFor(out, SEE_ONE),
    });
  }
  const some = pool.suspect.length > 1 || !pool.ready.length;
  if (counted && some && pool.suspect.length && (pool.suspect.length + out.length) / counted >= MANY) {
    found.push({
      key: "doubt", level: "warn", title: `${number(pool.suspect.length)} of ${count(counted, "phone")} ${pool.suspect.length === 1 ? "is" : "are"} in doubt (${inBrackets(kinds(pool.suspect), 2)})`,
      detail: "They failed lately, and get work only where no better phone is free.", next: stateOf("suspect").next,
    });
  }
  if (unreached.length) {
    found.push({
      key: "unreached", level: "warn", title: `${count(unreached.length, "new phone")} cannot be reached (${inBrackets(kinds(unreached), 2)})`,
      detail: likely(unreached), next: remedyFor(unreached, "Is the address right, and the phone's app open? Requests go to the others meanwhile."),
    });
  }
  return found;
}

/** Free slots on phones that serve a model for which requests wait. */
function freeForWaiting({ queue }, pool) {
  const waited = new Set((queue?.by_model ?? []).filter((row) => row.waiting > 0).map((row) => row.model));
  const free = (r) => Math.max(0, (r.usable ?? 0) - (r.busy ?? 0) - (r.lingering ?? 0) - (r.foreign ?? 0));
  return pool.replicas.filter((r) => takesWork(r) && (r.models ?? []).some((model) => waited.has(model))).reduce((sum, r) => sum + free(r), 0);
}

function ofQueue(state, pool) {
  if (!pool.serves) return [];
  const beside = (state.queue?.by_class ?? []).filter((row) => row.class !== "batch" && row.waiting > 0 && row.oldest_s > PATIENCE.interactive);
  const unused = beside.length ? freeForWaiting(state, pool) : 0;
  if (unused) {
    return [{
      key: "beside", level: "warn", title: `${count(beside.reduce((sum, row) => sum + row.waiting, 0), "request")} wait beside ${count(unused, "free slot")}, the oldest for ${length(Math.max(...beside.map((row) => row.oldest_s)))}`,
      detail: "The scheduler holds them back: for a phone that is faster or knows their prompts, for their context, or for their tenant's share.",
      next: "GET /admin/requests/ID/explain says why of one of them.",
    }];
  }
  const late = (state.queue?.by_class ?? []).filter((row) => row.waiting > 0 && row.oldest_s > (PATIENCE[row.class] ?? Infinity));
  return late.slice(0, 1).map((row) => {
    const { free = 0, slots = 0 } = state.totals ?? {};
    const total = state.queue.by_class.reduce((sum, one) => sum + one.waiting, 0);
    return {
      key: `queue ${row.class}`, level: row.class === "interactive" && row.oldest_s > 4 * PATIENCE.interactive ? "bad" : "warn",
      title: `${count(row.waiting, `${row.class} request`)} wait${row.waiting === 1 ? "s" : ""}, the oldest for ${length(row.oldest_s)}`,
      detail: `${free > 0 ? `${number(free)} of ${number(slots)} slots are free, but for other models or more urgent work` : `All ${number(slots)} slots are busy`}; ${number(total)} wait in all.`,
      next: free > 0 ? "See below which models wait, and which phones serve them." : "Add phones, or hold back batches; the advice below says how many would do.",
    };
  });
}

function ofFailures({ points }, now) {
  const last = points.filter((point) => point.at > now - 300);
  const failed = last.reduce((sum, point) => sum + (point.failed ?? 0), 0);
  const all = failed + last.reduce((sum, point) => sum + (point.requests ?? 0), 0);
  if (all < FEW || failed / all < FAILING) return [];
  return [{
    key: "failures", level: failed / all >= MOST ? "bad" : "warn", title: `${percent(failed / all)} of the requests of the last 5 min failed: ${number(failed)} of ${number(all)}`,
    detail: "", next: "Clients are told why in their answers; the log and huntgroup_requests_total tell it by outcome.",
  }];
}

function ofChain({ totals }, now) {
  const { why, partial, seen_at: seen } = totals?.chain ?? {};
  if (!why) return [];
  const how = partial ? "is read only in part" : Number.isFinite(seen) ? `has not been read since ${clockTime(seen, now)}` : "was never read";
  return [{
    key: "chain", level: "warn", title: `The chain ${how}: ${kindOf(why)}`,
    detail: `${sentence(upper(why))} What is known of its phones stays; new ones, moves and ends are not seen.`,
    next: "Is chain.rpc right, and does that node answer this machine? GET /admin/chain says more.",
  }];
}

function ofDeployments({ deployments }, now) {
  const ends = (one) => (Number.isFinite(one.ends_at) ? one.ends_at - now : one.ends_in_s);
  const soon = (deployments?.data ?? []).filter((one) => {
    const left = ends(one);
    return Number.isFinite(left) && left > 0 && left < ENDS_SOON && (one.share_of_ready_slots ?? 1) >= MUCH_ENDS;
  });
  return soon.slice(0, 1).map((one) => ({
    key: `deployment ${one.deployment}`, level: "warn",
    title: `Deployment ${one.deployment} ends in ${length(ends(one))}: ${percent(one.share_of_ready_slots)} of the ready slots go with it`,
    detail: soon.length > 1 ? `${number(soon.length - 1)} more end within the hour.` : "", next: "Extend it, or deploy phones in its place.",
  }));
}

function ofBatches({ batches }) {
  const late = (batches?.data ?? []).filter((batch) => Number.isFinite(batch.eta_s) && Number.isFinite(batch.expires_in_s) && batch.eta_s > batch.expires_in_s);
  if (!late.length) return [];
  const [first] = late;
  return [{
    key: "batches", level: "warn",
    title: late.length === 1 ? `Batch ${first.id} will not make it` : `${number(late.length)} batches will not make it`,
    detail: `${late.length === 1 ? "It needs" : `${first.id} needs`} ${length(first.eta_s)} more and has ${length(first.expires_in_s)}.`,
    next: "Add phones of its model, or tell its tenant; what is done by then is kept.",
  }];
}

/** Phones that announced themselves and were refused: in the gateway's words, which hold nothing that they sent. */
function ofRegistration({ registration }, now) {
  const lately = (registration?.refused ?? []).filter((one) => now - one.last_at < REFUSED_LATELY);
  if (!lately.length) return [];
  const [first, ...others] = lately;
  const more = others.length ? ` Also: ${listed(others.slice(0, 2).map((one) => `${one.message} (${count(one.count, "time")})`))}.` : "";
  return [{
    key: `refused ${first.reason} ${first.field}`, level: "warn", title: `Phones that announce themselves are refused: ${first.message}`,
    detail: `${count(first.count, "time")}, the last ${ago(first.last_at, now)} from ${first.peer}.${more}`,
    next: "Correct it in the phone's app, or under [registration] here. All that were refused: GET /admin/registrations/refused.",
  }];
}

function allWell({ totals }, pool, isRest) {
  const queued = totals?.queued ?? 0;
  const waits = queued ? `${count(queued, "request")} wait${queued === 1 ? "s" : ""}` : "nobody waits";
  const tries = pool.probation.length;
  const away = [...pool.out, ...pool.missing, ...pool.unreached];
  const asides = [
    [away, "out"], [pool.suspect, "suspect"], [pool.probation, "on probation"], [pool.coming, "coming"], [pool.draining, "draining"], [pool.paused, "resting"],
    [pool.amiss, "ready, with something to see to"],
  ];
  const told = asides.filter(([some]) => some.length).map(([some, word]) => `${number(some.length)} ${word}`);
  const { busy = 0, slots = 0 } = totals ?? {};
  return {
    key: isRest ? "rest" : "well", level: "well", title: `${isRest ? "Otherwise" : "All well"}: ${number(pool.ready.length)} of ${count(pool.replicas.length, "phone")} ready, ${tries > SOME * pool.replicas.length ? `${number(tries)} on probation, ` : ""}${waits}`,
    detail: [...told, `${number(busy)} of ${number(slots)} slots busy`].join(" · "),
    next: away.length && !isRest ? "Nothing to do: single phones come and go." : "",
  };
}
