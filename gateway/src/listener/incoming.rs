//! A body on its way in: how much of it may come, and how long it may take.

use std::{mem, time::Duration};

use super::{
    exchange::ClientLimits,
    gate::{Admitted, Framing},
};
use crate::error::ApiError;

/// A body on its way in.
#[derive(Debug)]
pub struct Incoming {
    /// What the head promised; 0 if it did not say.
    expected: u64,
    max: u64,
    /// The key in the configuration that `max` is from.
    setting: &'static str,
    read: u64,
    /// So long its client has been waited for. What is done with a piece before the next one is wanted does not count.
    waited: Duration,
    ended: bool,
    /// Its client waits to be asked for it.
    waits: bool,
}

impl Incoming {
    /// A body of at most `max` bytes; refused at once if it is known to be larger.
    pub(super) fn new(admitted: &Admitted, max: u64, setting: &'static str) -> Result<Self, ApiError> {
        let (expected, ended) = match admitted.framing {
            Framing::None => (0, true),
            Framing::Length(length) => (length, false),
            Framing::Chunked => (0, false),
        };
        let waits = admitted.expects_continue;
        let body = Self { expected, max, setting, read: 0, waited: Duration::ZERO, ended, waits };
        if expected > max { Err(body.too_large()) } else { Ok(body) }
    }

    /// What the head promised; 0 if it did not say.
    pub fn expected(&self) -> u64 {
        self.expected
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether its client waits to be asked for it; once.
    pub(super) fn asks(&mut self) -> bool {
        mem::take(&mut self.waits)
    }

    pub(super) fn end(&mut self) {
        self.ended = true;
    }

    /// A piece has come.
    pub(super) fn take(&mut self, length: usize) -> Result<(), ApiError> {
        self.read += length as u64;
        if self.read > self.max { Err(self.too_large()) } else { Ok(()) }
    }

    /// How long the next piece may take: what is left of the time for as much as has come, or was promised.
    pub(super) fn patience(&self, limits: &ClientLimits) -> Duration {
        let blocks = u32::try_from(self.read.max(self.expected) >> 16).unwrap_or(u32::MAX);
        let allowed = limits.body_deadline.saturating_add(limits.body_deadline_per_64k.saturating_mul(blocks));
        allowed.saturating_sub(self.waited)
    }

    /// Its client was waited for.
    pub(super) fn waited(&mut self, length: Duration) {
        self.waited += length;
    }

    fn too_large(&self) -> ApiError {
        ApiError::transport(413, format!("The body is larger than {} bytes ({}).", self.max, self.setting))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener::Target;

    fn body(framing: Framing, max: u64) -> Result<Incoming, ApiError> {
        let admitted = Admitted { target: Target::Models, framing, expects_continue: true };
        Incoming::new(&admitted, max, "batches.max_file")
    }

    fn limits() -> ClientLimits {
        ClientLimits {
            max_body: 0,
            body_deadline: Duration::from_secs(30),
            body_deadline_per_64k: Duration::from_secs(1),
            head_after: Duration::ZERO,
            keepalive_interval: Duration::ZERO,
            keepalive_json_after: None,
        }
    }

    #[test]
    fn a_body_has_time_for_its_length_and_only_waiting_for_it_counts() {
        let mut came = body(Framing::Chunked, 10 << 20).expect("small enough");
        assert_eq!(came.patience(&limits()), Duration::from_secs(30));
        came.waited(Duration::from_secs(29));
        came.take(1 << 20).expect("small enough");
        assert_eq!(came.patience(&limits()), Duration::from_secs(17));
        let promised = body(Framing::Length(1 << 20), 10 << 20).expect("small enough");
        assert_eq!(promised.patience(&limits()), Duration::from_secs(46));
    }

    #[test]
    fn more_than_may_come_is_refused_as_soon_as_it_is_known() {
        let refused = body(Framing::Length(11), 10).expect_err("too large");
        assert_eq!(refused.status(), 413);
        assert!(refused.to_string().contains("10 bytes (batches.max_file)"), "{refused}");
        let mut came = body(Framing::Chunked, 10).expect("nothing known");
        assert!(came.asks() && !came.asks(), "a client is asked once");
        assert!(came.take(10).is_ok() && came.take(1).is_err());
    }
}
