//! Hours of the day, in UTC: `"22:00-06:00"`.
//!
//! UTC, because a gateway's host and its operators are in different zones, and an hour that the clocks skip or repeat would
//! have to be explained.

use std::{fmt, time::Duration};

const MINUTES: u32 = 24 * 60;

/// From a minute of the day to another, past midnight if that is earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hours {
    from: u32,
    to: u32,
}

impl Hours {
    /// Reads `HH:MM-HH:MM`; both ends differ.
    pub fn parse(text: &str) -> Option<Self> {
        let (from, to) = text.split_once('-')?;
        let (from, to) = (minute(from.trim())?, minute(to.trim())?);
        (from != to).then_some(Self { from, to: to % MINUTES })
    }

    /// Whether a time since 1970 is in them.
    pub fn contain(self, unix: Duration) -> bool {
        let now = minute_of_day(unix);
        if self.from < self.to { (self.from..self.to).contains(&now) } else { now >= self.from || now < self.to }
    }

    /// From then until they begin; nothing while they last.
    pub fn until(self, unix: Duration) -> Duration {
        if self.contain(unix) {
            return Duration::ZERO;
        }
        let minutes = (self.from + MINUTES - minute_of_day(unix)) % MINUTES;
        Duration::from_secs(60 * u64::from(minutes)).saturating_sub(Duration::from_secs(unix.as_secs() % 60))
    }
}

fn minute_of_day(unix: Duration) -> u32 {
    u32::try_from(unix.as_secs() / 60 % u64::from(MINUTES)).unwrap_or(0)
}

/// `00:00` to `24:00`.
fn minute(text: &str) -> Option<u32> {
    let (hours, minutes) = text.split_once(':')?;
    let number = |digits: &str| -> Option<u32> {
        (digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| digits.parse().ok())?
    };
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    (minutes < 60 && hours * 60 + minutes <= MINUTES).then_some(hours * 60 + minutes)
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to } = self;
        write!(f, "{:02}:{:02}-{:02}:{:02}", from / 60, from % 60, to / 60, to % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(hour: u64, minute: u64, second: u64) -> Duration {
        Duration::from_secs(20_000 * 86_400 + hour * 3600 + minute * 60 + second)
    }

    #[test]
    fn a_night_goes_past_midnight() {
        let night = Hours::parse("22:00-06:00").expect("hours");
        assert!(night.contain(at(22, 0, 0)) && night.contain(at(5, 59, 59)) && !night.contain(at(6, 0, 0)));
        assert_eq!((night.until(at(21, 59, 30)), night.until(at(23, 0, 0))), (Duration::from_secs(30), Duration::ZERO));
        assert_eq!(night.until(at(6, 0, 0)), Duration::from_secs(16 * 3600));
        assert_eq!(night.to_string(), "22:00-06:00");
    }

    #[test]
    fn a_day_ends_at_midnight_and_nonsense_is_no_hours() {
        let evening = Hours::parse("18:30 - 24:00").expect("hours");
        assert!(evening.contain(at(23, 59, 59)) && !evening.contain(at(0, 0, 0)) && !evening.contain(at(18, 29, 59)));
        for text in ["", "22-06", "22:00", "25:00-26:00", "08:60-09:00", "08:00-08:00", "8:00-9:00", "24:01-25:00"] {
            assert_eq!(Hours::parse(text), None, "{text}");
        }
    }
}
