//! A node of the chain, asked by JSON-RPC over HTTPS.
//!
//! The operator states the node, so it is trusted as any web server is: by the system's roots, not by those stated for
//! phones. It is not trusted to be well: every answer is bounded in time, in bytes and in number, and read strictly.
//! Rejected: a client library of such chains (`subxt`: a large tree of crates and generated code for every type of the
//! runtime, for five calls), and a WebSocket with subscriptions (a connection to keep alive, for what changes hourly).

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json, value::RawValue};

use super::keys::Key;
use crate::{
    config::{self, RpcUrl},
    upstream::{Endpoint, Failure, TlsError, Upstream},
};

/// For one answer. A node behind a busy proxy takes a second or two.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Keys on one page: what nodes allow at most is 1,000.
const PAGE: usize = 256;
/// Values asked for at once. A registration has up to 32 KiB, twice that as text, and an answer may have 1 MiB.
const VALUES: usize = 12;
/// Letters of a node's own words that are shown.
const SHOWN: usize = 200;

/// Why a node's answer is of no use.
#[derive(Debug, thiserror::Error)]
pub enum RpcError {
    /// There is none.
    #[error("the node can't be asked: {0}")]
    Failure(#[from] Failure),
    /// Its web server answered instead, or refuses us.
    #[error("the node answers with status {0}")]
    Status(u16),
    /// It says that it can't.
    #[error("{method}: the node refuses: {message} ({code})")]
    Refused {
        /// The call.
        method: &'static str,
        /// JSON-RPC's number.
        code: i64,
        /// The node's words, printable and short.
        message: String,
    },
    /// Not the answer to this call.
    #[error("{method}: not an answer to this call: {why}")]
    Strange {
        /// The call.
        method: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// More than is read.
    #[error("{method}: more than {max} entries")]
    TooMany {
        /// The call.
        method: &'static str,
        /// The bound.
        max: usize,
    },
}

impl RpcError {
    fn strange(method: &'static str, why: impl Into<String>) -> Self {
        Self::Strange { method, why: why.into() }
    }

    /// The outcome in metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Failure(Failure::Timeout) => "timeout",
            Self::Failure(Failure::TooLarge(_)) | Self::TooMany { .. } => "too_large",
            Self::Failure(_) => "unreachable",
            Self::Status(_) | Self::Refused { .. } => "refused",
            Self::Strange { .. } => "strange",
        }
    }
}

/// A block, by its hash as the node writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block(String);

/// Which runtime made a block.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Runtime {
    /// Its name.
    pub spec_name: String,
    /// Raised with every upgrade.
    pub spec_version: u32,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    error: Option<ErrorObject>,
    id: Option<u64>,
}

#[derive(Deserialize)]
struct ErrorObject {
    code: i64,
    message: String,
}

/// A client of one node.
pub struct Rpc {
    upstream: Arc<Upstream>,
    endpoint: Endpoint,
    path: String,
}

impl Rpc {
    /// No connection is made yet.
    ///
    /// # Errors
    /// The system has no root certificates.
    pub fn new(url: &RpcUrl) -> Result<Self, TlsError> {
        // The operator states this one address himself, so it may be a private one.
        let pool = config::Pool { allow_private: true, ..config::Pool::default() };
        Ok(Self {
            upstream: Arc::new(Upstream::new(&pool)?),
            endpoint: Endpoint::new(url.node.tls(), &url.node.host(), url.node.port()),
            path: url.path.clone(),
        })
    }

    async fn call<T: DeserializeOwned>(&self, method: &'static str, params: Value) -> Result<T, RpcError> {
        let body = Bytes::from(json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string());
        let fetched = self.upstream.post_json(&self.endpoint, &self.path, None, body, TIMEOUT).await?;
        if fetched.status != 200 {
            return Err(RpcError::Status(fetched.status));
        }
        let strange = |error: serde_json::Error| RpcError::strange(method, error.to_string());
        let envelope: Envelope<'_> = serde_json::from_slice(&fetched.body).map_err(strange)?;
        if let Some(ErrorObject { code, message }) = envelope.error {
            return Err(RpcError::Refused { method, code, message: printable(&message) });
        }
        if envelope.id != Some(1) {
            return Err(RpcError::strange(method, "it has another id"));
        }
        let result = envelope.result.ok_or_else(|| RpcError::strange(method, "it has no result"))?;
        serde_json::from_str(result.get()).map_err(strange)
    }

