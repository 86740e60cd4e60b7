//! `[streams]`: how long silence may last, towards the client and from the replica, and what becomes of an answer whose
//! replica goes away.

use std::time::Duration;

use scheduler::Carry;

use super::{
    bytes::ByteSize,
    value::named,
    visit::{Section, Visitor, live},
};

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// What is sent to a client while there is nothing to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keepalive {
    /// An SSE comment: every parser drops it, every middle box counts it.
    Comment,
    /// An empty delta, for clients whose idle timer ignores comments.
    Chunk,
}
named!(Keepalive, "\"comment\" or \"chunk\"", "comment" => Keepalive::Comment, "chunk" => Keepalive::Chunk);
named!(Carry, "\"always\", \"same_group\" or \"never\"",
    "always" => Carry::Anyone, "same_group" => Carry::SameGroup, "never" => Carry::Never);

/// Deadlines and bounds of answers. Those towards replicas start from the replica's own measured speed.
#[derive(Clone, Debug, PartialEq)]
pub struct Streams {
    /// A waiting streaming client gets its head after this. 10 s: until then a refusal is a proper status.
    pub head_after: Duration,
    /// And then a sign of life this often. 15 s: the shortest idle timers on the way are 60 s, and one may be lost.
    pub keepalive_interval: Duration,
    /// Which sign of life.
    pub keepalive: Keepalive,
    /// Plain answers that take longer get their head and then spaces; off by default, because the status is then sent.
    pub keepalive_json_after: Option<Duration>,
    /// A replica's first sign of progress is awaited at least this long. 60 s.
    pub first_token_min: Duration,
    /// Or this many times what the replica's own speed says for that prompt, or for what it reports to be left of it. 3.
    pub first_token_factor: f64,
    /// But no longer; of a replica that reports how it gets on, for each eighth of the prompt. 30 min: a 9B model reads a
    /// full context in less.
    pub first_token_cap: Duration,
    /// The next token is awaited at least this long. 30 s: a tunnel that lost its phone stays silent for 31 s.
    pub gap_min: Duration,
    /// Or this many times the replica's own 95th percentile; while it reads, its own longest step. 10.
    pub gap_factor: f64,
    /// But no longer. 180 s.
    pub gap_cap: Duration,
    /// An answer that its replica can't stream may take this long in all. 30 min: it has no tokens to watch.
    pub plain_total: Duration,
    /// Largest event of a stream. 1 MiB: an endless line of a hostile phone ends here.
    pub max_event: ByteSize,
    /// Largest plain answer. 64 MiB: embeddings of a large batch fit.
    pub max_answer: ByteSize,
    /// `continue`: who may carry on an answer whose replica went away. Anyone with the model: an answer that reads on
    /// naturally is worth more than none.
    pub carry: Carry,
    /// Tool calls go out whole: engines can't write the rest of one, and agents act on whole calls.
    pub hold_tool_calls: bool,
    /// An answer whose connection was lost, but not its replica, is read on from there, where the engine keeps it. On: it
    /// costs nothing until then, and saves reading the prompt again.
    pub resume: bool,
    /// Most text kept of a streamed answer, to be carried on. 1 MiB: the answer of a full context of 256k tokens.
    pub max_kept: ByteSize,
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            head_after: seconds(10),
            keepalive_interval: seconds(15),
            keepalive: Keepalive::Comment,
            keepalive_json_after: None,
            first_token_min: seconds(60),
            first_token_factor: 3.0,
            first_token_cap: seconds(1800),
            gap_min: seconds(30),
            gap_factor: 10.0,
            gap_cap: seconds(180),
            plain_total: seconds(1800),
            max_event: ByteSize::mib(1),
            max_answer: ByteSize::mib(64),
            carry: Carry::Anyone,
            hold_tool_calls: true,
            resume: true,
            max_kept: ByteSize::mib(1),
        }
    }
}

impl Section for Streams {
    fn visit<V: Visitor>(&mut self, v: &mut V) {
        let tick = Duration::from_millis(100);
        let day = seconds(86_400);
        v.ranged(live("head_after"), &mut self.head_after, seconds(0)..=seconds(300));
        v.ranged(live("keepalive_interval"), &mut self.keepalive_interval, tick..=seconds(300));
        v.value(live("keepalive"), &mut self.keepalive);
        v.ranged(live("keepalive_json_after"), &mut self.keepalive_json_after, tick..=seconds(300));
        v.ranged(live("first_token_min"), &mut self.first_token_min, tick..=day);
        v.ranged(live("first_token_factor"), &mut self.first_token_factor, 1.0..=100.0);
        v.ranged(live("first_token_cap"), &mut self.first_token_cap, tick..=day);
        v.ranged(live("gap_min"), &mut self.gap_min, tick..=day);
        v.ranged(live("gap_factor"), &mut self.gap_factor, 1.0..=1000.0);
        v.ranged(live("gap_cap"), &mut self.gap_cap, tick..=day);
        v.ranged(live("plain_total"), &mut self.plain_total, tick..=day);
        v.ranged(live("max_event"), &mut self.max_event, ByteSize::kib(4)..=ByteSize::mib(64));
        v.ranged(live("max_answer"), &mut self.max_answer, ByteSize::kib(64)..=ByteSize::mib(1024));
        v.value(live("continue"), &mut self.carry);
        v.value(live("hold_tool_calls"), &mut self.hold_tool_calls);
        v.value(live("resume"), &mut self.resume);
        v.ranged(live("max_kept"), &mut self.max_kept, ByteSize::kib(1)..=ByteSize::mib(64));
    }
}
