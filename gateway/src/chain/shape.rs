//! What the chain says about a job and about a phone that is assigned to it.
//!
//! The fields, their order and their bounds are those of the public source of the runtime (`acurast-parachain`, version 13 of
//! the main network and 57 of Canary, storage layouts 7 of the marketplace and 5 of the registrations).

use super::scale::{Misfit, Reader};

/// Milliseconds of a day.
const DAY_MS: f64 = 86_400_000.0;
/// The smallest amounts of one ACU.
const ACU: f64 = 1e12;
/// Bytes of a compressed public key, the longest that is published.
const MAX_KEY: u32 = 33;

/// When a job runs. All times in milliseconds, moments since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Of one execution.
    pub duration: u64,
    /// The first execution starts here, or up to `max_start_delay` later.
    pub start: u64,
    /// No execution starts at this moment or later, the delay not counted.
    pub end: u64,
    /// Between the starts of two executions.
    pub interval: u64,
    /// See `start`.
    pub max_start_delay: u64,
}

/// A job as it was registered: what is used of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// When it runs.
    pub schedule: Schedule,
    /// Phones that it asks for.
    pub slots: u8,
}

/// Which executions a phone is assigned to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Execution {
    /// All of them.
    All,
    /// The one with this number, from 0.
    Index(u64),
}

/// A public key that a phone has published for a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublicKey {
    /// P-256, compressed.
    P256([u8; 33]),
    /// Ed25519.
    Ed25519([u8; 32]),
    /// Of another kind, or for encryption.
    Other,
}

/// A phone's part in a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// From 0.
    pub slot: u8,
    /// Milliseconds by which its executions start later than the schedule says.
    pub start_delay: u64,
    /// In the smallest amounts, 10^12 of which are one ACU.
    pub fee_per_execution: u128,
    /// The phone has accepted. Before, it has published no keys.
    pub acknowledged: bool,
    /// What it has published.
    pub keys: Vec<PublicKey>,
    /// Which executions are its.
    pub execution: Execution,
}

impl Schedule {
    fn read(reader: &mut Reader<'_>) -> Result<Self, Misfit> {
        Ok(Self {
            duration: reader.u64("schedule.duration")?,
            start: reader.u64("schedule.start_time")?,
            end: reader.u64("schedule.end_time")?,
            interval: reader.u64("schedule.interval")?,
            max_start_delay: reader.u64("schedule.max_start_delay")?,
        })
    }

    /// Executions of one phone.
    fn count(&self) -> u64 {
        let before_end = self.end.checked_sub(self.start).and_then(|length| length.checked_sub(1));
        before_end.and_then(|last| last.checked_div(self.interval)).map_or(0, |passed| passed.saturating_add(1))
    }

    /// When the first and the last execution of a phone start and end, in milliseconds since 1970.
    pub fn span(&self, assignment: &Assignment) -> (u64, u64) {
        let first = self.start.saturating_add(assignment.start_delay);
        let nth = |index: u64| first.saturating_add(index.saturating_mul(self.interval));
        match assignment.execution {
            Execution::All => (first, nth(self.count().saturating_sub(1)).saturating_add(self.duration)),
            Execution::Index(index) => (nth(index), nth(index).saturating_add(self.duration)),
        }
    }

    /// No phone works for it any more, however late it started.
    pub fn is_over(&self, now_ms: u64) -> bool {
        let last = self.count().saturating_sub(1).saturating_mul(self.interval);
        let end = self.start.saturating_add(self.max_start_delay).saturating_add(last).saturating_add(self.duration);
        end < now_ms
    }

    /// ACU that a phone costs for a day of work; `None` for a schedule without length.
    pub fn cost_per_day(&self, fee_per_execution: u128) -> Option<f64> {
        let days = self.duration as f64 / DAY_MS;
        (days > 0.0).then(|| fee_per_execution as f64 / ACU / days)
    }
}

