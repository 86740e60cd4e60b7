//! A replica's stream, read event by event; and its copy to the client, once it is the answer.

use std::{
    future::Future,
    pin::{Pin, pin},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use openai_wire::{AnswerStream, Leg, Segments, Step, Usage};
use pingora::http::ResponseHeader;
use scheduler::{CancelReason, Event, SoftFailure, Timestamp, Timings};

use super::{
    Attempt, Broken, Decided, Failed, Finished, Lost, Partial, Unfinished,
    attempt::is_event_stream,
    deadline::Deadline,
    measured::{self, Pace},
    patience::{self, Reading},
    progress::Reports,
    resume::{self, Source},
};
use crate::{
    clock, error::ApiError, gateway::Held, listener::Exchange, live::Entry, telemetry::names::CONTINUED_RESUMED,
    upstream::Failure,
};

/// Output held back for want of content; a stream of empty events is passed on from here.
const MAX_HELD: usize = 64 << 10;
/// Room for what is kept of an answer is taken in such steps: one for most answers, and no counting per event.
const ROOM: usize = 16 << 10;

/// A client that takes longer for a piece holds its phone up. 250 ms: networks take less, and buffers hold some seconds of words.
const HELD_UP: Duration = Duration::from_millis(250);

/// A replica's stream.
pub struct Stream<'a> {
    attempt: Attempt<'a>,
    /// Gone once the core has taken the slot back.
    source: Option<Source>,
    codec: AnswerStream,
    /// What has been read and not yet written.
    out: BytesMut,
    deadline: Deadline,
    /// How long it may be silent once it writes.
    gap: Duration,
    sent: Timestamp,
    /// It reads its prompt, and gets on like this. Until the first content.
    reading: Option<Box<Reading>>,
    reports: Reports,
    /// When its first content came.
    first: Option<Timestamp>,
    /// How its content came.
    pace: Pace,
    /// When anything came.
    last: Timestamp,
    /// Content events before it.
    before: u64,
    complete: bool,
    room: Held,
    /// Bytes of it.
    taken: usize,
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

impl<'a> Stream<'a> {
    pub(super) fn new(
        attempt: Attempt<'a>,
        source: Source,
        codec: AnswerStream,
        sent: Timestamp,
        deadline: Deadline,
    ) -> Self {
        let gap = patience::gap(&attempt.gateway.config().streams, attempt.expected.token);
        let (room, before) = (attempt.held.part(), codec.content_events());
        Self {
            reading: Some(Box::new(Reading::new(attempt.expected.prefill, sent))),
            attempt,
            source: Some(source),
            codec,
            out: BytesMut::new(),
            deadline,
            gap,
            sent,
            reports: Reports::default(),
            first: None,
            pace: Pace::default(),
            last: sent,
            before,
            complete: false,
            room,
            taken: 0,
        }
    }

    /// Reads up to the first content; to the end, where the client gets the answer in one piece.
    pub(super) async fn begin(mut self: Box<Self>) -> Result<Decided<'a>, Unfinished> {
        while !(self.has_begun() || self.complete || self.out.len() > MAX_HELD) {
            if let Err(failed) = self.read().await {
                return Err(self.lost(failed));
            }
        }
        if self.attempt.shape.is_stream() {
            return Ok(Decided::Begun(self));
        }
        // Nobody sees it yet, but the core knows from now on how long the replica took to read.
        self.attempt.gateway.dispatcher.handle(Event::FirstToken { attempt: self.attempt.number });
        let max = self.attempt.gateway.config().streams.max_answer.as_usize();
        loop {
            self.attempt.entry.progress(self.codec.content_events());
            if self.codec.kept() > max {
                return Err(Failed::transport(&Failure::TooLarge(max)).into());
            }
            self.make_room().map_err(Unfinished::Refused)?;
            if self.complete {
                return Ok(Decided::Whole(self.into_plain()));
            }
            if let Err(failed) = self.read().await {
                return Err(self.lost(failed));
            }
        }
    }

    /// Reads what comes next.
    async fn read(&mut self) -> Result<Step, Failed> {
        if self.codec.leg_is_over() {
            Box::pin(self.next_leg()).await?;
        }
        let late = if self.reading.is_some() { SoftFailure::NoFirstToken } else { SoftFailure::Stalled };
        let step = match self.piece(late).await {
            Ok(Ok(Some(piece))) => {
                self.last = clock::now();
                self.codec.push(&piece, &mut self.out).map_err(Failed::streamed)?
            }
            end => {
                // It broke off, or fell silent; but the answer may have been whole by then.
                self.codec.end(&mut self.out).map_err(|cut| match end {
                    Err(late) => late,
                    Ok(Err(failure)) => Failed::transport(&failure),
                    Ok(Ok(_)) => Failed::streamed(cut),
                })?;
                Step { complete: self.codec.is_complete(), ..Step::default() }
            }
        };
        self.complete = step.complete;
        self.pace.note(step.content_events.into());
        if step.content_events > 0 {
            self.first.get_or_insert(self.last);
            self.reading = None;
        }
        if step.data_events > 0 {
            self.wait_on();
        }
        Ok(step)
    }

    /// The next piece of its bytes: by another connection, if this one is lost and the replica keeps the stream.
    async fn piece(&mut self, late: SoftFailure) -> Result<Result<Option<Bytes>, Failure>, Failed> {
        loop {
            let Some(source) = &mut self.source else { return Ok(Ok(None)) };
            let read = self.deadline.bound(late, pin!(source.chunk())).await;
            let silent = read.is_err();
            // A replica that is silent over its prompt is slow rather than lost.
            if matches!(read, Ok(Ok(Some(_)))) || silent && self.reading.is_some() {
                return read;
            }
            let gateway = self.attempt.gateway;
            if !source.resume(&gateway.upstream).await {
                return read;
            }
            self.pace.disturb();
            gateway.telemetry.continuation(CONTINUED_RESUMED);
            tracing::info!(
                replica = &*self.attempt.replica.label,
                silent,
                "the stream is read on by another connection"
            );
            if silent {
                // What it wrote in the meantime is there at once, or it has written nothing.
                self.deadline.set(clock::now() + resume::LIMIT);
            }
        }
    }

    /// The replica has given a sign: how long the next may take.
    fn wait_on(&mut self) {
        let Some(reading) = &mut self.reading else { return self.deadline.set(self.last + self.gap) };
        let Some(seen) = self.codec.progress() else { return };
        if !reading.note(&seen, self.last) {
            return;
        }
        let attempt = &self.attempt;
        if let Some(until) = reading.deadline(&attempt.gateway.config().streams) {
            self.deadline.set(until);
        }
        if let Some(outlook) = &attempt.shape.outlook {
            outlook.read(reading, self.last);
        }
        if let Some(event) = self.reports.due(attempt.number, &seen) {
            attempt.gateway.dispatcher.handle(event);
        }
    }

    /// One choice is written: the next is carried on, on the same replica and in the same slot.
    async fn next_leg(&mut self) -> Result<(), Failed> {
        let attempt = &self.attempt;
        let mut part = self.codec.carry_on().map_err(|_| Failed::not_carried_on())?;
        let counted = attempt.count(&part).await;
        part.tokens = counted.unwrap_or(part.tokens);
        let asked = clock::now();
        let first = patience::first_token(&attempt.gateway.config().streams, attempt.expected.prefill);
        self.deadline.set(asked + first);
        let source = match attempt.ask(&mut self.deadline, true, Some(&part)).await {
            Ok(source) if is_event_stream(source.reply().content_type()) => source,
            Err(Unfinished::Failed(failed)) if !failed.is_final() => return Err(failed),
            _ => return Err(Failed::not_carried_on()),
        };
        attempt.recycle(self.source.replace(source));
        self.pace.disturb();
        self.codec.begin_attempt(Leg::CarryOn, attempt.engine());
        if let Some(tokens) = counted {
            self.codec.carried_tokens(tokens);
        }
        self.reading = Some(Box::new(Reading::new(attempt.expected.prefill, asked)));
        Ok(())
    }

    /// Takes room for what is kept of the answer.
    fn make_room(&mut self) -> Result<(), ApiError> {
        while self.codec.kept() > self.taken {
            self.room.grow(ROOM)?;
            self.taken += ROOM;
        }
        Ok(())
    }

    /// Whether content has come.
    pub fn has_begun(&self) -> bool {
        self.first.is_some()
    }

    /// Copies the answer to the client until it is whole; what is left to write is its end.
    ///
    /// # Errors
    /// The answer breaks off.
    pub async fn copy<S: Future<Output = CancelReason>>(&mut self, client: &mut Client<'_, S>) -> Result<(), Broken> {
        if let Some(outlook) = &self.attempt.shape.outlook {
            outlook.write();
        }
        loop {
            client.entry.progress(self.codec.content_events());
            if self.complete {
                return Ok(());
            }
            if self.make_room().is_err() {
                // It goes out all the same; it can't be carried on any more.
                self.codec.keep_no_more();
            }
            self.pass_on(client).await?;
            let read = client.wait(pin!(self.read())).await?;
            if let Err(failed) = read {
                // What came before the failure is the client's: the next replica goes on behind it.
                self.pass_on(client).await?;
                return Err(failed.into());
            }
        }
    }

    /// Writes what was read.
    async fn pass_on<S: Future<Output = CancelReason>>(&mut self, client: &mut Client<'_, S>) -> Result<(), Broken> {
        if self.out.is_empty() {
            return Ok(());
        }
        let piece = self.out.split().freeze();
        let source = &mut self.source;
        let began = clock::now();
        let written = client.write(piece, || drop(source.take())).await;
        if clock::now().since(began) > HELD_UP {
            // Nothing was read meanwhile, and a phone that can send nothing stops writing.
            self.pace.disturb();
        }
        written
    }

    /// The end of a whole answer, and what its client has seen of it. Its connection is kept, if the replica has ended the
    /// stream already.
    pub fn finish(self) -> (Finished, Partial) {
        let (usage, timings) = self.accounts();
        let Self { attempt, source, codec, out, room, .. } = self;
        // What was ended here the replica still writes.
        attempt.recycle(source.filter(|_| !codec.ended_here()));
        let (rest, cut_short) = (Segments::from(out.freeze()), codec.ended_here());
        let finished = Finished { rest, timings, usage, streamed: true, cut_short, room: None };
        (finished, Partial::new(codec, attempt.replica, room))
    }

    /// The whole answer in one piece.
    fn into_plain(self) -> Finished {
        let (usage, timings) = self.accounts();
        let Self { attempt, source, codec, room, .. } = self;
        // What was ended here the replica still writes.
        attempt.recycle(source.filter(|_| !codec.ended_here()));
        let cut_short = codec.ended_here();
        Finished { rest: codec.into_answer().body, timings, usage, streamed: false, cut_short, room: Some(room) }
    }

    /// Tokens of the whole answer, and what was measured of this attempt.
    fn accounts(&self) -> (Option<(Usage, bool)>, Option<Timings>) {
        let usage = self.codec.usage().map(|usage| (usage, self.codec.usage_estimated()));
        let timings = match (self.codec.timings(), usage.zip(self.first)) {
            (Some(timings), _) => Some(measured::by_engine(&timings)),
            // The counts of an answer that was carried on are those of several replicas.
            (None, Some(((usage, _), first))) if self.before == 0 => {
                Some(measured::here(&usage, &self.pace, self.sent, first, self.last))
            }
            (None, _) => self.first.map(|first| measured::written(&self.pace, first, self.last)),
        };
        (usage, timings)
    }

    /// What is known of an answer that broke off: its timings, and what there is of it.
    pub fn broken(self) -> (Option<Timings>, Partial) {
        let timings = match self.codec.timings() {
            Some(timings) => Some(measured::by_engine(&timings)),
            None => self.first.map(|first| measured::written(&self.pace, first, self.last)),
        };
        (timings, Partial::new(self.codec, self.attempt.replica, self.room))
    }

    /// It failed before its client saw anything of it.
    fn lost(self, failed: Failed) -> Unfinished {
        // What a stream has written by now is only a part of what has come.
        if self.attempt.shape.is_stream() || self.written() == 0 {
            return failed.into();
        }
        let (timings, partial) = self.broken();
        Unfinished::Lost(Box::new(Lost { failed, timings, partial }))
    }

    /// Content events of this attempt.
    fn written(&self) -> u64 {
        self.codec.content_events().saturating_sub(self.before)
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
        self.exchange.drive_piece(waiting).await?
    }

    /// Writes; `hang_up` is called where the core takes the slot back meanwhile. A client that does not read must not hold that,
    /// but what was on its way to it arrives whole, so that the answer can go on.
    async fn write(&mut self, piece: Bytes, hang_up: impl FnOnce()) -> Result<(), Broken> {
        if let Some(head) = self.head.take() {
            self.exchange.begin(head).await?;
        }
        let mut writing = pin!(self.exchange.write(piece));
        tokio::select! {
            biased;
            written = &mut writing => Ok(written?),
            why = self.stopped.as_mut() => {
                hang_up();
                writing.await?;
                Err(Broken::Cancelled(why))
            }
        }
    }
}
