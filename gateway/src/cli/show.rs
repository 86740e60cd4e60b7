//! `huntgroup replicas show`: everything about one replica, for whoever has to repair it.

use std::io::{self, Write};

use serde_json::Value;

use super::{
    cost::digits,
    replicas::{length, note},
    table::{cell, names, printable},
};
use crate::config::Moment;

/// Writes what is known about a replica, a line a subject; subjects without anything to say are left out.
///
/// # Errors
/// The output can't be written.
pub fn write(replica: &Value, out: &mut dyn Write) -> io::Result<()> {
    let [name, id, url] = ["name", "id", "url"].map(|field| cell(replica, field));
    writeln!(out, "{name} (number {id}, {url})")?;
    let subjects = [
        ("state", state(replica)),
        ("note", printable(&note(replica))),
        ("models", names(&replica["models"])),
        ("routes", names(&replica["routes"])),
        ("engine", listed(replica, &[("", "dialect"), ("build ", "build")])),
        ("group", cell(replica, "group")),
        (
            "carries",
            if replica["carries_on"] == true { "answers on that others have begun".into() } else { String::new() },
        ),
        ("slots", slots(replica)),
        ("context", suffixed(replica, "context_tokens", " tokens")),
        ("reads", speed(replica, "prefill_tokens_per_second")),
        ("writes", speed(replica, "decode_tokens_per_second")),
        ("attempts", pairs(&replica["attempts"], " ")),
        ("labels", pairs(&replica["labels"], "=")),
        ("source", format!("{}, since {}", cell(replica, "source"), moment(&replica["added_at"]))),
        (
            "identity",
            listed(replica, &[("deployment ", "deployment"), ("processor ", "processor"), ("key ", "public_key")]),
        ),
        ("verified", verification(replica)),
        ("said", said(replica)),
        ("limit", listed(&replica["limit"], &[("", "level"), ("", "reason")])),
        ("phone", phone(&replica["report"])),
        ("proven", moment(&replica["proven_at"])),
        ("expires", moment(&replica["expires_at"])),
        ("costs", price(replica)),
        ("held", held(replica)),
        ("probe", probe(&replica["last_probe"])),
    ];
    for (subject, text) in subjects.iter().filter(|(_, text)| !text.is_empty() && text != "-") {
        writeln!(out, "  {subject:<9} {text}")?;
    }
    let history = replica["history"].as_array().map_or(&[][..], Vec::as_slice);
    if !history.is_empty() {
        writeln!(out, "  history   oldest first")?;
    }
    for change in history {
        let [from, to, reason] = ["from", "to", "reason"].map(|field| cell(change, field));
        let detail = change["detail"].as_str().map(|detail| format!(": {}", printable(detail))).unwrap_or_default();
        writeln!(out, "    {}  {from} -> {to}, {reason}{detail}", moment(&change["at"]))?;
    }
    Ok(())
}

/// Its price, or the one that it claims.
fn price(replica: &Value) -> String {
    let a_day = |field: &str| replica[field].as_f64().map(|cost| format!("{} ACU a day", digits(cost)));
    let claimed = a_day("claimed_cost_acu_per_day")
        .map(|cost| format!("{cost}, as it says itself: counts once you state it (replicas patch --cost-acu-per-day)"));
    a_day("cost_acu_per_day").or(claimed).unwrap_or_default()
}

/// What an operator states of a replica that came by itself.
fn held(replica: &Value) -> String {
    match names(&replica["held"]) {
        none if none == "-" || none.is_empty() => String::new(),
        held => format!("{held}: stated by an operator, whatever it announces of itself"),
    }
}

/// A measured speed, or else the one that is assumed until then.
fn speed(replica: &Value, field: &str) -> String {
    match suffixed(replica, field, " tokens/s") {
        unknown if unknown.is_empty() => {
            let assumed = suffixed(&replica["assumed"], field, " tokens/s, until it is measured");
            if assumed.is_empty() { assumed } else { format!("~{assumed}") }
        }
        measured => measured,
    }
}

/// How well it is known who it is; nothing of one that only an operator speaks for.
fn verification(replica: &Value) -> String {
    if matches!(replica["verification"].as_str(), None | Some("none")) {
        return String::new();
    }
    let announced = moment(&replica["announced_at"]);
    let pinned = if replica["pin"] == true { ", with the certificate of its key" } else { "" };
    format!("{}, announced {announced}{pinned}", cell(replica, "verification"))
}

fn said(replica: &Value) -> String {
    let last = &replica["last_event"];
    let silent = if replica["silent"] == true { "silent since " } else { "" };
    let heard = moment(&replica["heard_at"]);
    match (last.is_null(), heard.is_empty()) {
        (_, true) => String::new(),
        (true, false) => format!("{silent}{heard}"),
        (false, false) => {
            let problem = last["problem"].as_str().map(|text| format!(": {}", printable(text))).unwrap_or_default();
            format!("{}{problem}, {}; {silent}{heard}", cell(last, "event"), moment(&last["at"]))
        }
    }
}

fn state(replica: &Value) -> String {
    let since = replica["state_for_s"].as_f64().map(length).unwrap_or_default();
    format!("{} for {since}, reason: {}", cell(replica, "state"), cell(replica, "state_reason"))
}

fn slots(replica: &Value) -> String {
    let [running, slots, usable] = ["in_flight", "slots", "usable_slots"].map(|field| cell(replica, field));
    let beside = [("lingering", "broken off and not seen free yet"), ("foreign", "busy with work that is not ours")];
    let beside = beside.iter().filter_map(|(field, words)| {
        replica[*field].as_u64().filter(|count| *count > 0).map(|count| format!(", {count} {words}"))
    });
    format!("{running} of {slots} busy{}, {usable} usable now", beside.collect::<String>())
}

