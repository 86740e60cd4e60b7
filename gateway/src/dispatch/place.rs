//! A request's place in the scheduler, and the slots it is granted. Both are guards.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use scheduler::{AttemptId, CancelReason, Event, Left, Outcome, ReplicaId, RequestId, ShedReason, Timings};
use tokio::sync::Notify;

use super::driver::Dispatcher;

/// What the core says to one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Message {
    Dispatched { attempt: AttemptId, replica: ReplicaId, hedge: bool, carries_on: bool },
    Cancelled { attempt: AttemptId, why: CancelReason },
    Rejected(Shed),
}

/// Messages not yet read. At most a handful: few copies of a request run at once, and each is told of twice.
#[derive(Default)]
pub(super) struct Mailbox {
    messages: Mutex<VecDeque<Message>>,
    arrived: Notify,
}

impl Mailbox {
    pub(super) fn put(&self, message: Message) {
        self.messages().push_back(message);
        self.arrived.notify_one();
    }

    /// Takes the word out that ends this attempt, if it is there.
    pub(super) fn retract(&self, attempt: AttemptId) -> Option<CancelReason> {
        let mut messages = self.messages();
        let ends =
            |message: &Message| matches!(message, Message::Cancelled { attempt: ended, .. } if *ended == attempt);
        match messages.iter().position(ends).and_then(|at| messages.remove(at)) {
            Some(Message::Cancelled { why, .. }) => Some(why),
            _ => None,
        }
    }

    async fn next(&self) -> Message {
        loop {
            let message = self.messages().pop_front();
            if let Some(message) = message {
                return message;
            }
            self.arrived.notified().await;
        }
    }

    fn messages(&self) -> MutexGuard<'_, VecDeque<Message>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A word of the core to a request.
pub enum Word {
    /// A slot: for the first attempt, for the next after one has failed, or for another copy beside those that run.
    Granted(Grant),
    /// This attempt is over, its slot is gone. The request goes on, and waits if nothing else of it runs.
    Cancelled {
        /// Which.
        attempt: AttemptId,
        /// Why.
        why: CancelReason,
    },
    /// Refused: no more attempts will come.
    Shed(Shed),
}

/// A refusal by the core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shed {
    /// Why.
    pub reason: ShedReason,
    /// When trying again makes sense.
    pub retry_after: Duration,
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

    /// Waits for the core's next word. Nothing has to be asked for: after a failed attempt the core has put the request
    /// back by itself. Cancel-safe.
    pub async fn next(&self) -> Word {
        match self.mailbox.next().await {
            Message::Dispatched { attempt, replica, hedge, carries_on } => Word::Granted(Grant {
                dispatcher: Arc::clone(&self.dispatcher),
                mailbox: Arc::clone(&self.mailbox),
                request: self.request,
                attempt,
                replica,
                hedge,
                carries_on,
                ended: false,
            }),
            Message::Cancelled { attempt, why } => Word::Cancelled { attempt, why },
            Message::Rejected(shed) => Word::Shed(shed),
        }
    }

    /// Resolves when the core stops `attempt`, the last one of its request: words about others are of no interest any more.
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

/// One attempt's slot. Ends with [`Grant::end`], or with [`Grant::cancelled`] where the core has ended it; dropped without
/// either (the client left, a panic) it takes the whole request out, which frees the slot just the same.
pub struct Grant {
    dispatcher: Arc<Dispatcher>,
    mailbox: Arc<Mailbox>,
    request: RequestId,
    attempt: AttemptId,
    replica: ReplicaId,
    hedge: bool,
    carries_on: bool,
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

    /// A second copy, beside one that runs already.
    pub fn is_hedge(&self) -> bool {
        self.hedge
    }

    /// It carries on the part that an earlier attempt left; else it begins anew.
    pub fn carries_on(&self) -> bool {
        self.carries_on
    }

    /// The answer begins, and its client is about to see it. The core ends the request's other copies by this.
    ///
    /// # Errors
    /// The core has ended this attempt in the same moment: nothing of it may be shown, the request goes on without it.
    pub fn first_token(&self) -> Result<(), CancelReason> {
        let event = Event::FirstToken { attempt: self.attempt };
        self.dispatcher.unless_cancelled(&self.mailbox, self.attempt, event).map_or(Ok(()), Err)
    }

    /// The attempt is over. Unless the answer is [`Left::Closed`] a failure makes the core look for another replica, unless
    /// another copy still runs; a whole answer ends the request and its other copies, also where the core has just given the slot away.
    /// Why the core had ended the attempt before, if it had: then it has learned nothing by this.
    pub fn end(mut self, outcome: Outcome, left: Left, timings: Option<Timings>) -> Option<CancelReason> {
        self.ended = true;
        let event = Event::AttemptEnded { attempt: self.attempt, outcome, left, timings };
        let cancelled = self.dispatcher.unless_cancelled(&self.mailbox, self.attempt, event);
        if cancelled.is_some() && outcome.is_whole() {
            self.dispatcher.abandon(self.request);
        }
        cancelled
    }

    /// The core has already ended the attempt ([`Word::Cancelled`], or [`Grant::first_token`] of another copy).
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
