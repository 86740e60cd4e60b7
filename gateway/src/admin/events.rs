//! The feed of pool changes as server-sent events.
//!
//! A reader that is too slow for the feed's ring gets an event that says so, and then its end: it has to read the list
//! anew anyway. A reader that reads nothing is held by nothing but its socket.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::Body,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http_body::Frame;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, broadcast};
use utoipa::ToSchema;

use super::{Shared, answer::AdminError, view::ErrorView};
use crate::{
    fleet::{PoolChange, PoolEvent},
    shutdown::Stop,
};

/// Comments between events, so that no box in between takes the stream for dead. 15 s, as on the public streams.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const COMMENT: Bytes = Bytes::from_static(b":\n\n");

/// One event's data.
#[derive(Serialize, ToSchema)]
pub(super) struct EventView {
    /// Counts up by one; a gap means that events were missed.
    number: u64,
    /// When, in seconds since 1970.
    at: f64,
    /// The replica's number.
    replica: u32,
    /// Its name.
    name: String,
    /// Its address, of a new one and of one that moved.
    url: Option<String>,
    /// The state before.
    from: Option<&'static str>,
    /// The state now.
    to: Option<&'static str>,
    /// Why it changed.
    reason: Option<&'static str>,
    /// What the last probe had found; of one that moved, where it was; what it got wrong in quarantine; why less is asked of it.
    detail: Option<String>,
}

impl From<&PoolEvent> for EventView {
    fn from(event: &PoolEvent) -> Self {
        let mut view = Self {
            number: event.number,
            at: event.at_ms as f64 / 1e3,
            replica: event.replica.0,
            name: event.label.to_string(),
            url: None,
            from: None,
            to: None,
            reason: None,
            detail: None,
        };
        match &event.what {
            PoolChange::Added { url } => view.url = Some(url.clone()),
            PoolChange::Moved { from, to } => {
                view.url = Some(to.clone());
                view.detail = Some(format!("it was at {from}"));
            }
            PoolChange::Unproven { detail } => view.detail = Some(detail.clone()),
            PoolChange::Limited { limit, reason } => {
                view.to = Some(limit.name());
                view.detail.clone_from(reason);
            }
            PoolChange::Ending { deployment, ends_in_s } => {
                view.detail = Some(format!("deployment {deployment} ends in {ends_in_s} s"));
            }
            PoolChange::State { from, to, why, detail } => {
                view.from = Some(from.name());
                view.to = Some(to.name());
                view.reason = Some(why.name());
                view.detail.clone_from(detail);
            }
            _ => {}
        }
        view
    }
}

/// What happens to the pool, as it happens: events `added`, `moved`, `changed`, `state`, `proven`, `unproven`, `limited`, `ending`, `draining`, `drained`, `undrained`,
/// `removed`, and `missed` before the end of a stream whose reader was too slow.
#[utoipa::path(get, path = "/admin/events", tag = "process",
    responses((status = 200, description = "Server-sent events; the data of each", body = EventView, content_type = "text/event-stream"),
        (status = 503, body = ErrorView)))]
pub(super) async fn events(State(shared): State<Shared>) -> Result<Response, AdminError> {
    let place = shared.event_readers.clone().try_acquire_owned().map_err(|_| AdminError::TooManyReaders)?;
    let reader = Reader { events: Some(shared.app.fleet.events()), stop: shared.stop.clone(), _place: place };
    let body = Body::new(EventBody { next: Box::pin(std::future::ready((reader, Some(COMMENT)))) });
    Ok(([(header::CONTENT_TYPE, "text/event-stream")], body).into_response())
}

struct Reader {
    events: Option<broadcast::Receiver<PoolEvent>>,
    stop: Stop,
    _place: OwnedSemaphorePermit,
}

impl Reader {
    /// The next event; `None` ends the stream.
    async fn next(mut self) -> (Self, Option<Bytes>) {
        let Some(events) = self.events.as_mut() else { return (self, None) };
        let received = tokio::select! {
            () = self.stop.wait() => return (self, None),
            received = tokio::time::timeout(KEEP_ALIVE, events.recv()) => received,
        };
        let piece = match received {
            Err(_) => Some(COMMENT),
            Ok(Ok(event)) => Some(written(&event)),
            Ok(Err(broadcast::error::RecvError::Lagged(count))) => {
                self.events = None;
                Some(format!("event: missed\ndata: {{\"events\":{count}}}\n\n").into())
            }
            Ok(Err(broadcast::error::RecvError::Closed)) => None,
        };
        (self, piece)
    }
}

fn written(event: &PoolEvent) -> Bytes {
    // JSON has no raw line breaks, so one line of data it is.
    let data = serde_json::to_string(&EventView::from(event)).unwrap_or_default();
    format!("id: {}\nevent: {}\ndata: {data}\n\n", event.number, event.what.name()).into()
}

type Next = Pin<Box<dyn Future<Output = (Reader, Option<Bytes>)> + Send>>;

/// The stream as a body: one piece an event.
struct EventBody {
    next: Next,
}

impl http_body::Body for EventBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let (reader, piece) = std::task::ready!(self.next.as_mut().poll(context));
        self.next = Box::pin(reader.next());
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }
}
