//! The opening events of a stream, held until there is content, so that an attempt that dies before it leaves no trace.

use super::StreamError;
use bytes::{BufMut, BytesMut};

/// Most bytes of opening events held; they have about 1 KiB.
const MAX_HELD: usize = 256 * 1024;

/// What has not gone out yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Opening(BytesMut);

impl Opening {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// An attempt that showed nothing is forgotten.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Lets out what is held.
    pub fn release(&mut self, out: &mut BytesMut) {
        if !self.0.is_empty() {
            out.put_slice(&self.0);
            self.0 = BytesMut::new();
        }
    }

    /// Writes an event of that name whose data `write` appends: to `out` after all that was held if it `goes_out`, else to
    /// what is held.
    pub fn write(
        &mut self,
        goes_out: bool,
        name: &str,
        out: &mut BytesMut,
        write: impl FnOnce(&mut BytesMut),
    ) -> Result<(), StreamError> {
        if goes_out {
            self.release(out);
        }
        let target = if goes_out { out } else { &mut self.0 };
        target.put_slice(b"event: ");
        target.put_slice(name.as_bytes());
        target.put_u8(b'\n');
        write(target);
        if self.0.len() > MAX_HELD { Err(StreamError::TooLong) } else { Ok(()) }
    }
}
