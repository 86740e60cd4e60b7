//! How a phone announces itself: the example apps POST `started` to the URL in their `CALLBACK_URL`.

use ring::signature::{Ed25519KeyPair, KeyPair as _};
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
    #[error("announcing a phone was answered with {status_line:?}: {why}")]
    Refused {
        /// The line with its status.
        status_line: String,
        /// Its words.
        why: String,
    },
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
    post(callback, &announcement(address, turn).to_string()).await
}

async fn post(callback: &str, body: &str) -> Result<(), RegisterError> {
    let reply = call(callback, &[], body.as_bytes()).await?;
    if (200..300).contains(&reply.status) {
        return Ok(());
    }
    let why = reply.json()["error"]["message"].as_str().unwrap_or(&reply.body).escape_debug().to_string();
    Err(RegisterError::Refused { status_line: reply.status_line, why })
}

/// What a gateway answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// Its status.
    pub status: u16,
    /// The line with it.
    pub status_line: String,
    /// Its body, as far as it was looked at.
    pub body: String,
}

impl Reply {
    /// The body as JSON; null if it is none.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_default()
    }
}

/// Posts a body to `callback` as it is, with these headers and no others but those that HTTP needs: as little as a phone's app may send.
///
/// # Errors
/// It did not get there, or was not answered.
pub async fn call(callback: &str, headers: &[(&str, String)], body: &[u8]) -> Result<Reply, RegisterError> {
    match tokio::time::timeout(LIMIT, exchange(callback, headers, body)).await {
        Ok(reply) => reply,
        Err(_) => Err(RegisterError::Silence),
    }
}

async fn exchange(callback: &str, headers: &[(&str, String)], body: &[u8]) -> Result<Reply, RegisterError> {
    let rest = callback.strip_prefix("http://").ok_or_else(|| RegisterError::Url(callback.to_owned()))?;
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let path = if path.is_empty() { "/" } else { path };
    let address = if host.contains(':') { host.to_owned() } else { format!("{host}:80") };
    let mut stream = TcpStream::connect(address).await?;
    let more: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {host}\r\n{more}Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    // In one piece, as small calls come.
    stream.write_all(&[head.as_bytes(), body].concat()).await?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES as u64).read_to_end(&mut answer).await?;
    let text = String::from_utf8_lossy(&answer);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status_line = head.lines().next().unwrap_or_default().to_owned();
    let status = status_line.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status =
        status.ok_or_else(|| RegisterError::Refused { status_line: status_line.clone(), why: "no status".into() })?;
    Ok(Reply { status, status_line, body: body.to_owned() })
}

/// The key that a phone signs with: made of a seed, so that it is the same again.
pub struct SigningKey(Ed25519KeyPair);

impl SigningKey {
    /// Seeds differ in their first eight bytes; others repeat them.
    ///
    /// # Panics
    /// Never: every 32 bytes are a seed.
    #[expect(clippy::expect_used, reason = "every 32 bytes are an Ed25519 seed")]
    pub fn from_seed(seed: u64) -> Self {
        let bytes: Vec<u8> = seed.to_be_bytes().repeat(4);
        Self(Ed25519KeyPair::from_seed_unchecked(&bytes).expect("32 bytes"))
    }

    /// The public half: 64 hex digits.
    pub fn public(&self) -> String {
        hex::encode(self.0.public_key())
    }

    /// The headers of a signed announcement: over the lines `huntgroup-registration-v1`, moment and nonce, and the body behind them.
    pub fn headers(&self, timestamp: &str, nonce: &str, body: &[u8]) -> Vec<(&'static str, String)> {
        let text =
            [b"huntgroup-registration-v1\n", timestamp.as_bytes(), b"\n", nonce.as_bytes(), b"\n", body].concat();
        vec![
            ("X-PublicKey", self.public()),
            ("X-Signature", hex::encode(self.0.sign(&text))),
            ("X-Timestamp", timestamp.to_owned()),
            ("X-Nonce", nonce.to_owned()),
        ]
    }
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SigningKey({})", self.public())
    }
}
