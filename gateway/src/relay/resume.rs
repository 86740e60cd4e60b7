//! A stream that outlives its connection.
//!
//! Problem: tunnels lose connections while the phones behind them write on. To carry such an answer on elsewhere costs
//! another phone the whole prompt, seconds to minutes, for text that exists already.
//!
//! Choice: llama-server keeps a stream for whoever names it in the request, and lets it be read on from any byte. So an
//! attempt there is named, its bytes are counted, and when the connection is gone the rest is fetched by another one, within
//! a moment: the codec goes on in the middle of an event and nobody notices. Only where a probe found that streams are kept;
//! elsewhere nothing is named.
//!
//! The price: a phone that keeps a stream writes on when its client leaves. So a named stream is a guard ([`Conversation`]):
//! dropped before its end it is given to [`Abandoned`], whose task has it deleted.
//!
//! Rejected: the name of a client's own conversation (two requests of one name end each other), and asking the engine how
//! much it has written (the bytes received are what counts).

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::HeaderValue;
use ring::rand::{SecureRandom as _, SystemRandom};
use scheduler::ReplicaId;

use super::{abandoned::Abandoned, attempt::is_event_stream};
use crate::{
    config::Secret,
    fleet::Replica,
    gateway::Gateway,
    upstream::{Endpoint, Failure, Reply, Upstream},
};

/// A lost stream may be sought for so long: 3 s. A phone that changes its network is back by then or it takes long, and
/// another replica needs no less to begin.
pub(super) const LIMIT: Duration = Duration::from_secs(3);
/// Before each try: the tunnel may notice a moment later than we do that its phone has come back.
const PAUSES: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(200), Duration::from_millis(600), Duration::from_millis(1200)];

/// A stream that a replica keeps.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub replica: ReplicaId,
    pub endpoint: Arc<Endpoint>,
    pub key: Option<Secret>,
    /// Its name there.
    pub name: HeaderValue,
}

impl Kept {
    fn new(replica: &Replica, name: HeaderValue) -> Self {
        let (endpoint, key) = (Arc::clone(&replica.endpoint), replica.key.clone());
        Self { replica: replica.id, endpoint, key, name }
    }

    /// Where it is.
    pub fn path(&self) -> String {
        // A name of ours: letters and digits.
        format!("/v1/stream?conv_id={}", self.name.to_str().unwrap_or_default())
    }

    pub fn bearer(&self) -> Option<&str> {
        self.key.as_ref().map(Secret::reveal)
    }

    /// Opens it from the byte `from` on; `None` if it can't be had any more, or not in time.
    async fn read_on(&self, upstream: &Upstream, from: u64) -> Option<Reply> {
        let path = format!("{}&from={from}", self.path());
        for pause in PAUSES {
            tokio::time::sleep(pause).await;
            match upstream.open(&self.endpoint, &path, self.bearer()).await {
                Ok(reply) if reply.head.status == 200 && is_event_stream(reply.content_type()) => return Some(reply),
                // The tunnel's word: its phone is not there at the moment.
                Ok(reply) if reply.head.status.is_server_error() && !is_json(&reply) => {}
                // The engine does not know it, has no longer kept that byte, or has been started anew.
                Ok(_) => return None,
                Err(failure) if is_final(&failure) => return None,
                Err(_) => {}
            }
        }
        None
    }
}

/// Whether another try would end no better: nobody is there, or the fault is ours.
fn is_final(failure: &Failure) -> bool {
    !matches!(failure, Failure::BeforeHead(_) | Failure::ConnectTimeout | Failure::TlsTimeout | Failure::Timeout)
}

fn is_json(reply: &Reply) -> bool {
    reply.content_type().is_some_and(|kind| kind.contains("json"))
}

/// A name for a stream that no other request has, of ours or another gateway's, and that nobody guesses.
fn new_name() -> Option<HeaderValue> {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).ok()?;
    HeaderValue::try_from(format!("hg{}", hex::encode(bytes))).ok()
}

/// What a replica writes under a name. Dropped before it is over, it is deleted there.
pub struct Conversation {
    kept: Option<Kept>,
    abandoned: Arc<Abandoned>,
    /// Bytes of the stream that have come.
    received: u64,
    /// Of them, those that had when it was read on last.
    resumed_at: Option<u64>,
}

impl Conversation {
    /// A name for what is about to be asked of this replica, if it keeps streams and the operator has not switched it off.
    pub fn begin(gateway: &Gateway, replica: &Replica) -> Option<Self> {
        if !gateway.config().streams.resume || !replica.facts().keeps_streams {
            return None;
        }
        Some(Self::of(Kept::new(replica, new_name()?), Arc::clone(&gateway.abandoned)))
    }

    fn of(kept: Kept, abandoned: Arc<Abandoned>) -> Self {
        Self { kept: Some(kept), abandoned, received: 0, resumed_at: None }
    }

    /// Its name, for the request.
    pub fn name(&self) -> Option<&HeaderValue> {
        self.kept.as_ref().map(|kept| &kept.name)
    }

    /// There is nothing to be deleted: it is whole, or has never begun.
    pub fn over(mut self) {
        self.kept = None;
    }

    /// The rest of it, by another connection; `None` if it can't be had, or the replica does not know it.
    pub async fn read_on(&mut self, upstream: &Upstream) -> Option<Reply> {
        // One that brought nothing the last time is at its end, or its writer stands still.
        if self.resumed_at.replace(self.received) == Some(self.received) {
            return None;
        }
        let kept = self.kept.as_ref()?;
        // Boxed: for the rare case, and the state of a connect is large.
        let reading = Box::pin(kept.read_on(upstream, self.received));
        tokio::time::timeout(LIMIT, reading).await.ok().flatten()
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        if let Some(kept) = self.kept.take() {
            self.abandoned.take_in(kept);
        }
    }
}

/// The bytes of an answer, by whatever connections they come.
pub struct Source {
    reply: Reply,
    /// Boxed: most answers have none.
    conversation: Option<Box<Conversation>>,
}

impl Source {
    /// An answer that has begun; under a name, if it was asked for under one.
    pub fn new(reply: Reply, conversation: Option<Box<Conversation>>) -> Self {
        Self { reply, conversation }
    }

    /// What it is read from now.
    pub fn reply(&self) -> &Reply {
        &self.reply
    }

    /// The next piece; `None` at the end of the connection. Cancel-safe.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Failure> {
        let piece = self.reply.chunk().await;
        if let (Ok(Some(piece)), Some(conversation)) = (&piece, &mut self.conversation) {
            conversation.received += piece.len() as u64;
        }
        piece
    }

    /// The connection is gone, or silent, before the answer was whole: whether the answer goes on by another one. Takes at
    /// most [`LIMIT`].
    pub async fn resume(&mut self, upstream: &Upstream) -> bool {
        let Some(conversation) = &mut self.conversation else { return false };
        match conversation.read_on(upstream).await {
            Some(reply) => {
                self.reply = reply;
                true
            }
            None => false,
        }
    }

    /// The connection of a whole answer.
    pub fn into_reply(self) -> Reply {
        if let Some(conversation) = self.conversation {
            conversation.over();
        }
        self.reply
    }
}

#[cfg(test)]
#[path = "resume_tests.rs"]
mod tests;
