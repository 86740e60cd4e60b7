// What an operator does: calls of the admin API with the token, and the dialogs that say beforehand what a call will do.

import { byId, h, setText } from "./dom.js";
import { count, own } from "./words.js";

const KEY = "huntgroup.token";
let spare = null;

/** Storage may be forbidden to the page; then the token lasts as long as the page does. */
function storage(which, use) {
  try {
    return use(window[which]);
  } catch {
    return null;
  }
}

export const token = {
  get: () => storage("sessionStorage", (kept) => kept.getItem(KEY)) ?? storage("localStorage", (kept) => kept.getItem(KEY)) ?? spare,
  set(value, keep) {
    token.forget();
    spare = value;
    storage(keep ? "localStorage" : "sessionStorage", (kept) => kept.setItem(KEY, value));
  },
  forget() {
    spare = null;
    storage("sessionStorage", (kept) => kept.removeItem(KEY));
    storage("localStorage", (kept) => kept.removeItem(KEY));
  },
};

export const headers = () => {
  const value = token.get();
  return value ? { authorization: `Bearer ${value}` } : {};
};

/** A refused call: what the gateway says, and which field it speaks of. */
export class Refused extends Error {
  constructor(status, error) {
    super(error?.message ?? (status ? `the gateway answered with status ${status}` : "the gateway did not answer"));
    this.status = status;
    this.param = error?.param ?? null;
  }
}

let onToken = () => {};
/** Whom to tell that a token is needed. */
export const whenTokenIsNeeded = (tell) => {
  onToken = tell;
};

/** One call. Throws `Refused`. */
export async function call(method, path, body) {
  let answer;
  try {
    const sent = body === undefined ? {} : { body: JSON.stringify(body) };
    const kind = body === undefined ? {} : { "content-type": "application/json" };
    answer = await fetch(path, { method, ...sent, headers: { ...headers(), ...kind }, cache: "no-store", credentials: "omit" });
  } catch {
    throw new Refused(0, null);
  }
  const said = await answer.json().catch(() => null);
  if (answer.ok) return said;
  if (answer.status === 401) onToken(said?.error?.message);
  throw new Refused(answer.status, said?.error);
}

/**
 * Asks before something is done. `choices` are `[{ text, danger, run }]`; `run` returns what to say once it is done, or nothing. The dialog stays
 * open while it runs, and when it fails it says why.
 */
export function ask({ title, body, fields = [], choices }) {
  const said = h("p", { class: "said", role: "alert" });
  const keep = h("button", { type: "button", class: "quiet", click: () => dialog.close() }, "Leave it");
  const buttons = choices.map(({ text, danger, run }) => {
    const button = h("button", { type: "button", class: danger ? "danger" : "primary" }, text);
    button.addEventListener("click", async () => {
      for (const one of buttons) one.disabled = true;
      setText(said, "…");
      try {
        const done = await run();
        if (!done) return dialog.close();
        setText(said, done);
        for (const one of buttons) one.remove();
        setText(keep, "Close");
        keep.focus();
      } catch (error) {
        setText(said, sentence(error.message));
        for (const one of buttons) one.disabled = false;
      }
    });
    return button;
  });
  const dialog = h("dialog", { "aria-labelledby": "ask-title" },
    h("h2", { id: "ask-title" }, title), body.map((text) => h("p", {}, text)), fields, said, h("div", { class: "buttons" }, keep, buttons));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  keep.focus();
}

const sentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.?!]$/.test(text) ? "" : "."}`;
const path = (kind, id, rest = "") => `/admin/${kind}/${encodeURIComponent(id)}${rest}`;
const running = ({ busy = 0 }) =>
  busy ? `${count(busy, "request")} of ours ${busy === 1 ? "runs" : "run"} there now.` : "Nothing of ours runs there now.";

export function drain(replica) {
  const limits = [["", "take as long as it takes"], ["60", "1 min at most"], ["300", "5 min at most"], ["900", "15 min at most"]];
  const limit = h("select", { id: "drain-limit" }, limits.map(([value, text]) => h("option", { value }, text)));
  ask({
    title: `Drain ${replica.name}?`,
    body: [running(replica), "It gets no new work. What runs there may end; what still runs after the limit goes to another phone, or ends with an error if its client has seen a part of it that no phone can carry on."],
    fields: [h("label", { class: "field", for: "drain-limit" }, "What runs there may ", limit)],
    choices: [{ text: "Drain", run: () => call("POST", path("replicas", replica.id, "/drain"), limit.value ? { deadline_s: Number(limit.value) } : undefined).then(() => null) }],
  });
}

export function undrain(replica) {
  ask({
    title: `Undrain ${replica.name}?`, body: ["It takes work again as soon as a probe finds it well."],
    choices: [{ text: "Undrain", run: () => call("POST", path("replicas", replica.id, "/undrain")).then(() => null) }],
  });
}

/** What a phone is brought back by, once it is removed, and how to keep it out. */
const COMES_BACK = {
  configuration: "The configuration states it: take it out there too, or it comes back with the next reload or start, as stated there.",
  chain: "The chain assigns it: it comes back with the next look at the chain, in about a minute, as long as its deployment lasts. To keep it out, drain it instead.",
  heartbeat: "Its phone sends signs of life: the next one, mostly within a minute, brings it back as a new phone. To keep it out, drain it instead.",
  announcement: "Its phone announced itself: it comes back as a new phone when its app starts anew. To keep it out, drain it instead.",
};

export function remove(replica) {
  const run = (query) => async () => {
    const removed = await call("DELETE", path("replicas", replica.id, query));
    const what = removed.deleted ? `${replica.name} is gone.` : `${replica.name} is draining and goes once it is empty.`;
    return removed.note ? `${what} ${sentence(removed.note)}` : null;
  };
  const known = (replica.comes_back ?? []).map((what) => own(COMES_BACK, what)).filter(Boolean);
  const back = known.length ? known : ["It does not come back by itself."];
  const later = { text: replica.busy ? "Remove once it is empty" : "Remove", danger: true, run: run("") };
  const atOnce = { text: "Remove at once", danger: true, run: run("?force=true") };
  ask({
    title: `Remove ${replica.name}?`,
    body: [running(replica), "It leaves the pool with its history and its measured speeds. The phone itself is not touched.",
      ...(replica.busy ? ["At once: what runs there goes to another phone, or ends with an error if it cannot."] : []), ...back],
    choices: replica.busy ? [later, atOnce] : [later],
  });
}

export function cancelRequest(request) {
  ask({
    title: "Cancel this request?",
    body: [`${request.id}, of ${request.tenant}, for ${request.model}.`, "Its client gets an error now, in its stream if that has begun, and its phone stops."],
    choices: [{ text: "Cancel the request", danger: true, run: () => call("DELETE", path("requests", request.id)).then(() => null) }],
  });
}

export function cancelBatch(batch) {
  const left = Math.max(0, (batch.total ?? 0) - (batch.completed ?? 0) - (batch.failed ?? 0));
  ask({
    title: "Cancel this batch?",
    body: [`${batch.id}, of ${batch.tenant}, for ${batch.model ?? "several models"}.`, `${count(left, "line")} without a result will not be run. What is done is kept for its tenant. A cancelled batch cannot be taken up again.`],
    choices: [{ text: "Cancel the batch", danger: true, run: () => call("POST", path("batches", batch.id, "/cancel")).then(() => null) }],
  });
}

/** Reads the form of a new replica into the body of the call; what was left empty is left out. */
export function readForm(values) {
  const body = { url: values.url.trim() };
  const words = (text) => text.split(",").map((word) => word.trim()).filter(Boolean);
  if (values.name?.trim()) body.name = values.name.trim();
  if (values.models?.trim()) body.models = words(values.models);
  for (const name of ["slots", "context_tokens", "cost_acu_per_day"]) if (values[name]?.trim()) body[name] = Number(values[name]);
  if (values.api_key) body.api_key = values.api_key;
  if (values.dialect) body.dialect = values.dialect;
  if (values.expires_at) body.expires_at = Math.floor(new Date(values.expires_at).getTime() / 1000);
  if (values.labels?.trim()) body.labels = Object.fromEntries(words(values.labels).map((pair) => [pair.split("=")[0].trim(), pair.split("=").slice(1).join("=").trim()]));
  return body;
}

/** The dialog that adds a replica. `added(replica)` is told of what the gateway made of it. */
export function prepareAdding(added) {
  const [dialog, form, said] = [byId("add"), byId("add-form"), byId("add-said")];
  const clear = () => {
    setText(said, "");
    for (const field of form.elements) field.removeAttribute("aria-invalid");
    for (const wrong of form.querySelectorAll(".wrong")) setText(wrong, "");
  };
  const refuse = (error) => {
    const field = error.param ? form.elements.namedItem(error.param) : null;
    const wrong = field ? byId(`wrong-${error.param}`) : null;
    if (!wrong) return setText(said, sentence(error.message));
    field.setAttribute("aria-invalid", "true");
    setText(wrong, sentence(error.message));
    byId("add-more").open ||= byId("add-more").contains(field);
    field.focus();
  };
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    clear();
    const submit = byId("add-submit");
    submit.disabled = true;
    try {
      const replica = await call("POST", "/admin/replicas", readForm(Object.fromEntries(new FormData(form))));
      form.reset();
      dialog.close();
      added(replica);
    } catch (error) {
      refuse(error);
    } finally {
      submit.disabled = false;
    }
  });
  byId("add-close").addEventListener("click", () => dialog.close());
  return () => {
    clear();
    dialog.showModal();
    form.elements.namedItem("url").focus();
  };
}

/** The dialog that asks for the token. `given()` is told once there is one. */
export function prepareToken(given) {
  const [dialog, form, field] = [byId("token"), byId("token-form"), byId("token-field")];
  // Without a token there is nothing behind the dialog to go back to.
  dialog.addEventListener("cancel", (event) => event.preventDefault());
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!field.value.trim()) return field.focus();
    token.set(field.value.trim(), byId("token-keep").checked);
    field.value = "";
    dialog.close();
    given();
  });
  return (wasWrong) => {
    setText(byId("token-said"), wasWrong ? "The gateway does not accept this token." : "");
    if (!dialog.open) dialog.showModal();
    field.focus();
  };
}
