//! SCALE, the chain's encoding, read strictly.
//!
//! Values carry no types, so a runtime that encodes otherwise gives other bytes and no error. Hence every choice and every
//! length is checked against what the runtime can write, and nothing may be left over: what does not fit is told with its
//! place, never guessed at.

use std::fmt;

/// Why bytes are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// What was being read: a field's name.
    pub field: &'static str,
    /// Index of the byte where it starts.
    pub at: usize,
    /// What is wrong there.
    pub why: Why,
}

/// What is wrong with some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// They end before the field does.
    Ends,
    /// There are more after the last field: so many.
    Left(usize),
    /// A variant, or a flag, that is not known.
    Variant(u8),
    /// A list longer than the runtime allows.
    Long {
        /// Elements it has.
        len: u32,
        /// Elements it may have.
        max: u32,
    },
    /// A number that was not written in the shortest way, or is larger than a list's length can be.
    Compact,
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, at, why } = self;
        match why {
            Why::Ends => write!(f, "{field} (byte {at}): the value ends too early"),
            Why::Left(count) => write!(f, "{field} is the last field, and {count} more bytes follow at byte {at}"),
            Why::Variant(byte) => write!(f, "{field} (byte {at}): {byte} is none of the known choices"),
            Why::Long { len, max } => write!(f, "{field} (byte {at}): {len} elements, and at most {max} are possible"),
            Why::Compact => write!(f, "{field} (byte {at}): not a length"),
        }
    }
}

impl std::error::Error for Misfit {}