impl Registration {
    /// The whole value of `Acurast.StoredJobRegistration`.
    ///
    /// # Errors
    /// It has another form.
    pub fn decode(bytes: &[u8]) -> Result<Self, Misfit> {
        let mut reader = Reader::new(bytes);
        let r = &mut reader;
        r.text("script", 53)?;
        r.option("allowed_sources", |r| r.list("allowed_sources", 1_000, |r| r.array::<32>("allowed_sources")))?;
        r.bool("allow_only_verified_sources")?;
        let schedule = Schedule::read(r)?;
        r.u32("memory")?;
        r.u32("network_requests")?;
        r.u32("storage")?;
        r.list("required_modules", 3, |r| r.variant("required_modules", 3))?;
        if r.variant("assignment_strategy", 2)? == 0 {
            let planned = |r: &mut Reader<'_>| {
                r.array::<32>("instant_match.source")?;
                r.u64("instant_match.start_delay")
            };
            r.option("instant_match", |r| r.list("instant_match", 64, planned))?;
        }
        let slots = r.u8("slots")?;
        r.u128("reward")?;
        r.option("min_reputation", |r| r.u128("min_reputation"))?;
        r.option("processor_version", |r| {
            r.variant("processor_version", 1)?;
            // How many there may be is the runtime's setting; more than this are none.
            r.list("processor_version", 64, |r| {
                r.u32("processor_version.platform")?;
                r.u32("processor_version.build_number")
            })
        })?;
        r.variant("runtime", 3)?;
        reader.end("runtime")?;
        Ok(Self { schedule, slots })
    }
}

impl Assignment {
    /// The whole value of `AcurastMarketplace.StoredMatches`.
    ///
    /// # Errors
    /// It has another form.
    pub fn decode(bytes: &[u8]) -> Result<Self, Misfit> {
        let mut reader = Reader::new(bytes);
        let r = &mut reader;
        let slot = r.u8("slot")?;
        let start_delay = r.u64("start_delay")?;
        let fee_per_execution = r.u128("fee_per_execution")?;
        let acknowledged = r.bool("acknowledged")?;
        r.u64("sla.total")?;
        r.u64("sla.met")?;
        let keys = r.list("pub_keys", 5, PublicKey::read)?;
        let execution = match r.variant("execution", 2)? {
            0 => Execution::All,
            _ => Execution::Index(r.u64("execution.index")?),
        };
        reader.end("execution")?;
        Ok(Self { slot, start_delay, fee_per_execution, acknowledged, keys, execution })
    }

    /// The P-256 key, under whose name the phone's tunnel answers.
    pub fn tunnel_key(&self) -> Option<&[u8; 33]> {
        self.keys.iter().find_map(|key| if let PublicKey::P256(key) = key { Some(key) } else { None })
    }

    /// The Ed25519 key, with which the phone signs.
    pub fn signing_key(&self) -> Option<&[u8; 32]> {
        self.keys.iter().find_map(|key| if let PublicKey::Ed25519(key) = key { Some(key) } else { None })
    }
}

