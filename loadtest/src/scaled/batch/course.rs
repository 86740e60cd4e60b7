//! How a batch gets on, from its making to its files.

use super::{super::clients::Clients, file::Upload};
use crate::{
    client::{Failure, transfer},
    clock,
};
use anyhow::Context as _;
use bytes::Bytes;
use serde_json::{Value, json};
use std::time::Duration;

/// Between two looks, in the world's time: a call costs the gateway less than a millisecond.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// For a call that asks the store of a busy gateway, and for tens of MB of results.
const CALL_LIMIT: Duration = Duration::from_secs(120);

/// How many lines had a result when.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Look {
    /// When the gateway's answer had come, seconds of the scenario.
    pub(super) at_s: f64,
    /// The same, seconds since 1970.
    pub(super) unix_s: f64,
    /// Lines in all; 0 until they were looked at.
    pub(super) total: u64,
    /// Lines with an answer.
    pub(super) completed: u64,
    /// Lines with an error.
    pub(super) failed: u64,
    /// Lines on their way.
    pub(super) running: u64,
}

/// What was seen of a batch.
#[derive(Default)]
pub(super) struct Course {
    /// By time.
    pub(super) looks: Vec<Look>,
    /// Its last status.
    pub(super) status: String,
    /// From its making until its lines had been looked at, seconds of the world; up to a look too long.
    pub(super) validated_s: Option<f64>,
    /// From its last result until its files were there, seconds of the world; up to a look too long.
    pub(super) finalized_s: Option<f64>,
    /// The output file.
    pub(super) output: Vec<u8>,
    /// The error file.
    pub(super) errors: Vec<u8>,
}

/// A batch of an upload, from when it is due until it has ended or the play is broken off.
///
/// # Errors
/// The gateway makes no batch, or does not give its files.
pub(super) async fn run(clients: &Clients, upload: &Upload) -> anyhow::Result<Course> {
    clients.time.sleep_until(upload.due_s).await;
    note_arrival(clients, upload);
    let order =
        json!({"input_file_id": upload.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}).to_string();
    let (made, until) = (clock::now(), clients.time.instant(clients.run.until_s));
    let batch = ask(clients, upload, "POST", "/v1/batches", order.into()).await.context("no batch was made")?;
    let path = format!("/v1/batches/{}", batch["id"].as_str().context("a batch without an id")?);
    // The last moment at which a line was known to have no result.
    let (mut course, mut unsealed) = (Course::default(), made);
    let batch = loop {
        tokio::time::sleep(LOOK_EVERY).await;
        // A call that fails is no end of a batch.
        let Ok(batch) = ask(clients, upload, "GET", &path, Bytes::new()).await else {
            if clock::now() > until {
                anyhow::bail!("{path}: no answer");
            }
            continue;
        };
        let look = look(clients, &batch);
        note_answers(clients, upload, course.looks.last(), &look);
        if course.validated_s.is_none() && batch["status"] != "validating" {
            course.validated_s = Some((clock::now() - made).as_secs_f64());
        }
        let all = look.total > 0 && look.completed + look.failed == look.total;
        if !all {
            unsealed = clock::now();
        }
        course.looks.push(look);
        if has_ended(&batch) || clock::now() > until {
            course.finalized_s = all.then(|| (clock::now() - unsealed).as_secs_f64());
            break batch;
        }
    };
    course.status = batch["status"].as_str().unwrap_or_default().to_owned();
    course.output = content(clients, upload, &batch["output_file_id"]).await?;
    course.errors = content(clients, upload, &batch["error_file_id"]).await?;
    Ok(course)
}

async fn ask(clients: &Clients, upload: &Upload, method: &str, path: &str, body: Bytes) -> Result<Value, Failure> {
    let kind = (!body.is_empty()).then_some("application/json");
    let answer = transfer(&clients.pool, method, path, Some(&upload.authorization), kind, body, CALL_LIMIT).await?;
    serde_json::from_slice(&answer).map_err(|_| Failure::BadBody("not JSON"))
}

async fn content(clients: &Clients, upload: &Upload, file: &Value) -> anyhow::Result<Vec<u8>> {
    let Some(id) = file.as_str() else { return Ok(Vec::new()) };
    let path = format!("/v1/files/{id}/content");
    let (key, none) = (Some(upload.authorization.as_str()), Bytes::new());
    transfer(&clients.pool, "GET", &path, key, None, none, CALL_LIMIT).await.context("a file of results")
}

fn has_ended(batch: &Value) -> bool {
    ["completed", "failed", "expired", "cancelled"].iter().any(|status| batch["status"] == *status)
}

fn look(clients: &Clients, batch: &Value) -> Look {
    let count = |name: &str| batch["request_counts"][name].as_u64().unwrap_or(0);
    Look {
        at_s: clients.time.now(),
        unix_s: clock::unix(),
        total: count("total"),
        completed: count("completed"),
        failed: count("failed"),
        running: batch["huntgroup"]["running"].as_u64().unwrap_or(0),
    }
}

fn note_arrival(clients: &Clients, upload: &Upload) {
    let mut pages = clients.book.pages();
    for number in &upload.lines {
        if let Some(progress) = pages.requests.get_mut(*number) {
            progress.arrived = Some(upload.due_s);
        }
    }
    pages.waiting += upload.lines.len();
}

/// The lines that have got an answer since the last look have got it now. Which they are is not told, and no figure of
/// them all depends on it; so they are taken in their order.
fn note_answers(clients: &Clients, upload: &Upload, before: Option<&Look>, now: &Look) {
    let (from, to) = (before.map_or(0, |look| look.completed) as usize, now.completed as usize);
    let mut pages = clients.book.pages();
    for number in upload.lines.iter().take(to).skip(from) {
        if let Some(progress) = pages.requests.get_mut(*number) {
            (progress.answered, progress.first_token) = (Some(now.at_s), Some(now.at_s));
        }
    }
    let new = to.saturating_sub(from);
    pages.answered += new;
    pages.waiting = pages.waiting.saturating_sub(new);
}