/// Reads fields from the front of some bytes.
#[derive(Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// At the first of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn misfit(&self, field: &'static str, why: Why) -> Misfit {
        Misfit { field, at: self.at, why }
    }

    /// The next `count` bytes.
    ///
    /// # Errors
    /// There are fewer.
    pub fn bytes(&mut self, field: &'static str, count: usize) -> Result<&'a [u8], Misfit> {
        let taken = self.at.checked_add(count).and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or_else(|| self.misfit(field, Why::Ends))?;
        self.at += count;
        Ok(taken)
    }

    /// The next `N` bytes.
    ///
    /// # Errors
    /// There are fewer.
    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], Misfit> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(field, N)?);
        Ok(array)
    }

    /// One byte.
    ///
    /// # Errors
    /// There is none.
    pub fn u8(&mut self, field: &'static str) -> Result<u8, Misfit> {
        Ok(u8::from_le_bytes(self.array(field)?))
    }

    /// A number of two bytes.
    ///
    /// # Errors
    /// There are fewer.
    pub fn u16(&mut self, field: &'static str) -> Result<u16, Misfit> {
        Ok(u16::from_le_bytes(self.array(field)?))
    }

    /// A number of four bytes.
    ///
    /// # Errors
    /// There are fewer.
    pub fn u32(&mut self, field: &'static str) -> Result<u32, Misfit> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    /// A number of eight bytes.
    ///
    /// # Errors
    /// There are fewer.
    pub fn u64(&mut self, field: &'static str) -> Result<u64, Misfit> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    /// A number of sixteen bytes.
    ///
    /// # Errors
    /// There are fewer.
    pub fn u128(&mut self, field: &'static str) -> Result<u128, Misfit> {
        Ok(u128::from_le_bytes(self.array(field)?))
    }

    /// The number of a variant, of `count` that there are.
    ///
    /// # Errors
    /// It is `count` or more.
    pub fn variant(&mut self, field: &'static str, count: u8) -> Result<u8, Misfit> {
        let byte = self.u8(field)?;
        if byte < count {
            return Ok(byte);
        }
        self.at -= 1;
        Err(self.misfit(field, Why::Variant(byte)))
    }

    /// A truth.
    ///
    /// # Errors
    /// It is neither 0 nor 1.
    pub fn bool(&mut self, field: &'static str) -> Result<bool, Misfit> {
        Ok(self.variant(field, 2)? == 1)
    }

    /// What may be absent.
    ///
    /// # Errors
    /// The flag is neither 0 nor 1, or what it announces does not fit.
    pub fn option<T>(
        &mut self,
        field: &'static str,
        read: impl FnOnce(&mut Self) -> Result<T, Misfit>,
    ) -> Result<Option<T>, Misfit> {
        if self.bool(field)? { read(self).map(Some) } else { Ok(None) }
    }

    /// The length of a list that has at most `max` elements.
    ///
    /// # Errors
    /// It is longer, or no length.
    pub fn length(&mut self, field: &'static str, max: u32) -> Result<u32, Misfit> {
        let start = self.at;
        let first = self.u8(field)?;
        let (len, shortest) = match first & 3 {
            0 => (u32::from(first >> 2), 0),
            1 => (u32::from(u16::from_le_bytes([first, self.u8(field)?]) >> 2), 1 << 6),
            2 => {
                let [b, c, d] = self.array(field)?;
                (u32::from_le_bytes([first, b, c, d]) >> 2, 1 << 14)
            }
            _ => return Err(Misfit { field, at: start, why: Why::Compact }),
        };
        if len < shortest {
            return Err(Misfit { field, at: start, why: Why::Compact });
        }
        if len > max {
            return Err(Misfit { field, at: start, why: Why::Long { len, max } });
        }
        Ok(len)
    }

    /// A list of at most `max` elements. Memory grows with what is there, not with what is announced.
    ///
    /// # Errors
    /// It is longer, or an element does not fit.
    pub fn list<T>(
        &mut self,
        field: &'static str,
        max: u32,
        mut read: impl FnMut(&mut Self) -> Result<T, Misfit>,
    ) -> Result<Vec<T>, Misfit> {
        let len = self.length(field, max)?;
        (0..len).map(|_| read(self)).collect()
    }

    /// Bytes with their length, at most `max`.
    ///
    /// # Errors
    /// There are more, or fewer than announced.
    pub fn text(&mut self, field: &'static str, max: u32) -> Result<&'a [u8], Misfit> {
        let len = self.length(field, max)?;
        self.bytes(field, len as usize)
    }

    /// Nothing may be left. `field` is the last that was read.
    ///
    /// # Errors
    /// Something is.
    pub fn end(self, field: &'static str) -> Result<(), Misfit> {
        match self.bytes.len() - self.at {
            0 => Ok(()),
            left => Err(self.misfit(field, Why::Left(left))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_read_as_the_format_says() {
        // The examples of the format's own description, as far as a list can be so long.
        for (bytes, value) in
            [(&[0x00][..], 0), (&[0x04], 1), (&[0xa8], 42), (&[0x15, 0x01], 69), (&[0xfe, 0xff, 0x03, 0x00], 65_535)]
        {
            let mut reader = Reader::new(bytes);
            assert_eq!(reader.length("list", 70_000), Ok(value));
            assert_eq!(reader.end("list"), Ok(()));
        }
    }

    #[test]
    fn what_no_runtime_writes_is_refused_with_its_place() {
        let long = |bytes: &[u8]| Reader::new(bytes).length("list", 100).unwrap_err();
        assert_eq!(long(&[0x95, 0x01]).why, Why::Long { len: 101, max: 100 });
        assert_eq!(long(&[0x01, 0x00]).why, Why::Compact, "zero, in two bytes");
        assert_eq!(long(&[0x03, 0, 0, 0, 0]).why, Why::Compact, "more than four bytes");
        assert_eq!(long(&[]).why, Why::Ends);
        let mut reader = Reader::new(&[1, 2, 9]);
        assert_eq!(reader.u16("a"), Ok(0x0201));
        let misfit = reader.variant("kind", 3).unwrap_err();
        assert_eq!(misfit.to_string(), "kind (byte 2): 9 is none of the known choices");
        assert_eq!(reader.end("a").unwrap_err().to_string(), "a is the last field, and 1 more bytes follow at byte 2");
    }

    #[test]
    fn a_list_that_is_announced_and_does_not_come_costs_no_memory() {
        let announced = [0xfe, 0xff, 0xff, 0xff];
        let read = Reader::new(&announced).list("list", u32::MAX, |reader| reader.u64("element"));
        assert_eq!(read.unwrap_err().why, Why::Ends);
    }
}
