//! Where named events go: to the client, or not yet, or nowhere.
//!
//! Two things wait. The opening events wait for the first content, so that an attempt that dies before it leaves no trace; and
//! where the client is to see no half of a tool call, everything from the first call on waits until the answer is whole. Of a
//! plain answer nothing goes out at all.

use super::hold::Hold;
use super::opening::Opening;
use super::{StreamError, StreamOptions};
use bytes::{BufMut, BytesMut};

/// The way out for one client's events.
#[derive(Clone, Debug)]
pub(super) struct Outlet {
    /// The client gets one object at the end.
    plain: bool,
    /// Calls are held. Of a plain answer nobody sees a half, whatever was asked for.
    holds: bool,
    opening: Opening,
    calls: Hold,
}

impl Outlet {
    pub fn new(options: &StreamOptions) -> Self {
        Self {
            plain: options.plain,
            holds: options.plain || options.hold_tool_calls,
            opening: Opening::default(),
            calls: Hold::default(),
        }
    }

    /// Whether the client gets one object, and nothing of the stream.
    pub fn is_plain(&self) -> bool {
        self.plain
    }

    /// Whether opening events wait, so that the client has nothing yet.
    pub fn is_opening(&self) -> bool {
        !self.opening.is_empty()
    }

    /// Whether what comes is held.
    pub fn is_holding(&self) -> bool {
        self.calls.is_on()
    }

    /// A call begins. Whether it is the first that is held: it and what follows.
    pub fn hold(&mut self) -> bool {
        let begins = self.holds && !self.calls.is_on() && !self.calls.is_full();
        if begins {
            self.calls.begin();
        }
        begins
    }

    /// Bytes held of calls.
    pub fn held(&self) -> usize {
        self.calls.len()
    }

    /// There is no room to hold anything: it goes out with the next event. Of a plain answer nothing is held here.
    pub fn give_up(&mut self) {
        if !self.plain {
            self.calls.give_up();
        }
    }

    /// The attempt is over and another one carries on: nobody has seen what was held of its calls.
    pub fn forget_held(&mut self) {
        self.calls.clear();
    }

    /// The attempt is over and nobody has seen any of it.
    pub fn forget_all(&mut self) {
        self.calls.clear();
        self.opening.clear();
    }

    /// An event of that name, whose data `write` appends, worth sending if it `goes_out` (all events that follow do then).
    /// Whether the client has it now.
    pub fn write(
        &mut self,
        goes_out: bool,
        name: &str,
        out: &mut BytesMut,
        write: impl FnOnce(&mut BytesMut),
    ) -> Result<bool, StreamError> {
        if self.plain {
            return Ok(false);
        }
        if !self.calls.is_on() {
            return self.opening.write(goes_out, name, out, write).map(|()| goes_out);
        }
        let held = self.calls.sink(out);
        held.put_slice(b"event: ");
        held.put_slice(name.as_bytes());
        held.put_u8(b'\n');
        write(held);
        if !self.calls.is_full() {
            return Ok(false);
        }
        self.release(out);
        Ok(true)
    }

    /// The answer is whole, or more is held than may be: everything goes out.
    pub fn release(&mut self, out: &mut BytesMut) {
        self.opening.release(out);
        self.calls.release(out);
    }
}
