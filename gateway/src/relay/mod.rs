//! Attempts: send the request to a replica, read its answer, copy it to the client.
//!
//! An attempt has two parts. Up to its answer's first content (a whole answer, where nothing is streamed) it is a future of
//! its own that nobody sees anything of ([`Attempt`]): until then another replica can take over, another copy may be
//! faster, and a refusal has a proper status. (A waiting stream may have its head and comments by then; that is still no
//! content.) The answer that is the client's is then copied ([`Stream::copy`]). Where it breaks off it ends with an error
//! event and an aborted connection, never with a clean end.

mod attempt;
mod deadline;
pub mod head;
mod measured;
mod patience;
mod progress;
mod shape;
mod stream;
mod verdict;

use openai_wire::{Segments, Usage};
use pingora::http::ResponseHeader;
use scheduler::{CancelReason, Timings};

pub use self::{
    attempt::{Attempt, Decided},
    patience::Expected,
    shape::Shape,
    stream::{Client, Stream},
    verdict::{Failed, OURS},
};
use crate::{
    error::ApiError,
    gateway::Held,
    listener::{Exchange, Interrupted},
    upstream::Failure,
};

/// How an attempt ended before its answer was decided.
#[derive(Debug)]
pub enum Unfinished {
    /// The replica failed.
    Failed(Failed),
    /// We can't take its answer.
    Refused(ApiError),
}

impl From<Failure> for Unfinished {
    fn from(failure: Failure) -> Self {
        Self::Failed(Failed::transport(&failure))
    }
}

impl From<Failed> for Unfinished {
    fn from(failed: Failed) -> Self {
        Self::Failed(failed)
    }
}

/// How an answer that its client is reading broke off.
#[derive(Debug)]
pub enum Broken {
    /// The client left, or an operator cancelled.
    Interrupted(Interrupted),
    /// The core took the slot back.
    Cancelled(CancelReason),
    /// The replica failed.
    Failed(Failed),
}

impl From<Interrupted> for Broken {
    fn from(interrupted: Interrupted) -> Self {
        Self::Interrupted(interrupted)
    }
}

impl From<Failed> for Broken {
    fn from(failed: Failed) -> Self {
        Self::Failed(failed)
    }
}

/// A whole answer of a replica.
pub struct Finished {
    /// What is left to write: the whole body, or the rest of the stream.
    pub rest: Segments,
    /// For the scheduler.
    pub timings: Option<Timings>,
    /// Tokens, and whether they are estimated.
    pub usage: Option<(Usage, bool)>,
    /// Whether it goes out as a stream.
    pub streamed: bool,
    /// What it takes of `limits.max_buffered_bytes`, until it is written.
    pub room: Option<Held>,
}

impl Finished {
    /// Tokens of prompt and answer, for the tenant's limit.
    pub fn used(&self) -> Option<u64> {
        self.usage.map(|(usage, _)| usage.prompt_tokens.saturating_add(usage.completion_tokens))
    }
}

/// Writes what is left of a whole answer. The slot is free by now: a slow client costs no phone.
pub async fn deliver(exchange: &mut Exchange, answer: Finished, head: Box<ResponseHeader>) -> Result<(), Interrupted> {
    if !answer.streamed {
        return exchange.respond(head, answer.rest).await;
    }
    exchange.begin(head).await?;
    for piece in answer.rest {
        exchange.write(piece).await?;
    }
    exchange.end().await
}
