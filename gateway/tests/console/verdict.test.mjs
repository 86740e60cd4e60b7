import assert from "node:assert/strict";
import test from "node:test";

import { apply, connectionChanged, emptyState } from "../../src/admin/console/state.js";
import { kindOf, remedyOf, verdict } from "../../src/admin/console/verdict.js";
import { clockTime } from "../../src/admin/console/words.js";

const NOW = 1_790_000_000;
const TLS = "silence in the TLS handshake: the phone has lost its network, or two phones share this name";
const APP = "a web page instead of the engine (status 502): the tunnel answers, the phone does not; is its app open?";

const phones = (n, over = {}, first = 1) =>
  Array.from({ length: n }, (_, i) => ({
    id: first + i, name: `phone-${first + i}`, url: `https://p${first + i}.acu.run/`, state: "ready", since_s: NOW - 3600, reason: "probe", problem: null, problem_next: null, slots: 2,
    usable: 2, busy: 0, models: ["qwen-9b"], limit: null, ...over,
  }));
/** Phones that went one after the other. */
const out = (n, problem, first, over = {}) =>
  phones(n, { state: "out", reason: problem === APP ? "probe" : "hard_failure", problem, ...over }, first).map((one, i) => ({ ...one, since_s: over.since_s ?? NOW - 60 - 7 * i }));

/** A page that has heard all this. */
function page(replicas, { totals = {}, queue = null, ...more } = {}) {
  const state = emptyState();
  connectionChanged(state, "live", {}, NOW - 10);
  apply(state, "hello", { version: "1", instance: "a", now: NOW, started_at: NOW - 9000 }, new Set(), NOW);
  apply(state, "pool", { replicas: replicas.map((one) => ({ takes_work: ["ready", "suspect", "probation"].includes(one.state) && one.limit?.level !== "paused", missing: false, ...one })) });
  apply(state, "totals", { replicas: {}, slots: 2 * replicas.length, busy: 3, free: 1, in_flight: 0, queued: 0, relays_down: [], store_ok: true, draining: false, memory: { used: 1, limit: 100 }, ...totals });
  if (queue) apply(state, "queue", queue);
  for (const [name, data] of Object.entries(more)) apply(state, name, data);
  return state;
}
const of = (replicas, more) => verdict(page(replicas, more), NOW);
const waiting = (model, n, ready = 0) => ({ by_class: [], by_tenant: [], others: 0, by_model: [{ model, waiting: n, estimate_s: null, ready, slots: 0 }] });

test("a pool that is well is said to be, with the few that are not", () => {
  const [first, ...rest] = of([...phones(97), ...out(3, TLS, 98)]);
  assert.equal(first.title, "All well: 97 of 100 phones ready, nobody waits");
  assert.equal(first.level, "well");
  assert.match(first.detail, /3 out/);
  assert.deepEqual(rest, []);
});

test("half the pool is out: how many, why, and what to do", () => {
  const [first] = of([...phones(48), ...out(42, TLS, 49), ...out(10, APP, 91)]);
  assert.equal(first.level, "bad");
  assert.equal(first.title, "Half the pool is out: 52 of 100 (42: silence in the TLS handshake · 10: a web page instead of the engine)");
  assert.match(first.detail, /All of them went in the last 15 min. 48 of 100 phones ready. Most likely the phone has lost its network/);
  assert.match(first.next, /is it on/);
});

test("many that are out are worth a look, few are not, and draining ones are not of the pool", () => {
  assert.equal(of([...phones(75), ...out(25, TLS, 76)])[0].level, "warn");
  assert.equal(of([...phones(90), ...out(10, TLS, 91)])[0].level, "well");
  assert.match(of([...phones(2, { state: "draining" }), ...phones(1, {}, 3), ...out(2, TLS, 4)])[0].title, /2 of 3/);
});

