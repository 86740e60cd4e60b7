//! Faults that need no model: what a client meets instead of an answer, and bad manners in giving one.

use crate::dialect;
use crate::fault::{Fault, LineEnding};
use crate::hostile;
use crate::http::{Gone, Manners, Reply, Splitting};
use crate::visit::{Flow, Visit};
use serde_json::json;
use std::fmt::Write as _;
use std::time::Duration;

/// The message of errors that were ordered.
pub(crate) const TOLD_TO_FAIL: &str = "the fake phone was told to fail";

const HTML: &str = "text/html; charset=utf-8";

/// How the answer to a request with this fault is written.
pub(crate) fn manners(fault: &Fault) -> Manners {
    let mut manners = Manners::default();
    match fault {
        Fault::SplitEverywhere { bytes, .. } => manners.splitting = Some(Splitting { bytes: *bytes as usize }),
        Fault::Drip { bytes_per_s } => manners.bytes_per_second = Some(*bytes_per_s),
        Fault::HugeHeaders { bytes } => {
            manners.extra_head = format!("X-Huge: {}\r\n", "a".repeat(*bytes as usize));
        }
        Fault::ManyHeaders { lines } => {
            for line in 0..*lines {
                // Writing to a string cannot fail.
                write!(manners.extra_head, "X-Many-{line}: {line}\r\n").ok();
            }
        }
        Fault::WrongContentLength { by } => manners.length_error = *by,
        Fault::OddFraming => manners.two_framings = true,
        Fault::Flood1xx { count } => manners.interim = *count,
        Fault::ExtraHeaders => {
            manners.extra_head = "Set-Cookie: phone=1; Path=/\r\nLocation: https://elsewhere.example/\r\n\
                Access-Control-Allow-Origin: *\r\nAccess-Control-Allow-Credentials: true\r\n\
                Strict-Transport-Security: max-age=1\r\nX-Request-Id: from-the-phone\r\n"
                .to_owned();
        }
        _ => {}
    }
    manners
}

/// How event streams are spelled under a fault, if not as the dialect spells them.
pub(crate) fn line_ending(fault: &Fault) -> Option<LineEnding> {
    match fault {
        Fault::SplitEverywhere { line_ending, .. } => Some(*line_ending),
        _ => None,
    }
}

/// Carries out a fault that takes the place of an answer; `None` if the request is to be answered.
pub(crate) async fn stop(visit: &mut Visit<'_>) -> Result<Option<Flow>, Gone> {
    let fault = visit.fault.clone();
    let flow = match fault {
        Fault::ResetBeforeHead => fail(visit, Flow::Reset),
        Fault::CloseBeforeHead => fail(visit, Flow::EndOfFile),
        Fault::StaleKeepAlive { close_after_reading_body_on_reused: true, .. } if visit.conn.served > 1 => {
            fail(visit, Flow::EndOfFile)
        }
        Fault::Busy { late_s } if visit.phone.book.stats().running_now > 0 => {
            wait(visit, late_s).await?;
            return Ok(None);
        }
        Fault::GzipBomb { mebibytes } => {
            let bomb = Reply::new(200, "application/json", hostile::gzip_bomb(mebibytes));
            visit.refuse(&bomb.with("Content-Encoding", "gzip")).await?
        }
        Fault::EndlessLine => {
            fail(visit, Flow::Close);
            hostile::endless_line(visit.conn).await?
        }
        other => match instead(visit, &other) {
            Some(reply) => visit.refuse(&reply).await?,
            None => return Ok(None),
        },
    };
    Ok(Some(flow))
}

/// The answer that a fault puts in the place of the right one.
fn instead(visit: &Visit<'_>, fault: &Fault) -> Option<Reply> {
    let dialect = visit.phone.config.dialect;
    Some(match fault {
        Fault::Html { status } => Reply::new(*status, HTML, page(*status)),
        Fault::Status { code, retry_after } => {
            let reply = dialect::error(dialect, *code, "server_error", TOLD_TO_FAIL);
            match retry_after {
                Some(seconds) => reply.with("Retry-After", &seconds.to_string()),
                None => reply,
            }
        }
        Fault::WrongKey => dialect::unauthorized(dialect),
        Fault::Empty200 => Reply::new(200, "application/json", ""),
        Fault::ErrorIn200 { code } => {
            let error = json!({"error": {"code": code, "message": "failed after all", "type": "server_error"}});
            if dialect::wants_stream(visit) {
                Reply::new(200, "text/event-stream", format!("data: {error}\n\n"))
            } else {
                Reply::json(200, &error)
            }
        }
        Fault::BrokenJson => Reply::new(200, "application/json", r#"{"id":"chatcmpl-1","choices":[{"index":0,"mess"#),
        Fault::Redirect { location } => Reply::new(307, HTML, page(307)).with("Location", location),
        _ => return None,
    })
}

fn fail(visit: &mut Visit<'_>, flow: Flow) -> Flow {
    if let Some(attempt) = &mut visit.attempt {
        attempt.fail();
    }
    flow
}

async fn wait(visit: &mut Visit<'_>, seconds: Option<f64>) -> Result<(), Gone> {
    match seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
        Some(time) => visit.conn.or_gone(tokio::time::sleep(time)).await,
        None => {
            visit.conn.gone().await;
            Err(Gone)
        }
    }
}

/// A page as tunnels send it.
fn page(status: u16) -> String {
    format!(
        "<!DOCTYPE html>\n<html><head><title>{status}</title></head>\n<body><h1>{status}</h1>\
         <p>The tunnel endpoint is offline.</p><script>alert(1)</script></body></html>\n"
    )
}
