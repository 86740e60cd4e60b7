//! Bodies that no honest engine sends.

use crate::http::{Conn, Gone};
use crate::visit::Flow;

/// Starts a stream with one line and never ends it.
pub(crate) async fn endless_line(conn: &mut Conn) -> Result<Flow, Gone> {
    conn.begin_chunked("text/event-stream", "");
    conn.send_chunk(b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"").await?;
    let more = [b'a'; 16 * 1024];
    loop {
        conn.or_gone(tokio::task::yield_now()).await?;
        conn.send_chunk(&more).await?;
    }
}

/// A gzip body of zeros that grows about 158 times: one literal, then matches of the greatest length at distance one.
/// Its checksum is wrong, which nobody finds out before unpacking it whole.
pub(crate) fn gzip_bomb(mebibytes: u32) -> Vec<u8> {
    const LONGEST_MATCH: u64 = 258;
    let size = u64::from(mebibytes) * 1024 * 1024;
    let mut bits = Bits::default();
    bits.push(0b1, 1); // last block
    bits.push(0b01, 2); // fixed codes
    bits.push_code(0x30, 8); // literal 0
    for _ in 0..size / LONGEST_MATCH {
        bits.push_code(0b1100_0101, 8); // length 258
        bits.push_code(0, 5); // distance 1
    }
    bits.push_code(0, 7); // end of block
    let mut body = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    body.extend_from_slice(&bits.finish());
    body.extend_from_slice(&[0; 8]);
    body
}

/// Bits in the order of deflate: fields from the lowest bit, codes from the highest.
#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    pending: u32,
    count: u32,
}

impl Bits {
    fn push(&mut self, value: u32, width: u32) {
        self.pending |= value << self.count;
        self.count += width;
        while self.count >= 8 {
            self.bytes.push((self.pending & 0xff) as u8);
            self.pending >>= 8;
            self.count -= 8;
        }
    }

    fn push_code(&mut self, code: u32, width: u32) {
        for bit in (0..width).rev() {
            self.push((code >> bit) & 1, 1);
        }
    }

    fn finish(mut self) -> Vec<u8> {
        if self.count > 0 {
            self.bytes.push((self.pending & 0xff) as u8);
        }
        self.bytes
    }
}
