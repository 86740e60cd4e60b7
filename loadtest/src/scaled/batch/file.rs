//! The file of a class's requests, and its way into the gateway.

use super::{
    super::{
        clients::{MODEL, Prepared},
        texts,
    },
    goes_as_file,
};
use crate::{
    client::{Pool, transfer},
    clock,
    words::{Message, chat_body},
};
use anyhow::Context as _;
use simulation::{play::Run, scenario::Arrivals, workload::Request};
use std::{fmt::Write as _, time::Duration};

/// Between the parts of the form; no prompt has capitals.
const BOUNDARY: &str = "HUNTGROUP-LOADTEST";
/// For a file of hundreds of MB on a busy machine.
const UPLOAD_LIMIT: Duration = Duration::from_secs(600);

/// A file that the gateway has taken.
pub(in crate::scaled) struct Upload {
    /// Index of the class.
    pub(super) class: usize,
    /// Index of its key.
    pub(super) key: usize,
    /// What reports call it: the class, and the key if there are several.
    pub(super) name: String,
    /// Numbers of its requests, in the order of its lines.
    pub(super) lines: Vec<usize>,
    /// When they are due, seconds of the scenario.
    pub(super) due_s: f64,
    /// Length, bytes.
    pub(super) bytes: usize,
    /// How long the gateway took to take it, seconds of the world.
    pub(super) accepted_s: f64,
    /// Its id.
    pub(super) id: String,
    pub(super) authorization: String,
}

/// Uploads all classes that go as files, one after the other.
///
/// # Errors
/// The gateway does not take one.
pub(in crate::scaled) async fn upload(run: &Run<'_>, prepared: &Prepared, pool: &Pool) -> anyhow::Result<Vec<Upload>> {
    let mut uploads = Vec::new();
    for (index, class) in run.scenario.classes.iter().enumerate().filter(|(_, class)| goes_as_file(class)) {
        let Arrivals::Closed { at: due_s, .. } = class.arrivals else { continue };
        for (key, named) in class.keys.iter().enumerate() {
            let of_key = |request: &Request| request.class == index && request.key == key;
            let numbered = prepared.requests.iter().enumerate();
            let lines: Vec<usize> = numbered.filter(|(_, request)| of_key(request)).map(|(number, _)| number).collect();
            let Some(authorization) = prepared.authorization(index, key).filter(|_| !lines.is_empty()) else {
                continue;
            };
            let name = match class.keys.len() {
                1 => class.name.clone(),
                _ => format!("{} {}", class.name, named.name),
            };
            let form = form(prepared, &lines);
            let (bytes, began) = (form.len(), clock::now());
            let kind = format!("multipart/form-data; boundary={BOUNDARY}");
            let taken =
                transfer(pool, "POST", "/v1/files", Some(authorization), Some(&kind), form.into(), UPLOAD_LIMIT);
            let taken = taken.await.with_context(|| format!("the file of {name}, {bytes} bytes"))?;
            let accepted_s = (clock::now() - began).as_secs_f64();
            let taken: serde_json::Value = serde_json::from_slice(&taken).context("the answer to an upload")?;
            let id = taken["id"].as_str().context("an uploaded file without an id")?.to_owned();
            let authorization = authorization.to_owned();
            uploads.push(Upload { class: index, key, name, lines, due_s, bytes, accepted_s, id, authorization });
        }
    }
    Ok(uploads)
}

/// What a line is called.
pub(super) fn custom_id(number: usize) -> String {
    format!("r{number}")
}

/// The number of the line that is called so.
pub(super) fn number_of(custom_id: &str) -> Option<usize> {
    custom_id.strip_prefix('r')?.parse().ok()
}

/// What a request says.
pub(super) fn messages(request: &Request, number: usize) -> Vec<Message> {
    texts::first(request.prompt.template, request.prompt.own.tokens, number, request.output)
}

fn form(prepared: &Prepared, lines: &[usize]) -> Vec<u8> {
    let mut form = format!(
        "--{BOUNDARY}\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n\
         --{BOUNDARY}\r\ncontent-disposition: form-data; name=\"file\"; filename=\"lines.jsonl\"\r\n\
         content-type: application/jsonl\r\n\r\n"
    );
    for number in lines {
        let Some(request) = prepared.requests.get(*number) else { continue };
        let body = chat_body(MODEL, &messages(request, *number), None, false);
        let id = custom_id(*number);
        writeln!(form, r#"{{"custom_id":"{id}","method":"POST","url":"/v1/chat/completions","body":{body}}}"#).ok();
    }
    write!(form, "\r\n--{BOUNDARY}--\r\n").ok();
    form.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_again_by_its_name() {
        assert_eq!(number_of(&custom_id(4711)), Some(4711));
        assert_eq!((number_of("4711"), number_of("r"), number_of("r-1")), (None, None, None));
    }
}
