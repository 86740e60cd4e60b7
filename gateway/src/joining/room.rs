//! Room for answers: what all of them take, running and kept.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Bytes taken, and how many may be.
#[derive(Debug, Default)]
pub struct Room {
    taken: AtomicU64,
    max: AtomicU64,
}

/// A share of it; given back when dropped.
#[derive(Debug)]
pub struct Charge {
    room: Arc<Room>,
    bytes: u64,
}

impl Room {
    /// How much there is; what is taken stays.
    pub fn resize(&self, max: u64) {
        self.max.store(max, Ordering::Relaxed);
    }

    /// Bytes taken.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Whether there are so many bytes more.
    pub fn has(&self, bytes: usize) -> bool {
        self.taken() + bytes as u64 <= self.max.load(Ordering::Relaxed)
    }

    /// A share of nothing yet.
    pub fn charge(self: &Arc<Self>) -> Charge {
        Charge { room: Arc::clone(self), bytes: 0 }
    }
}

impl Charge {
    /// Takes more, if there is.
    pub fn grow(&mut self, bytes: usize) -> bool {
        let bytes = bytes as u64;
        if self.room.taken.fetch_add(bytes, Ordering::Relaxed) + bytes > self.room.max.load(Ordering::Relaxed) {
            self.room.taken.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        self.bytes += bytes;
        true
    }

    /// Gives back what is no longer used.
    pub fn shrink(&mut self, bytes: usize) {
        let bytes = self.bytes.min(bytes as u64);
        self.room.taken.fetch_sub(bytes, Ordering::Relaxed);
        self.bytes -= bytes;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.room.taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
