// A phone that joins a huntgroup by itself: says that it is there, how it is, and that it goes, and keeps its tunnel alive.
//
// One file without dependencies, for Node 18 and later and for Acurast's runtime. `README.md` beside it says how to use it, and what
// could not be confirmed on a live phone. What it sends is described in `gateway/docs/api.md` ("Phones announce themselves").

const SECOND = 1000;
const MINUTE = 60 * SECOND;
// Phones are held back towards hosts that are not on a list: 30 s between calls is the least that always passes.
const SHORTEST_HEARTBEAT = 30 * SECOND;
// What every signed text begins with, so that no other text this key signs can be taken for one.
const SIGNED_PREFIX = "huntgroup-registration-v1\n";

/**
 * @typedef {object} Report How the phone is. What it can't tell it leaves out.
 * @property {number} [battery] Charge in percent.
 * @property {boolean} [charging]
 * @property {number} [temperature] Of the battery, in °C.
 * @property {boolean} [metered] The network is paid for by volume.
 * @property {boolean} [screen_on]
 */

/**
 * @typedef {object} Key The phone's signing key.
 * @property {string} publicKey Ed25519, 64 hex digits.
 * @property {(hex: string) => string | Promise<string>} sign Signs the bytes that are given in hex; 128 hex digits.
 */

/**
 * @typedef {object} Watchdog Restarts the tunnel when the phone's own address is dead for others.
 * @property {(why: string) => unknown} restart Restarts the tunnel (and not the model).
 * @property {string} [path] Asked of the phone's own public address; any HTTP answer is a sign of life. Default `/health`.
 * @property {number} [every] Milliseconds between two looks. Default 60 s.
 * @property {number} [failures] Looks in a row that fail before it restarts. Default 3.
 * @property {number} [timeout] Milliseconds for one look. Default 20 s: a phone that reads a prompt answers late.
 */

/**
 * @typedef {object} Options
 * @property {string} callback The gateway's address for phones, with its token: `https://HOST/admin/register?token=…`.
 * @property {string} url The phone's own public address, such as `https://0123456789abcdef.acu.run`.
 * @property {string} [deployment] The job that it runs. Default: what Acurast's runtime says.
 * @property {string} [processor] The phone's address on the chain. Default: what Acurast's runtime says.
 * @property {Key | null} [key] Default: the runtime's key, if there is one; `null`: do not sign.
 * @property {object} [replica] What it states about itself: `models`, `slots`, `context_tokens`, `cost_acu_per_day` (counts if the chain lists the key, or once an operator states it), `expires_at`, `labels`.
 * @property {number} [heartbeat] Milliseconds between two signs of life; at least 30 s. Default 60 s.
 * @property {() => Report | Promise<Report>} [report] How the phone is; asked before each heartbeat.
 * @property {Date | number} [endsAt] When the deployment ends.
 * @property {number} [leaveBefore] Milliseconds before that in which it says that it goes. Default 15 min: answers take minutes.
 * @property {Watchdog} [watchdog]
 * @property {(line: string) => void} [log] Default `console.log`. Never gets the token.
 * @property {typeof fetch} [fetch]
 */

/**
 * Joins: says `started` until the gateway has taken it, then goes on by itself.
 *
 * @param {Options} options
 * @returns {Phone}
 */
export function join(options) {
  const phone = new Phone(options);
  phone.run();
  return phone;
}

/** A phone that has joined, or is about to. */
export class Phone {
  /** @param {Options} options */
  constructor(options) {
    this.callback = checkedCallback(options.callback);
    this.url = checkedUrl(options.url);
    const runtime = runtimeOf(globalThis._STD_);
    this.deployment = options.deployment ?? runtime.deployment;
    this.processor = options.processor ?? runtime.processor;
    // Half a place is none: the gateway takes both or neither.
    if (!this.deployment || !this.processor) this.deployment = this.processor = undefined;
    this.key = options.key === undefined ? runtime.key : options.key;
    this.replica = options.replica;
    this.every = Math.max(options.heartbeat ?? MINUTE, SHORTEST_HEARTBEAT);
    this.report = options.report;
    this.endsAt = options.endsAt === undefined ? undefined : Number(options.endsAt);
    this.leaveBefore = options.leaveBefore ?? 15 * MINUTE;
    this.watchdog = options.watchdog;
    this.log = options.log ?? ((line) => console.log(`huntgroup: ${line}`));
    this.fetch = options.fetch ?? globalThis.fetch;
    /** The gateway has taken `started`. */
    this.joined = false;
    /** `leaving` was said; nothing is said after it. */
    this.left = false;
    this.reachesGateway = false;
    /** Milliseconds by which the gateway's clock is ahead. */
    this.skew = 0;
    this.stopping = new AbortController();
  }

