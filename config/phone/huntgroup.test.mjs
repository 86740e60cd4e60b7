// `node --test config/phone/`: the module against a server that plays the gateway, on a clock that the tests move.
import assert from "node:assert/strict";
import { generateKeyPairSync, sign, verify } from "node:crypto";
import { afterEach, beforeEach, mock, test } from "node:test";

import { join } from "./huntgroup.mjs";

const CALLBACK = "https://gateway.example/admin/register?token=0123456789abcdef";
const URL = "https://0123456789abcdef.acu.run";
const NOW = Date.UTC(2027, 0, 1);
const SECOND = 1000;
const MINUTE = 60 * SECOND;

/** What answers the phone's calls: an array of what it said, and what is to be answered. */
class Gateway {
  said = [];
  headers = [];
  lines = [];
  /** @type {(url: string, message: object) => object} */
  answer = () => ({});
  phoneAnswers = true;

  fetch = async (url, { headers, body } = {}) => {
    if (!url.startsWith("https://gateway.example/")) {
      if (!this.phoneAnswers) throw new TypeError("fetch failed");
      return new Response("{}", { status: 503 });
    }
    const message = JSON.parse(body);
    const { status = 200, why = "", date = Date.now() } = this.answer(url, message) ?? {};
    if (!status) throw new TypeError("fetch failed", { cause: { code: "ECONNREFUSED" } });
    this.said.push(message);
    this.headers.push({ ...headers, body });
    const answer = status === 200 ? "{}" : JSON.stringify({ error: { message: why } });
    return new Response(answer, { status, headers: { date: new Date(date).toUTCString() } });
  };

  events() {
    return this.said.map((message) => message.event);
  }
}

let gateway;
let phone;

beforeEach(() => {
  mock.timers.enable({ apis: ["setTimeout", "Date"], now: NOW });
  gateway = new Gateway();
});

afterEach(async () => {
  await phone?.stop();
  phone = undefined;
  mock.timers.reset();
  delete globalThis._STD_;
});

function joined(options = {}) {
  const log = (line) => gateway.lines.push(line);
  phone = join({ callback: CALLBACK, url: URL, log, fetch: gateway.fetch, ...options });
}

/** Lets what is under way come to rest, then moves the clock, second by second. */
async function pass(milliseconds) {
  await settle();
  for (let passed = 0; passed < milliseconds; passed += SECOND) {
    mock.timers.tick(SECOND);
    await settle();
  }
}

async function settle() {
  for (let turn = 0; turn < 20; turn += 1) await new Promise((done) => setImmediate(done));
}

test("says that it is there, then gives signs of life with a report", async () => {
  joined({ replica: { slots: 4 }, report: () => ({ battery: 80, charging: true }) });
  await pass(3 * MINUTE);
  assert.deepEqual(gateway.said[0], { event: "started", url: URL, replica: { slots: 4 } });
  assert.deepEqual(gateway.said[1], { event: "heartbeat", url: URL, report: { battery: 80, charging: true } });
  assert.ok(gateway.said.length >= 3 && gateway.said.length <= 5, `${gateway.events()}`);
});

test("does not call more often than every 30 seconds, whatever it is told", async () => {
  joined({ heartbeat: 1 });
  await pass(2 * MINUTE);
  assert.ok(gateway.said.length <= 5, `${gateway.said.length} calls in two minutes`);
});

test("goes on trying while nobody answers, ever more seldom, and joins when somebody does", async () => {
  let calls = 0;
  gateway.answer = () => {
    calls += 1;
    return { status: 0 };
  };
  joined();
  await pass(10 * MINUTE);
  assert.ok(calls >= 6 && calls <= 14, `${calls} calls in ten minutes`);
  gateway.answer = () => ({});
  await pass(6 * MINUTE);
  assert.equal(gateway.said[0].event, "started");
});

test("a gateway that has forgotten it is told anew", async () => {
  joined();
  await pass(2 * SECOND);
  gateway.answer = (_, { event }) => (event === "heartbeat" ? { status: 404, why: "no such phone" } : {});
  await pass(8 * MINUTE);
  assert.deepEqual(gateway.events().slice(0, 3), ["started", "heartbeat", "started"]);
});

test("a refusal is told with the gateway's words, never with the token", async () => {
  gateway.answer = () => ({ status: 401, why: "the token is wrong" });
  joined();
  await pass(MINUTE);
  assert.match(gateway.lines.join("\n"), /401 the token is wrong/);
  assert.doesNotMatch(gateway.lines.join("\n"), /0123456789abcdef\b(?!\.acu)/);
  assert.ok(gateway.said.length <= 2, "somebody has to act: there is no hurry");
});

test("what it signs is the body behind time and nonce, and no two are alike", async () => {
  const { publicKey, privateKey } = generateKeyPairSync("ed25519");
  const raw = publicKey.export({ format: "der", type: "spki" }).subarray(-32).toString("hex");
  joined({ key: { publicKey: raw, sign: (text) => sign(null, Buffer.from(text, "hex"), privateKey).toString("hex") } });
  await pass(2 * MINUTE);
  const nonces = gateway.headers.map((headers) => headers["x-nonce"]);
  assert.equal(new Set(nonces).size, nonces.length);
  for (const headers of gateway.headers) {
    const text = `huntgroup-registration-v1\n${headers["x-timestamp"]}\n${headers["x-nonce"]}\n${headers.body}`;
    assert.ok(verify(null, Buffer.from(text), publicKey, Buffer.from(headers["x-signature"], "hex")));
    assert.equal(headers["x-publickey"], raw);
  }
});

