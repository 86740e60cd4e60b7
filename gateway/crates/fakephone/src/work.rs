//! One request at work: wait for a slot, read, write, and stop at once when the client leaves.

mod break_off;
mod outlet;

use crate::answer::Answer;
use crate::breach::{Breach, Moment};
use crate::config::{Dialect, HeadTiming};
use crate::door;
use crate::engine::Seat;
use crate::events::{Events, Spelling};
use crate::fault::{Fault, LineEnding};
use crate::http::{Gone, Reply};
use crate::shape::{End, Shape, Silent, Token};
use crate::stats::Phase;
use crate::streams::Keeping;
use crate::visit::{Flow, Visit};
use break_off::break_off;
use outlet::{end_stream, flush, send_head, wait};
use std::time::Duration;

/// What is to be done for a request.
pub(crate) struct Work {
    /// Tokens to read.
    pub(crate) prompt: Vec<u32>,
    /// Tokens to write, of each choice; the choices are written side by side.
    pub(crate) answers: Vec<Answer>,
    pub(crate) shape: Box<dyn Shape>,
    pub(crate) stream: bool,
    /// The client wants to hear how the reading goes.
    pub(crate) progress: bool,
    /// It wants to hear with every token what the work took so far.
    pub(crate) timings_per_token: bool,
}

impl Work {
    /// Length of the longest choice, tokens.
    fn length(&self) -> usize {
        self.answers.iter().map(Answer::len).max().unwrap_or(0)
    }
}

/// Reads `prompt` in a slot of its own and writes nothing: embeddings, ranking, decisions.
pub(crate) async fn read_only(visit: &mut Visit<'_>, prompt: Vec<u32>) -> Result<(), Gone> {
    let work = Work {
        prompt,
        answers: Vec::new(),
        shape: Box::new(Silent),
        stream: false,
        progress: false,
        timings_per_token: false,
    };
    let mut run = Run::new(visit, work);
    let result = read_alone(visit, &mut run).await;
    if result.is_err() {
        leave(visit, &mut run).await;
    }
    free(&mut run);
    result
}

async fn read_alone(visit: &mut Visit<'_>, run: &mut Run) -> Result<(), Gone> {
    take_seat(visit, run).await?;
    match read_prompt(visit, run).await? {
        // There is no stream that could end in a way of its own.
        Some(_) => Err(Gone),
        None => Ok(()),
    }
}

struct Run {
    work: Work,
    seat: Option<Seat>,
    phase: Phase,
    events: Events,
    head_sent: bool,
    opened: bool,
    /// Tokens written.
    spoken: usize,
    /// Where it will break off.
    breach: Option<Breach>,
    /// What it sends is kept for a client that lost its connection.
    keeping: Option<Keeping>,
    /// The client has left, and the phone goes on for nobody.
    alone: bool,
}

impl Run {
    fn new(visit: &Visit<'_>, work: Work) -> Self {
        let spelling = Spelling {
            line_ending: door::line_ending(&visit.fault).unwrap_or(match visit.phone.config.dialect {
                Dialect::MnnApp => LineEnding::CrLf,
                _ => LineEnding::Lf,
            }),
            varied: matches!(visit.fault, Fault::SplitEverywhere { .. }),
        };
        let conversation = visit.request.header("x-conversation-id").filter(|_| visit.phone.config.keeps_streams);
        let keeping = conversation.filter(|_| work.stream).map(|id| visit.phone.streams.keep(id));
        Self {
            work,
            seat: None,
            phase: Phase::Queued,
            events: Events::new(spelling),
            head_sent: false,
            opened: false,
            spoken: 0,
            breach: visit.fault.breach(),
            keeping,
            alone: false,
        }
    }
}

/// Answers a piece of work.
pub(crate) async fn perform(visit: &mut Visit<'_>, work: Work) -> Result<Flow, Gone> {
    let mut run = Run::new(visit, work);
    let result = go(visit, &mut run).await;
    if result.is_err() {
        leave(visit, &mut run).await;
    }
    result
}

