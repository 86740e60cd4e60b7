//! Writing an answer, politely or not.

use super::{Conn, Gone};
use std::fmt::Write as _;
use std::time::Duration;
use tokio::io::AsyncWriteExt;

/// How an answer is written; [`Default`] is as a good server would.
#[derive(Debug, Clone, Default)]
pub(crate) struct Manners {
    /// Header lines put into every head, each ended by CRLF.
    pub(crate) extra_head: String,
    /// Interim answers before the head.
    pub(crate) interim: u32,
    /// How far `Content-Length` is off.
    pub(crate) length_error: i64,
    /// Adds `Transfer-Encoding: chunked` to answers with a length.
    pub(crate) two_framings: bool,
    /// Cuts the body of a stream into packets.
    pub(crate) splitting: Option<Splitting>,
    /// Bytes of the body per second.
    pub(crate) bytes_per_second: Option<u32>,
}

/// Packets of a split stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Splitting {
    /// Bytes in each.
    pub(crate) bytes: usize,
}

/// An answer whose body is known.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) content_type: &'static str,
    /// Header lines, each ended by CRLF.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn new(status: u16, content_type: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self { status, content_type, head: String::new(), body: body.into() }
    }

    pub(crate) fn json(status: u16, value: &serde_json::Value) -> Self {
        Self::new(status, "application/json; charset=utf-8", value.to_string())
    }

    /// The same answer with one more header.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.head.push_str(name);
        self.head.push_str(": ");
        self.head.push_str(value);
        self.head.push_str("\r\n");
        self
    }
}

/// The reason phrase of a status.
fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        204 => "No Content",
        301 => "Moved Permanently",
        302 => "Found",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        409 => "Conflict",
        413 => "Payload Too Large",
        415 => "Unsupported Media Type",
        422 => "Unprocessable Entity",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Status",
    }
}

impl Conn {
    /// Writes bytes as they are.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> Result<(), Gone> {
        self.wire.write_all(bytes).await.map_err(|_| Gone)?;
        self.wire.flush().await.map_err(|_| Gone)
    }

    /// Writes a whole answer.
    pub(crate) async fn reply(&mut self, reply: &Reply) -> Result<(), Gone> {
        let length = (reply.body.len() as i64).saturating_add(self.manners.length_error).max(0);
        let mut head = self.head(reply.status, reply.content_type);
        if self.manners.two_framings {
            head.push_str("Transfer-Encoding: chunked\r\n");
        }
        head.push_str(&reply.head);
        write_header(&mut head, "Content-Length", length);
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        match self.manners.bytes_per_second {
            Some(rate) => {
                self.send(&bytes).await?;
                self.drip(&reply.body, rate).await
            }
            None => {
                bytes.extend_from_slice(&reply.body);
                self.send(&bytes).await
            }
        }
    }

    /// Writes a head alone, as an answer to HEAD or before a body of unknown length.
    pub(crate) async fn send_head(&mut self, reply: &Reply) -> Result<(), Gone> {
        let mut head = self.head(reply.status, reply.content_type);
        head.push_str(&reply.head);
        head.push_str("\r\n");
        self.send(head.as_bytes()).await
    }

    /// Starts a chunked answer. The head leaves together with the first chunk unless [`Conn::send_chunk`] is called
    /// with nothing.
    pub(crate) fn begin_chunked(&mut self, content_type: &'static str, more: &str) {
        let mut head = self.head(200, content_type);
        head.push_str(more);
        head.push_str("Transfer-Encoding: chunked\r\n\r\n");
        self.outbox.extend_from_slice(head.as_bytes());
    }

    /// Writes one piece of a chunked body (and the head, if it has not left yet).
    pub(crate) async fn send_chunk(&mut self, body: &[u8]) -> Result<(), Gone> {
        if let Some(rate) = self.manners.bytes_per_second {
            self.send_outbox().await?;
            return self.drip_chunks(body, rate).await;
        }
        match self.manners.splitting {
            None => self.push_chunk(body),
            Some(splitting) => {
                for piece in body.chunks(splitting.bytes.max(1)) {
                    self.push_chunk(piece);
                    self.send_outbox().await?;
                    tokio::task::yield_now().await;
                }
            }
        }
        self.send_outbox().await
    }

    /// Ends a chunked body.
    pub(crate) async fn end_chunked(&mut self) -> Result<(), Gone> {
        self.outbox.extend_from_slice(b"0\r\n\r\n");
        self.send_outbox().await
    }

    /// Says goodbye: TLS is closed properly, then the socket.
    pub(crate) async fn close(mut self) {
        // Whether the client hears it is the client's affair.
        self.wire.shutdown().await.ok();
    }

    fn push_chunk(&mut self, body: &[u8]) {
        if !body.is_empty() {
            push_hex(&mut self.outbox, body.len());
            self.outbox.extend_from_slice(b"\r\n");
            self.outbox.extend_from_slice(body);
            self.outbox.extend_from_slice(b"\r\n");
        }
    }

    async fn send_outbox(&mut self) -> Result<(), Gone> {
        let result = self.wire.write_all(&self.outbox).await;
        self.outbox.clear();
        result.map_err(|_| Gone)?;
        self.wire.flush().await.map_err(|_| Gone)
    }

    async fn drip(&mut self, body: &[u8], rate: u32) -> Result<(), Gone> {
        for byte in body.chunks(1) {
            self.or_gone(tokio::time::sleep(byte_time(rate))).await?;
            self.send(byte).await?;
        }
        Ok(())
    }

    async fn drip_chunks(&mut self, body: &[u8], rate: u32) -> Result<(), Gone> {
        for byte in body.chunks(1) {
            self.or_gone(tokio::time::sleep(byte_time(rate))).await?;
            self.push_chunk(byte);
            self.send_outbox().await?;
        }
        Ok(())
    }

    fn head(&self, status: u16, content_type: &str) -> String {
        let mut head = String::with_capacity(256 + self.manners.extra_head.len());
        for _ in 0..self.manners.interim {
            head.push_str("HTTP/1.1 103 Early Hints\r\n\r\n");
        }
        head.push_str("HTTP/1.1 ");
        // Writing to a string cannot fail.
        write!(head, "{status} {}\r\n", reason(status)).ok();
        head.push_str(self.greeting);
        if self.says_close {
            head.push_str("Connection: close\r\n");
        }
        if !content_type.is_empty() {
            write_header(&mut head, "Content-Type", content_type);
        }
        head.push_str(&self.manners.extra_head);
        head
    }
}

fn byte_time(rate: u32) -> Duration {
    Duration::from_secs_f64(1.0 / f64::from(rate.max(1)))
}

fn write_header(head: &mut String, name: &str, value: impl std::fmt::Display) {
    // Writing to a string cannot fail.
    write!(head, "{name}: {value}\r\n").ok();
}

fn push_hex(out: &mut Vec<u8>, number: usize) {
    let digits = (usize::BITS - number.leading_zeros()).div_ceil(4).max(1);
    for shift in (0..digits).rev() {
        let nibble = (number >> (shift * 4)) & 15;
        out.push(b"0123456789abcdef"[nibble]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_sizes_are_written_in_hex() {
        for number in [1usize, 15, 16, 255, 4096, 1_000_000] {
            let mut out = Vec::new();
            push_hex(&mut out, number);
            assert_eq!(String::from_utf8(out).expect("hex digits"), format!("{number:x}"));
        }
    }
}
