//! Breaking an answer off.

use super::outlet::{flush, hang_up, send_head, wait};
use super::{Run, open, put, seat_of};
use crate::breach::{Breach, Inside, Moment, Way};
use crate::door;
use crate::http::Gone;
use crate::shape::Token;
use crate::visit::{Flow, Visit};

/// Breaks the answer off; `None` if only the connection was lost and the work goes on.
pub(super) async fn break_off(visit: &mut Visit<'_>, run: &mut Run, breach: Breach) -> Result<Option<Flow>, Gone> {
    if !matches!(breach.at, Moment::Batches(_)) {
        send_head(visit, run).await?;
    }
    match breach.inside {
        Some(inside) if breach.how == Way::Tunnel => lose_part(visit, run, inside).await?,
        Some(inside) if run.work.stream => send_part(visit, run, inside).await?,
        _ => {}
    }
    let lives = matches!(breach.how, Way::Die { .. } | Way::Tunnel);
    if let (Some(attempt), false) = (&mut visit.attempt, lives) {
        attempt.fail();
    }
    match breach.how {
        Way::Cut => Ok(Some(Flow::EndOfFile)),
        Way::Reset => Ok(Some(Flow::Reset)),
        Way::Hang => {
            visit.conn.gone().await;
            Err(Gone)
        }
        Way::Error(code) => {
            run.work.shape.error(&mut run.events, code, door::TOLD_TO_FAIL);
            end(visit, run).await
        }
        Way::EarlyDone => {
            run.work.shape.done(&mut run.events);
            end(visit, run).await
        }
        Way::Die { down_s } => {
            visit.phone.kill(down_s);
            // The end of all connections is on its way.
            std::future::pending().await
        }
        Way::Tunnel => {
            visit.conn.sever();
            hang_up(visit, run)?;
            Ok(None)
        }
    }
}

async fn end(visit: &mut Visit<'_>, run: &mut Run) -> Result<Option<Flow>, Gone> {
    flush(visit, run).await?;
    visit.conn.end_chunked().await?;
    Ok(Some(Flow::Close))
}

/// Sends a part of what comes next, which is all there will be of it.
async fn send_part(visit: &mut Visit<'_>, run: &mut Run, inside: Inside) -> Result<(), Gone> {
    open(run);
    flush(visit, run).await?;
    if inside == Inside::Word {
        put_half_a_word(run);
    } else {
        put(run, run.spoken, run.spoken as u32 + 1, None);
        run.events.truncate(part(inside, run.events.bytes()));
    }
    flush(visit, run).await
}

/// Says what comes next, of which the tunnel delivers a part only.
async fn lose_part(visit: &mut Visit<'_>, run: &mut Run, inside: Inside) -> Result<(), Gone> {
    if !run.work.stream || run.spoken >= run.work.length() {
        return Ok(());
    }
    open(run);
    flush(visit, run).await?;
    let mut seat = seat_of(run)?;
    let due = wait(visit, run, seat.write_tokens(1)).await;
    run.seat = Some(seat);
    due?;
    put(run, run.spoken, run.spoken as u32 + 1, None);
    run.spoken += 1;
    if let Some(keeping) = &run.keeping {
        keeping.write(run.events.bytes());
    }
    let bytes = run.events.bytes();
    // Whether the client gets it is of no matter: it loses the connection here.
    visit.conn.send_chunk(&bytes[..part(inside, bytes)]).await.ok();
    run.events.clear();
    Ok(())
}

/// How much of an event there is when it breaks off inside.
fn part(inside: Inside, event: &[u8]) -> usize {
    let character = event.iter().position(|byte| !byte.is_ascii()).map(|first| first + 1);
    character.filter(|_| inside == Inside::Character).unwrap_or(event.len() / 2)
}

fn put_half_a_word(run: &mut Run) {
    for (choice, answer) in run.work.answers.iter().enumerate() {
        if let Some((kind, text)) = answer.piece(run.spoken) {
            let mut half = text.len().div_ceil(2);
            while !text.is_char_boundary(half) {
                half += 1;
            }
            let number = run.spoken as u32 + 1;
            let token = Token { choice: choice as u32, kind, text: &text[..half], number, so_far: None };
            run.work.shape.token(&mut run.events, token);
        }
    }
}
