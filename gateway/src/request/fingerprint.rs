//! Fingerprints of prompts: what the scheduler knows a conversation, or a shared template, by.
//!
//! One hash runs over all that the model reads, in its order, with the boundaries between; its value is noted at each of
//! [`Prefix`]'s cuts, so each fingerprint depends on everything before it. It ends with the last cut.
//!
//! The hash is SipHash under a key that each process draws anew: nobody can make a prompt whose fingerprints are another's,
//! to be sent where that other one's work is warm, or to have it sent astray. Tenants are not told apart: phones share what
//! they have read among all who ask them, whatever the gateway thinks, and a template that two tenants share is read
//! once. Rejected: a hash without a key (collisions can be computed), a cryptographic one (ten times slower; a collision
//! found by luck costs one detour), the engine's own tokens (each phone has its own vocabulary, and asking costs a
//! round trip).

use std::{
    hash::{BuildHasher, DefaultHasher, Hasher, RandomState},
    ops::ControlFlow,
};

use openai_wire::Piece;
use scheduler::Prefix;

use super::BYTES_PER_TOKEN;

/// Bytes of text up to a cut.
fn bytes_before(cut: usize) -> usize {
    Prefix::cut(cut) as usize * BYTES_PER_TOKEN as usize
}

/// Bytes of a prompt's text that count; what is beyond makes no difference.
pub(super) fn counted() -> usize {
    bytes_before(Prefix::MAX_CUTS)
}

/// The key of this process.
#[derive(Clone, Debug, Default)]
pub struct FingerprintKey(RandomState);

impl FingerprintKey {
    /// For the fingerprints of one prompt.
    pub(super) fn begin(&self) -> Fingerprinter {
        Fingerprinter { hash: self.0.build_hasher(), text: 0, due: bytes_before(1), found: Vec::new() }
    }
}

/// Takes a prompt piece by piece.
pub(super) struct Fingerprinter {
    hash: DefaultHasher,
    /// Bytes of text so far.
    text: usize,
    /// The next cut is there.
    due: usize,
    found: Vec<u64>,
}

impl Fingerprinter {
    /// Breaks when no further piece makes a difference.
    pub(super) fn take(&mut self, piece: Piece<'_>) -> ControlFlow<()> {
        match piece {
            Piece::Text(text) => self.run(text.as_bytes()),
            Piece::Mark { bytes, text } => {
                self.hash.write(bytes);
                self.text += text;
                if self.text >= self.due { self.cut() } else { ControlFlow::Continue(()) }
            }
        }
    }

    fn run(&mut self, mut text: &[u8]) -> ControlFlow<()> {
        while let Some((before, after)) = text.split_at_checked(self.due - self.text) {
            self.hash.write(before);
            self.text = self.due;
            self.cut()?;
            text = after;
        }
        self.hash.write(text);
        self.text += text.len();
        ControlFlow::Continue(())
    }

    fn cut(&mut self) -> ControlFlow<()> {
        self.found.push(self.hash.finish());
        self.due = bytes_before(self.found.len() + 1);
        if self.found.len() < Prefix::MAX_CUTS { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    /// The fingerprints.
    pub(super) fn prefix(self) -> Prefix {
        Prefix::new(self.found)
    }
}
