//! One request at work: wait for a slot, read, write, and stop at once when the client leaves.

use crate::answer::Answer;
use crate::config::{Dialect, HeadTiming};
use crate::door;
use crate::engine::Seat;
use crate::events::{Events, Spelling};
use crate::fault::{Fault, LineEnding};
use crate::http::{Gone, Reply};
use crate::shape::{End, Shape, Silent};
use crate::stats::Phase;
use crate::visit::{Flow, Visit};
use std::future::Future;
use std::time::Duration;

/// What is to be done for a request.
pub(crate) struct Work {
    /// Tokens to read.
    pub(crate) prompt: Vec<u32>,
    /// Tokens to write.
    pub(crate) answer: Answer,
    pub(crate) shape: Box<dyn Shape>,
    pub(crate) stream: bool,
    /// The client wants to hear how the reading goes.
    pub(crate) progress: bool,
}

/// Reads `prompt` in a slot of its own and writes nothing: embeddings, ranking, decisions.
pub(crate) async fn read_only(visit: &mut Visit<'_>, prompt: Vec<u32>) -> Result<(), Gone> {
    let work =
        Work { prompt, answer: Answer::text(String::new()), shape: Box::new(Silent), stream: false, progress: false };
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
    read_prompt(visit, run).await
}

struct Run {
    work: Work,
    seat: Option<Seat>,
    events: Events,
    head_sent: bool,
    opened: bool,
    /// Text events written.
    spoken: usize,
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
        Self { work, seat: None, events: Events::new(spelling), head_sent: false, opened: false, spoken: 0 }
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
    read_prompt(visit, run).await?;
    if run.work.stream { speak(visit, run).await } else { answer_whole(visit, run).await }
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

async fn read_prompt(visit: &mut Visit<'_>, run: &mut Run) -> Result<(), Gone> {
    let reports = run.work.stream && run.work.progress;
    let mut seat = seat_of(run)?;
    let mut result = wait(visit, run, seat.prepare()).await;
    while result.is_ok() {
        if reports {
            run.work.shape.progress(&mut run.events, seat.progress());
            result = flush(visit, run).await;
            if result.is_err() {
                break;
            }
        }
        match wait(visit, run, seat.read_batch()).await {
            Ok(true) => {}
            Ok(false) => break,
            Err(Gone) => result = Err(Gone),
        }
    }
    run.seat = Some(seat);
    result
}

/// Writes the answer token by token, and breaks off where the fault says.
async fn speak(visit: &mut Visit<'_>, run: &mut Run) -> Result<Flow, Gone> {
    let endless = visit.fault == Fault::EndlessStream;
    let breaks = visit.fault.breaks_after().map(|chunks| chunks as usize);
    let total = run.work.answer.len();
    let last = breaks.map_or(total, |chunks| chunks.min(total));
    while run.spoken < last || (endless && total > 0) {
        let limit = if endless { u32::MAX } else { (last - run.spoken) as u32 };
        let mut seat = seat_of(run)?;
        let due = wait(visit, run, seat.write_tokens(limit)).await;
        run.seat = Some(seat);
        say(run, due? as usize);
        flush(visit, run).await?;
    }
    if breaks.is_some() {
        return break_off(visit, run).await;
    }
    finish(visit, run).await
}

fn say(run: &mut Run, count: usize) {
    if !std::mem::replace(&mut run.opened, true) {
        run.work.shape.open(&mut run.events);
    }
    let total = run.work.answer.len();
    for index in run.spoken..run.spoken + count {
        if let Some((kind, text)) = run.work.answer.piece(index % total.max(1)) {
            run.work.shape.piece(&mut run.events, kind, text, index as u32 + 1);
        }
    }
    run.spoken += count;
}

async fn finish(visit: &mut Visit<'_>, run: &mut Run) -> Result<Flow, Gone> {
    let end = end_of(run);
    if !std::mem::replace(&mut run.opened, true) {
        run.work.shape.open(&mut run.events);
    }
    run.work.shape.finish(&mut run.events, &end);
    let cut = visit.fault == Fault::NoDone;
    if !cut {
        run.work.shape.done(&mut run.events);
    }
    // The slot is free before the client can know that its answer is complete.
    free(run);
    if let Some(attempt) = &mut visit.attempt {
        attempt.complete();
    }
    flush(visit, run).await?;
    if cut {
        return Ok(Flow::EndOfFile);
    }
    visit.conn.end_chunked().await?;
    // llama-server closes after every stream, whatever its head promised.
    Ok(if visit.phone.config.dialect == Dialect::Llama { Flow::Close } else { Flow::Keep })
}

async fn break_off(visit: &mut Visit<'_>, run: &mut Run) -> Result<Flow, Gone> {
    if let Some(attempt) = &mut visit.attempt {
        attempt.fail();
    }
    send_head(visit, run).await?;
    match visit.fault.clone() {
        Fault::CutAfter { mid_word, .. } => {
            if let (true, Some((kind, text))) = (mid_word, run.work.answer.piece(run.spoken)) {
                let mut half = text.len().div_ceil(2);
                while !text.is_char_boundary(half) {
                    half += 1;
                }
                run.work.shape.piece(&mut run.events, kind, &text[..half], run.spoken as u32 + 1);
                flush(visit, run).await?;
            }
            Ok(Flow::EndOfFile)
        }
        Fault::ResetAfter { .. } => Ok(Flow::Reset),
        Fault::ErrorAfter { code, .. } => {
            run.work.shape.error(&mut run.events, code, door::TOLD_TO_FAIL);
            flush(visit, run).await?;
            visit.conn.end_chunked().await?;
            Ok(Flow::Close)
        }
        Fault::EarlyDone { .. } => {
            run.work.shape.done(&mut run.events);
            flush(visit, run).await?;
            visit.conn.end_chunked().await?;
            Ok(Flow::Close)
        }
        _ => {
            visit.conn.gone().await;
            Err(Gone)
        }
    }
}

/// Writes an answer that is not streamed, once all of it is there.
async fn answer_whole(visit: &mut Visit<'_>, run: &mut Run) -> Result<Flow, Gone> {
    let total = run.work.answer.len();
    while run.spoken < total {
        let mut seat = seat_of(run)?;
        let due = wait(visit, run, seat.write_tokens((total - run.spoken) as u32)).await;
        run.seat = Some(seat);
        run.spoken += due? as usize;
    }
    let end = end_of(run);
    let body = run.work.shape.whole(&run.work.answer, &end);
    free(run);
    visit.reply(&Reply::json(200, &body)).await
}

/// Sends the head of a stream, once.
async fn send_head(visit: &mut Visit<'_>, run: &mut Run) -> Result<(), Gone> {
    if run.work.stream && !run.head_sent {
        begin(visit, run);
        visit.conn.send_chunk(b"").await?;
    }
    Ok(())
}

fn begin(visit: &mut Visit<'_>, run: &mut Run) {
    run.head_sent = true;
    visit.conn.begin_chunked("text/event-stream", "X-Accel-Buffering: no\r\n");
}

/// Sends the events that wait, and the head before the first of them.
async fn flush(visit: &mut Visit<'_>, run: &mut Run) -> Result<(), Gone> {
    if run.events.is_empty() {
        return Ok(());
    }
    if !run.head_sent {
        begin(visit, run);
    }
    let result = visit.conn.send_chunk(run.events.bytes()).await;
    run.events.clear();
    result
}

async fn pause(visit: &mut Visit<'_>, run: &mut Run, seconds: f64) -> Result<(), Gone> {
    let time = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO);
    wait(visit, run, tokio::time::sleep(time)).await
}

