//! Hashes: words to token ids, messages to the digest that an answer carries, bodies to what a test compares.

use ring::digest::{SHA256, digest};

/// Lower-case hex of the first `bytes` bytes of SHA-256.
pub fn sha256_hex(data: &[u8], bytes: usize) -> String {
    let full = digest(&SHA256, data);
    hex::encode(&full.as_ref()[..bytes.min(full.as_ref().len())])
}

/// The first 8 bytes of SHA-256 as a number.
pub(crate) fn sha256_u64(data: &[u8]) -> u64 {
    let full = digest(&SHA256, data);
    full.as_ref().iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The digest that the answer to `message` carries: 8 hex digits, so that a test in any language can compute it.
pub fn message_digest(message: &str) -> String {
    sha256_hex(message.as_bytes(), 4)
}

/// A 64-bit FNV-1a hash: fast on short words, the same everywhere.
pub(crate) fn fnv(data: &[u8]) -> u64 {
    data.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The token id of a word.
pub(crate) fn token(word: &str) -> u32 {
    let hash = fnv(word.as_bytes());
    (hash ^ (hash >> 32)) as u32
}
