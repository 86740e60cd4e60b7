//! Joining: a client that lost its connection comes back to its running request, or is given the kept answer.
//!
//! Problem: phones need minutes, and SDKs, proxies and people give up after one to five and ask again. Each try began anew,
//! on another phone, and none was ever finished. Choice: a request that can be told again (by its `Idempotency-Key`, or by its
//! body where the operator wants that) runs in a task of its own, which writes the answer into a [`Tape`]. Its client is
//! the tape's first reader; whoever asks the same again is another one. Nobody reading for `idempotency.grace` ends
//! it. `gateway/docs/decisions/0011-joined-requests.md` has what was rejected.
//!
//! | file | holds |
//! |---|---|
//! | `known` | which requests can be joined, and by what they are told |
//! | `tape` | one answer, its readers, its bound |
//! | `recorder` | its writer: what an [`Exchange`](crate::listener::Exchange) without a client writes to |
//! | `room` | what all answers take |
//! | `run` | the task of such a request |
//! | `follow` | a client that reads |

mod follow;
mod known;
mod recorder;
mod room;
mod run;
mod tape;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use scheduler::Timestamp;

use self::{
    known::{By, Digest, Known, Name},
    room::Room,
    tape::{Reader, Tape},
};
pub use self::{recorder::Recorder, tape::Opening};
use crate::{clock, config::Idempotency};

/// What an answer takes besides its bytes: heads, places in maps, the key. Measured: 3.1 KB with a key of 37 characters. It
/// bounds the number of kept answers as well: 16,384 in 64 MiB.
const OVERHEAD: usize = 4 << 10;

/// The answers that can be joined.
#[derive(Default)]
pub struct Joining {
    known: Mutex<Known>,
    room: Arc<Room>,
}

/// What is known of a request that comes in.
enum Found {
    /// Its key was sent with another route or body.
    Other,
    /// It has been asked before: a place in the answer, and whether that is whole.
    Joined(Reader, bool),
    /// It is new: who writes its answer, and its client's place in it.
    New(Recorder, Reader),
}

impl Joining {
    /// Bytes of all answers.
    pub fn bytes(&self) -> u64 {
        self.known().expire(clock::now());
        self.room.taken()
    }

    /// Finds the answer of a request, or begins one in the name of the request `id`. One that `joins` is given an earlier
    /// one's answer; otherwise it takes that one's place.
    fn find(
        self: &Arc<Self>,
        name: Name,
        digest: Digest,
        joins: bool,
        id: &Arc<str>,
        limits: &Idempotency,
        now: Timestamp,
    ) -> Found {
        self.room.resize(limits.max_bytes.as_u64());
        let mut known = self.known();
        known.expire(now);
        if joins && let Some((earlier, tape)) = known.find(&name) {
            if earlier != digest && tape.is_open() {
                return Found::Other;
            }
            if let Some((reader, whole)) = tape.join() {
                return Found::Joined(reader, whole);
            }
        }
        let mut charge = self.room.charge();
        self.evict(&mut known, OVERHEAD);
        let open = charge.grow(OVERHEAD);
        let (max, keep) = (limits.max_answer.as_usize(), limits.kept(&name));
        let (tape, reader) = Tape::new(Arc::clone(id), max, limits.grace, charge, open);
        if open {
            known.insert(name.clone(), digest, Arc::clone(&tape));
        }
        Found::New(Recorder::new(tape, Arc::clone(self), name, keep), reader)
    }

    /// Lets kept answers go until there is room for so many bytes, or none is left.
    fn make_room(&self, bytes: usize) {
        if !self.room.has(bytes) {
            self.evict(&mut self.known(), bytes);
        }
    }

    fn evict(&self, known: &mut Known, bytes: usize) {
        while !self.room.has(bytes) && known.forget_first() {}
    }

    /// The answer is whole.
    fn keep(&self, name: &Name, tape: &Arc<Tape>, until: Timestamp, now: Timestamp) {
        let mut known = self.known();
        known.keep(name, tape, until);
        known.expire(now);
    }

    /// The answer can't be joined any more.
    fn forget(&self, name: &Name, tape: &Arc<Tape>) {
        self.known().forget(name, tape);
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Idempotency {
    /// How long a whole answer of this name stays.
    fn kept(&self, name: &Name) -> std::time::Duration {
        match name.by {
            By::Key(_) => self.keep,
            By::Body(_) => self.window,
        }
    }
}