test("a clock that is off is put right by the gateway's, once", async () => {
  const ahead = 20 * MINUTE;
  gateway.answer = () => {
    const signedFor = Number(gateway.headers.at(-1)?.["x-timestamp"]);
    return { date: Date.now() + ahead, status: Math.abs(signedFor - Date.now() - ahead) > MINUTE ? 401 : 200, why: "signed for another time" };
  };
  // What is signed is seen by the answer to it, not by the next one.
  const { fetch } = gateway;
  gateway.fetch = (url, options) => {
    gateway.headers.push({ ...options.headers });
    return fetch(url, options);
  };
  joined({ key: { publicKey: "00".repeat(32), sign: () => "00".repeat(64) } });
  await pass(2 * SECOND);
  assert.deepEqual(gateway.events(), ["started", "started"]);
  assert.equal(phone.joined, true);
});

test("what Acurast's runtime says of job, phone and key is used", async () => {
  globalThis._STD_ = {
    job: { getId: () => [{ acurast: "5Grw" }, 4711], getPublicKeys: () => ({ ed25519: "ab".repeat(32) }) },
    device: { getAddress: () => "5Fphone" },
    signers: { ed25519: { sign: () => "cd".repeat(64) } },
  };
  joined();
  await pass(SECOND);
  assert.deepEqual(gateway.said[0], { event: "started", url: URL, deployment: "Acurast:5Grw:4711", processor: "5Fphone" });
  assert.equal(gateway.headers[0]["x-publickey"], "ab".repeat(32));
});

test("a runtime that knows only half of it is no hindrance", async () => {
  globalThis._STD_ = { job: { getId: () => "7" }, device: {} };
  joined();
  await pass(SECOND);
  assert.deepEqual(gateway.said[0], { event: "started", url: URL });
  assert.equal(gateway.headers[0]["x-signature"], undefined);
});

test("it says that it goes before its deployment ends, and nothing afterwards", async () => {
  joined({ endsAt: NOW + 20 * MINUTE, leaveBefore: 10 * MINUTE });
  await pass(11 * MINUTE);
  assert.equal(gateway.events().at(-1), "leaving");
  const count = gateway.said.length;
  await pass(5 * MINUTE);
  assert.equal(gateway.said.length, count);
});

test("the tunnel is restarted when others can't reach the phone, and not when it has no network", async () => {
  const restarts = [];
  joined({ watchdog: { restart: (why) => restarts.push(why), every: 30 * SECOND } });
  await pass(2 * MINUTE);
  assert.equal(restarts.length, 0);
  gateway.phoneAnswers = false;
  await pass(2 * MINUTE);
  assert.equal(restarts.length, 1);
  assert.match(restarts[0], /did not answer 3 times in a row/);
  await pass(5 * MINUTE);
  assert.ok(restarts.length <= 3, "it needs time to come up");
  gateway.answer = () => ({ status: 0 });
  await pass(5 * MINUTE);
  const without = restarts.length;
  await pass(10 * MINUTE);
  assert.equal(restarts.length, without, "without a network a new tunnel helps nobody");
});

test("an answer that stops after its head is given up, and the next one counts", async () => {
  const { fetch } = gateway;
  let stalled = true;
  gateway.fetch = async (url, options = {}) => {
    if (!stalled) return fetch(url, options);
    const body = new ReadableStream({
      start(stream) {
        stream.enqueue(new TextEncoder().encode("{"));
        options.signal.addEventListener("abort", () => stream.error(new Error("aborted")));
      },
    });
    return new Response(body, { headers: { date: new Date().toUTCString() } });
  };
  joined();
  await pass(40 * SECOND);
  assert.equal(phone.joined, false);
  stalled = false;
  await pass(MINUTE);
  assert.equal(phone.joined, true);
});

test("a heartbeat that was under way when it left is not said any more", async () => {
  let release;
  joined({ report: () => new Promise((done) => (release = done)) });
  await pass(70 * SECOND);
  assert.ok(release, "a report was asked for");
  await phone.leave();
  release({ battery: 50 });
  await pass(SECOND);
  assert.deepEqual(gateway.events(), ["started", "leaving"]);
});

test("errors are told in words that fit", async () => {
  joined();
  await pass(SECOND);
  await phone.error(new Error("x".repeat(1000)));
  assert.equal(gateway.said.at(-1).error.length, 200);
});

test("what can't work is refused at once, and says what would", () => {
  const options = { callback: CALLBACK, url: URL, fetch: gateway.fetch };
  assert.throws(() => join({ ...options, callback: "https://gateway.example/admin/register" }), /token=/);
  assert.throws(() => join({ ...options, callback: undefined }), /callback must be an address/);
  assert.throws(() => join({ ...options, url: `${URL}/v1` }), /end after host and port/);
  assert.throws(() => join({ ...options, url: "ftp://x" }), /https/);
});
