//! A batch in words: how far it is, how long it still takes, whether it will make it.

use std::io::{self, IsTerminal as _, Write};

use serde_json::Value;

use super::{
    replicas::length,
    show::{moment, pairs},
    table::{cell, printable},
};

/// Columns of a terminal that does not say how many it has.
const USUAL_WIDTH: usize = 80;
/// Of the lines that were wrong, those that are shown.
const MAX_ERRORS: usize = 10;
/// Columns of the bar in what is shown of one batch.
const BAR: usize = 30;

/// Where the output goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Screen {
    /// Columns of the terminal, if it is one.
    pub width: Option<usize>,
    /// It shows more than plain ASCII, and can be drawn over.
    pub can_draw: bool,
}

impl Screen {
    /// The process's standard output.
    pub fn stdout() -> Self {
        let stdout = io::stdout();
        if !stdout.is_terminal() {
            return Self { width: None, can_draw: false };
        }
        let columns = rustix::termios::tcgetwinsize(&stdout).ok().map(|size| usize::from(size.ws_col));
        Self {
            width: Some(columns.filter(|columns| *columns > 0).unwrap_or(USUAL_WIDTH)),
            can_draw: std::env::var_os("TERM").is_some_and(|name| name != "dumb"),
        }
    }

    /// A bar of so many columns. It is full only when all is done.
    pub fn bar(self, share: f64, columns: usize) -> String {
        let (done, open) = if self.can_draw { ("▇", "▁") } else { ("#", "-") };
        let filled = ((share * columns as f64) as usize).min(columns);
        done.repeat(filled) + &open.repeat(columns - filled)
    }
}

/// Whether nothing happens to it any more.
pub fn has_ended(batch: &Value) -> bool {
    matches!(batch["status"].as_str(), Some("failed" | "completed" | "expired" | "cancelled"))
}

fn count(batch: &Value, field: &str) -> u64 {
    batch["request_counts"][field].as_u64().unwrap_or_default()
}

/// Lines with results.
pub fn done(batch: &Value) -> u64 {
    count(batch, "completed") + count(batch, "failed")
}

/// All lines; 0 until they were looked at.
pub fn total(batch: &Value) -> u64 {
    count(batch, "total")
}

/// Lines with results, of all.
pub fn share(batch: &Value) -> f64 {
    if total(batch) > 0 { done(batch) as f64 / total(batch) as f64 } else { 0.0 }
}

/// `31000/50000`.
pub fn counted(batch: &Value) -> String {
    if total(batch) > 0 { format!("{}/{}", done(batch), total(batch)) } else { "-".into() }
}

/// Lines a second, as far as anything is known.
pub fn rate(batch: &Value) -> String {
    batch["progress"]["lines_per_second"].as_f64().map_or_else(|| "-".into(), |rate| format!("{rate:.2}"))
}

/// What it waits for, if it does.
fn waits_for(batch: &Value) -> Option<&'static str> {
    Some(match batch["progress"]["waiting_for"].as_str()? {
        "replica" => "waits for a replica",
        "hours" => "waits for its hours",
        "memory" => "waits for memory",
        "disk" => "waits for disk space",
        _ => "waits",
    })
}

/// What it still needs, in seconds. What waits needs nobody knows how much longer.
fn needs(batch: &Value) -> Option<u64> {
    batch["progress"]["seconds_left"].as_u64().filter(|_| waits_for(batch).is_none())
}

/// How long it still takes, or why nobody can say.
pub fn left(batch: &Value) -> String {
    match (needs(batch), waits_for(batch), batch["status"].as_str()) {
        (Some(seconds), ..) => length(seconds as f64),
        (None, Some(words), _) => words.into(),
        (None, None, Some("validating" | "in_progress")) => "unknown".into(),
        _ => "-".into(),
    }
}

/// When it will be done, or when it ended. Unix seconds; `None`: nobody can say.
fn ends(batch: &Value, now: u64) -> Option<u64> {
    if has_ended(batch) {
        batch[format!("{}_at", batch["status"].as_str()?)].as_u64()
    } else {
        needs(batch).map(|seconds| now.saturating_add(seconds))
    }
}

/// The clock time of its end: `14:05Z` today, `12-01 06:30Z` on another day.
pub fn end(batch: &Value, now: u64) -> String {
    ends(batch, now).map_or_else(|| "unknown".into(), |at| clock(at, now))
}

fn clock(at: u64, now: u64) -> String {
    let [at, now] = [at, now].map(|seconds| moment(&Value::from(seconds)));
    let (Some((day, time)), Some((today, _))) = (at.split_once('T'), now.split_once('T')) else { return at };
    let time = time.get(..5).unwrap_or(time);
    if day == today { format!("{time}Z") } else { format!("{} {time}Z", day.get(5..).unwrap_or(day)) }
}

/// Until its time is over, in seconds; `None` once it has ended.
fn time_left(batch: &Value, now: u64) -> Option<u64> {
    batch["expires_at"].as_u64().filter(|_| !has_ended(batch)).map(|at| at.saturating_sub(now))
}

