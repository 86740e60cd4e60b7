//! `[idempotency]`: how a client that lost its connection comes back to its answer.

use std::time::Duration;

use super::{
    bytes::ByteSize,
    value::named,
    visit::{Section, Visitor, live},
};

const fn minutes(count: u64) -> Duration {
    Duration::from_secs(60 * count)
}

/// Whether requests without an `Idempotency-Key` are told by their bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinByBody {
    /// Each is a request of its own, and hanging up cancels it.
    Off,
    /// One that says it is a retry joins the last one with the same body.
    Retries,
    /// Each joins the last one with the same body.
    Always,
}
named!(JoinByBody, "\"off\", \"retries\" or \"always\"",
    "off" => JoinByBody::Off, "retries" => JoinByBody::Retries, "always" => JoinByBody::Always);

/// What is kept for clients that come back, and for how long.
#[derive(Clone, Debug, PartialEq)]
pub struct Idempotency {
    /// A whole answer stays for its key. 24 h: what other APIs with such keys promise.
    pub keep: Duration,
    /// All answers, running and kept. 64 MiB: some ten thousand of a thousand tokens each.
    pub max_bytes: ByteSize,
    /// One answer. 4 MiB: twenty thousand tokens as a stream, more than a phone writes in half an hour.
    pub max_answer: ByteSize,
    /// A request that nobody waits for goes on. 2 min: SDKs come back within seconds, people within a minute, and the slot
    /// is missing to others.
    pub grace: Duration,
    /// Requests without a key. Off: it gives up that hanging up cancels.
    pub join_by_body: JoinByBody,
    /// A whole answer stays for its body. 10 min: as long as SDKs keep trying.
    pub window: Duration,
}

impl Default for Idempotency {
    fn default() -> Self {
        Self {
            keep: minutes(24 * 60),
            max_bytes: ByteSize::mib(64),
            max_answer: ByteSize::mib(4),
            grace: minutes(2),
            join_by_body: JoinByBody::Off,
            window: minutes(10),
        }
    }
}

impl Section for Idempotency {
    fn visit<V: Visitor>(&mut self, v: &mut V) {
        let week = minutes(7 * 24 * 60);
        v.ranged(live("keep"), &mut self.keep, Duration::ZERO..=week);
        v.ranged(live("max_bytes"), &mut self.max_bytes, ByteSize::kib(64)..=ByteSize::mib(1 << 20));
        v.ranged(live("max_answer"), &mut self.max_answer, ByteSize::kib(4)..=ByteSize::mib(1024));
        v.ranged(live("grace"), &mut self.grace, Duration::ZERO..=minutes(60));
        v.value(live("join_by_body"), &mut self.join_by_body);
        v.ranged(live("window"), &mut self.window, Duration::ZERO..=week);
    }
}