  /** The loops; they end with `stop`. */
  run() {
    this.running = Promise.all([this.#heartbeats(), this.#watch(), this.#end()]);
  }

  /** Ends everything without a word to the gateway, and waits for what is under way. */
  async stop() {
    this.stopping.abort();
    await this.running;
  }

  /** The model is loaded: the gateway looks at once instead of within seconds. */
  ready() {
    return this.#say({ event: "model_ready", url: this.url });
  }

  /** Something is wrong that the operator should see. @param {unknown} error */
  error(error) {
    return this.#say({ event: "error", url: this.url, error: String(error?.message ?? error).slice(0, 200) });
  }

  /** It goes: the gateway sends nothing new, and what runs may end. Says nothing more afterwards. */
  async leave() {
    if (this.left) return true;
    this.left = true;
    for (let tries = 0; tries < 3 && !this.stopping.signal.aborted; tries += 1) {
      if ((await this.#say({ event: "leaving", url: this.url })).taken) return true;
      await this.#sleep(5 * SECOND * (tries + 1));
    }
    return false;
  }

  async #heartbeats() {
    for (let failures = 0; !this.stopping.signal.aborted; ) {
      if (this.left) return;
      const said = this.joined ? await this.#heartbeat() : await this.#say(this.#started());
      if (said.taken && !this.joined) {
        this.joined = true;
        this.log(`the gateway knows ${this.url}`);
      }
      // A gateway that was set back does not know this phone: begin again.
      if (said.status === 404 || said.status === 410) this.joined = false;
      failures = said.taken ? 0 : failures + 1;
      // Once it is known: regularly. Until then soon, then ever later; a refusal needs somebody to act, so there is no hurry.
      const wait = said.taken ? this.every : said.status ? 5 * MINUTE : Math.min(2 ** failures * SECOND, 5 * MINUTE);
      await this.#sleep(Math.max(wait, said.taken || said.status ? SHORTEST_HEARTBEAT : SECOND) * (0.9 + 0.2 * Math.random()));
    }
  }

  #started() {
    return { event: "started", url: this.url, ...(this.replica && { replica: this.replica }) };
  }

  async #heartbeat() {
    let report;
    try {
      report = await this.report?.();
    } catch (error) {
      this.log(`no report: ${error?.message ?? error}`);
    }
    return this.#say({ event: "heartbeat", url: this.url, ...(report && { report }) });
  }

  /** Restarts the tunnel if the phone can reach the gateway, and nobody can reach the phone. */
  async #watch() {
    const { restart, path = "/health", every = MINUTE, failures: most = 3, timeout = 20 * SECOND } = this.watchdog ?? {};
    if (!restart) return;
    let failures = 0;
    let pause = every;
    while (!this.stopping.signal.aborted && !this.left) {
      await this.#sleep(pause);
      pause = every;
      if (this.stopping.signal.aborted || this.left) return;
      if (await this.#isReachable(path, timeout)) {
        failures = 0;
        continue;
      }
      // Without a network a new tunnel would help nobody; when it is back, this looks again.
      if (!this.reachesGateway) continue;
      failures += 1;
      if (failures % most !== 0) continue;
      const why = `${this.url} did not answer ${failures} times in a row`;
      this.log(`${why}: restarting the tunnel`);
      try {
        await restart(why);
      } catch (error) {
        this.log(`the tunnel did not restart: ${error?.message ?? error}`);
      }
      // It needs time to come up, and restarting over and over would keep it from that.
      pause = Math.min(every * 2 ** (failures / most), 30 * MINUTE);
    }
  }

