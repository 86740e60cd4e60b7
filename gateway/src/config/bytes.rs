//! Sizes as people write them: `512B`, `64KiB`, `16MiB`, `1GiB`.
//!
//! Powers of two only. `MB` means two different sizes to two different readers, so it is refused, with the remedy.

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

const UNITS: [(&str, u32); 4] = [("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];

/// Why a text is no size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// A number without a unit.
    #[error("a size needs a unit, such as \"16MiB\"")]
    NoUnit,
    /// MB, kB and the like.
    #[error("write KiB, MiB or GiB (1024 bytes and its powers)")]
    Decimal,
    /// Not a number and a unit.
    #[error("not a size")]
    Malformed,
    /// Does not fit.
    #[error("too large")]
    TooLarge,
}

impl ByteSize {
    /// So many KiB.
    pub const fn kib(count: u64) -> Self {
        Self(count << 10)
    }

    /// So many MiB.
    pub const fn mib(count: u64) -> Self {
        Self(count << 20)
    }

    /// Bytes.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// Bytes, as lengths of buffers are counted.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    /// Reads a size.
    ///
    /// # Errors
    /// The text is not a whole number with the unit B, KiB, MiB or GiB.
    pub fn parse(text: &str) -> Result<Self, SizeError> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        if number.is_empty() {
            return Err(SizeError::Malformed);
        }
        let number: u64 = number.parse().map_err(|_| SizeError::TooLarge)?;
        if unit.is_empty() {
            return Err(SizeError::NoUnit);
        }
        if ["kb", "mb", "gb", "k", "m", "g"].contains(&unit.to_ascii_lowercase().as_str()) {
            return Err(SizeError::Decimal);
        }
        let (_, shift) = UNITS.iter().find(|(name, _)| *name == unit).ok_or(SizeError::Malformed)?;
        number.checked_mul(1 << shift).map(Self).ok_or(SizeError::TooLarge)
    }
}

impl std::fmt::Display for ByteSize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let exact = |shift: &u32| self.0 != 0 && self.0.trailing_zeros() >= *shift;
        let (unit, shift) = UNITS.iter().find(|(_, shift)| exact(shift)).unwrap_or(&UNITS[3]);
        write!(f, "{}{unit}", self.0 >> shift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_units_and_shown_the_same_way() {
        for (text, bytes) in [("512B", 512), ("64KiB", 65_536), ("16MiB", 16 << 20), ("3GiB", 3 << 30), ("0B", 0)] {
            assert_eq!(ByteSize::parse(text), Ok(ByteSize(bytes)), "{text}");
            assert_eq!(ByteSize(bytes).to_string(), text);
        }
        assert_eq!(ByteSize(1025).to_string(), "1025B");
    }

    #[test]
    fn what_is_not_a_size_is_refused_with_its_reason() {
        for (text, why) in [
            ("", SizeError::Malformed),
            ("MiB", SizeError::Malformed),
            ("16", SizeError::NoUnit),
            ("16MB", SizeError::Decimal),
            ("16k", SizeError::Decimal),
            ("16 MiB", SizeError::Malformed),
            ("-1B", SizeError::Malformed),
            ("99999999999999999999B", SizeError::TooLarge),
            ("18446744073709551615GiB", SizeError::TooLarge),
        ] {
            assert_eq!(ByteSize::parse(text), Err(why), "{text}");
        }
    }
}
