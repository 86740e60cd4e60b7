//! `/v1/stream`: a stream that the engine kept, from any byte on.

use super::not_found;
use crate::ask::Refusal;
use crate::config::Dialect;
use crate::dialect::refusal;
use crate::http::{Gone, Reply};
use crate::streams::{Piece, Reading};
use crate::visit::{Flow, Visit};

/// Whether a request is for a stream that was kept.
pub(super) fn is_for_one(visit: &Visit<'_>) -> bool {
    visit.phone.config.keeps_streams
        && visit.request.path() == "/v1/stream"
        && matches!(visit.request.method.as_str(), "GET" | "DELETE")
}

/// Reads a stream on, or gives it up.
pub(super) async fn answer(visit: &mut Visit<'_>) -> Result<Flow, Gone> {
    let Some(id) = query(visit, "conv_id") else { return refuse(visit, not_found()).await };
    if visit.request.method == "DELETE" {
        visit.phone.streams.give_up(&id);
        return visit.reply(&Reply::new(204, "", "")).await;
    }
    let from = query(visit, "from").map_or(Some(0), |from| from.parse().ok());
    let Some(from) = from else { return refuse(visit, Refusal::bad("'from' must be a number")).await };
    let Some(mut reading) = visit.phone.streams.read(&id, from) else { return refuse(visit, not_found()).await };
    match visit.conn.or_gone(reading.next()).await? {
        Piece::Lost => refuse(visit, Refusal::bad("the requested offset is no longer available")).await,
        first => read_on(visit, reading, first).await,
    }
}

async fn read_on(visit: &mut Visit<'_>, mut reading: Reading, first: Piece) -> Result<Flow, Gone> {
    visit.conn.begin_chunked("text/event-stream", "X-Accel-Buffering: no\r\n");
    let mut piece = first;
    while let Piece::Bytes(bytes) = &piece {
        visit.conn.send_chunk(bytes).await?;
        piece = visit.conn.or_gone(reading.next()).await?;
    }
    // Who reads too slowly and loses its place is cut off.
    if piece == Piece::Lost {
        return Ok(Flow::EndOfFile);
    }
    visit.conn.end_chunked().await?;
    Ok(Flow::Close)
}

async fn refuse(visit: &mut Visit<'_>, no: Refusal) -> Result<Flow, Gone> {
    visit.refuse(&refusal(Dialect::Llama, &no)).await
}

/// A value in the query. Ids are taken as they are: no client of a fake phone needs to escape one.
fn query(visit: &Visit<'_>, name: &str) -> Option<String> {
    let pairs = visit.request.query().split('&').filter_map(|pair| pair.split_once('='));
    pairs.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
}