  async #isReachable(path, timeout) {
    try {
      await this.#fetch(timeout, this.url + path, { redirect: "manual" }, (answer) => answer.body?.cancel());
      return true;
    } catch {
      return false;
    }
  }

  /**
   * `fetch`, and what is `read` of its answer, within so many milliseconds, and no longer than this phone goes on.
   * (`AbortSignal.any` is younger than Node 18.)
   */
  async #fetch(limit, url, options, read) {
    const ending = new AbortController();
    const end = () => ending.abort();
    const timer = setTimeout(end, limit);
    this.stopping.signal.addEventListener("abort", end, { once: true });
    try {
      const answer = await this.fetch(url, { ...options, signal: ending.signal });
      return { answer, read: await read(answer) };
    } finally {
      clearTimeout(timer);
      this.stopping.signal.removeEventListener("abort", end);
    }
  }

  async #end() {
    if (this.endsAt === undefined) return;
    const left = () => this.endsAt - this.leaveBefore - Date.now();
    // A timer holds at most 24 days.
    while (left() > 0 && !this.stopping.signal.aborted) await this.#sleep(Math.min(left(), 24 * 60 * MINUTE));
    if (!this.stopping.signal.aborted) await this.leave();
  }

  /** Says something, signed if there is a key; again if only the clocks differ. `status` 0: nobody answered. */
  async #say(message) {
    // What was about to be said while it left would bring it back.
    if (this.left && message.event !== "leaving") return { taken: false, status: 0, why: "it has left" };
    const place = this.deployment && { deployment: this.deployment, processor: this.processor };
    const body = JSON.stringify({ ...message, ...place });
    let said = await this.#post(body);
    if (said.clockIsOff) said = await this.#post(body);
    if (!said.taken) this.log(`${message.event} was not taken: ${said.why}`);
    return said;
  }

  async #post(body) {
    const headers = { "content-type": "application/json" };
    if (this.key) Object.assign(headers, await this.#signature(body));
    let answer;
    let why;
    try {
      const options = { method: "POST", headers, body, redirect: "error" };
      ({ answer, read: why } = await this.#fetch(30 * SECOND, this.callback, options, refusalOf));
    } catch (error) {
      this.reachesGateway = false;
      return { taken: false, status: 0, why: error?.cause?.code ?? error?.name ?? "no answer" };
    }
    this.reachesGateway = true;
    const ahead = Date.parse(answer.headers.get("date") ?? "") - Date.now();
    // Beyond what the way there and back explains.
    const clockIsOff = !answer.ok && Boolean(this.key) && Math.abs(ahead - this.skew) > 10 * SECOND;
    if (clockIsOff) this.skew = ahead;
    return { taken: answer.ok, status: answer.status, why, clockIsOff };
  }

  async #signature(body) {
    const timestamp = String(Date.now() + this.skew);
    const nonce = hex(globalThis.crypto.getRandomValues(new Uint8Array(16)));
    const text = new TextEncoder().encode(`${SIGNED_PREFIX}${timestamp}\n${nonce}\n${body}`);
    const signature = await this.key.sign(hex(text));
    return { "x-publickey": this.key.publicKey, "x-signature": signature, "x-timestamp": timestamp, "x-nonce": nonce };
  }

  /** Ends early with `stop`. */
  #sleep(milliseconds) {
    const { signal } = this.stopping;
    if (signal.aborted) return Promise.resolve();
    return new Promise((done) => {
      const timer = setTimeout(finish, milliseconds);
      function finish() {
        clearTimeout(timer);
        signal.removeEventListener("abort", finish);
        done();
      }
      signal.addEventListener("abort", finish, { once: true });
    });
  }
}

/** What Acurast's runtime says about the job and the phone; each part only if it is there. */
function runtimeOf(std) {
  const ask = (question) => {
    try {
      return question();
    } catch {
      return undefined;
    }
  };
  const job = ask(() => std.job.getId());
  const publicKey = ask(() => std.job.getPublicKeys().ed25519);
  const sign = ask(() => std.signers.ed25519.sign);
  return {
    deployment: job === undefined || job === null ? undefined : textOf(job),
    processor: ask(() => std.device.getAddress()),
    key: publicKey && sign ? { publicKey, sign: (bytes) => std.signers.ed25519.sign(bytes) } : undefined,
  };
}

/** A job is a text, or its origin and number. */
function textOf(job) {
  if (typeof job === "string") return job;
  const [origin, number] = Array.isArray(job) ? job : [job.origin, job.id];
  const [chain, address] = Object.entries(origin ?? {})[0] ?? [];
  return chain ? `${chain[0].toUpperCase()}${chain.slice(1)}:${address}:${number}` : undefined;
}

function checkedCallback(text) {
  const callback = parsed(text, "callback");
  if (!callback.searchParams.get("token")) throw new TypeError("callback must end with ?token=…, as the gateway's operator gave it");
  return callback.href;
}

function checkedUrl(text) {
  const url = parsed(text, "url");
  if (url.pathname !== "/" || url.search || url.hash || url.username) throw new TypeError("url must end after host and port");
  return url.origin;
}

function parsed(text, name) {
  let url;
  try {
    url = new URL(text);
  } catch {
    throw new TypeError(`${name} must be an address, such as https://…`);
  }
  if (!["https:", "http:"].includes(url.protocol)) throw new TypeError(`${name} must begin with https://`);
  return url;
}

async function refusalOf(answer) {
  const text = await answer.text();
  try {
    return answer.ok ? "" : `${answer.status} ${JSON.parse(text).error.message}`;
  } catch {
    return String(answer.status);
  }
}

function hex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
