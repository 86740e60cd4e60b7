//! From a look to phones: who is where, until when, for how much, and what that makes of the pool.

use store::{Origin, ReplicaSource, Verification};

use super::{address::AccountId, job::JobId, look::Look, phone::Tunnel, shape::Assignment};
/// Where a phone stands with its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// It is meant to work, and has not accepted yet.
    Matched,
    /// It has accepted, and its time has not come.
    Waiting,
    /// Its time is now.
    Running,
    /// Its time is over.
    Ended,
    /// What the chain says about it can't be used.
    Unclear,
}

impl Stage {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Matched, Self::Waiting, Self::Running, Self::Ended, Self::Unclear];

    /// The name in metrics and in the admin API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Matched => "matched",
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Ended => "ended",
            Self::Unclear => "unclear",
        }
    }
}

/// A phone's part in a job, ready for use.
#[derive(Clone, Debug, PartialEq)]
pub struct Phone {
    /// The job.
    pub job: JobId,
    /// The phone's account.
    pub processor: AccountId,
    /// Where it stands.
    pub stage: Stage,
    /// Why it is not used, where its stage does not say it.
    pub problem: Option<String>,
    /// From 0.
    pub slot: Option<u8>,
    /// Its address and the pin of its certificate's key.
    pub at: Option<(String, String)>,
    /// Its Ed25519 key, in hex.
    pub signing_key: Option<String>,
    /// When its work begins and ends, in milliseconds since 1970.
    pub span_ms: Option<(u64, u64)>,
    /// ACU for a day of work.
    pub cost_per_day: Option<f64>,
}

/// All phones of a look, in order.
pub fn phones(look: &Look, suffix: &str, now_ms: u64) -> Vec<Phone> {
    let of_job = |(id, job): (&JobId, &super::look::Job)| {
        let (id, schedule) = (*id, job.registration.map(|registration| registration.schedule));
        let phone = |(processor, assignment): (&AccountId, &Option<Assignment>)| {
            let blank = Phone {
                job: id,
                processor: *processor,
                stage: Stage::Unclear,
                problem: None,
                slot: None,
                at: None,
                signing_key: None,
                span_ms: None,
                cost_per_day: None,
            };
            let Some(assignment) = assignment else {
                return Phone { problem: Some("what is agreed with it can't be read".into()), ..blank };
            };
            let Some(schedule) = schedule else {
                return Phone {
                    problem: Some("its job's registration is not there, or can't be read".into()),
                    ..blank
                };
            };
            let (start, end) = schedule.span(assignment);
            let known = Phone {
                slot: Some(assignment.slot),
                signing_key: assignment.signing_key().map(hex::encode),
                span_ms: Some((start, end)),
                cost_per_day: schedule.cost_per_day(assignment.fee_per_execution),
                ..blank
            };
            let tunnel = assignment.tunnel_key().map(Tunnel::of);
            let unclear = |why: &str| Phone { problem: Some(why.into()), ..known.clone() };
            match tunnel {
                _ if now_ms >= end => Phone { stage: Stage::Ended, ..known },
                _ if !assignment.acknowledged => Phone { stage: Stage::Matched, ..known },
                None => unclear("it has published no P-256 key, so its address is not known"),
                Some(None) => unclear("its P-256 key is no point of the curve"),
                Some(Some(Tunnel { id, pin })) => Phone {
                    stage: if now_ms < start { Stage::Waiting } else { Stage::Running },
                    at: Some((format!("https://{id}.{suffix}"), pin)),
                    ..known
                },
            }
        };
        job.phones.iter().map(phone).collect::<Vec<_>>()
    };
    look.jobs.iter().flat_map(of_job).collect()
}

/// What is said of a phone to the pool.
#[derive(Debug, PartialEq, Eq)]
pub struct Saying {
    /// Its address and pin, where that is its address for us.
    pub at: Option<(String, String)>,
    /// How well it is known by that.
    pub verification: Verification,
}

/// What the pool knows of a phone.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// Who stated it.
    pub source: ReplicaSource,
    /// Where it is.
    pub url: &'a str,
    /// Who it is.
    pub origin: &'a Origin,
}

