//! Events with numbers: the Responses API counts the events of an answer from 0, without a gap.

use crate::stream::StreamError;
use crate::stream::outlet::Outlet;
use bytes::{BufMut, BytesMut};
use std::fmt::{Arguments, Write};

/// The way out, and the number of the next event.
#[derive(Clone, Debug)]
pub struct Numbered {
    pub outlet: Outlet,
    next: u64,
    /// The number of the first event that is held.
    at_mark: u64,
}

impl Numbered {
    pub fn new(outlet: Outlet) -> Self {
        Self { outlet, next: 0, at_mark: 0 }
    }

    /// The number that an event sent to the client now must have.
    pub fn due(&self) -> u64 {
        match (self.outlet.is_opening(), self.outlet.is_holding()) {
            (true, _) => 0,
            (false, true) => self.at_mark,
            (false, false) => self.next,
        }
    }

    /// The number of an event that is written now.
    pub fn take(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// A call begins. Whether it is the first that is held: it and what follows.
    pub fn hold(&mut self) -> bool {
        let begins = self.outlet.hold();
        if begins {
            self.at_mark = self.next;
        }
        begins
    }

    /// Another attempt carries on: what was held was seen by nobody.
    pub fn forget_held(&mut self) {
        if self.outlet.is_holding() {
            self.next = self.at_mark;
            self.outlet.forget_held();
        }
    }

    /// Another attempt begins anew.
    pub fn forget_all(&mut self) {
        self.outlet.forget_all();
        self.next = 0;
    }

    /// Writes an event of ours with these members, each with a comma before it. Whether the client has it now.
    pub fn write(&mut self, name: &str, out: &mut BytesMut, members: Arguments<'_>) -> Result<bool, StreamError> {
        let number = self.take();
        self.outlet.write(true, name, out, |out| {
            out.put_slice(b"data: ");
            // Memory grows as it must.
            let _infallible = write!(out, r#"{{"type":"{name}","sequence_number":{number}{members}}}"#);
            out.put_slice(b"\n\n");
        })
    }
}