/// Waits for `work`, watching the client; a stream whose head has left gets a comment in every long silence.
async fn wait<T>(visit: &mut Visit<'_>, run: &mut Run, work: impl Future<Output = T>) -> Result<T, Gone> {
    let mut work = std::pin::pin!(work);
    if !run.head_sent || matches!(visit.fault, Fault::HeadThenSilence { .. }) {
        return visit.conn.or_gone(work).await;
    }
    let comment = if visit.phone.config.dialect == Dialect::MnnApp { "keep-alive" } else { "" };
    loop {
        tokio::select! {
            biased;
            () = visit.conn.gone() => return Err(Gone),
            value = &mut work => return Ok(value),
            () = tokio::time::sleep(visit.phone.config.ping_interval) => {}
        }
        run.events.comment(comment);
        flush(visit, run).await?;
    }
}

fn end_of(run: &Run) -> End {
    let (prompt_tokens, cached_tokens, (prefill_seconds, decode_seconds)) = match &run.seat {
        Some(seat) => (seat.prompt_tokens(), seat.cached(), seat.timings()),
        None => (0, 0, (0.0, 0.0)),
    };
    End {
        finish: run.work.answer.finish,
        prompt_tokens,
        cached_tokens,
        completion_tokens: run.spoken as u32,
        prefill_seconds,
        decode_seconds,
    }
}

/// Frees the slot, which remembers what was said.
fn free(run: &mut Run) {
    if let Some(mut seat) = run.seat.take() {
        seat.remember(run.work.answer.token_ids(seat.written() as usize));
    }
}

/// The client has left: counts that, and stops, unless the phone is one that does not.
async fn leave(visit: &mut Visit<'_>, run: &mut Run) {
    let phase = match &run.seat {
        None if run.spoken == 0 => Phase::Queued,
        Some(seat) if !seat.is_decoding() => Phase::Prefill,
        _ => Phase::Decode,
    };
    if let Some(attempt) = &mut visit.attempt {
        attempt.cancel(phase);
    }
    if visit.fault == Fault::IgnoreCancel {
        run_out(run).await;
    }
    free(run);
    if visit.fault == Fault::CrashOnAbort {
        visit.phone.kill();
    }
}

/// Works on for nobody.
async fn run_out(run: &mut Run) {
    let total = run.work.answer.len();
    if let Some(seat) = &mut run.seat {
        while seat.read_batch().await {}
        while (seat.written() as usize) < total {
            seat.write_tokens((total - seat.written() as usize) as u32).await;
        }
    }
}
