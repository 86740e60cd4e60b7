//! Attempts: send the request to a replica, read its answer, copy it to the client.
//!
//! A replica is asked for a stream wherever it can, whatever the client asked for: only a stream tells a slow phone from a
//! dead one, frees the phone as soon as nobody waits any more, and leaves something when it breaks off.
//!
//! An attempt has two parts. Up to its answer's first content (up to its end, where the client gets it in one piece) it is a
//! future of its own that nobody sees anything of ([`Attempt`]): until then another replica can take over, another copy may be
//! faster, and a refusal has a proper status. (A waiting stream may have its head and comments by then; that is still no
//! content.) The answer that is the client's is then copied ([`Stream::copy`]). Where it breaks off, what there is of it is
//! kept ([`Partial`]) and another replica carries it on; if none can, it ends with an error event and an aborted
//! connection, never with a clean end.

mod abandoned;
mod attempt;
mod deadline;
pub mod head;
mod measured;
mod partial;
mod patience;
mod progress;
mod resume;
mod shape;
mod stream;
mod verdict;

use bytes::BytesMut;
use openai_wire::{Segments, Usage};
use pingora::http::ResponseHeader;
use scheduler::{CancelReason, Timings};

pub(crate) use self::attempt::is_event_stream;
pub use self::{
    abandoned::Abandoned,
    attempt::{Attempt, Decided},
    partial::{Partial, Seam},
    patience::Expected,
    progress::{Outlook, seconds},
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
pub enum Unfinished {
    /// The replica failed, and has left nothing.
    Failed(Failed),
    /// It failed, and has left a part that nobody has seen.
    Lost(Box<Lost>),
    /// We can't take its answer.
    Refused(ApiError),
}

/// An answer that broke off before its client saw anything.
pub struct Lost {
    /// How.
    pub failed: Failed,
    /// What was measured.
    pub timings: Option<Timings>,
    /// What there is of it.
    pub partial: Partial,
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
    /// It was ended here, for an engine that may write on.
    pub cut_short: bool,
    /// What it takes of `limits.max_buffered_bytes`, until it is written.
    pub room: Option<Held>,
}

impl Finished {
    /// Tokens of prompt and answer, for the tenant's limit.
    pub fn used(&self) -> Option<u64> {
        self.usage.map(|(usage, _)| usage.prompt_tokens.saturating_add(usage.completion_tokens))
    }

    /// Puts a comment before the last event of a stream: after it no client reads on.
    pub fn comment(&mut self, comment: &str) {
        let rest = self.rest.to_bytes();
        let last = rest.strip_suffix(b"\n\n").unwrap_or(&rest).windows(2).rposition(|two| two == b"\n\n");
        let (before, end) = rest.split_at(last.map_or(0, |at| at + 2));
        let mut whole = BytesMut::with_capacity(rest.len() + comment.len() + 4);
        for piece in [before, b": ", comment.as_bytes(), b"\n\n", end] {
            whole.extend_from_slice(piece);
        }
        self.rest = Segments::from(whole.freeze());
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn a_comment_stands_before_the_event_that_ends_the_stream() {
        let with = |rest: &'static str| {
            let rest = Segments::from(Bytes::from_static(rest.as_bytes()));
            let mut finished =
                Finished { rest, timings: None, usage: None, streamed: true, cut_short: false, room: None };
            finished.comment("huntgroup continued=1");
            String::from_utf8(finished.rest.to_bytes().to_vec()).expect("text")
        };
        assert_eq!(with("data: 1\n\ndata: [DONE]\n\n"), "data: 1\n\n: huntgroup continued=1\n\ndata: [DONE]\n\n");
        assert_eq!(with("event: end\ndata: 2\n\n"), ": huntgroup continued=1\n\nevent: end\ndata: 2\n\n");
        assert_eq!(with(""), ": huntgroup continued=1\n\n");
    }
}