fn phone(report: &Value) -> String {
    if report.is_null() {
        return String::new();
    }
    let said = [
        suffixed(report, "battery", " %"),
        if report["charging"] == true { "charging".into() } else { String::new() },
        suffixed(report, "temperature", " °C"),
        if report["metered"] == true { "metered network".into() } else { String::new() },
        if report["screen_on"] == true { "screen on".into() } else { String::new() },
    ];
    let said: Vec<String> = said.into_iter().filter(|word| !word.is_empty()).collect();
    format!("{} ({})", said.join(", "), moment(&report["at"]))
}

fn probe(probe: &Value) -> String {
    if probe.is_null() {
        return String::new();
    }
    let took = probe["took_ms"].as_f64().unwrap_or_default();
    format!("{}, {}, took {took:.0} ms", moment(&probe["at"]), cell(probe, "result"))
}

/// Fields with what stands before them; those that are not there are left out.
fn listed(replica: &Value, fields: &[(&str, &str)]) -> String {
    let there = fields.iter().filter(|(_, field)| !replica[*field].is_null());
    there.map(|(before, field)| format!("{before}{}", cell(replica, field))).collect::<Vec<_>>().join(", ")
}

fn suffixed(replica: &Value, field: &str, unit: &str) -> String {
    match &replica[field] {
        Value::Null => String::new(),
        value => value
            .as_f64()
            .map(|number| format!("{:.1}", number).trim_end_matches(".0").to_owned() + unit)
            .unwrap_or_default(),
    }
}

/// `5 status, 30 ok` or `room=4`.
pub(super) fn pairs(object: &Value, between: &str) -> String {
    let fields = object.as_object().into_iter().flatten();
    let counted = between == " ";
    let text = |(name, value): (&String, &Value)| {
        let (name, value) = (printable(name), value.as_str().map_or_else(|| value.to_string(), printable));
        if counted { format!("{value}{between}{name}") } else { format!("{name}{between}{value}") }
    };
    fields.map(text).collect::<Vec<_>>().join(", ")
}

pub(super) fn moment(seconds: &Value) -> String {
    let seconds = seconds.as_f64().filter(|seconds| *seconds >= 0.0);
    seconds.and_then(|seconds| Moment::from_unix_seconds(seconds as u64)).map(|at| at.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_replica_is_shown_with_its_reason_its_attempts_and_its_history() {
        let mut replica = json!({
            "id": 3, "name": "p", "url": "https://p.acu.run", "state": "out", "state_for_s": 75.0,
            "state_reason": "soft_failure", "problem": "its answers break off", "penalty_s": 4.5,
            "models": ["tiny"], "routes": ["completions"], "dialect": "llama", "build": null, "in_flight": 0, "slots": 2,
            "group": "00c0ffee00c0ffee", "carries_on": true, "lingering": 1, "foreign": 1, "usable_slots": 0, "context_tokens": 8192, "prefill_tokens_per_second": null, "assumed": {"prefill_tokens_per_second": 164.2},
            "decode_tokens_per_second": 18.44, "attempts": {"cut": 5, "ok": 30}, "labels": {"room": "4\u{1b}"},
            "source": "registration", "added_at": 60, "expires_at": null, "cost_acu_per_day": null, "claimed_cost_acu_per_day": 0.08,
            "held": ["labels", "slots"],
            "last_probe": {"at": 61.5, "took_ms": 12.3, "result": "ready", "detail": "ready"},
            "history": [{"at": 62.0, "from": "ready", "to": "out", "reason": "soft_failure", "detail": "its answers break off"}],
        });
        let who = json!({
            "deployment": "Acurast:5G:7", "processor": "5F", "public_key": null, "verification": "token", "announced_at": 61.0,
            "pin": false, "silent": true, "heard_at": 62.0,
            "last_event": {"at": 61.0, "event": "error", "problem": "out of\tmemory"},
        });
        for (field, value) in who.as_object().unwrap() {
            replica[field] = value.clone();
        }
        let mut out = Vec::new();
        write(&replica, &mut out).unwrap();
        let expected = "\
p (number 3, https://p.acu.run)
  state     out for 1m15s, reason: soft_failure
  note      its answers break off (tried again in 5s)
  models    tiny
  routes    completions
  engine    llama
  group     00c0ffee00c0ffee
  carries   answers on that others have begun
  slots     0 of 2 busy, 1 broken off and not seen free yet, 1 busy with work that is not ours, 0 usable now
  context   8192 tokens
  reads     ~164.2 tokens/s, until it is measured
  writes    18.4 tokens/s
  attempts  5 cut, 30 ok
  labels    room=4\\u{1b}
  source    registration, since 1970-01-01T00:01:00Z
  identity  deployment Acurast:5G:7, processor 5F
  verified  token, announced 1970-01-01T00:01:01Z
  said      error: out of\\tmemory, 1970-01-01T00:01:01Z; silent since 1970-01-01T00:01:02Z
  costs     0.0800 ACU a day, as it says itself: counts once you state it (replicas patch --cost-acu-per-day)
  held      labels,slots: stated by an operator, whatever it announces of itself
  probe     1970-01-01T00:01:01Z, ready, took 12 ms
  history   oldest first
    1970-01-01T00:01:02Z  ready -> out, soft_failure: its answers break off
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
