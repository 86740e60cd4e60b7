//! Which bytes of a file are asked for (RFC 9110, section 14).

use std::ops::Range;

/// What a request with a `Range` header is answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Selection {
    /// All of it: nothing else was asked for, or nothing that this server does (several ranges, other units).
    Whole,
    /// These bytes.
    Part(Range<u64>),
    /// None: what was asked for lies behind its end.
    Outside,
}

/// What `range` selects of `length` bytes. A header that can't be read is one that is not there.
pub(super) fn select(range: Option<&str>, length: u64) -> Selection {
    let Some((unit, set)) = range.and_then(|range| range.split_once('=')) else { return Selection::Whole };
    let Some((first, last)) = set.trim().split_once('-') else { return Selection::Whole };
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return Selection::Whole;
    }
    let (first, last) = (first.trim(), last.trim());
    match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => within(first, last.saturating_add(1), length),
        (Some(first), None) if last.is_empty() => within(first, length, length),
        (None, Some(suffix)) if first.is_empty() && suffix > 0 => within(length.saturating_sub(suffix), length, length),
        (None, Some(_)) if first.is_empty() => Selection::Outside,
        _ => Selection::Whole,
    }
}

fn within(first: u64, end: u64, length: u64) -> Selection {
    if first < length { Selection::Part(first..end.min(length)) } else { Selection::Outside }
}

/// Digits only; what no number of 64 bits holds is the largest one.
fn number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_range_selects_and_whatever_else_is_the_whole() {
        let part = Selection::Part;
        for (range, length, expected) in [
            ("bytes=0-0", 10, part(0..1)),
            ("bytes=0-9", 10, part(0..10)),
            ("bytes=3-", 10, part(3..10)),
            ("bytes=3-99999999999999999999", 10, part(3..10)),
            ("bytes=-3", 10, part(7..10)),
            ("bytes=-99", 10, part(0..10)),
            ("BYTES = 2-4", 10, part(2..5)),
            ("bytes=10-", 10, Selection::Outside),
            ("bytes=10-20", 10, Selection::Outside),
            ("bytes=99999999999999999999-", 10, Selection::Outside),
            ("bytes=-0", 10, Selection::Outside),
            ("bytes=0-", 0, Selection::Outside),
            ("bytes=-1", 0, Selection::Outside),
            ("bytes=5-3", 10, Selection::Whole),
            ("bytes=0-1,3-4", 10, Selection::Whole),
            ("bytes=-", 10, Selection::Whole),
            ("bytes=a-b", 10, Selection::Whole),
            ("bytes=+1-2", 10, Selection::Whole),
            ("bytes=1--2", 10, Selection::Whole),
            ("lines=0-1", 10, Selection::Whole),
            ("bytes", 10, Selection::Whole),
            ("", 10, Selection::Whole),
        ] {
            assert_eq!(select(Some(range), length), expected, "{range} of {length}");
        }
        assert_eq!(select(None, 10), Selection::Whole);
    }
}