test("a problem's text is told apart: its cause, what to do, and what happens by itself", () => {
  const [first] = of(out(4, APP, 1, { problem_next: "it is tried again by itself" }));
  assert.equal(first.next, "The tunnel answers, the phone does not; is its app open? It is tried again by itself.");
  assert.deepEqual(remedyOf({ problem: APP }), { cause: "", next: "the tunnel answers, the phone does not; is its app open?", again: "" });
  assert.deepEqual(remedyOf({ problem: TLS }), { cause: "the phone has lost its network, or two phones share this name", next: "", again: "" });
  assert.deepEqual(remedyOf({ problem: null, problem_next: "x" }), { cause: "", next: "", again: "x" });
});

test("a relay that is down explains its phones, and its models, and is told once", () => {
  const down = phones(100, { state: "out", reason: "relay_down", problem: "nobody accepts the connection (refused): its relay is down" });
  const found = of(down, { totals: { relays_down: ["acu.run:443"], queued: 12 }, queue: waiting("qwen-9b", 12) });
  assert.equal(found.length, 1, JSON.stringify(found));
  assert.match(found[0].title, /^Relay acu.run:443 is down: 100 phones unreachable since \d\d:\d\d$/);
  assert.match(found[0].detail, /12 requests wait meanwhile/);
  assert.match(found[0].next, /^Wait, or check/);
});

test("a relay is down since most of its phones went, and what they show is told", () => {
  const went = (n, since_s, first) => phones(n, { state: "out", reason: "relay_down", problem: TLS, since_s }, first);
  const [first] = of([...went(3, NOW - 7200, 1), ...went(9, NOW - 60, 4)], { totals: { relays_down: ["acu.run:443"] } });
  assert.ok(first.title.endsWith(`12 phones unreachable since ${clockTime(NOW - 60, NOW)}`), first.title);
  assert.match(first.detail, /^None of its phones can be reached through it \(12: silence in the TLS handshake\), so none/);
});

const ENGINE = "the connection closes without an answer: the tunnel is up, the engine is not; is its app open?";