/// What to say of a phone.
///
/// The pin belongs to the address that the chain gives: a phone that has announced another one keeps it, and there another
/// key. And the chain vouches for a key, not for what somebody said who had no key to sign with.
pub fn saying(phone: &Phone, known: Option<Known<'_>>) -> Option<Saying> {
    let at = phone.at.clone()?;
    let assigned = |at| Some(Saying { at, verification: Verification::Assigned });
    let Some(Known { source, url, origin }) = known else { return assigned(Some(at)) };
    if source == ReplicaSource::Chain || url == at.0 {
        return assigned(Some(at));
    }
    if origin.verification >= Verification::Signed && origin.public_key == phone.signing_key {
        return assigned(None);
    }
    Some(Saying { at: None, verification: origin.verification })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::chain::{
        look::Job,
        rpc::Runtime,
        shape::{Execution, PublicKey, Registration, Schedule},
    };

    const HOUR: u64 = 3_600_000;

    fn job() -> JobId {
        "Acurast:5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY:7".parse().unwrap()
    }

    /// The generator of the curve: a key like any other.
    fn p256() -> [u8; 33] {
        let mut key = [0; 33];
        let text = "036b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296";
        hex::decode_to_slice(text, &mut key).unwrap();
        key
    }

    fn assignment(keys: Vec<PublicKey>) -> Assignment {
        let acknowledged = !keys.is_empty();
        let fee_per_execution = 2_000_000_000_000;
        Assignment { slot: 0, start_delay: 0, fee_per_execution, acknowledged, keys, execution: Execution::All }
    }

    /// A job from hour 10 to hour 58 with this phone, seen at `now`.
    fn seen(assignment: Option<Assignment>, now: u64) -> Phone {
        let schedule = Schedule {
            duration: 48 * HOUR,
            start: 10 * HOUR,
            end: 10 * HOUR + 1,
            interval: 48 * HOUR,
            max_start_delay: 0,
        };
        let phones = BTreeMap::from([(AccountId([7; 32]), assignment)]);
        let job_seen = Job { registration: Some(Registration { schedule, slots: 1 }), phones };
        let look = Look {
            number: 1,
            runtime: Runtime { spec_name: "acurast-parachain".into(), spec_version: 13 },
            jobs: BTreeMap::from([(job(), job_seen)]),
            doubts: Vec::new(),
            whole: true,
        };
        phones_of(&look, now)
    }

    fn phones_of(look: &Look, now: u64) -> Phone {
        let mut found = phones(look, "acu.run", now);
        assert_eq!(found.len(), 1);
        found.remove(0)
    }

    fn both() -> Vec<PublicKey> {
        vec![PublicKey::P256(p256()), PublicKey::Other, PublicKey::Ed25519([0x22; 32])]
    }

    #[test]
    fn a_phone_goes_from_matched_over_waiting_and_running_to_ended() {
        let stage = |keys, now| seen(Some(assignment(keys)), now).stage;
        assert_eq!(stage(Vec::new(), 11 * HOUR), Stage::Matched);
        assert_eq!(stage(both(), 10 * HOUR - 1), Stage::Waiting);
        assert_eq!(stage(both(), 10 * HOUR), Stage::Running);
        assert_eq!(stage(both(), 58 * HOUR - 1), Stage::Running);
        assert_eq!(stage(both(), 58 * HOUR), Stage::Ended);
        let running = seen(Some(assignment(both())), 11 * HOUR);
        assert_eq!(running.at.unwrap().0, "https://5baff89de7de5c1d.acu.run");
        assert_eq!((running.span_ms, running.cost_per_day), (Some((10 * HOUR, 58 * HOUR)), Some(1.0)));
    }

    #[test]
    fn a_phone_that_cannot_be_reached_or_read_says_why() {
        for (assignment, word) in [
            (None, "can't be read"),
            (Some(assignment(vec![PublicKey::Other])), "no P-256 key"),
            (Some(assignment(vec![PublicKey::P256([4; 33])])), "no point"),
        ] {
            let phone = seen(assignment, 11 * HOUR);
            assert_eq!((phone.stage, phone.at.is_none()), (Stage::Unclear, true));
            assert!(phone.problem.clone().unwrap().contains(word), "{phone:?}");
            assert_eq!(saying(&phone, None), None);
        }
    }

    #[test]
    fn the_chain_vouches_for_keys_and_not_for_addresses_that_others_gave() {
        let phone = seen(Some(assignment(both())), 11 * HOUR);
        let here = phone.at.clone().unwrap();
        let told = |source, url: &str, verification, key: Option<&str>| {
            let origin = Origin { public_key: key.map(|key| key.repeat(32)), verification, ..Origin::default() };
            saying(&phone, Some(Known { source, url, origin: &origin })).unwrap()
        };
        let whole = Saying { at: Some(here.clone()), verification: Verification::Assigned };
        assert_eq!(saying(&phone, None).unwrap(), whole);
        let old = "https://0000000000000000.acu.run";
        assert_eq!(told(ReplicaSource::Chain, old, Verification::Assigned, Some("11")), whole, "it has a new key");
        assert_eq!(told(ReplicaSource::Registration, &here.0, Verification::Token, None), whole, "the pin proves it");
        // At an address of its own: whoever signed with the chain's key is who it says, and nobody else becomes more than it was.
        let signed = told(ReplicaSource::Registration, old, Verification::Signed, Some("22"));
        assert_eq!(signed, Saying { at: None, verification: Verification::Assigned });
        for (verification, key) in
            [(Verification::Token, None), (Verification::Token, Some("22")), (Verification::Signed, Some("11"))]
        {
            assert_eq!(told(ReplicaSource::Registration, old, verification, key), Saying { at: None, verification });
        }
    }
}
