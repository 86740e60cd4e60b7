import assert from "node:assert/strict";
import test from "node:test";

import { apply, connectionChanged, emptyState, isLive, matches, nowOf, wordsOf } from "../../src/admin/console/state.js";

const hello = { version: "1", instance: "a", now: 5000, started_at: 1 };

test("deltas are laid upon the pool, and say what changed", () => {
  const state = emptyState();
  apply(state, "hello", hello, new Set(), 1000);
  assert.equal(nowOf(state, 1001), 5001, "time is the gateway's");
  const changed = new Set();
  assert.equal(apply(state, "pool", { replicas: [{ id: 1, state: "out" }, { id: 2 }] }, changed), "pool");
  assert.deepEqual([...changed], [1, 2]);
  changed.clear();
  apply(state, "delta", { replicas: [{ id: 1, state: "ready" }, { id: 3 }], gone: [2] }, changed);
  assert.deepEqual([...changed], [1, 3, 2]);
  assert.deepEqual([...state.replicas.keys()], [1, 3]);
  assert.equal(state.replicas.get(1).state, "ready");
  changed.clear();
  apply(state, "pool", { replicas: [{ id: 4 }] }, changed);
  assert.deepEqual([...changed].sort(), [1, 3, 4], "what is gone after a gap has changed too");
});

test("another process's past is not the one's before", () => {
  const state = emptyState();
  apply(state, "hello", hello);
  apply(state, "events", { data: [{ number: 1 }] });
  apply(state, "history", { every_s: 10, points: [{ at: 1 }] });
  apply(state, "hello", hello);
  assert.equal(state.events.length, 1, "the same process");
  apply(state, "hello", { ...hello, instance: "b" });
  assert.deepEqual([state.events, state.points], [[], []]);
});

test("events and points are kept in bounds, and a point that was there is not there twice", () => {
  const state = emptyState();
  for (let at = 0; at < 1000; at += 1) {
    apply(state, "event", { number: at });
    apply(state, "point", { at });
    apply(state, "point", { at });
  }
  assert.deepEqual([state.events.length, state.points.length], [200, 360]);
  assert.equal(state.events.at(-1).number, 999);
  assert.equal(apply(state, "a_new_event", {}), null, "a newer gateway may say more");
});

test("what is lost is lost since the first time, and live only with a pool", () => {
  const state = emptyState();
  connectionChanged(state, "live", {}, 10);
  assert.ok(!isLive(state));
  apply(state, "pool", { replicas: [] });
  assert.ok(isLive(state));
  connectionChanged(state, "lost", { message: "gone" }, 20);
  connectionChanged(state, "connecting", {}, 21);
  connectionChanged(state, "lost", { message: "gone" }, 22);
  assert.equal(state.connection.since, 20);
  connectionChanged(state, "live", {}, 30);
  assert.ok(!isLive(state), "what it showed before is of another time");
  assert.equal(state.connection.since, 30);
});

test("a filter finds by any of the words that name a phone, all of them", () => {
  const replica = { id: 7, name: "phone-7", url: "https://x.acu.run", state: "out", models: ["qwen-9b"], problem: "silence in the TLS handshake", limit: { level: "paused", reason: "battery" } };
  for (const text of ["", "phone-7", "OUT qwen", "tls silence", "battery", "#7"]) assert.ok(matches(replica, wordsOf(text)), text);
  for (const text of ["ready", "out gemma"]) assert.ok(!matches(replica, wordsOf(text)), text);
});