/// How long until its time is over.
pub fn expires(batch: &Value, now: u64) -> String {
    time_left(batch, now).map_or_else(|| "-".into(), |seconds| length(seconds as f64))
}

/// What an operator should know besides numbers.
pub fn note(batch: &Value, now: u64) -> String {
    let error = &batch["errors"]["data"][0];
    error["message"].as_str().map_or_else(|| outlook(batch, now), |message| wrong_line(error, message))
}

/// Whether it will make it, if that is in doubt.
fn outlook(batch: &Value, now: u64) -> String {
    let estimate = batch["progress"]["seconds_left"].as_u64();
    let missing = estimate.zip(time_left(batch, now)).and_then(|(needs, has)| needs.checked_sub(has));
    if let Some(missing) = missing.filter(|missing| *missing > 0) {
        return format!("! will not make it, {} short", length(missing as f64));
    }
    if batch["progress"]["class"] == "standard" { "its time is short: runs as standard".into() } else { String::new() }
}

fn wrong_line(error: &Value, message: &str) -> String {
    let line = error["line"].as_u64().map(|line| format!("line {line}: ")).unwrap_or_default();
    line + &printable(message)
}

/// How it is now, in one line.
pub fn line(batch: &Value, now: u64) -> String {
    let mut parts = vec![cell(batch, "status"), counted(batch), format!("{} failed", count(batch, "failed"))];
    if !has_ended(batch) {
        parts.extend([format!("{} lines/s", rate(batch)), format!("left: {}", left(batch))]);
        parts.extend(Some(note(batch, now)).filter(|note| !note.is_empty()));
    }
    parts.join(", ")
}

/// Writes what is known about a batch, a line a subject; subjects without anything to say are left out.
///
/// # Errors
/// The output can't be written.
pub fn write(batch: &Value, screen: Screen, now: u64, out: &mut dyn Write) -> io::Result<()> {
    let [id, tenant, endpoint] = ["id", "tenant", "endpoint"].map(|field| cell(batch, field));
    writeln!(out, "{id} (tenant {tenant}, {endpoint})")?;
    let subjects = [
        ("state", cell(batch, "status")),
        ("model", cell(batch, "model")),
        ("progress", progress(batch, screen)),
        ("pace", pace(batch)),
        ("left", if has_ended(batch) { String::new() } else { remaining(batch, now) }),
        ("expires", expiry(batch, now)),
        ("note", outlook(batch, now)),
        ("class", cell(&batch["progress"], "class")),
        ("tokens", tokens(&batch["usage"])),
        ("input", cell(batch, "input_file_id")),
        ("output", cell(batch, "output_file_id")),
        ("errors", cell(batch, "error_file_id")),
        ("metadata", pairs(&batch["metadata"], "=")),
        ("window", cell(batch, "completion_window")),
    ];
    for (subject, text) in subjects.iter().filter(|(_, text)| !text.is_empty() && text != "-") {
        writeln!(out, "  {subject:<9} {text}")?;
    }
    for error in batch["errors"]["data"].as_array().into_iter().flatten().take(MAX_ERRORS) {
        writeln!(out, "  wrong     {}", wrong_line(error, error["message"].as_str().unwrap_or_default()))?;
    }
    writeln!(out, "  history   oldest first")?;
    for (at, what) in history(batch) {
        writeln!(out, "    {}  {what}", moment(&Value::from(at)))?;
    }
    Ok(())
}

fn progress(batch: &Value, screen: Screen) -> String {
    if total(batch) == 0 {
        return String::new();
    }
    let columns = screen.width.map_or(BAR, |width| width.saturating_sub(2 * BAR).clamp(BAR / 3, BAR));
    // Rounded down: 100 % is the end.
    let percent = (share(batch) * 100.0) as u64;
    let running = batch["progress"]["running"].as_u64().filter(|running| *running > 0);
    let running = running.map(|running| format!(", {running} running")).unwrap_or_default();
    let (bar, failed) = (screen.bar(share(batch), columns), count(batch, "failed"));
    format!("{bar} {percent} %: {} of {} lines, {failed} of them failed{running}", done(batch), total(batch))
}

fn pace(batch: &Value) -> String {
    batch["progress"]["lines_per_second"].as_f64().map(|rate| format!("{rate:.2} lines/s")).unwrap_or_default()
}

fn remaining(batch: &Value, now: u64) -> String {
    let done = ends(batch, now).map(|at| format!(", done at {}", moment(&Value::from(at)))).unwrap_or_default();
    left(batch) + &done
}

fn expiry(batch: &Value, now: u64) -> String {
    let left = time_left(batch, now).map(|seconds| format!("in {}, ", length(seconds as f64)));
    left.map(|left| format!("{left}{}", moment(&batch["expires_at"]))).unwrap_or_default()
}

fn tokens(usage: &Value) -> String {
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let (read, written) = (number(&usage["input_tokens"]), number(&usage["output_tokens"]));
    if read + written == 0 {
        return String::new();
    }
    let cached = number(&usage["input_tokens_details"]["cached_tokens"]);
    format!("{read} read, {cached} of them from caches; {written} written")
}

