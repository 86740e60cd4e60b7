//! The live feed: the state of everything at once, and then what changes, as server-sent events.
//!
//! Problem: a page of a thousand replicas, open on several desks, must be live and cost the gateway next to nothing. Choice: one task
//! looks once a second while anybody reads, writes what is different into one piece of bytes, and hands the same bytes to every reader.
//! A reader that joins, or was too slow for the last few pieces, gets everything as it is now and goes on from there, so nothing is
//! ever kept for it. Rejected: polling of the lists (everything every time, for every reader), a look and a
//! comparison per reader.
//!
//! | file | holds |
//! |---|---|
//! | `view` | the events' data |
//! | `look` | the state at one moment |
//! | `sampler` | the task: what is different since the last look |
//! | `board` | everything as of the last look, and the bytes on their way to readers |

mod board;
mod look;
mod sampler;
mod view;

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Json,
    body::Body,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, broadcast};

use self::board::{Board, written};
pub(super) use self::{
    sampler::run,
    view::{
        BatchesNow, Delta, EventNow, EventsNow, Hello, HistoryView, PointView, PoolNow, QueueNow, RegistrationNow,
        RequestsNow, Totals,
    },
};
use super::{MAX_EVENT_READERS, Shared, answer::AdminError, view::ErrorView};
use crate::{auth::key::random_name, clock, shutdown::Stop, telemetry::history};

/// Comments between events, so that no box in between takes the stream for dead. 15 s, as on the public streams.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const COMMENT: Bytes = Bytes::from_static(b":\n\n");
/// Letters and digits of the process's name: enough that no two restarts share one.
const INSTANCE_LETTERS: usize = 16;

/// What readers and the task share.
pub(super) struct Watch {
    seats: Arc<Semaphore>,
    board: Board,
    /// Somebody has taken a seat.
    joined: Notify,
    instance: Arc<str>,
    started_at: f64,
}

impl Default for Watch {
    fn default() -> Self {
        let started_at = clock::unix().as_secs_f64();
        // Without randomness the moment has to do.
        let instance = random_name("", INSTANCE_LETTERS).unwrap_or_else(|_| format!("{started_at}"));
        Self {
            seats: Arc::new(Semaphore::new(MAX_EVENT_READERS)),
            board: Board::default(),
            joined: Notify::new(),
            instance: instance.into(),
            started_at,
        }
    }
}

impl Watch {
    fn has_readers(&self) -> bool {
        self.seats.available_permits() < MAX_EVENT_READERS
    }

    fn hello(&self, admin_token_needed: bool) -> Bytes {
        let hello = Hello {
            version: env!("CARGO_PKG_VERSION"),
            started_at: self.started_at,
            now: clock::unix().as_secs_f64(),
            instance: Arc::clone(&self.instance),
            max_slots_shown: look::MAX_SLOTS_SHOWN,
            admin_token_needed,
        };
        written("hello", &serde_json::to_string(&hello).unwrap_or_default()).into()
    }
}

/// Everything at once, and then what changes, at most once a second. `hello`, then `pool`, `totals`, `queue`, `requests`,
/// `batches`, `history`, `advice`, `cost`, `deployments`, `registration` and `events`, whole; then `delta`, `point` and `event`, and whatever of `totals`,
/// `queue`, `requests`, `batches`, `advice`, `cost`, `deployments` and `registration` is different. A reader that is too slow is given all of them whole again.
#[utoipa::path(get, path = "/admin/watch", tag = "process",
    responses((status = 200, description = "Server-sent events; the data of `hello`, the first", body = Hello, content_type = "text/event-stream"),
        (status = 503, description = "32 read already", body = ErrorView)))]
