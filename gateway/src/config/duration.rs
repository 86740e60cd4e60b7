//! Lengths of time as people write them: `500ms`, `30s`, `5m`, `1h30m`, `2d`.
//!
//! Always with a unit: a bare number's unit has to be guessed, and is guessed wrong.

use std::time::Duration;

const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Why a text is no length of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// A number without a unit.
    #[error("a length of time needs a unit, such as \"30s\"")]
    NoUnit,
    /// Not numbers and units.
    #[error("not a length of time")]
    Malformed,
    /// Units must shrink from left to right, each at most once.
    #[error("units must go from large to small, each once")]
    Order,
    /// Does not fit.
    #[error("too long")]
    TooLong,
}

/// Reads a length of time.
///
/// # Errors
/// The text is not a sequence of whole numbers with the units d, h, m, s, ms, from large to small.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let mut rest = text;
    let mut total: u64 = 0;
    let mut last = None;
    if rest.is_empty() {
        return Err(DurationError::Malformed);
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or(DurationError::NoUnit)?;
        let (number, tail) = rest.split_at(digits);
        let letters = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        if number.is_empty() {
            return Err(DurationError::Malformed);
        }
        let number: u64 = number.parse().map_err(|_| DurationError::TooLong)?;
        let index = UNITS.iter().position(|(name, _)| *name == unit).ok_or(DurationError::Malformed)?;
        if last.is_some_and(|last| last >= index) {
            return Err(DurationError::Order);
        }
        last = Some(index);
        let millis = number.checked_mul(UNITS[index].1).ok_or(DurationError::TooLong)?;
        total = total.checked_add(millis).ok_or(DurationError::TooLong)?;
        rest = tail;
    }
    Ok(Duration::from_millis(total))
}

/// Writes a length of time the way [`parse`] reads it; less than a millisecond is dropped.
pub fn show(length: Duration) -> String {
    let mut millis = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
    let mut text = String::new();
    for (unit, size) in UNITS {
        let count = millis / size;
        if count > 0 {
            text.push_str(&format!("{count}{unit}"));
            millis -= count * size;
        }
    }
    if text.is_empty() { "0s".into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_are_read_with_their_units() {
        for (text, millis) in
            [("30s", 30_000), ("5m", 300_000), ("1h30m", 5_400_000), ("250ms", 250), ("0s", 0), ("2d1ms", 172_800_001)]
        {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_length_of_time_is_refused_with_its_reason() {
        for (text, why) in [
            ("", DurationError::Malformed),
            ("30", DurationError::NoUnit),
            ("1h30", DurationError::NoUnit),
            ("-5s", DurationError::Malformed),
            ("5 s", DurationError::Malformed),
            ("5sec", DurationError::Malformed),
            ("1.5h", DurationError::Malformed),
            ("5s5m", DurationError::Order),
            ("5s5s", DurationError::Order),
            ("99999999999999999999s", DurationError::TooLong),
            ("9999999999999999d", DurationError::TooLong),
            ("5µ", DurationError::Malformed),
        ] {
            assert_eq!(parse(text), Err(why), "{text}");
        }
    }

    #[test]
    fn what_is_shown_reads_back_as_the_same() {
        for millis in [0, 1, 999, 1_000, 61_000, 3_600_000, 5_400_000, 90_061_001] {
            let length = Duration::from_millis(millis);
            assert_eq!(parse(&show(length)), Ok(length));
        }
    }
}