async fn go(visit: &mut Visit<'_>, run: &mut Run) -> Result<Flow, Gone> {
    take_seat(visit, run).await?;
    if let Some(flow) = read_prompt(visit, run).await? {
        return Ok(flow);
    }
    if let Some(flow) = write(visit, run).await? {
        return Ok(flow);
    }
    if run.work.stream { finish(visit, run).await } else { answer_whole(visit, run).await }
}

/// Waits for a slot, and in it as long as the fault says.
async fn take_seat(visit: &mut Visit<'_>, run: &mut Run) -> Result<(), Gone> {
    let head = visit.phone.config.head;
    if head == HeadTiming::AtOnce {
        send_head(visit, run).await?;
    }
    let engine = visit.phone.engine.clone();
    let prompt = std::mem::take(&mut run.work.prompt);
    let seat = wait(visit, run, engine.seat(prompt)).await?;
    run.seat = Some(seat);
    run.phase = Phase::Prefill;
    match visit.fault {
        Fault::FreezeBeforeHead => {
            visit.conn.gone().await;
            return Err(Gone);
        }
        Fault::Slow { seconds } => pause(visit, run, seconds).await?,
        Fault::HeadThenSilence { seconds } => {
            send_head(visit, run).await?;
            pause(visit, run, seconds).await?;
        }
        _ => {}
    }
    if head == HeadTiming::WhenSlotTaken {
        send_head(visit, run).await?;
    }
    Ok(())
}

/// The seat, which exists from the moment the engine gave one.
fn seat_of(run: &mut Run) -> Result<Seat, Gone> {
    run.seat.take().ok_or(Gone)
}

/// Reads the prompt batch by batch, and breaks off where the fault says.
async fn read_prompt(visit: &mut Visit<'_>, run: &mut Run) -> Result<Option<Flow>, Gone> {
    let mut seat = seat_of(run)?;
    let result = wait(visit, run, seat.prepare()).await;
    run.seat = Some(seat);
    result?;
    for batches in 0.. {
        report(visit, run).await?;
        let breaks = |breach: &Breach| breach.at == Moment::Batches(batches);
        if let Some(breach) = run.breach.take_if(|breach| breaks(breach))
            && let Some(flow) = break_off(visit, run, breach).await?
        {
            return Ok(Some(flow));
        }
        if let Fault::SlowReading { seconds } = visit.fault {
            pause(visit, run, seconds).await?;
        }
        let mut seat = seat_of(run)?;
        let more = wait(visit, run, seat.read_batch()).await;
        run.seat = Some(seat);
        if !more? {
            break;
        }
    }
    Ok(None)
}

async fn report(visit: &mut Visit<'_>, run: &mut Run) -> Result<(), Gone> {
    if let (true, true, Some(seat)) = (run.work.stream, run.work.progress, &run.seat) {
        run.work.shape.progress(&mut run.events, seat.progress());
        flush(visit, run).await?;
    }
    Ok(())
}

/// Writes the answer token by token, and breaks off where the fault says.
async fn write(visit: &mut Visit<'_>, run: &mut Run) -> Result<Option<Flow>, Gone> {
    let endless = visit.fault == Fault::EndlessStream && run.work.stream;
    let total = run.work.length();
    run.phase = Phase::Decode;
    let mut at = token_of_breach(visit, run);
    loop {
        let last = at.unwrap_or(total);
        while run.spoken < last || (endless && total > 0) {
            let limit = if endless { u32::MAX } else { (last - run.spoken) as u32 };
            let mut seat = seat_of(run)?;
            let due = wait(visit, run, seat.write_tokens(limit)).await;
            run.seat = Some(seat);
            say(visit, run, due? as usize).await?;
        }
        if at.take().is_none() {
            return Ok(None);
        }
        if let Some(breach) = run.breach.take()
            && let Some(flow) = break_off(visit, run, breach).await?
        {
            return Ok(Some(flow));
        }
    }
}

async fn say(visit: &mut Visit<'_>, run: &mut Run, count: usize) -> Result<(), Gone> {
    if run.work.stream {
        open(run);
        let total = run.work.length();
        let so_far = run.work.timings_per_token.then(|| end_of(run));
        for index in run.spoken..run.spoken + count {
            let number = index as u32 + 1;
            put(run, index % total.max(1), number, so_far.map(|end| End { completion_tokens: number, ..end }).as_ref());
        }
        flush(visit, run).await?;
    }
    run.spoken += count;
    Ok(())
}