pub(super) async fn watch(State(shared): State<Shared>) -> Result<Response, AdminError> {
    let watch = &shared.watch;
    let seat = Arc::clone(&watch.seats).try_acquire_owned().map_err(|_| AdminError::TooManyReaders)?;
    let hello = watch.hello(shared.app.reload.admin().token.is_some());
    let reader = Reader {
        pieces: watch.board.subscribe(),
        hello: Some(hello),
        behind: true,
        watch: Arc::clone(watch),
        stop: shared.stop.clone(),
        _seat: seat,
    };
    watch.joined.notify_one();
    let body = Body::from_stream(futures_util::stream::unfold(reader, |mut reader| async move {
        let piece = reader.next().await?;
        Some((Ok::<_, Infallible>(piece), reader))
    }));
    Ok(([(header::CONTENT_TYPE, "text/event-stream")], body).into_response())
}

/// The last hour, in points of ten seconds.
#[utoipa::path(get, path = "/admin/history", tag = "process",
    responses((status = 200, description = "The oldest point first", body = HistoryView)))]
pub(super) async fn history(State(shared): State<Shared>) -> Json<HistoryView> {
    Json(hour(&shared.app))
}

fn hour(app: &super::AppState) -> HistoryView {
    let points = app.telemetry.history().points().into_iter().map(PointView::from).collect();
    HistoryView { every_s: history::EVERY_S, points }
}

struct Reader {
    pieces: broadcast::Receiver<Bytes>,
    hello: Option<Bytes>,
    /// What was seen last is too old to go on from.
    behind: bool,
    watch: Arc<Watch>,
    stop: Stop,
    _seat: OwnedSemaphorePermit,
}

impl Reader {
    /// The next piece of the stream; `None` ends it.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(hello) = self.hello.take() {
            return Some(hello);
        }
        loop {
            if self.behind
                && let Some((whole, pieces)) = self.watch.board.whole()
            {
                self.pieces = pieces;
                self.behind = false;
                return Some(whole);
            }
            let received = tokio::select! {
                () = self.stop.wait() => return None,
                received = tokio::time::timeout(KEEP_ALIVE, self.pieces.recv()) => received,
            };
            match received {
                Err(_) => return Some(COMMENT),
                Ok(Ok(piece)) if !self.behind => return Some(piece),
                Ok(Ok(_)) => {}
                Ok(Err(broadcast::error::RecvError::Lagged(_))) => self.behind = true,
                Ok(Err(broadcast::error::RecvError::Closed)) => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{board::Changes, *};
    use crate::shutdown::Tasks;

    fn reader(watch: &Arc<Watch>, tasks: &Tasks) -> Reader {
        let seat = Arc::clone(&watch.seats).try_acquire_owned().unwrap();
        let pieces = watch.board.subscribe();
        let (watch, stop) = (Arc::clone(watch), tasks.stop_signal());
        Reader { pieces, hello: Some(watch.hello(true)), behind: true, watch, stop, _seat: seat }
    }

    fn post(watch: &Watch, number: usize) {
        watch.board.post(Changes { wholes: vec![("queue", number.to_string())], ..Changes::default() });
    }

    async fn next(reader: &mut Reader) -> String {
        String::from_utf8(reader.next().await.unwrap().to_vec()).unwrap()
    }

    #[tokio::test]
    async fn a_slow_reader_is_taken_on_to_the_newest_and_a_stop_ends_it() {
        let (watch, tasks) = (Arc::<Watch>::default(), Tasks::default());
        let mut slow = reader(&watch, &tasks);
        assert!(watch.has_readers());
        assert!(next(&mut slow).await.starts_with("event: hello\n"));
        post(&watch, 0);
        assert_eq!(next(&mut slow).await, "event: pool\ndata: {\"replicas\":[]}\n\nevent: queue\ndata: 0\n\n");
        post(&watch, 1);
        assert_eq!(next(&mut slow).await, "event: queue\ndata: 1\n\n");
        (2..100).for_each(|number| post(&watch, number));
        assert_eq!(next(&mut slow).await, "event: pool\ndata: {\"replicas\":[]}\n\nevent: queue\ndata: 99\n\n");
        post(&watch, 100);
        assert_eq!(next(&mut slow).await, "event: queue\ndata: 100\n\n");
        tasks.stop(Duration::from_secs(1)).await;
        assert_eq!(slow.next().await, None);
        drop(slow);
        assert!(!watch.has_readers());
    }
}
