//! The changes to a chunk, and how they are written.

use super::heads::{Head, Heads};
use bytes::{BufMut, BytesMut};

/// One change to a chunk.
#[derive(Clone, Copy, Debug)]
pub(super) enum Patch {
    Cut,
    Static(&'static str),
    Head(Head),
    /// A head member that was missing, with its comma.
    NewHead(Head),
    /// A missing `index`.
    Index(u32),
    /// The index of the choice that is carried on.
    Number(u32),
    /// What of a text has passed the gate: from there to there.
    Passed(usize, usize),
}

/// Writes what stands in the place of a change. `passed` is the gate's text.
pub(super) fn put(out: &mut BytesMut, patch: Patch, heads: &Heads, passed: &str) {
    match patch {
        Patch::Cut => {}
        Patch::Static(text) => out.put_slice(text.as_bytes()),
        Patch::Head(head) => out.put_slice(heads.get(head)),
        Patch::NewHead(head) => {
            heads.put(out, head);
            out.put_u8(b',');
        }
        Patch::Index(index) => {
            out.put_slice(br#""index":"#);
            out.put_slice(index.to_string().as_bytes());
        }
        Patch::Number(number) => out.put_slice(number.to_string().as_bytes()),
        Patch::Passed(from, to) => out.put_slice(&passed.as_bytes()[from..to]),
    }
}
