// The words of the page: what each state means and asks for, and how numbers, lengths and moments are written. Pure.

/**
 * The states of a replica, the most urgent first: how they are drawn (a letter, so that colour is never alone), what they mean, and what
 * to do about them where the replica itself does not say. `signs` are those that only some replicas of a state have.
 */
export const STATES = {
  out: { letter: "×", word: "out", means: "It failed, and gets no work until a probe reaches it again.",
    next: "Its probes go on; if it stays out, look at the phone: is it on, is its app open?" },
  misconfigured: { letter: "!", word: "misconfigured", means: "It answers, but not as it was stated: a key, a model, an address.",
    next: "It does not get well by itself: correct what is stated about it, or the phone." },
  suspect: { letter: "?", word: "suspect", means: "It failed lately. It gets work only where no better phone is free.",
    next: "Wait: its next probes and requests decide." },
  quarantine: { letter: "Q", word: "in quarantine", means: "It is new, and has yet to show that it answers rightly.",
    next: "Wait: it is asked questions whose answers are known." },
  probation: { letter: "P", word: "on probation", means: "It came back, and gets one request at a time until one succeeds.",
    next: "Nothing: it gets well by working." },
  paused: { letter: "=", word: "resting", means: "Its phone is to be spared: its battery, its heat, its network.",
    next: "Charge or cool it: it works again by itself." },
  draining: { letter: "D", word: "draining", means: "It finishes what runs, and starts nothing new.",
    next: "Undrain it to give it work again." },
  loading: { letter: "L", word: "loading", means: "Its engine is up, its model is not.", next: "Wait until the model is loaded." },
  joining: { letter: "J", word: "joining", means: "It was not reached yet.", next: "Wait for its first probe." },
  ready: { letter: "", word: "ready", means: "It takes work.", next: "", signs: "– It gets less, to be spared. ▲ Something about it is to be seen to." },
};

/** What a table has under a name; names come from outside, and `constructor` is none. */
export const own = (table, name) => (Object.hasOwn(table, String(name)) ? table[name] : undefined);

/** What is shown of a state that this page does not know: a newer gateway's. */
export const stateOf = (name) =>
  own(STATES, name) ?? { letter: "*", word: String(name), means: "", next: "" };

/** Why a state began, in words. */
export const REASONS = {
  probe: "a probe found it so", hard_failure: "it could not be reached", soft_failure: "its answers failed",
  penalty_over: "its penalty is over", success: "a request succeeded", operator: "an operator asked for it",
  loading: "it said that its model is loading", misconfigured: "wrong key or wrong model",
  relay_down: "everything behind its relay failed at once", pool_protection: "too little of the pool would be left",
};

export const reasonOf = (name) => own(REASONS, name) ?? String(name ?? "").replaceAll("_", " ");

const whole = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });

/** A number for people: 3 digits that matter, thousands apart. Absent: a dash. */
export function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (Math.abs(value) >= 100 || Number.isInteger(value)) return whole.format(value);
  return String(Number(value.toPrecision(value < 1 ? 2 : 3)));
}

/** `1 phone`, `2 phones`. */
export const count = (n, one, many = one + "s") => `${number(n)} ${n === 1 ? one : many}`;

/** A length in seconds, in its two largest units at most: `850 ms`, `7.4 s`, `3 min`, `2 h 5 min`, `3 d 4 h`. */
export function length(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  const s = Math.max(0, seconds);
  if (s === 0) return "0 s";
  if (s < 0.9995) return `${Math.max(1, Math.round(s * 1000))} ms`;
  if (s < 9.95) return `${s.toFixed(1).replace(/\.0$/, "")} s`;
  if (s < 99.5) return `${Math.round(s)} s`;
  const minutes = Math.round(s / 60);
  if (minutes < 60) return `${minutes} min`;
  const pair = (big, bigUnit, small, smallUnit) => `${big} ${bigUnit}${small ? ` ${small} ${smallUnit}` : ""}`;
  const hours = Math.floor(minutes / 60);
  if (minutes < 48 * 60) return pair(hours, "h", hours < 10 ? minutes % 60 : 0, "min");
  const days = Math.floor(minutes / 1440);
  return pair(days, "d", days < 10 ? Math.floor((minutes % 1440) / 60) : 0, "h");
}

/** A moment (seconds since 1970) seen from `now`: `just now`, `3 min ago`, `in 2 h`. */
export function ago(at, now) {
  if (!Number.isFinite(at)) return "–";
  const away = now - at;
  if (Math.abs(away) < 1.5) return "just now";
  const long = length(Math.abs(away) < 100 ? Math.round(Math.abs(away)) : Math.abs(away));
  return away > 0 ? `${long} ago` : `in ${long}`;
}

/** A moment on the clock of this browser: `03:12`, with the day where that is another one than `now`'s. */
export function clockTime(at, now) {
  const day = (seconds) => new Date(seconds * 1000).toDateString();
  const options = { hour: "2-digit", minute: "2-digit", hour12: false };
  if (day(at) !== day(now)) Object.assign(options, { day: "numeric", month: "short" });
  return new Date(at * 1000).toLocaleString("en-GB", options);
}

/** Made once: to make one takes longer than all that is written with it in a second. */
const fullMoment = new Intl.DateTimeFormat("en-GB", { dateStyle: "full", timeStyle: "long" });

/** A moment to the second, with its zone, for titles. */
export const exactly = (at) => (Number.isFinite(at) ? fullMoment.format(at * 1000) : "");

/** Bytes: `412 MiB`. */
export function bytes(n) {
  if (!Number.isFinite(n)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  for (; n >= 1024 && at < units.length - 1; at += 1) n /= 1024;
  return `${number(n)} ${units[at]}`;
}

/** A share from 0 to 1 as `37 %`. */
export const percent = (share) => (Number.isFinite(share) ? `${number(Math.round(share * 100))} %` : "–");

/** Money of the network. */
export const acu = (n) => (Number.isFinite(n) ? `${number(n)} ACU` : "–");

/** `a, b and c`. */
export function listed(words) {
  return words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;
}