test("engines that go at once are not their relay's doing, and the verdict does not send anybody there", () => {
  const [first] = of(out(6, ENGINE, 1, { since_s: NOW - 60, finding: "closed" }));
  assert.match(first.next, /^One cause took them, and not the relay: it answers\. Look at what else they share/);
  const [lost] = of(out(6, TLS, 1, { since_s: NOW - 60, finding: "unreachable" }));
  assert.match(lost.next, /^One cause took them: look at what they share \(the relay/);
});

const EXPIRED = "its certificate is refused, it has expired: it must be valid at this machine's time; renew it, and check this machine's clock";

test("a certificate that is refused of all behind a relay is told once, with the rule that it breaks", () => {
  const refused = out(5, EXPIRED, 1, { since_s: NOW - 60, finding: "certificate" });
  const [first, ...rest] = of(refused);
  assert.deepEqual([first.level, first.title], ["bad", "The certificate of acu.run:443 is refused, it has expired: 5 phones cannot be used"]);
  assert.equal(first.detail, "The rule: it must be valid at this machine's time. The way to it is open.");
  assert.match(first.next, /^Renew it, and check this machine's clock\. All its phones/);
  assert.deepEqual(rest, [], "and nothing is told twice");
  // One that is used, or one that is away for another reason, shows that it is not the relay's.
  const other = [...refused, ...phones(1, {}, 9)];
  assert.match(of(other)[0].title, /^Most of the pool is out: 5 of 6 \(5: its certificate is refused, it has expired\)/);
  assert.ok(!of([...refused, ...out(1, TLS, 9)]).some(({ title }) => title.startsWith("The certificate")));
  const elsewhere = of([...refused, ...phones(20, { url: "https://x.other.example/" }, 9)]);
  assert.match(elsewhere[0].title, /^The certificate of acu\.run:443/);
  assert.equal(elsewhere.length, 1);
  const waits = of([...refused, ...phones(20, { url: "https://x.other.example/", models: ["small"] }, 9)], { queue: waiting("qwen-9b", 3) });
  assert.equal(waits.length, 1, "what nobody serves for that reason is no trouble of its own");
});

test("phones behind another relay are not explained by the one that is down", () => {
  const here = phones(5, { state: "out", reason: "relay_down" });
  const there = out(5, TLS, 6, { url: "https://x.other.example/" });
  const found = of([...here, ...there], { totals: { relays_down: ["acu.run:443"] } });
  assert.match(found[0].title, /5 phones unreachable/);
  assert.deepEqual([found[1].title, found[1].detail.slice(0, 6)], ["No phone takes work: requests fail after a while", "5 out."]);
  const lookalike = of([...here, ...out(5, TLS, 6, { url: "https://notacu.run/" })], { totals: { relays_down: ["acu.run:443"] } });
  assert.match(lookalike[0].title, /5 phones unreachable/);
  const serving = of([...here, ...out(5, TLS, 6, { url: "https://x.other.example/" }), ...phones(5, {}, 11)], { totals: { relays_down: ["acu.run:443"] } });
  assert.match(serving[1].title, /^Many phones are out: 5 of 15/);
});

test("a model that nobody serves is told with what waits, and why", () => {
  const pool = [...phones(10, { models: ["small"] }), ...out(2, TLS, 11)];
  const [first] = of(pool, { queue: waiting("qwen-9b", 12) });
  assert.equal(first.title, "No phone serves qwen-9b: 12 requests wait");
  assert.match(first.detail, /All 2 phones that could: 2: silence/);
  assert.equal(of(pool)[0].level, "warn", "nobody waits for it yet");
  const [unknown] = of(phones(3), { queue: waiting("gemma", 1) });
  assert.equal(unknown.title, "No phone serves gemma: 1 request waits");
  assert.match(unknown.next, /Add a phone/);
});

test("what is to be done is told once", () => {
  const gone = out(8, ENGINE, 1, { since_s: NOW - 60, finding: "closed" });
  const found = of(gone, { queue: waiting("qwen-9b", 16) }).filter((one) => one.level === "bad");
  assert.deepEqual(found.map((one) => one.key), ["model qwen-9b", "none"]);
  assert.match(found[0].next, /^One cause took them/);
  assert.equal(found[1].next, "As above.");
});

test("a pool that has just started is coming, not broken", () => {
  const [first] = of([...phones(5, { state: "joining" }), ...phones(1, { state: "quarantine" }, 6)]);
  assert.deepEqual([first.level, first.title], ["warn", "No phone is ready yet: 6 phones coming"]);
  assert.equal(first.detail, "Requests wait for one, and fail after a while.");
  const state = page(phones(5, { state: "joining" }));
  state.hello.started_at = NOW - 4;
  assert.match(verdict(state, NOW)[0].detail, /^The gateway was started 4 s ago\. Requests wait/);
});

const STARTED = NOW - 9000;
const gone = (n, first = 1, over = {}) => phones(n, { state: "joining", since_s: STARTED, missing: true, problem: "nobody accepts the connection (refused): its relay is down, or the address is wrong", ...over }, first);

test("phones that do not come back after a restart are never hidden behind a green line", () => {
  const [first, ...rest] = of([...phones(97), ...gone(3, 98)]);
  assert.equal(first.level, "warn");
  assert.match(first.title, /^3 of 100 phones have not come back since the restart \(\d\d:\d\d\): nobody accepts the connection$/);
  assert.match(first.next, /^Does this machine reach them/, "when they went nobody has seen");
  assert.deepEqual(rest.map(({ level }) => level), ["well"]);
  assert.match(rest[0].title, /^Otherwise: 97 of 100/);
  // However the gateway calls them by then.
  for (const state of ["out", "suspect"]) assert.match(of([...phones(97), ...gone(3, 98, { state, since_s: STARTED + 30 })])[0].title, /^3 of 100 phones have not come back/, state);
  assert.equal(of([...phones(4), ...gone(4, 5)])[0].level, "bad");
  assert.match(of([...phones(1), ...gone(1, 2)])[0].title, /^1 of 2 phones has not/);
  const [none] = of(gone(8), { queue: { ...waiting("", 0), by_model: [], refused_after_s: 30 } });
  assert.deepEqual([none.level, none.title], ["bad", "No phone takes work: requests fail after 30 s"]);
  assert.match(none.detail, /^8 phones not back since the restart \(\d\d:\d\d\)\. 8: nobody accepts/);
  // Not asked yet is no sign of anything.
  assert.deepEqual(of([...phones(9), ...gone(1, 10, { problem: null })]).map(({ title }) => title), ["All well: 9 of 10 phones ready, nobody waits"]);
});

test("new phones that were asked and did not answer are not coming", () => {
  const [first] = of([...phones(9), ...phones(1, { state: "joining", problem: "its name is not found: is the address right?" }, 10)]);
  assert.deepEqual([first.level, first.title], ["warn", "1 new phone cannot be reached (1: its name is not found)"]);
  assert.equal(first.next, "Is the address right?");
});

test("phones that went at one moment have one cause, which is looked for before any of the phones", () => {
  const at = (spread) => out(6, TLS, 5).map((one, i) => ({ ...one, since_s: NOW - 60 + i * spread }));
  const [first] = of([...phones(4), ...at(0.1)]);
  assert.match(first.detail, /^All 6 went out within 1 s\./);
  assert.match(first.next, /^One cause took them: look at what they share/);
  // What the problem itself asks for does not contradict what stands before it.
  const silent = at(0.1).map((one) => ({ ...one, problem: "the connection closes without an answer: the tunnel is up, the engine is not; is its app open?" }));
  assert.match(of([...phones(4), ...silent])[0].next, /before you look at one of them\. The tunnel is up, the engine is not; is its app open\?$/);
  assert.doesNotMatch(of([...phones(4), ...at(15)])[0].next, /One cause/, "one after the other");
  assert.doesNotMatch(of([...phones(4), ...at(0.1).map((one) => ({ ...one, reason: "probe" }))])[0].next, /One cause/, "they can be reached");
  assert.doesNotMatch(of([...phones(4), ...at(0.1).slice(0, 2), ...at(90).slice(2)])[0].next, /One cause/, "two may be chance");
});

test("suspects take work, and are told as what they are", () => {
  const suspects = (n, first) => phones(n, { state: "suspect", problem: TLS }, first);
  const titles = (pool) => of(pool).map(({ title }) => title);
  assert.deepEqual(titles([...phones(9), ...suspects(1, 10)]), ["All well: 9 of 10 phones ready, nobody waits"]);
  assert.match(of([...phones(9), ...suspects(1, 10)])[0].detail, /^1 suspect ·/);
  assert.match(titles([...phones(6), ...suspects(4, 7)])[0], /^4 of 10 phones are in doubt \(4: silence/);
  assert.ok(titles(suspects(3, 1)).every((title) => !/No phone|well/i.test(title)), "they are asked as a last resort");
});

test("a phone that rests is not counted as ready, and a pool that rests takes no work", () => {
  const resting = (n, first) => phones(n, { limit: { level: "paused", reason: "battery 9 %, not charging: paused below 15 %" }, problem: "battery 9 %, not charging: paused below 15 %" }, first);
  const [first] = of([...phones(9), ...resting(1, 10)]);
  assert.equal(first.title, "All well: 9 of 10 phones ready, nobody waits");
  assert.match(first.detail, /1 resting/);
  const [none] = of(resting(2, 1));
  assert.deepEqual([none.level, none.title.split(":")[0], none.next], ["bad", "No phone takes work", "Charge or cool them; they work again by themselves."]);
});

test("a ready phone that says that something is wrong is not passed over", () => {
  assert.match(of([...phones(9), ...phones(1, { problem: "the phone says: out of memory" }, 10)])[0].detail, /1 ready, with something to see to/);
});

test("refused announcements are told as long as they are news", () => {
  const refused = (last_at, more = []) => ({ registration: { refused: [{ reason: "wrong_token", field: "authorization", message: "the token is wrong", peer: "10.0.0.7", count: 3, first_at: NOW - 900, last_at }, ...more] } });
  const [first] = of(phones(3), refused(NOW - 120));
  assert.deepEqual([first.level, first.title], ["warn", "Phones that announce themselves are refused: the token is wrong"]);
  assert.equal(first.detail, "3 times, the last 2 min ago from 10.0.0.7.");
  const other = { reason: "invalid", field: "replica.slots", message: "replica.slots must be from 1 to 1024, not 0", peer: "::1", count: 1, first_at: NOW - 60, last_at: NOW - 60 };
  assert.match(of(phones(3), refused(NOW - 120, [other]))[0].detail, /Also: replica.slots must be from 1 to 1024, not 0 \(1 time\)/);
  assert.equal(of(phones(3), refused(NOW - 4000))[0].level, "well", "long ago");
});

test("phones on probation take work, and are said to be", () => {
  const [first] = of([...phones(3), ...phones(3, { state: "probation" }, 4)]);
  assert.deepEqual([first.level, first.title], ["well", "All well: 3 of 6 phones ready, 3 on probation, nobody waits"]);
  assert.equal(of(phones(2, { state: "probation" }), { queue: waiting("qwen-9b", 1, 0) })[0].level, "well");
});

test("an empty pool says how to fill it", () => {
  const [first] = of([], { totals: { queued: 3 } });
  assert.equal(first.title, "No phone is in the pool");
  assert.match(first.detail, /3 requests wait/);
});

test("who waits before a screen is spoken of long before a batch is", () => {
  const queue = (name, seconds) => ({ by_class: [{ class: name, waiting: 4, oldest_s: seconds, estimate_s: 9 }], by_model: [], by_tenant: [] });
  assert.equal(of(phones(3), { queue: queue("interactive", 20) })[0].title, "4 interactive requests wait, the oldest for 20 s");
  assert.equal(of(phones(3), { queue: queue("interactive", 90) })[0].level, "bad");
  assert.equal(of(phones(3), { queue: queue("batch", 9000) })[0].level, "well");
});

test("requests that wait beside free slots are not said to lack phones", () => {
  const queue = (oldest_s, name = "standard") => ({ by_class: [{ class: name, waiting: 9, oldest_s, estimate_s: 0 }], by_model: [{ model: "qwen-9b", waiting: 9, estimate_s: 0, ready: 3, slots: 6 }], by_tenant: [] });
  const [first] = of(phones(3), { queue: queue(28) });
  assert.deepEqual([first.level, first.title], ["warn", "9 requests wait beside 6 free slots, the oldest for 28 s"]);
  assert.match(first.next, /explain/);
  assert.equal(of(phones(3), { queue: queue(5) })[0].level, "well", "a moment is nothing");
  assert.equal(of(phones(3), { queue: queue(900, "batch") })[0].level, "well", "batches wait for what is left");
  assert.equal(of(phones(3, { busy: 2 }), { queue: queue(28) })[0].level, "well", "no slot is free");
  assert.equal(of(phones(3, { models: ["other"] }), { queue: { ...queue(28), by_model: [{ model: "x", waiting: 9, ready: 1, slots: 1 }] } })[0].key === "beside", false);
});

test("the worst comes first, and a good word last if nothing is bad", () => {
  const levels = (more, pool = phones(10)) => of(pool, more).map(({ level }) => level);
  assert.deepEqual(levels({ totals: { store_ok: false, draining: true } }), ["bad", "warn"]);
  assert.deepEqual(levels({ totals: { memory: { used: 90, limit: 100 } } }), ["warn", "well"]);
  assert.deepEqual(levels({}, [...phones(10), ...phones(1, { state: "misconfigured", problem: 'it serves "a", not "b"; set replica_names' }, 11)]), ["warn", "well"]);
});

test("what ends soon, what will be late and what fails is told", () => {
  const title = (more) => of(phones(10), more)[0].title;
  assert.match(title({ deployments: { data: [{ deployment: "D", ends_at: NOW + 1500, share_of_ready_slots: 0.3 }] } }), /^Deployment D ends in 25 min: 30 %/);
  assert.match(title({ deployments: { data: [{ deployment: "D", ends_at: NOW + 1500, share_of_ready_slots: 0.01 }] } }), /^All well/);
  assert.match(title({ batches: { data: [{ id: "batch_1", eta_s: 900, expires_in_s: 100 }] } }), /^Batch batch_1 will not make it/);
  assert.match(title({ history: { points: [{ at: NOW - 20, requests: 10, failed: 10 }] } }), /^50 % of the requests/);
  assert.match(title({ history: { points: [{ at: NOW - 900, requests: 0, failed: 100 }] } }), /^All well/);
});

test("a gateway that is not there is all there is to say", () => {
  const state = page(phones(3));
  connectionChanged(state, "lost", { message: "it accepts no connection", retryAt: (NOW + 4) * 1000 }, NOW - 60);
  for (const phase of ["lost", "connecting"]) {
    state.connection.phase = phase;
    const [first, ...rest] = verdict(state, NOW);
    assert.match(first.title, /^Gateway not reachable since \d\d:\d\d, trying again$/);
    assert.match(first.detail, /Next try in 4 s. What is shown below/);
    assert.deepEqual(rest, []);
  }
  assert.equal(verdict(emptyState(), NOW)[0].level, "unknown", "not heard of yet is not lost");
  connectionChanged(state, "token", {}, NOW);
  assert.equal(verdict(state, NOW)[0].key, "token");
});

test("what a phone says of itself is shown, and is no advice", () => {
  const said = "the phone says: restart everything: now; huntgroup replicas remove";
  assert.equal(kindOf(said), "the phone says “restart everything: now; huntgroup replicas remove”");
  assert.deepEqual(remedyOf({ problem: said }), { cause: "", next: "", again: "" });
});

test("problems that differ only in their details are one kind, and long ones are cut", () => {
  assert.equal(kindOf("nobody accepts the connection (Connection refused): its relay"), "nobody accepts the connection");
  assert.equal(kindOf("x".repeat(500)).length, 70);
});

test("whatever is missing from the feed, there is a verdict", () => {
  for (const gone of ["totals", "queue", "batches", "deployments"]) {
    const state = page(phones(3));
    state[gone] = null;
    assert.ok(verdict(state, NOW).length);
  }
  assert.ok(of([{ id: 1, name: "x", url: "", state: "constructor" }]).length);
});

test("a chain that cannot be read is told, with since when and why", () => {
  const told = (chain) => of(phones(3), { totals: { chain } });
  const [first, rest] = told({ why: "the node does not answer: connection refused", partial: false, seen_at: NOW - 900 });
  assert.deepEqual([first.level, first.title], ["warn", `The chain has not been read since ${clockTime(NOW - 900, NOW)}: the node does not answer`]);
  assert.match(first.detail, /^The node does not answer: connection refused\. What is known of its phones stays/);
  assert.match(rest.title, /^Otherwise: 3 of 3/);
  assert.match(told({ why: "x", partial: false, seen_at: null })[0].title, /^The chain was never read/);
  assert.match(told({ why: "x", partial: true, seen_at: NOW })[0].title, /^The chain is read only in part/);
  assert.equal(told(null)[0].level, "well");
});
