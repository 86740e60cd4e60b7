//! The task that sends spans to the collector.
//!
//! Spans go together, at most [`BATCH`] at a time, at the latest [`WITHIN`] after the first of them. A delivery that fails for
//! a while is tried again, then given up: traces are worth a little memory, and no more. What is lost is counted and said
//! once, not for each.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use prometheus::IntCounter;
use serde_json::Value as Json;
use tokio::sync::mpsc;

use super::span::{Span, document, resource};
use crate::{
    config::{self, Secret},
    shutdown::Stop,
    upstream::{Endpoint, TlsError, Upstream},
};

/// Spans of one delivery.
const BATCH: usize = 512;
/// From a span's end to its delivery.
const WITHIN: Duration = Duration::from_secs(2);
/// For one try.
const LIMIT: Duration = Duration::from_secs(10);
/// Pauses between tries; a collector that restarts is back by then.
const PAUSES: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(3), Duration::from_secs(9)];
/// Longest Retry-After that is honoured.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// For what is left when the process ends.
const LAST: Duration = Duration::from_secs(2);

/// Where spans are sent.
pub struct Target {
    endpoint: Endpoint,
    path: String,
    headers: HeaderMap,
    upstream: Upstream,
    resource: Json,
}

/// Why traces can't be sent as configured.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// Not an address.
    #[error("telemetry.otlp_endpoint: must be http:// or https://, a host, and at most a port and a path")]
    Endpoint,
    /// Not headers.
    #[error(
        "telemetry.otlp_headers: must be name=value pairs with commas between them, as in OTEL_EXPORTER_OTLP_HEADERS"
    )]
    Headers,
    /// No trusted certificates.
    #[error("telemetry.otlp_endpoint: {0}")]
    Tls(#[from] TlsError),
}

impl Target {
    /// As configured; `None`: nothing is sent. `instance` tells this process from others.
    ///
    /// # Errors
    /// The configuration names no place where something could be sent.
    pub fn new(
        telemetry: &config::Telemetry,
        pool: &config::Pool,
        instance: &str,
    ) -> Result<Option<Self>, TargetError> {
        let Some(address) = &telemetry.otlp_endpoint else { return Ok(None) };
        let uri: Uri = address.parse().map_err(|_| TargetError::Endpoint)?;
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(TargetError::Endpoint),
        };
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'));
        let authority = authority.ok_or(TargetError::Endpoint)?;
        let port = authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let base = uri.path().trim_end_matches('/');
        // The operator's own collector, which may be anywhere: the rules for replicas are not for it.
        let own = config::Pool {
            allow_private: true,
            allow_http: true,
            ca_file: pool.ca_file.clone(),
            ..config::Pool::default()
        };
        Ok(Some(Self {
            endpoint: Endpoint::new(is_tls, authority.host(), port),
            path: if base.ends_with("/v1/traces") { base.to_owned() } else { format!("{base}/v1/traces") },
            headers: telemetry.otlp_headers.as_ref().map_or(Ok(HeaderMap::new()), headers)?,
            upstream: Upstream::new(&own)?,
            resource: resource(&telemetry.service_name, instance),
        }))
    }
}

/// `name=value,name=value`.
fn headers(secret: &Secret) -> Result<HeaderMap, TargetError> {
    let pairs = secret.reveal().split(',').map(str::trim).filter(|pair| !pair.is_empty());
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=')?;
        let value = percent_encoding::percent_decode_str(value.trim()).decode_utf8().ok()?;
        let mut value = HeaderValue::from_str(&value).ok()?;
        value.set_sensitive(true);
        Some((HeaderName::from_bytes(name.trim().as_bytes()).ok()?, value))
    };
    pairs.map(|text| pair(text).ok_or(TargetError::Headers)).collect()
}

/// What waits to be sent, and what counts it.
pub(in crate::telemetry) struct Inbox {
    pub(super) spans: mpsc::Receiver<Span>,
    pub(super) exported: IntCounter,
    pub(super) lost: IntCounter,
}

/// Sends spans until it is stopped.
pub struct Exporter {
    target: Target,
    inbox: Inbox,
    /// The last delivery was given up.
    failing: bool,
}

impl Exporter {
    pub(in crate::telemetry) fn new(target: Target, inbox: Inbox) -> Self {
        Self { target, inbox, failing: false }
    }

