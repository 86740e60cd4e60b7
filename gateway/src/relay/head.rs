//! Heads of answers to clients: written afresh, nothing of a replica's head goes through.

use std::sync::Arc;

use http::{HeaderName, HeaderValue, header};
use pingora::http::ResponseHeader;

use crate::{batch::BatchError, error::ApiError, listener::insert, ratelimit::Permit, telemetry::RequestRecord};

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const PROCESSING: HeaderName = HeaderName::from_static("openai-processing-ms");
const REPLICA: HeaderName = HeaderName::from_static("x-huntgroup-replica");
const ATTEMPTS: HeaderName = HeaderName::from_static("x-huntgroup-attempts");
const CONTINUED: HeaderName = HeaderName::from_static("x-huntgroup-continued");
const QUEUE: HeaderName = HeaderName::from_static("x-huntgroup-queue-ms");
const BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// What every head says.
pub struct Facts<'a> {
    /// `x-request-id`.
    pub id: &'a str,
    /// The limits of the tenant, where there are any.
    pub permit: Option<&'a Permit>,
}

fn new(status: u16, facts: &Facts<'_>) -> Box<ResponseHeader> {
    let mut head = Box::new(ResponseHeader::build_no_case(status, Some(12)).unwrap_or_else(|_| {
        debug_assert!(false, "status {status}");
        // 500 is a status.
        ResponseHeader::build_no_case(500, None).expect("a status")
    }));
    if let Ok(id) = HeaderValue::from_str(facts.id) {
        insert(&mut head, REQUEST_ID, id);
    }
    for (name, value) in facts.permit.into_iter().flat_map(Permit::headers) {
        insert(&mut head, name, value);
    }
    head
}

/// A whole JSON answer.
pub fn plain(status: u16, facts: &Facts<'_>) -> Box<ResponseHeader> {
    let mut head = new(status, facts);
    insert(&mut head, header::CONTENT_TYPE, JSON);
    head
}

/// A stream.
pub fn stream(facts: &Facts<'_>) -> Box<ResponseHeader> {
    let mut head = new(200, facts);
    insert(&mut head, header::CONTENT_TYPE, STREAM);
    insert(&mut head, header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    insert(&mut head, BUFFERING, HeaderValue::from_static("no"));
    head
}

/// How the answer came about; `replica` only if the operator shows it.
pub fn trace(head: &mut ResponseHeader, record: &RequestRecord, replica: Option<&Arc<str>>) {
    let millis = |length: std::time::Duration| HeaderValue::from(u64::try_from(length.as_millis()).unwrap_or(u64::MAX));
    insert(head, PROCESSING, millis(record.elapsed()));
    insert(head, QUEUE, millis(record.queue_wait()));
    insert(head, ATTEMPTS, HeaderValue::from(record.attempts()));
    if let Some(name) = replica.and_then(|replica| HeaderValue::from_str(replica).ok()) {
        insert(head, REPLICA, name);
    }
}

/// How often a plain answer was carried on, if it was.
pub fn continued(head: &mut ResponseHeader, times: usize) {
    if times > 0 {
        insert(head, CONTINUED, HeaderValue::from(times));
    }
}

/// The head of another request's answer: with the id of this one, and without that one's limits, if it is another.
pub fn readdress(head: &mut ResponseHeader, id: &str) {
    if head.headers.get(REQUEST_ID).is_some_and(|first| first == id) {
        return;
    }
    if let Ok(id) = HeaderValue::from_str(id) {
        insert(head, REQUEST_ID, id);
    }
    for name in Permit::header_names() {
        head.remove_header(&name);
    }
}

/// Whether an answer with this head is a stream.
pub fn is_stream(head: &ResponseHeader) -> bool {
    head.headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind == STREAM)
}

/// A refusal.
pub fn refusal(error: &ApiError, facts: &Facts<'_>) -> Box<ResponseHeader> {
    let mut head = plain(error.status(), facts);
    match error {
        ApiError::InvalidKey => insert(&mut head, header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")),
        ApiError::Method { allow } => insert(&mut head, header::ALLOW, HeaderValue::from_static(allow)),
        ApiError::Batch(BatchError::Range { length }) => {
            if let Ok(range) = HeaderValue::try_from(format!("bytes */{length}")) {
                insert(&mut head, header::CONTENT_RANGE, range);
            }
        }
        _ => {}
    }
    if let Some(after) = error.retry_after() {
        insert(&mut head, header::RETRY_AFTER, HeaderValue::from(after.as_secs_f64().ceil() as u64));
    }
    if error.is_final() {
        insert(&mut head, SHOULD_RETRY, HeaderValue::from_static("false"));
    }
    head
}