/// What happened when, the oldest first.
fn history(batch: &Value) -> Vec<(u64, &'static str)> {
    const STEPS: [&str; 8] =
        ["created", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"];
    let mut steps: Vec<_> =
        STEPS.into_iter().filter_map(|step| Some((batch[format!("{step}_at")].as_u64()?, step))).collect();
    // Stable: what happened in the same second stays in the order of a batch's life.
    steps.sort_by_key(|(at, _)| *at);
    steps
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    /// 2026-11-30T12:00:00Z.
    pub(crate) const NOW: u64 = 1_796_040_000;
    pub(crate) const PLAIN: Screen = Screen { width: None, can_draw: false };

    /// Half done, an hour to go, a day of time.
    pub(crate) fn batch() -> Value {
        json!({
            "id": "batch_a", "tenant": "bank", "endpoint": "/v1/completions", "model": "tiny", "status": "in_progress",
            "errors": null, "input_file_id": "file-a", "output_file_id": null, "error_file_id": null,
            "completion_window": "24h", "metadata": {"night": "4"},
            "created_at": NOW - 3_600, "in_progress_at": NOW - 3_590, "expires_at": NOW + 82_800,
            "request_counts": {"total": 1_000, "completed": 490, "failed": 10},
            "usage": {"input_tokens": 7_000, "input_tokens_details": {"cached_tokens": 400}, "output_tokens": 640},
            "progress": {"running": 8, "waiting_for": null, "lines_per_second": 0.1389, "seconds_left": 3_600,
                "class": "batch", "done_share": 0.5},
        })
    }

    pub(crate) fn with(changes: &[(&str, Value)]) -> Value {
        let mut batch = batch();
        for (pointer, value) in changes {
            *batch.pointer_mut(pointer).unwrap_or_else(|| panic!("no {pointer}")) = value.clone();
        }
        batch
    }

    #[test]
    fn a_bar_is_full_only_when_all_is_done() {
        let drawn = Screen { width: Some(80), can_draw: true };
        assert_eq!(drawn.bar(0.7, 6), "▇▇▇▇▁▁");
        assert_eq!(PLAIN.bar(0.999, 4), "###-");
        assert_eq!((PLAIN.bar(0.0, 4), PLAIN.bar(1.0, 4)), ("----".into(), "####".into()));
    }

    #[test]
    fn what_nobody_can_say_is_said_to_be_unknown() {
        assert_eq!((left(&batch()), end(&batch(), NOW)), ("1h00m".into(), "13:00Z".into()));
        let waiting = with(&[("/progress/waiting_for", json!("replica"))]);
        assert_eq!((left(&waiting), end(&waiting, NOW)), ("waits for a replica".into(), "unknown".into()));
        let young = with(&[("/progress/seconds_left", Value::Null)]);
        assert_eq!((left(&young), end(&young, NOW)), ("unknown".into(), "unknown".into()));
        let morning = with(&[("/progress/seconds_left", json!(66_600))]);
        assert_eq!((left(&morning), end(&morning, NOW)), ("18h30m".into(), "12-01 06:30Z".into()));
        assert_eq!(note(&morning, NOW), "");
        assert_eq!(note(&with(&[("/progress/seconds_left", json!(86_400))]), NOW), "! will not make it, 1h00m short");
        assert_eq!(note(&with(&[("/progress/class", json!("standard"))]), NOW), "its time is short: runs as standard");
    }

    #[test]
    fn a_batch_is_shown_with_its_outlook_and_its_history() {
        let mut out = Vec::new();
        write(&batch(), PLAIN, NOW, &mut out).unwrap();
        let expected = "\
batch_a (tenant bank, /v1/completions)
  state     in_progress
  model     tiny
  progress  ###############--------------- 50 %: 500 of 1000 lines, 10 of them failed, 8 running
  pace      0.14 lines/s
  left      1h00m, done at 2026-11-30T13:00:00Z
  expires   in 23h00m, 2026-12-01T11:00:00Z
  class     batch
  tokens    7000 read, 400 of them from caches; 640 written
  input     file-a
  metadata  night=4
  window    24h
  history   oldest first
    2026-11-30T11:00:00Z  created
    2026-11-30T11:00:10Z  in_progress
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        assert_eq!(line(&batch(), NOW), "in_progress, 500/1000, 10 failed, 0.14 lines/s, left: 1h00m");
    }

    #[test]
    fn a_batch_with_wrong_lines_says_which() {
        let errors =
            json!({"data": [{"line": 3, "message": "'custom_id' is there twice\u{1b}"}, {"message": "empty"}]});
        let mut failed = with(&[("/status", json!("failed")), ("/errors", errors), ("/progress", Value::Null)]);
        failed["failed_at"] = json!(NOW);
        failed["request_counts"]["total"] = json!(0);
        let mut out = Vec::new();
        write(&failed, PLAIN, NOW, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("  wrong     line 3: 'custom_id' is there twice\\u{1b}\n  wrong     empty\n"), "{text}");
        assert!(text.ends_with("Z  failed\n") && !text.contains("  note ") && !text.contains("  progress "), "{text}");
        assert_eq!((left(&failed), expires(&failed, NOW)), ("-".into(), "-".into()));
    }
}
