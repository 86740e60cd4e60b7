import assert from "node:assert/strict";
import test from "node:test";

import { Feed, SseParser } from "../../src/admin/console/feed.js";

const text = ': hello\n\nevent: pool\ndata: {"a":1}\n\nid: 7\r\nevent: x\r\ndata: one\r\ndata: two\r\n\r\ndata\rdata:  three\r\rdata: ümlaut 📱\n\nevent: nothing\n\ndata: cut off';
const expected = [
  { event: "pool", data: '{"a":1}', id: "" }, { event: "x", data: "one\ntwo", id: "7" }, { event: "message", data: "\n three", id: "7" },
  { event: "message", data: "ümlaut 📱", id: "7" },
];

function parsed(pieces) {
  const parser = new SseParser();
  return pieces.flatMap((piece) => parser.push(piece));
}

test("events are the same wherever the text is cut", () => {
  assert.deepEqual(parsed([text]), expected);
  assert.deepEqual(parsed([...text]), expected, "letter by letter");
  for (let at = 0; at <= text.length; at += 1) assert.deepEqual(parsed([text.slice(0, at), text.slice(at)]), expected, `cut at ${at}`);
  for (let from = 0; from <= text.length; from += 3) {
    assert.deepEqual(parsed([text.slice(0, from), "", text.slice(from, from + 2), text.slice(from + 2)]), expected, `cut around ${from}`);
  }
});

test("an event that does not end is not gathered without bound", () => {
  const parser = new SseParser();
  const piece = "x".repeat(1 << 20);
  assert.throws(() => {
    for (let i = 0; i < 64; i += 1) parser.push(i % 2 ? piece : `data: ${piece}`);
  }, /too large/);
});

/** A gateway that answers in turn what it is given: a function that makes a Response, or an error. */
function gateway(answers) {
  const asked = [];
  globalThis.fetch = async (path, options) => {
    asked.push({ path, ...options });
    const answer = answers.shift() ?? new Promise((_, reject) => options.signal.addEventListener("abort", () => reject(new DOMException("over", "AbortError"))));
    if (answer instanceof Error) throw answer;
    return typeof answer === "function" ? answer() : answer;
  };
  return asked;
}

/** Runs a feed until `enough(seen)`; returns what was heard. */
async function heard(answers, enough) {
  const asked = gateway(answers);
  const seen = [];
  const feed = new Feed("/admin/watch", () => ({ authorization: "Bearer t" }), {
    event: (name, data) => seen.push([name, data]), connection: (phase, facts) => seen.push([phase, facts]), heard: () => seen.push(["heard"]),
  });
  feed.start();
  const limit = Date.now() + 10_000;
  while (!enough(seen) && Date.now() < limit) await new Promise((resolve) => setTimeout(resolve, 5));
  feed.stop();
  assert.ok(enough(seen), JSON.stringify(seen));
  return { asked, seen, phases: seen.map(([name]) => name) };
}
const stream = (...parts) => () => new Response(new Blob(parts).stream(), { headers: { "content-type": "text/event-stream" } });

test("a feed that ends is asked for again, with the token, until it is there", async () => {
  const answers = [stream('event: a\ndata: {"n":1}\n\n'), new TypeError("Failed to fetch"), stream('event: a\ndata: {"n":2}\n\n')];
  const { asked, seen, phases } = await heard(answers, (all) => all.some(([name, data]) => name === "a" && data.n === 2));
  assert.deepEqual(phases.filter((name) => name !== "heard").slice(0, 8), ["connecting", "live", "a", "lost", "connecting", "lost", "connecting", "live"]);
  assert.equal(asked[0].headers.authorization, "Bearer t");
  const [, facts] = seen.filter(([name]) => name === "lost")[1];
  assert.doesNotMatch(facts.message, /Failed to fetch/, "a browser's own words are of no use");
  assert.ok(facts.retryAt > Date.now() - 10_000);
});

test("a comment is a sign of life, and no event", async () => {
  const { phases } = await heard([stream(":\n\n")], (all) => all.some(([name]) => name === "lost"));
  assert.deepEqual(phases, ["connecting", "live", "heard", "lost"]);
});

test("a wrong token is asked for, and not tried again", async () => {
  const { asked, phases } = await heard([() => Response.json({ error: { message: "no" } }, { status: 401 })], (all) => all.some(([name]) => name === "token"));
  await new Promise((resolve) => setTimeout(resolve, 700));
  assert.equal(asked.length, 1);
  assert.deepEqual(phases, ["connecting", "token"]);
});

test("a gateway that wants to be left alone is, for as long as it says", async () => {
  const answer = () => Response.json({ error: { message: "too many wrong tokens" } }, { status: 429, headers: { "retry-after": "60" } });
  const { seen } = await heard([answer], (all) => all.some(([name]) => name === "refused"));
  const { message, retryAt } = seen.at(-1)[1];
  assert.equal(message, "too many wrong tokens");
  assert.ok(retryAt > Date.now() + 40_000);
});

test("text that is no JSON ends the connection, and not the page", async () => {
  const { seen } = await heard([stream("event: a\ndata: {\n\n")], (all) => all.some(([name]) => name === "lost"));
  assert.ok(!seen.some(([name]) => name === "a"));
});
