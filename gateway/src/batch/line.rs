//! One line on its way: a request without a client, through the same stages as all others.

use std::{pin::pin, sync::Arc};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, request::Parts};
use openai_wire::Route;
use scheduler::{Class, ShedReason};
use store::{BatchKey, ClaimedLine, FinishedLine, TokenUsage};

use super::entry::{answered, body_of, unanswered};
use crate::{
    auth::Tenant,
    error::ApiError,
    gateway::Gateway,
    listener::{Exchange, caught},
    pipeline::Asked,
    ratelimit::Limiter,
    refusal::Stop,
    request,
    telemetry::{RequestOutcome, RequestRecord},
};

/// A line to be run.
pub struct Work {
    /// Whose.
    pub batch: BatchKey,
    /// What for.
    pub route: Route,
    /// Who asks.
    pub tenant: Arc<Tenant>,
    /// The line.
    pub line: ClaimedLine,
    /// After so many tries it has failed for good.
    pub max_tries: u32,
}

/// How a line came back.
#[derive(Debug)]
pub enum Ended {
    /// With its result.
    Finished(FinishedLine),
    /// It failed by no fault of its own, and is to be tried again.
    Tried,
    /// Nothing was found out about it: there was no room, or no phone, or it was called back.
    Untried,
}

/// The exchange of a line: made by the engine, who can so call it back.
pub fn exchange(gateway: &Gateway, route: Route, class: Class, id: Arc<str>) -> Exchange {
    Exchange::kept(head(route, class), id, gateway.client_limits())
}

fn head(route: Route, class: Class) -> Parts {
    let mut request = Request::new(());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = http::Uri::from_static(route.path());
    request.headers_mut().insert(request::CLASS, HeaderValue::from_static(class.name()));
    request.into_parts().0
}

/// Runs a line to its end. A panic is this line's alone.
pub async fn run(gateway: Arc<Gateway>, work: Work, exchange: Exchange) -> Ended {
    match caught(pin!(ask(&gateway, work, exchange))).await {
        Ok(ended) => ended,
        Err(_) => {
            gateway.telemetry.panic_seen();
            Ended::Tried
        }
    }
}

async fn ask(gateway: &Gateway, work: Work, mut exchange: Exchange) -> Ended {
    let Work { batch, route, tenant, line, max_tries } = work;
    let ClaimedLine { number, custom_id, tries, text } = line;
    let id = Arc::clone(exchange.id());
    let finished = |failed, record, usage| Ended::Finished(FinishedLine { batch, number, failed, record, usage });
    let Some(body) = body_of(&Bytes::from(text)) else {
        // It was one when the batch was validated: the file is not what it was.
        let record =
            unanswered(&custom_id, id.trim_start_matches("req_"), "invalid_json_line", "This line can't be read.");
        return finished(true, record, TokenUsage::default());
    };
    let mut record = RequestRecord::new(Arc::clone(&gateway.telemetry), Arc::clone(&id), route);
    record.trace(None);
    let mut held = gateway.hold();
    if held.grow(body.len()).is_err() {
        record.outcome(RequestOutcome::Error(ApiError::Overloaded("").outcome()));
        return Ended::Untried;
    }
    let asked = Asked { route, tenant, body, held };
    let stop = gateway.answer(&mut exchange, asked, &mut record, &mut Limiter::exempt()).await.err();
    let (prompt, cached, output) = record.tokens();
    let usage = TokenUsage { input: prompt, cached, output };
    let error = match stop {
        None => {
            record.outcome(RequestOutcome::Ok);
            // Its pieces go before it is written down: it may have megabytes.
            let (status, body) = {
                let answer = exchange.into_kept().unwrap_or_default();
                (answer.status, answer.body.concat())
            };
            match answered(&custom_id, &id, status, &body) {
                Some(record) => return finished(status >= 400, record, usage),
                None => ApiError::Lost("not JSON"),
            }
        }
        Some(Stop::Gone) => return Ended::Untried,
        Some(Stop::Refused(error) | Stop::Broken(error, _)) => {
            gateway.account(&mut record, &error);
            error
        }
    };
    match fault(&error, record.attempts()) {
        Fault::Nobodys => Ended::Untried,
        Fault::Pools if tries + 1 < max_tries => Ended::Tried,
        Fault::Pools | Fault::Its => {
            let body = error.body().to_json();
            let record = answered(&custom_id, &id, error.status(), &body)
                .unwrap_or_else(|| unanswered(&custom_id, id.trim_start_matches("req_"), "server_error", "No answer."));
            finished(true, record, usage)
        }
    }
}

/// Whose fault an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The line's own: it would fail everywhere.
    Its,
    /// That of phones, or of whoever ended it: another try may help, but not for ever.
    Pools,
    /// There was no room or no phone: it was not tried.
    Nobodys,
}

/// Whose it is, after so many attempts on replicas.
fn fault(error: &ApiError, attempts: u32) -> Fault {
    match error {
        ApiError::Shed { reason, .. } => match reason {
            ShedReason::ContextExceeded => Fault::Its,
            ShedReason::AttemptsExhausted | ShedReason::Deadline => Fault::Pools,
            // One that ends each phone it comes to finds none in the end: without its tries it would do so for ever.
            _ if attempts > 0 => Fault::Pools,
            ShedReason::NoCapacity
            | ShedReason::QueueFull
            | ShedReason::QueueAge
            | ShedReason::Hopeless
            | ShedReason::RetryBudget => Fault::Nobodys,
        },
        // The model is known to whoever starts lines; it went away in this moment.
        ApiError::ModelNotFound { .. }
        | ApiError::Draining
        | ApiError::Overloaded(_)
        | ApiError::RateLimited { .. }
        | ApiError::TooManyFailures { .. } => Fault::Nobodys,
        ApiError::Upstream(error) if error.status >= 500 || matches!(error.status, 408 | 429) => Fault::Pools,
        ApiError::Lost(_) | ApiError::Cancelled | ApiError::Internal => Fault::Pools,
        _ => Fault::Its,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_line_is_to_blame_for_what_would_happen_everywhere_and_for_nothing_else() {
        let shed = |reason| ApiError::Shed { reason, retry_after: Duration::ZERO, last: None, detail: None };
        assert_eq!(fault(&shed(ShedReason::ContextExceeded), 0), Fault::Its);
        assert_eq!(fault(&shed(ShedReason::AttemptsExhausted), 3), Fault::Pools);
        assert_eq!(fault(&shed(ShedReason::QueueFull), 0), Fault::Nobodys);
        assert_eq!(fault(&shed(ShedReason::NoCapacity), 0), Fault::Nobodys);
        assert_eq!(
            fault(&shed(ShedReason::NoCapacity), 1),
            Fault::Pools,
            "it was tried, and then there was nobody left"
        );
        assert_eq!(fault(&ApiError::Cancelled, 0), Fault::Pools);
        assert_eq!(fault(&ApiError::Draining, 1), Fault::Nobodys);
        assert_eq!(fault(&ApiError::ModelNotAllowed { model: "m".into() }, 0), Fault::Its);
    }

    #[test]
    fn a_lines_head_says_how_urgent_it_is() {
        let head = head(Route::Embeddings, Class::Batch);
        assert_eq!((head.uri.path(), head.method), ("/v1/embeddings", Method::POST));
        assert_eq!(head.headers[request::CLASS], "batch");
    }
}
