//! How a phone announces itself: the example apps POST `started` to the URL in their `CALLBACK_URL`.

use serde_json::{Value, json};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// An announcement that was not taken.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// Only plain HTTP is spoken here.
    #[error("{0:?} is no http:// URL")]
    Url(String),
    /// The connection failed.
    #[error("cannot announce a phone: {0}")]
    Io(#[from] std::io::Error),
    /// It took too long.
    #[error("cannot announce a phone: no answer")]
    Silence,
    /// The other side refused.
    #[error("announcing a phone was answered with {0:?}")]
    Refused(String),
}

const LIMIT: Duration = Duration::from_secs(10);
/// Most bytes of the answer that are looked at.
const ANSWER_BYTES: usize = 4096;

/// The body in one of the three shapes in use; which one depends on `turn`.
fn announcement(address: &str, turn: usize) -> Value {
    match turn % 3 {
        0 => json!({"event": "started", "url": address}),
        1 => json!({"event": "started", "webUrl": address}),
        _ => json!({"event": "started", "data": {"url": address}}),
    }
}

/// Announces the phone at `address` to `callback`, an `http://` URL with whatever token it needs.
pub async fn announce(callback: &str, address: &str, turn: usize) -> Result<(), RegisterError> {
    match tokio::time::timeout(LIMIT, post(callback, &announcement(address, turn).to_string())).await {
        Ok(result) => result,
        Err(_) => Err(RegisterError::Silence),
    }
}

async fn post(callback: &str, body: &str) -> Result<(), RegisterError> {
    let rest = callback.strip_prefix("http://").ok_or_else(|| RegisterError::Url(callback.to_owned()))?;
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let path = if path.is_empty() { "/" } else { path };
    let address = if host.contains(':') { host.to_owned() } else { format!("{host}:80") };
    let mut stream = TcpStream::connect(address).await?;
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES as u64).read_to_end(&mut answer).await?;
    let text = String::from_utf8_lossy(&answer);
    let status = text.lines().next().unwrap_or_default();
    match status.split(' ').nth(1) {
        Some(code) if code.starts_with('2') => Ok(()),
        _ => Err(RegisterError::Refused(status.to_owned())),
    }
}
