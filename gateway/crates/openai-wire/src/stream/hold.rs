//! Events of tool calls, held back until the calls are whole.
//!
//! Problem: engines can be made to write on from a text, but not from the middle of a tool call or from behind one. A client
//! that has seen a half call of a replica that died can't be helped any more, though it had no use for the half.
//!
//! Choice: where the operator wants it, everything from the first piece of a call on waits here, in order, until the attempt
//! has its finish reasons. The price is that arguments come in one burst; clients act on whole calls anyway.

use bytes::{BufMut, BytesMut};

/// Most bytes held. A piece of a call is an event of about 300 bytes and holds a token: this is an argument of 3,500 tokens, or
/// some ten files of source. What is larger goes out as it comes, and its answer can't be carried on.
pub(super) const MAX_HELD: usize = 1024 * 1024;

/// What has not gone out yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Hold {
    held: Option<BytesMut>,
    /// There was too much to hold: nothing is held any more.
    full: bool,
}

impl Hold {
    /// From now on events are held.
    pub fn begin(&mut self) {
        self.held.get_or_insert_default();
    }

    /// Whether events are held.
    pub fn is_on(&self) -> bool {
        self.held.is_some()
    }

    /// Where an event goes that is written now.
    pub fn sink<'a>(&'a mut self, out: &'a mut BytesMut) -> &'a mut BytesMut {
        self.held.as_mut().unwrap_or(out)
    }

    /// Whether there was more than may be held: it has to go out, and nothing more is held of this answer.
    pub fn is_full(&mut self) -> bool {
        self.full |= self.len() > MAX_HELD;
        self.full
    }

    /// There is no room to hold anything.
    pub fn give_up(&mut self) {
        self.full = true;
    }

    /// Bytes held.
    pub fn len(&self) -> usize {
        self.held.as_ref().map_or(0, BytesMut::len)
    }

    /// Everything goes out, and so does what follows.
    pub fn release(&mut self, out: &mut BytesMut) {
        if let Some(held) = self.held.take() {
            out.put_slice(&held);
        }
    }

    /// What is held is thrown away with its attempt.
    pub fn clear(&mut self) {
        self.held = None;
    }
}
