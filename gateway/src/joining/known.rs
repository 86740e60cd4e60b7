//! Which requests can be joined, by what they are told by.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use openai_wire::Route;
use ring::digest::{Context, SHA256};
use scheduler::{TenantId, Timestamp};

use super::tape::Tape;

/// What a request says, in 32 bytes: its route and its body. SHA-256: equal where those are equal, and nowhere else, so that
/// nobody is ever given the answer to another question; a 64-bit hash could not promise that.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Of a request.
    pub fn of(route: Route, body: &[u8]) -> Self {
        let mut context = Context::new(&SHA256);
        // No path has a zero byte.
        context.update(route.path().as_bytes());
        context.update(&[0]);
        context.update(body);
        let mut digest = [0; 32];
        digest.copy_from_slice(context.finish().as_ref());
        Self(digest)
    }
}

/// By what a tenant's request is told when it comes again.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Name {
    /// Whose. Never another's: what one tenant asked must not be found by another's guess.
    pub tenant: TenantId,
    /// The key that its client chose, or else what it says.
    pub by: By,
}

/// See [`Name`].
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum By {
    /// `Idempotency-Key`.
    Key(Arc<str>),
    /// Route and body.
    Body(Digest),
}

/// Those that can be joined.
#[derive(Default)]
pub struct Known {
    entries: HashMap<Name, Entry>,
    /// The whole ones, by when they are forgotten.
    kept: BTreeMap<(Timestamp, u64), Name>,
    count: u64,
}

struct Entry {
    digest: Digest,
    tape: Arc<Tape>,
    /// Its place in `kept`, once it is whole.
    kept: Option<(Timestamp, u64)>,
}

impl Known {
    /// What is known by this name: what it says, and its answer.
    pub fn find(&self, name: &Name) -> Option<(Digest, &Arc<Tape>)> {
        self.entries.get(name).map(|entry| (entry.digest, &entry.tape))
    }

    /// Another one of this name; an earlier one is forgotten.
    pub fn insert(&mut self, name: Name, digest: Digest, tape: Arc<Tape>) {
        self.remove(&name);
        self.entries.insert(name, Entry { digest, tape, kept: None });
    }

    /// It is whole, and is forgotten at that time.
    pub fn keep(&mut self, name: &Name, tape: &Arc<Tape>, until: Timestamp) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        if Arc::ptr_eq(&entry.tape, tape) {
            let place = (until, self.count);
            self.count += 1;
            entry.kept = Some(place);
            self.kept.insert(place, name.clone());
        }
    }

    /// Forgets this one, unless another has its name by now.
    pub fn forget(&mut self, name: &Name, tape: &Arc<Tape>) {
        if self.entries.get(name).is_some_and(|entry| Arc::ptr_eq(&entry.tape, tape)) {
            self.remove(name);
        }
    }

    /// Forgets the whole ones whose time has come.
    pub fn expire(&mut self, now: Timestamp) {
        while self.kept.first_key_value().is_some_and(|((until, _), _)| *until <= now) {
            self.forget_first();
        }
    }

    /// Forgets the whole one whose time is nearest; false if there is none.
    pub fn forget_first(&mut self) -> bool {
        let first = self.kept.pop_first();
        first.is_some_and(|(_, name)| self.entries.remove(&name).is_some())
    }

    fn remove(&mut self, name: &Name) {
        if let Some(place) = self.entries.remove(name).and_then(|entry| entry.kept) {
            self.kept.remove(&place);
        }
    }
}