    /// Sends what comes until `stop`, then what is left.
    pub async fn run(mut self, mut stop: Stop) {
        let mut batch = Vec::new();
        loop {
            tokio::select! {
                () = stop.wait() => break,
                gathered = gather(&mut self.inbox.spans, &mut batch) => if !gathered { return },
            }
            let stopped = tokio::select! {
                () = stop.wait() => true,
                () = deliver(&self.target, &self.inbox, &mut self.failing, &batch) => false,
            };
            if stopped {
                break;
            }
            batch.clear();
        }
        while let Ok(span) = self.inbox.spans.try_recv() {
            batch.push(span);
        }
        let left = async {
            for part in batch.chunks(BATCH) {
                deliver(&self.target, &self.inbox, &mut self.failing, part).await;
            }
        };
        if tokio::time::timeout(LAST, left).await.is_err() {
            tracing::warn!(spans = batch.len(), "the collector of traces did not take the last spans in time");
        }
    }
}

/// The next spans that go together; false when there will be none.
async fn gather(spans: &mut mpsc::Receiver<Span>, batch: &mut Vec<Span>) -> bool {
    if batch.is_empty() && spans.recv_many(batch, BATCH).await == 0 {
        return false;
    }
    let more = async {
        while batch.len() < BATCH {
            let room = BATCH - batch.len();
            if spans.recv_many(batch, room).await == 0 {
                return;
            }
        }
    };
    // However it ends, what was gathered goes out.
    drop(tokio::time::timeout(WITHIN, more).await);
    true
}

/// Sends spans, and again if that may help; counts what became of them.
async fn deliver(target: &Target, inbox: &Inbox, failing: &mut bool, spans: &[Span]) {
    let body = Bytes::from(document(&target.resource, spans));
    let mut pauses = PAUSES.into_iter();
    let why = loop {
        match target.post(body.clone()).await {
            Ok(()) => {
                inbox.exported.inc_by(spans.len() as u64);
                if std::mem::take(failing) {
                    tracing::info!("the collector of traces takes spans again");
                }
                return;
            }
            Err(Refusal { why, again: Some(asked) }) => match pauses.next() {
                Some(pause) => tokio::time::sleep(pause.max(asked.min(LONGEST_PAUSE))).await,
                None => break why,
            },
            Err(Refusal { why, again: None }) => break why,
        }
    };
    inbox.lost.inc_by(spans.len() as u64);
    if !std::mem::replace(failing, true) {
        tracing::warn!(spans = spans.len(), why, "the collector of traces does not take spans; they are lost");
    }
}

/// Why spans were not taken, and after how long it may be tried again.
struct Refusal {
    why: String,
    again: Option<Duration>,
}

impl Target {
    async fn post(&self, body: Bytes) -> Result<(), Refusal> {
        let sent = self.upstream.deliver(&self.endpoint, &self.path, &self.headers, body, LIMIT);
        let answer = sent.await.map_err(|failure| Refusal { why: failure.to_string(), again: Some(Duration::ZERO) })?;
        match answer.status {
            200..300 => Ok(()),
            status @ (429 | 502 | 503 | 504) => Err(Refusal {
                why: format!("it answered {status}"),
                again: Some(answer.retry_after.unwrap_or_default()),
            }),
            status => Err(Refusal { why: format!("it answered {status}"), again: None }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(endpoint: &str, given: Option<&str>) -> Result<Option<Target>, TargetError> {
        let telemetry = config::Telemetry {
            otlp_endpoint: Some(endpoint.into()),
            otlp_headers: given.map(|text| Secret::new(text.to_owned())),
            ..config::Telemetry::default()
        };
        Target::new(&telemetry, &config::Pool::default(), "1")
    }

    #[test]
    fn the_path_of_traces_is_added_once() {
        for (endpoint, path) in [
            ("http://127.0.0.1:4318", "/v1/traces"),
            ("http://127.0.0.1:4318/", "/v1/traces"),
            ("https://collector.example/otlp", "/otlp/v1/traces"),
            ("https://collector.example/v1/traces", "/v1/traces"),
        ] {
            assert_eq!(target(endpoint, None).unwrap().unwrap().path, path, "{endpoint}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for endpoint in ["127.0.0.1:4318", "ftp://a", "http://user:secret@a", "/v1/traces", ""] {
            assert!(matches!(target(endpoint, None), Err(TargetError::Endpoint)), "{endpoint}");
        }
    }

    #[test]
    fn headers_are_pairs_as_in_the_usual_variable() {
        let target = target("http://a", Some("authorization=Basic%20abc==, x-tenant = 7")).unwrap().unwrap();
        assert_eq!(target.headers["authorization"], "Basic abc==");
        assert_eq!(target.headers["x-tenant"], "7");
        for wrong in ["nothing", "a b=1", "a=%0a"] {
            let error = super::tests::target("http://a", Some(wrong)).err().unwrap();
            assert!(matches!(error, TargetError::Headers) && !error.to_string().contains(wrong), "{wrong}");
        }
    }

    #[test]
    fn nothing_is_sent_unless_somebody_says_where() {
        assert!(Target::new(&config::Telemetry::default(), &config::Pool::default(), "1").unwrap().is_none());
    }
}
