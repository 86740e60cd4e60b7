//! Where events go: to the client, to whoever may come back for them, or, when the client has left a phone that goes on,
//! nowhere.

use super::Run;
use crate::config::Dialect;
use crate::fault::Fault;
use crate::http::Gone;
use crate::visit::{Flow, Visit};
use std::future::Future;

/// Sends the head of a stream, once.
pub(super) async fn send_head(visit: &mut Visit<'_>, run: &mut Run) -> Result<(), Gone> {
    if run.work.stream && !run.head_sent && !run.alone {
        begin(visit, run);
        if visit.conn.send_chunk(b"").await.is_err() {
            hang_up(visit, run)?;
        }
    }
    Ok(())
}

fn begin(visit: &mut Visit<'_>, run: &mut Run) {
    run.head_sent = true;
    visit.conn.begin_chunked("text/event-stream", "X-Accel-Buffering: no\r\n");
}

/// Sends the events that wait, and the head before the first of them.
pub(super) async fn flush(visit: &mut Visit<'_>, run: &mut Run) -> Result<(), Gone> {
    if run.events.is_empty() {
        return Ok(());
    }
    if let Some(keeping) = &run.keeping {
        keeping.write(run.events.bytes());
    }
    if !run.alone {
        if !run.head_sent {
            begin(visit, run);
        }
        if visit.conn.send_chunk(run.events.bytes()).await.is_err() {
            hang_up(visit, run)?;
        }
    }
    run.events.clear();
    Ok(())
}

/// Ends a stream properly.
pub(super) async fn end_stream(visit: &mut Visit<'_>, run: &mut Run) -> Result<Flow, Gone> {
    if run.alone {
        return Ok(Flow::EndOfFile);
    }
    visit.conn.end_chunked().await?;
    // llama-server closes after every stream, whatever its head promised.
    Ok(if visit.phone.config.dialect == Dialect::Llama { Flow::Close } else { Flow::Keep })
}

/// Waits for `work`, watching the client; a stream whose head has left gets a comment in every long silence.
pub(super) async fn wait<T>(visit: &mut Visit<'_>, run: &mut Run, work: impl Future<Output = T>) -> Result<T, Gone> {
    let mut work = std::pin::pin!(work);
    let comment = if visit.phone.config.dialect == Dialect::MnnApp { "keep-alive" } else { "" };
    loop {
        let pings = run.head_sent && !run.alone && !matches!(visit.fault, Fault::HeadThenSilence { .. });
        tokio::select! {
            biased;
            () = visit.conn.gone(), if !run.alone => hang_up(visit, run)?,
            () = given_up(run) => return Err(Gone),
            value = &mut work => return Ok(value),
            () = tokio::time::sleep(visit.phone.config.ping_interval), if pings => {
                run.events.comment(comment);
                flush(visit, run).await?;
            }
        }
    }
}

async fn given_up(run: &mut Run) {
    match &mut run.keeping {
        Some(keeping) => keeping.given_up().await,
        None => std::future::pending().await,
    }
}

/// The client has left. A phone that does not notice goes on, and so does one that keeps the stream for its return.
pub(super) fn hang_up(visit: &mut Visit<'_>, run: &mut Run) -> Result<(), Gone> {
    if run.keeping.is_none() {
        if visit.phone.config.notices_hang_ups() && visit.fault != Fault::IgnoreCancel {
            return Err(Gone);
        }
        if let Some(attempt) = &mut visit.attempt {
            attempt.cancel(run.phase);
        }
    }
    run.alone = true;
    Ok(())
}