impl PublicKey {
    fn read(reader: &mut Reader<'_>) -> Result<Self, Misfit> {
        let kind = reader.variant("pub_keys", 5)?;
        let bytes = reader.text("pub_keys", MAX_KEY)?;
        // A key of the right kind and the wrong length is of no use, and no reason to doubt the rest.
        Ok(match kind {
            0 => bytes.try_into().map_or(Self::Other, Self::P256),
            2 => bytes.try_into().map_or(Self::Other, Self::Ed25519),
            _ => Self::Other,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::scale::Why;

    const HOUR: u64 = 3_600_000;

    fn bytes(text: &str) -> Vec<u8> {
        hex::decode(text).unwrap()
    }

    // Written by another encoder (`gateway/tests/e2e/support/chain.py`, run as a program).
    const ASSIGNMENT: &str = "03881300000000000000bcc8d0ef00000000000000000000000101000000000000000000000000000000100084031111111111111111111111111111111111111111111111111111111111111111018402020202020202020202020202020202020202020202020202020202020202020202802222222222222222222222222222222222222222222222222222222222222222038403030303030303030303030303030303030303030303030303030303030303030300";
    const MATCHED: &str =
        "00000000000000000005000000000000000000000000000000000100000000000000000000000000000000010200000000000000";
    const REGISTRATION: &str = "d4697066733a2f2f516d563539694b6962626343616473767738545262736f535455487864764375534c6d5174694c4e787950396b3301080101010101010101010101010101010101010101010101010101010101010101020202020202020202020202020202020202020202020202020202020202020200005c260500000000006c50c4a0010000016c50c4a0010000005c2605000000000000000000000000010000000200000003000000080102000104070707070707070707070707070707070707070707070707070707070707070700000000000000000a0010a5d4e800000000000000000000000120a10700000000000000000000000000010004000000008000000002";
    const COMPETING: &str = "d4697066733a2f2f516d563539694b6962626343616473767738545262736f535455487864764375534c6d5174694c4e787950396b33000080ee360000000000006c50c4a0010000005fc0caa0010000005125020000000080ee36000000000001000000020000000300000008010201020010a5d4e8000000000000000000000000010004000000008000000002";

    #[test]
    fn an_assignment_is_read_whole() {
        let assignment = Assignment::decode(&bytes(ASSIGNMENT)).unwrap();
        assert_eq!((assignment.slot, assignment.start_delay, assignment.acknowledged), (3, 5_000, true));
        assert_eq!(assignment.fee_per_execution, 1_030_000_000_000);
        assert_eq!(assignment.tunnel_key().unwrap()[..2], [0x03, 0x11]);
        assert_eq!(assignment.signing_key(), Some(&[0x22; 32]));
        assert_eq!(assignment.execution, Execution::All);
        let matched = Assignment::decode(&bytes(MATCHED)).unwrap();
        assert_eq!((matched.acknowledged, matched.tunnel_key(), matched.execution), (false, None, Execution::Index(2)));
    }

    #[test]
    fn a_registration_is_read_whole_in_both_strategies() {
        let registration = Registration::decode(&bytes(REGISTRATION)).unwrap();
        let schedule = registration.schedule;
        assert_eq!((schedule.duration, schedule.start), (24 * HOUR, 1_790_000_000_000));
        assert_eq!(registration.slots, 10);
        let competing = Registration::decode(&bytes(COMPETING)).unwrap();
        assert_eq!((competing.slots, competing.schedule.interval), (2, 10 * HOUR));
    }

    #[test]
    fn a_value_of_another_form_is_refused_with_the_field_and_never_guessed_at() {
        let whole = bytes(ASSIGNMENT);
        for end in 0..whole.len() {
            assert_eq!(Assignment::decode(&whole[..end]).unwrap_err().why, Why::Ends, "cut at {end}");
        }
        // A field more at the end, and one in the middle.
        let longer = [&whole[..], &[0]].concat();
        assert_eq!(Assignment::decode(&longer).unwrap_err().why, Why::Left(1));
        let mut grown = whole.clone();
        grown.insert(25, 7);
        let misfit = Assignment::decode(&grown).unwrap_err();
        assert_eq!(misfit.to_string(), "acknowledged (byte 25): 7 is none of the known choices");
        let mut kinds = bytes(REGISTRATION);
        *kinds.last_mut().unwrap() = 3;
        assert_eq!(Registration::decode(&kinds).unwrap_err().field, "runtime");
    }

    #[test]
    fn no_bytes_make_reading_panic() {
        // Every value that differs in one byte, cut anywhere: it is read or refused.
        for whole in [ASSIGNMENT, MATCHED, REGISTRATION, COMPETING].map(bytes) {
            for at in 0..whole.len() {
                for byte in [0, 1, 2, 3, 4, 0x7f, 0x80, 0xfe, 0xff] {
                    let mut other = whole.clone();
                    other[at] = byte;
                    for end in [at + 1, whole.len()] {
                        let registration = Registration::decode(&other[..end]);
                        let assignment = Assignment::decode(&other[..end]);
                        // What is read is reckoned with, whatever it is.
                        if let Ok(Registration { schedule, .. }) = registration {
                            schedule.span(&Assignment::decode(&bytes(ASSIGNMENT)).unwrap());
                            schedule.is_over(1);
                            schedule.cost_per_day(u128::MAX);
                        }
                        if let Ok(assignment) = assignment {
                            Registration::decode(&bytes(REGISTRATION)).unwrap().schedule.span(&assignment);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_phones_time_is_its_own_executions() {
        let schedule =
            Schedule { duration: HOUR, start: 100 * HOUR, end: 130 * HOUR, interval: 10 * HOUR, max_start_delay: HOUR };
        let assignment = |execution| Assignment { execution, ..Assignment::decode(&bytes(ASSIGNMENT)).unwrap() };
        let delay = 5_000;
        assert_eq!(schedule.count(), 3, "100, 110 and 120; 130 is no start any more");
        assert_eq!(schedule.span(&assignment(Execution::All)), (100 * HOUR + delay, 121 * HOUR + delay));
        assert_eq!(schedule.span(&assignment(Execution::Index(1))), (110 * HOUR + delay, 111 * HOUR + delay));
        assert!(!schedule.is_over(122 * HOUR) && schedule.is_over(122 * HOUR + 1));
        assert_eq!(schedule.cost_per_day(1_000_000_000_000), Some(24.0));
        let nothing = Schedule { duration: 0, start: 5, end: 1, interval: 0, max_start_delay: 0 };
        assert_eq!((nothing.count(), nothing.cost_per_day(1)), (0, None));
        let endless = Schedule { duration: u64::MAX, start: u64::MAX, end: u64::MAX, interval: 0, max_start_delay: 9 };
        assert_eq!(endless.span(&assignment(Execution::Index(u64::MAX))), (u64::MAX, u64::MAX));
    }
}