fn open(run: &mut Run) {
    if !std::mem::replace(&mut run.opened, true) {
        run.work.shape.open(&mut run.events);
    }
}

/// Puts the token at `index` of each choice that is so long among the events.
fn put(run: &mut Run, index: usize, number: u32, so_far: Option<&End>) {
    for (choice, answer) in run.work.answers.iter().enumerate() {
        if let Some((kind, text)) = answer.piece(index) {
            let token = Token { choice: choice as u32, kind, text, number, so_far };
            run.work.shape.token(&mut run.events, token);
        }
    }
}

async fn finish(visit: &mut Visit<'_>, run: &mut Run) -> Result<Flow, Gone> {
    let end = end_of(run);
    open(run);
    run.work.shape.finish(&mut run.events, &run.work.answers, &end);
    // The slot is free before the client can know that its answer is complete.
    free(run);
    if let Some(attempt) = &mut visit.attempt {
        attempt.complete();
    }
    if let Some(flow) = break_at(visit, run, Moment::Finish).await? {
        return Ok(flow);
    }
    run.work.shape.usage(&mut run.events, &end);
    if let Some(flow) = break_at(visit, run, Moment::Done).await? {
        return Ok(flow);
    }
    run.work.shape.done(&mut run.events);
    flush(visit, run).await?;
    end_stream(visit, run).await
}

async fn break_at(visit: &mut Visit<'_>, run: &mut Run, moment: Moment) -> Result<Option<Flow>, Gone> {
    match run.breach.take_if(|breach| breach.at == moment) {
        Some(breach) => {
            flush(visit, run).await?;
            break_off(visit, run, breach).await
        }
        None => Ok(None),
    }
}

/// Gives an answer that is not streamed, now that all of it is there.
async fn answer_whole(visit: &mut Visit<'_>, run: &mut Run) -> Result<Flow, Gone> {
    let end = end_of(run);
    let body = run.work.shape.whole(&run.work.answers, &end);
    free(run);
    if run.alone {
        return Ok(Flow::EndOfFile);
    }
    visit.reply(&Reply::json(200, &body)).await
}

async fn pause(visit: &mut Visit<'_>, run: &mut Run, seconds: f64) -> Result<(), Gone> {
    let time = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO);
    wait(visit, run, tokio::time::sleep(time)).await
}

fn end_of(run: &Run) -> End {
    let (prompt_tokens, cached_tokens, (prefill_seconds, decode_seconds)) = match &run.seat {
        Some(seat) => (seat.prompt_tokens(), seat.cached(), seat.timings()),
        None => (0, 0, (0.0, 0.0)),
    };
    let completion_tokens = run.spoken as u32;
    End { prompt_tokens, cached_tokens, completion_tokens, prefill_seconds, decode_seconds }
}

/// Frees the slot, which remembers what was said.
fn free(run: &mut Run) {
    if let Some(mut seat) = run.seat.take() {
        let count = seat.written() as usize;
        seat.remember(run.work.answers.first().into_iter().flat_map(|answer| answer.token_ids(count)));
    }
}

/// The client has left: counts that, and stops.
async fn leave(visit: &mut Visit<'_>, run: &mut Run) {
    if let Some(attempt) = &mut visit.attempt {
        attempt.cancel(run.phase);
    }
    if let Fault::LateRelease { seconds } = visit.fault {
        tokio::time::sleep(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO)).await;
    }
    free(run);
    if visit.fault == Fault::CrashOnAbort {
        visit.phone.kill(None);
    }
}

/// Before which token this answer breaks off. A whole answer that is cut in half is none that breaks off at a token.
fn token_of_breach(visit: &Visit<'_>, run: &Run) -> Option<usize> {
    let halved = !run.work.stream && !matches!(visit.fault, Fault::Break { .. });
    run.breach.filter(|_| !halved)?.token_of(run.work.answers.first()?)
}
