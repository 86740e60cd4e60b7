//! What is advised from one look to the next: it must not flap.
//!
//! More is said once two looks in a row want more than what was said; fewer only when every look of a quarter of an hour wanted
//! fewer than that by more than one phone and by more than a twentieth. Then the greatest of those looks is said.

use std::{collections::VecDeque, time::Duration};

use scheduler::Timestamp;

/// All looks of this time must want fewer.
const SETTLES: Duration = Duration::from_secs(900);
/// And by more than this share.
const MARGIN: f64 = 0.05;

/// The number that stands.
#[derive(Clone, Debug, Default)]
pub struct Steady {
    said: Option<usize>,
    looks: VecDeque<(Timestamp, usize)>,
}

impl Steady {
    /// A look wanted so many; what is to be said. A look that could not say anything changes nothing.
    pub fn look(&mut self, wanted: Option<usize>, now: Timestamp) -> Option<usize> {
        let Some(wanted) = wanted else { return self.said };
        let before = self.looks.back().map(|(_, wanted)| *wanted);
        self.looks.push_back((now, wanted));
        // One look beyond the time stays: only then all of the time was looked at.
        while self.looks.get(1).is_some_and(|(at, _)| now.since(*at) >= SETTLES) || self.looks.len() > 512 {
            self.looks.pop_front();
        }
        let Some(said) = self.said else {
            self.said = Some(wanted);
            return self.said;
        };
        let twice = before.map_or(wanted, |before| before.min(wanted));
        let greatest = self.looks.iter().map(|(_, wanted)| *wanted).max().unwrap_or(wanted);
        let settled = self.looks.front().is_some_and(|(at, _)| now.since(*at) >= SETTLES);
        let margin = ((MARGIN * said as f64) as usize).max(1);
        if twice > said {
            self.said = Some(twice);
        } else if settled && greatest + margin < said {
            self.said = Some(greatest);
        }
        self.said
    }

    /// What stands.
    pub const fn said(&self) -> Option<usize> {
        self.said
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks every 30 s; what was said after each.
    fn said(wanted: impl IntoIterator<Item = usize>) -> Vec<usize> {
        let mut steady = Steady::default();
        let looks = wanted.into_iter().zip(0..);
        looks.filter_map(|(wanted, look)| steady.look(Some(wanted), Timestamp(look * 30_000_000_000))).collect()
    }

    #[test]
    fn advice_does_not_flap() {
        let noise = (0..200).map(|look| 10 + [0, 1, 0, 2, 1, 0, 1][look % 7]);
        let said = said(noise);
        let changes = said.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert!(changes <= 1, "{changes} changes: {said:?}");
        assert!(said.last().is_some_and(|said| (10..=12).contains(said)));
    }

    #[test]
    fn more_is_said_at_the_second_look_and_fewer_after_a_quarter_of_an_hour() {
        assert_eq!(said([10, 15, 14, 14]), [10, 10, 14, 14]);
        assert_eq!(said([10, 15, 10, 10]), [10; 4]);
        let falls = said(std::iter::once(20).chain(std::iter::repeat_n(12, 60)));
        let first = falls.iter().position(|said| *said == 12);
        assert_eq!(first, Some(31), "{falls:?}");
        assert_eq!(falls.iter().filter(|said| **said != 20 && **said != 12).count(), 0);
    }

    #[test]
    fn a_peak_within_the_time_is_not_forgotten() {
        let said = said((0..120).map(|look| if look % 20 == 19 { 30 } else { 10 }).collect::<Vec<_>>());
        assert!(said.iter().all(|said| *said == 10), "one look alone says nothing: {said:?}");
        let peaks = self::said((0..120).map(|look| if look % 20 > 17 { 30 } else { 10 }).collect::<Vec<_>>());
        assert!(peaks.iter().skip(19).all(|said| *said == 30), "{peaks:?}");
    }

    #[test]
    fn one_phone_fewer_is_not_worth_saying() {
        assert_eq!(said(std::iter::once(10).chain(std::iter::repeat_n(9, 100))).last(), Some(&10));
        assert_eq!(said(std::iter::once(100).chain(std::iter::repeat_n(96, 100))).last(), Some(&100));
        assert_eq!(said(std::iter::once(100).chain(std::iter::repeat_n(90, 100))).last(), Some(&90));
    }
}
