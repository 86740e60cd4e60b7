// The live feed: server-sent events read with fetch, because EventSource can carry no token.

/** Longest event that is believed, in characters: 5,000 replicas fit several times over. */
const MAX_EVENT = 32 << 20;
/** Silence after which a connection is taken for dead, in ms. The gateway writes at least every 15 s. */
const SILENCE = 40_000;
/** Waits before a connection is tried again, in ms; the last one stays. */
export const BACK_OFF = [500, 1_000, 2_000, 4_000, 8_000, 15_000];

/**
 * Reads server-sent events out of text that may be cut anywhere. `push` takes a piece and returns the events that it completes, as
 * `{ event, data, id }`; what is not complete at the end of a stream is no event.
 */
export class SseParser {
  #rest = "";
  #afterReturn = false;
  #event = "";
  #id = "";
  #data = null;
  #length = 0;

  push(piece) {
    const out = [];
    // A return and a line feed are one end of a line, also when the cut is between them.
    if (this.#afterReturn && piece.startsWith("\n")) piece = piece.slice(1);
    if (piece) this.#afterReturn = false;
    // Most pieces of a large event end no line: they are only laid aside.
    if (!/[\r\n]/.test(piece)) {
      this.#rest += piece;
      this.#check();
      return out;
    }
    const lines = (this.#rest + piece).split(/\r\n|\n|\r/);
    if (piece.endsWith("\r")) this.#afterReturn = true;
    this.#rest = lines.pop();
    for (const line of lines) this.#line(line, out);
    this.#check();
    return out;
  }

  #check() {
    if (this.#rest.length + this.#length > MAX_EVENT) throw new Error("an event of the feed is too large");
  }

  #line(line, out) {
    if (line === "") {
      if (this.#data !== null) out.push({ event: this.#event || "message", data: this.#data.join("\n"), id: this.#id });
      this.#event = "";
      this.#data = null;
      this.#length = 0;
      return;
    }
    const colon = line.indexOf(":");
    if (colon === 0) return;
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + (line[colon + 1] === " " ? 2 : 1));
    if (field === "data") {
      (this.#data ??= []).push(value);
      this.#length += value.length;
    } else if (field === "event") this.#event = value;
    else if (field === "id") this.#id = value;
  }
}

/**
 * Keeps one connection to the feed open. Calls `on.event(name, value)` for each event, `on.heard()` for whatever comes, which in a quiet night are
 * comments, and `on.connection(phase, facts)` for each change:
 * `connecting`, `live`, `lost` (with `retryAt`, ms), `token` (one is needed, or the one given is wrong), `refused` (with `message`).
 */
export class Feed {
  #on;
  #path;
  #headers;
  #abort = null;
  #timer = 0;
  #failures = 0;
  #stopped = true;

  constructor(path, headers, on) {
    this.#path = path;
    this.#headers = headers;
    this.#on = on;
  }

  /** Connects, or connects anew at once. */
  start() {
    this.stop();
    this.#stopped = false;
    this.#connect();
  }

  /** Tries at once if it is waiting to try again. */
  hurry() {
    if (this.#timer && !this.#stopped) {
      this.#failures = 0;
      this.start();
    }
  }

  stop() {
    this.#stopped = true;
    clearTimeout(this.#timer);
    this.#timer = 0;
    this.#abort?.abort();
    this.#abort = null;
  }

  async #connect() {
    const abort = new AbortController();
    this.#abort = abort;
    this.#on.connection("connecting", {});
    let watchdog = 0;
    const alive = () => {
      clearTimeout(watchdog);
      watchdog = setTimeout(() => abort.abort(), SILENCE);
    };
    try {
      alive();
      const answer = await fetch(this.#path, {
        headers: { ...this.#headers(), accept: "text/event-stream" }, cache: "no-store", credentials: "omit", signal: abort.signal,
      });
      if (!answer.ok || !answer.body) {
        await this.#refused(answer, abort);
        return;
      }
      const reader = answer.body.getReader();
      const decoder = new TextDecoder();
      const parser = new SseParser();
      this.#on.connection("live", {});
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        alive();
        this.#on.heard();
        this.#failures = 0;
        for (const { event, data } of parser.push(decoder.decode(value, { stream: true }))) this.#on.event(event, JSON.parse(data));
      }
      throw new Error("it ended the stream");
    } catch (error) {
      if (this.#abort === abort && !this.#stopped) this.#again(error);
      abort.abort();
    } finally {
      clearTimeout(watchdog);
    }
  }

  async #refused(answer, abort) {
    const said = await answer.json().catch(() => null);
    const message = said?.error?.message ?? `the gateway answered with status ${answer.status}`;
    if (this.#abort !== abort || this.#stopped) return;
    if (answer.status === 401) {
      this.stop();
      this.#on.connection("token", { message });
    } else if (answer.status === 429) this.#again(new Error(message), Number(answer.headers.get("retry-after")) * 1000 || 60_000, "refused");
    else this.#again(new Error(message), BACK_OFF.at(-1), answer.status < 500 || answer.status === 503 ? "refused" : "lost");
  }

  /** What a browser says of a connection that fails differs, and is of no use. */
  #why(error) {
    if (error?.name === "AbortError") return "it was silent for too long";
    return error instanceof TypeError ? "it accepts no connection, or broke it off" : String(error?.message ?? error);
  }

  #again(error, wait = BACK_OFF[Math.min(this.#failures, BACK_OFF.length - 1)], phase = "lost") {
    this.#failures += 1;
    // Many pages must not come back in one moment: up to a fifth earlier.
    wait *= 0.8 + 0.2 * Math.random();
    this.#on.connection(phase, { message: this.#why(error), retryAt: Date.now() + wait });
    this.#timer = setTimeout(() => this.start(), wait);
  }
}