    /// The newest block that stays.
    ///
    /// # Errors
    /// The node does not answer, or not as it should.
    pub async fn finalized_head(&self) -> Result<Block, RpcError> {
        let method = "chain_getFinalizedHead";
        let hash: String = self.call(method, json!([])).await?;
        match from_hex(&hash) {
            Some(bytes) if bytes.len() == 32 => Ok(Block(hash)),
            _ => Err(RpcError::strange(method, "not a hash")),
        }
    }

    /// A block's number.
    ///
    /// # Errors
    /// The node does not answer, or not as it should.
    pub async fn number(&self, at: &Block) -> Result<u64, RpcError> {
        #[derive(Deserialize)]
        struct Header {
            number: String,
        }
        let method = "chain_getHeader";
        let header: Header = self.call(method, json!([at.0])).await?;
        let digits = header.number.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
        digits.ok_or_else(|| RpcError::strange(method, "not a number"))
    }

    /// The runtime of a block.
    ///
    /// # Errors
    /// The node does not answer, or not as it should.
    pub async fn runtime(&self, at: &Block) -> Result<Runtime, RpcError> {
        let runtime: Runtime = self.call("state_getRuntimeVersion", json!([at.0])).await?;
        Ok(Runtime { spec_name: printable(&runtime.spec_name), ..runtime })
    }

    /// All keys that begin with `front`, in order.
    ///
    /// # Errors
    /// The node does not answer, or not as it should; or there are more than `max`.
    pub async fn keys(&self, front: &Key, at: &Block, max: usize) -> Result<Vec<Key>, RpcError> {
        let method = "state_getKeysPaged";
        let mut keys: Vec<Key> = Vec::new();
        loop {
            let after = keys.last().map(|key| prefixed(key));
            let page: Vec<String> = self.call(method, json!([prefixed(front), PAGE, after, at.0])).await?;
            let whole = page.len() < PAGE;
            for text in page {
                let key = from_hex(&text).ok_or_else(|| RpcError::strange(method, "a key that is no hex"))?;
                // A page that does not go on would be asked for again and again.
                if !key.starts_with(front) || keys.last().is_some_and(|last| *last >= key) {
                    return Err(RpcError::strange(method, "a key that was not asked for"));
                }
                keys.push(key);
            }
            if keys.len() > max {
                return Err(RpcError::TooMany { method, max });
            }
            if whole {
                return Ok(keys);
            }
        }
    }

    /// The values of some keys, in their order; `None`: there is none.
    ///
    /// # Errors
    /// The node does not answer, or not as it should.
    pub async fn values(&self, keys: &[Key], at: &Block) -> Result<Vec<Option<Vec<u8>>>, RpcError> {
        #[derive(Deserialize)]
        struct Changes {
            changes: Vec<(String, Option<String>)>,
        }
        let method = "state_queryStorageAt";
        let mut values = Vec::with_capacity(keys.len());
        for some in keys.chunks(VALUES) {
            let asked: Vec<String> = some.iter().map(|key| prefixed(key)).collect();
            let sets: Vec<Changes> = self.call(method, json!([asked, at.0])).await?;
            let found: Vec<(String, Option<String>)> = sets.into_iter().flat_map(|set| set.changes).collect();
            for key in &asked {
                // Said of each key, also of one without a value: what is left out is no word about it.
                let (_, value) = found
                    .iter()
                    .find(|(name, _)| name.eq_ignore_ascii_case(key))
                    .ok_or_else(|| RpcError::strange(method, "a key that was asked for is missing"))?;
                let read =
                    |text: &String| from_hex(text).ok_or_else(|| RpcError::strange(method, "a value that is no hex"));
                values.push(value.as_ref().map(read).transpose()?);
            }
        }
        Ok(values)
    }
}

fn prefixed(bytes: &[u8]) -> String {
    format!("0x{}", hex::encode(bytes))
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    hex::decode(text.strip_prefix("0x")?).ok()
}

fn printable(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_is_read_as_it_is_written() {
        assert_eq!(from_hex(&prefixed(&[0, 0xab, 0xff])), Some(vec![0, 0xab, 0xff]));
        assert_eq!(from_hex("0x"), Some(Vec::new()));
        for odd in ["", "ab", "0x0", "0xzz", "0xé", "0x+1"] {
            assert_eq!(from_hex(odd), None, "{odd}");
        }
    }

    #[test]
    fn a_nodes_words_are_made_printable_and_short() {
        assert_eq!(printable("a\u{1b}[31mb\n"), "a[31mb");
        assert_eq!(printable(&"é".repeat(5_000)).chars().count(), SHOWN);
    }
}
