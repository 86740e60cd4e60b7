//! A replica's stream, read event by event; and its copy to the client, once it is the answer.

use std::{
    future::Future,
    pin::{Pin, pin},
    time::Duration,
};

use bytes::BytesMut;
use openai_wire::{AnswerStream, PromptProgress, Segments, Step};
use pingora::http::ResponseHeader;
use scheduler::{CancelReason, SoftFailure, Timestamp, Timings};

use super::{Broken, Failed, Finished, deadline::Deadline, measured};
use crate::{
    clock,
    fleet::Replica,
    listener::Exchange,
    live::Entry,
    upstream::{Reply, Upstream},
};

/// A replica's stream.
pub struct Stream {
    reply: Reply,
    codec: AnswerStream,
    /// What has been read and not yet written.
    out: BytesMut,
    deadline: Deadline,
    /// How long it may be silent once it has begun.
    gap: Duration,
    sent: Timestamp,
    /// When its first content came.
    first: Option<Timestamp>,
    /// When anything came.
    last: Timestamp,
    complete: bool,
}

/// Where a stream is copied to.
pub struct Client<'a, S> {
    /// The client.
    pub exchange: &'a mut Exchange,
    /// The head of the answer, for the case that none is out yet.
    pub head: Option<Box<ResponseHeader>>,
    /// Its line in the operator's list.
    pub entry: &'a Entry,
    /// Resolves when the core takes the slot back.
    pub stopped: Pin<&'a mut S>,
}

impl Stream {
    pub(super) fn new(reply: Reply, codec: AnswerStream, sent: Timestamp, deadline: Deadline, gap: Duration) -> Self {
        Self { reply, codec, out: BytesMut::new(), deadline, gap, sent, first: None, last: sent, complete: false }
    }

    /// Reads what comes next. `late` is what it is called if it does not come in time.
    pub(super) async fn read(&mut self, late: SoftFailure) -> Result<Step, Failed> {
        let piece = self.deadline.bound(late, pin!(self.reply.chunk())).await?;
        self.last = clock::now();
        let step = match piece {
            Ok(Some(piece)) => self.codec.push(&piece, &mut self.out).map_err(Failed::streamed)?,
            end => {
                self.codec.end(&mut self.out).map_err(|cut| match end {
                    // The connection broke, but the answer may have been whole by then.
                    Err(failure) => Failed::transport(&failure),
                    Ok(_) => Failed::streamed(cut),
                })?;
                Step { complete: true, ..Step::default() }
            }
        };
        self.complete = step.complete;
        if step.content_events > 0 {
            self.first.get_or_insert(self.last);
        }
        Ok(step)
    }

    /// Whether content has come.
    pub fn has_begun(&self) -> bool {
        self.first.is_some()
    }

    /// Whether the answer is whole.
    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Bytes that have been read and not written.
    pub(super) fn held(&self) -> usize {
        self.out.len()
    }

    /// How far the replica says it has read the prompt.
    pub(super) fn progress(&self) -> Option<PromptProgress> {
        self.codec.progress()
    }

    /// Copies the answer to the client until it is whole; what is left to write is its end.
    ///
    /// # Errors
    /// The answer breaks off.
    pub async fn copy<S: Future<Output = CancelReason>>(&mut self, client: &mut Client<'_, S>) -> Result<(), Broken> {
        loop {
            client.entry.progress(self.codec.content_events());
            if self.complete {
                return Ok(());
            }
            self.deadline.set(self.last + self.gap);
            if !self.out.is_empty() {
                client.write(&mut self.out).await?;
            }
            client.wait(pin!(self.read(SoftFailure::Stalled))).await??;
        }
    }

    /// The end of a whole answer. Its connection is kept, if the replica has ended the stream already.
    pub fn finish(self, upstream: &Upstream, replica: &Replica) -> (Finished, AnswerStream) {
        let usage = self.codec.usage().map(|usage| (usage, self.codec.usage_estimated()));
        let timings = match self.codec.timings() {
            Some(timings) => Some(measured::by_engine(&timings)),
            None => {
                usage.zip(self.first).map(|((usage, _), first)| measured::here(&usage, self.sent, first, self.last))
            }
        };
        upstream.recycle_if_ended(&replica.endpoint, self.reply);
        let rest = Segments::from(self.out.freeze());
        (Finished { rest, timings, usage, streamed: true, room: None }, self.codec)
    }

    /// What is known of an answer that broke off: its timings, and what its client has seen.
    pub fn broken(self) -> (Option<Timings>, AnswerStream) {
        let written = self.codec.content_events();
        let timings = match self.codec.timings() {
            Some(timings) => Some(measured::by_engine(&timings)),
            None => self.first.map(|first| measured::written(written, first, self.last)),
        };
        (timings, self.codec)
    }
}

impl<S: Future<Output = CancelReason>> Client<'_, S> {
    /// Waits for something of the replica: while the client waits, and the core lets us.
    async fn wait<F: Future + Unpin>(&mut self, future: F) -> Result<F::Output, Broken> {
        let stopped = self.stopped.as_mut();
        let waiting = pin!(async {
            tokio::select! {
                biased;
                why = stopped => Err(Broken::Cancelled(why)),
                done = future => Ok(done),
            }
        });
        self.exchange.drive(waiting).await?
    }

    async fn write(&mut self, out: &mut BytesMut) -> Result<(), Broken> {
        if let Some(head) = self.head.take() {
            self.exchange.begin(head).await?;
        }
        // A client that does not read must not hold a slot that the core has taken back.
        tokio::select! {
            biased;
            written = self.exchange.write(out.split().freeze()) => Ok(written?),
            why = self.stopped.as_mut() => Err(Broken::Cancelled(why)),
        }
    }
}
