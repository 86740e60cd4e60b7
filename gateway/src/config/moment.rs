//! A moment of the calendar, to the second: when a deployment ends.
//!
//! RFC 3339 with an offset, or Unix seconds; a local time without an offset is refused, because phones and operators
//! are in different zones. The calendar arithmetic is the proleptic Gregorian one and fits here; a date library
//! would be the only use of one.

use std::fmt;

/// Seconds since 1970-01-01T00:00:00Z; within the years 1970 to 9999.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

/// 9999-12-31T23:59:59Z.
const LATEST: u64 = 253_402_300_799;

impl Moment {
    /// From Unix seconds; `None` after the year 9999.
    pub const fn from_unix_seconds(seconds: u64) -> Option<Self> {
        if seconds <= LATEST { Some(Self(seconds)) } else { None }
    }

    /// Unix seconds.
    pub const fn unix_seconds(self) -> u64 {
        self.0
    }

    /// Reads an RFC 3339 text such as `2027-01-31T18:00:00Z`; fractions of a second are dropped.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let number = |from: usize, to: usize| -> Option<i64> {
            let digits = text.get(from..to)?;
            digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
        };
        let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
        let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
        let marks = [(4, b"-"), (7, b"-"), (13, b":"), (16, b":")];
        if marks.iter().any(|(at, mark)| bytes[*at] != mark[0]) || !b"Tt ".contains(&bytes[10]) {
            return None;
        }
        let calendar = (1..=12).contains(&month) && (1..=days_in(year, month)).contains(&day);
        if !calendar || hour > 23 || minute > 59 || second > 60 {
            return None;
        }
        let offset = offset(skip_fraction(text.get(19..)?)?)?;
        let seconds = days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second - offset;
        u64::try_from(seconds).ok().and_then(Self::from_unix_seconds)
    }
}

fn skip_fraction(text: &str) -> Option<&str> {
    let Some(rest) = text.strip_prefix('.') else { return Some(text) };
    let end = rest.find(|c: char| !c.is_ascii_digit())?;
    (end > 0).then(|| &rest[end..])
}

/// Seconds east of Greenwich.
fn offset(text: &str) -> Option<i64> {
    if matches!(text, "Z" | "z") {
        return Some(0);
    }
    let (sign, rest) = if let Some(rest) = text.strip_prefix('+') { (1, rest) } else { (-1, text.strip_prefix('-')?) };
    let (hours, minutes) = rest.split_once(':')?;
    let two = |digits: &str| -> Option<i64> {
        (digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| digits.parse().ok())?
    };
    let (hours, minutes) = (two(hours)?, two(minutes)?);
    (hours <= 23 && minutes <= 59).then_some(sign * (hours * 3_600 + minutes * 60))
}

fn days_in(year: i64, month: i64) -> i64 {
    let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days since 1970-01-01 of a date in the Gregorian calendar, counted from March so that the leap day is the last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, seconds) = (self.0 / 86_400 + 719_468, self.0 % 86_400);
        let (era, day_of_era) = (days / 146_097, days % 146_097);
        let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * from_march + 2) / 5 + 1;
        let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
        let year = era * 400 + year_of_era + u64::from(month <= 2);
        let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_become_the_seconds_that_the_calendar_says() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T12:00:00Z", 951_825_600),
            ("2027-01-31T18:00:00+02:00", 1_801_411_200),
            ("2026-11-29T23:49:09.75Z", 1_795_996_149),
            ("9999-12-31 23:59:59Z", LATEST),
        ] {
            assert_eq!(Moment::parse(text).map(Moment::unix_seconds), Some(seconds), "{text}");
        }
    }

    #[test]
    fn what_is_shown_reads_back_as_the_same() {
        for seconds in (0..LATEST).step_by(86_399 * 97) {
            let moment = Moment(seconds);
            assert_eq!(Moment::parse(&moment.to_string()), Some(moment));
        }
    }

    #[test]
    fn dates_without_offset_or_outside_the_calendar_are_refused() {
        for text in [
            "2027-01-31T18:00:00",
            "2027-02-29T00:00:00Z",
            "2027-13-01T00:00:00Z",
            "2027-01-31",
            "",
            "2027-01-31T24:00:00Z",
            "1969-12-31T23:59:59Z",
            "2027-01-31T18:00:00.Z",
            "2027-01-31T18:00:00+2:00",
            "é027-01-31T18:00:00Z",
        ] {
            assert_eq!(Moment::parse(text), None, "{text}");
        }
    }
}
