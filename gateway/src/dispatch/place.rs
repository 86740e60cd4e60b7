//! A request's place in the scheduler, and the slot it may be granted. Both are guards.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use scheduler::{AttemptId, CancelReason, Event, Outcome, ReplicaId, RequestId, ShedReason, Timings};
use tokio::sync::Notify;

use super::driver::Dispatcher;

/// What the core says to one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Message {
    Dispatched { attempt: AttemptId, replica: ReplicaId },
    Cancelled { attempt: AttemptId, why: CancelReason },
    Rejected { reason: ShedReason, retry_after: Duration },
}

/// Messages not yet read. At most a handful: the core sends a next one only after the last attempt ended.
#[derive(Default)]
pub(super) struct Mailbox {
    messages: Mutex<VecDeque<Message>>,
    arrived: Notify,
}

impl Mailbox {
    pub(super) fn put(&self, message: Message) {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).push_back(message);
        self.arrived.notify_one();
    }

    fn take(&self) -> Option<Message> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    async fn next(&self) -> Message {
        loop {
            if let Some(message) = self.take() {
                return message;
            }
            self.arrived.notified().await;
        }
    }
}

/// Why a request, or its running attempt, is stopped by the core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stopped {
    /// Refused: no more attempts will come.
    Shed {
        /// Why.
        reason: ShedReason,
        /// When trying again makes sense.
        retry_after: Duration,
    },
    /// The running attempt only.
    Cancelled(CancelReason),
}

/// A request's place: from its arrival to its end. Dropping it takes the request out, queued or running.
pub struct Place {
    dispatcher: Arc<Dispatcher>,
    request: RequestId,
    mailbox: Arc<Mailbox>,
}

impl Place {
    pub(super) fn new(dispatcher: Arc<Dispatcher>, request: RequestId, mailbox: Arc<Mailbox>) -> Self {
        Self { dispatcher, request, mailbox }
    }

    /// The request's number in the core, for the admin API.
    pub fn request(&self) -> RequestId {
        self.request
    }

    /// Waits for a slot. Call again after a failed attempt: the core has put the request back by itself.
    pub async fn grant(&self) -> Result<Grant, Stopped> {
        loop {
            match self.mailbox.next().await {
                Message::Dispatched { attempt, replica } => {
                    return Ok(Grant {
                        dispatcher: Arc::clone(&self.dispatcher),
                        request: self.request,
                        attempt,
                        replica,
                        ended: false,
                    });
                }
                Message::Rejected { reason, retry_after } => return Err(Stopped::Shed { reason, retry_after }),
                // Of an attempt that had ended by itself in the same moment.
                Message::Cancelled { .. } => {}
            }
        }
    }

    /// Resolves when the core stops the attempt that runs under `attempt`.
    pub async fn stopped(&self, attempt: AttemptId) -> CancelReason {
        loop {
            if let Message::Cancelled { attempt: cancelled, why } = self.mailbox.next().await
                && cancelled == attempt
            {
                return why;
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.dispatcher.abandon(self.request);
    }
}

/// One attempt's slot. Ends with [`Grant::end`]; dropped without it (the client left, a panic) it takes the whole
/// request out, which frees the slot just the same.
pub struct Grant {
    dispatcher: Arc<Dispatcher>,
    request: RequestId,
    attempt: AttemptId,
    replica: ReplicaId,
    ended: bool,
}

impl Grant {
    /// Where the attempt runs.
    pub fn replica(&self) -> ReplicaId {
        self.replica
    }

    /// The core's number of the attempt.
    pub fn attempt(&self) -> AttemptId {
        self.attempt
    }

    /// Content has arrived.
    pub fn first_token(&self) {
        self.dispatcher.handle(Event::FirstToken { attempt: self.attempt });
    }

    /// The attempt is over. Without `content_sent` a failure makes the core look for another replica.
    pub fn end(mut self, outcome: Outcome, content_sent: bool, timings: Option<Timings>) {
        self.ended = true;
        self.dispatcher.handle(Event::AttemptEnded { attempt: self.attempt, outcome, content_sent, timings });
    }

    /// The core has already ended the attempt ([`Place::stopped`]).
    pub fn cancelled(mut self) {
        self.ended = true;
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if !self.ended {
            self.dispatcher.abandon(self.request);
        }
    }
}
