//! How fast the pool gets through requests of one kind, by the speed of its replicas: the numbers of the drain rule, without
//! a walk over the pool for every request.
//!
//! A profile is taken with one request as the measure: each serving replica falls into a bucket by the seconds that it
//! would take alone for it. Another request of the kind (the same template, another length) takes as many times longer
//! everywhere as it is more work, so its limits are scaled instead of its replicas counted again. A profile is taken
//! anew when it is older than the pool is large: small pools change with every event and cost nothing to count.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    event::Class,
    placement::{Ask, Outlook},
    replica::Standing,
    time::Timestamp,
    warmth::TemplateKey,
};

/// Buckets per doubling of the time alone.
const PER_DOUBLING: f64 = 8.0;
/// The first bucket ends here, in seconds.
const SHORTEST: f64 = 0.01;
/// Up to 0.01 s · 2^(184/8), a day.
const BUCKETS: usize = 184;
/// A profile lasts this long for each replica of the pool.
const AGE_PER_REPLICA: Duration = Duration::from_millis(2);
/// Members counted for one profile.
const SAMPLE: usize = 128;
/// A replica is warm for a request if it holds this part of its prompt.
pub(crate) const WARM: f64 = 0.25;
/// Kinds remembered; beyond, all are forgotten and taken again.
const MOST_KINDS: usize = 64;

/// Requests for which the pool looks alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Kind {
    batch: bool,
    route: u8,
    context: u32,
    template: Option<TemplateKey>,
}

/// Throughput of replicas that take alike long.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// Work per second: seconds of a typical replica per second.
    rate: f64,
    /// That, times the seconds alone.
    rate_seconds: f64,
}

/// Work per second of the replicas up to some time alone, and their mean time alone in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Drain {
    pub(crate) rate: f64,
    pub(crate) seconds: f64,
}

#[derive(Debug)]
pub(crate) struct Profile {
    taken: Timestamp,
    /// Work of the request that it was taken with.
    work: f64,
    all: Vec<Bucket>,
    warm: Vec<Bucket>,
}

/// The profiles of one model.
#[derive(Debug, Default)]
pub(crate) struct Profiles(BTreeMap<Kind, Profile>);

impl Kind {
    pub(crate) fn of(ask: &Ask<'_>, outlook: &Outlook<'_>) -> Self {
        Self {
            batch: ask.request.spec.class == Class::Batch,
            route: ask.request.spec.route,
            context: power_of_two(outlook.pool.threshold(ask.request.spec.route, ask.request.need)),
            template: ask.plan.prompt.template.as_ref().map(|template| template.key),
        }
    }
}

impl Profiles {
    /// The profile, if it is still good.
    pub(crate) fn get(&self, kind: Kind, members: usize, now: Timestamp) -> Option<&Profile> {
        let oldest = AGE_PER_REPLICA.saturating_mul(u32::try_from(members).unwrap_or(u32::MAX));
        self.0.get(&kind).filter(|profile| now.since(profile.taken) <= oldest)
    }

    pub(crate) fn put(&mut self, kind: Kind, profile: Profile) {
        if self.0.len() >= MOST_KINDS && !self.0.contains_key(&kind) {
            self.0.clear();
        }
        self.0.insert(kind, profile);
    }
}

impl Profile {
    pub(crate) fn take(outlook: &Outlook<'_>, ask: &Ask<'_>, kind: Kind) -> Self {
        let empty = || vec![Bucket::default(); BUCKETS];
        let mut profile = Self { taken: outlook.now, work: ask.work, all: empty(), warm: empty() };
        // Of a large pool every so-many-th member stands for its neighbours, another each time.
        let members = outlook.pool.members.len();
        let every = members.div_ceil(SAMPLE).max(1);
        let first = outlook.now.0 as usize % every;
        for id in outlook.pool.members.iter().skip(first).step_by(every) {
            let Some(replica) = outlook.replica(*id) else { continue };
            let fits = replica.standing() == Standing::Serving
                && replica.spec.routes.contains(kind.route)
                && replica.context() >= kind.context
                && !replica.is_others()
                && !(kind.batch && outlook.is_reserved(*id));
            if !fits {
                continue;
            }
            let own = outlook.own_later(*id, replica, ask).filter(|own| replica.outlasts(own.total(), outlook.now));
            let Some(own) = own else { continue };
            let gain = outlook.learned.shape.gain(f64::from(replica.ours().max(1)));
            let rate = every as f64 * ask.work / (own.prefill + own.decode / gain);
            let at = bucket(own.total());
            add(&mut profile.all, at, rate, own.total());
            if own.cached > WARM * ask.tokens {
                add(&mut profile.warm, at, rate, own.total());
            }
        }
        profile
    }

    /// What the replicas drain that take less than `limit` seconds for a request of that much work.
    pub(crate) fn faster(&self, limit: f64, work: f64) -> Drain {
        self.sum(&self.all, limit, work)
    }

    /// The same, of those that hold its template.
    pub(crate) fn warm_and_faster(&self, limit: f64, work: f64) -> Drain {
        self.sum(&self.warm, limit, work)
    }

    fn sum(&self, buckets: &[Bucket], limit: f64, work: f64) -> Drain {
        let scale = work / self.work.max(f64::MIN_POSITIVE);
        let below = buckets.iter().take(bucket(limit / scale));
        let (rate, rate_seconds) =
            below.fold((0.0, 0.0), |sum, bucket| (sum.0 + bucket.rate, sum.1 + bucket.rate_seconds));
        Drain { rate, seconds: if rate > 0.0 { scale * rate_seconds / rate } else { 0.0 } }
    }
}

/// Contexts are told apart by factors of two: kinds must be few.
fn power_of_two(context: u32) -> u32 {
    context.checked_ilog2().map_or(0, |log| 1 << log)
}

fn bucket(seconds: f64) -> usize {
    let at = PER_DOUBLING * (seconds / SHORTEST).log2();
    (at.max(0.0) as usize).min(BUCKETS - 1)
}

fn add(buckets: &mut [Bucket], at: usize, rate: f64, seconds: f64) {
    if let Some(bucket) = buckets.get_mut(at) {
        bucket.rate += rate;
        bucket.rate_seconds += rate * seconds;
    }
}
