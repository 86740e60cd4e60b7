// What the page knows: the feed's events laid upon each other. No DOM here.

/** Events and points that are kept: as many as the feed sends at its start. */
const MAX_EVENTS = 200;
const MAX_POINTS = 360;

/** A page that knows nothing yet. */
export function emptyState() {
  return {
    connection: { phase: "connecting", wasLost: false, since: Date.now() / 1000, message: null, retryAt: null, heardAt: null },
    hello: null, skew: 0, seen: new Set(), replicas: new Map(), totals: null, queue: null, requests: null, batches: null, everyS: 10, points: [],
    advice: null, cost: null, deployments: null, registration: null, events: [],
  };
}

/** Takes in how the connection is. `since` is the moment it was lost, not that of the last try. */
export function connectionChanged(state, phase, facts = {}, localNow = Date.now() / 1000) {
  const connection = state.connection;
  const isLost = phase === "lost" || phase === "refused";
  if (phase === "live" || (isLost && !connection.wasLost)) connection.since = localNow;
  if (phase !== "connecting") connection.wasLost = isLost;
  if (isLost) state.seen = new Set();
  connection.message = facts.message ?? (phase === "live" ? null : connection.message);
  connection.retryAt = facts.retryAt ?? null;
  connection.phase = phase;
}

const listOf = (value) => (Array.isArray(value) ? value : []);

/**
 * Takes one event in. Returns the part of the state that changed (`pool`, `totals`, …), or null for an event that this page does not know.
 * `changed`, a set, is given the ids of replicas that are new or different.
 */
export function apply(state, name, data, changed = new Set(), localNow = Date.now() / 1000) {
  switch (name) {
    case "hello":
      // Another process: what the one before said is no more.
      if (state.hello && state.hello.instance !== data.instance) Object.assign(state, { events: [], points: [], requests: null, queue: null });
      state.hello = data;
      state.seen = new Set();
      // Ages are told by the gateway's clock, which need not be this machine's.
      state.skew = Number.isFinite(data.now) ? data.now - localNow : 0;
      return "hello";
    case "pool": {
      const before = state.replicas;
      state.replicas = new Map(listOf(data.replicas).map((replica) => [replica.id, replica]));
      for (const id of before.keys()) changed.add(id);
      for (const id of state.replicas.keys()) changed.add(id);
      state.seen.add("pool");
      return "pool";
    }
    case "delta":
      for (const replica of listOf(data.replicas)) {
        state.replicas.set(replica.id, replica);
        changed.add(replica.id);
      }
      for (const id of listOf(data.gone)) {
        state.replicas.delete(id);
        changed.add(id);
      }
      return "pool";
    case "totals": case "queue": case "requests": case "batches": case "advice": case "cost": case "deployments": case "registration":
      state[name] = data;
      state.seen.add(name);
      return name;
    case "history":
      state.everyS = data.every_s || 10;
      state.points = listOf(data.points).slice(-MAX_POINTS);
      return "history";
    case "point":
      if (!state.points.length || data.at > state.points.at(-1).at) state.points.push(data);
      if (state.points.length > MAX_POINTS) state.points.shift();
      return "history";
    case "events":
      state.events = listOf(data.data).slice(-MAX_EVENTS);
      return "events";
    case "event":
      state.events.push(data);
      if (state.events.length > MAX_EVENTS) state.events.shift();
      return "events";
    default:
      return null;
  }
}

/** The gateway's clock, in seconds since 1970. */
export const nowOf = (state, localNow = Date.now() / 1000) => localNow + state.skew;

/** Whether what is shown is what is. */
export const isLive = (state) => state.connection.phase === "live" && state.seen.has("pool");

/** What a replica is found by. Kept as long as it: the feed tells of one that changed by another object. */
const texts = new WeakMap();
function textOf(replica) {
  const known = texts.get(replica);
  if (known !== undefined) return known;
  const text = [
    replica.name, replica.url, replica.state, ...(replica.models ?? []), replica.deployment, replica.processor, replica.problem, replica.dialect,
    replica.source, replica.verification, replica.limit?.reason, replica.draining ? "draining" : "", replica.limit?.level === "paused" ? "resting" : "", `#${replica.id}`,
  ].join("\n").toLowerCase();
  texts.set(replica, text);
  return text;
}

/** Whether a replica has all of the filter's words somewhere in what names it. */
export const matches = (replica, words) => words.every((word) => textOf(replica).includes(word));

export const wordsOf = (text) => text.toLowerCase().split(/\s+/).filter(Boolean);
