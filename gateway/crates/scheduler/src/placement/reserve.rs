//! Which replicas are kept free for urgent arrivals.
//!
//! As many as arrivals occupy on average are taken from the fastest; those for the peaks, which stand idle most of the
//! time, from the slowest that still answer an urgent request in time: a fast phone that does nothing is dear.

use crate::{
    id::{ModelId, ReplicaId},
    placement::Outlook,
    replica::Replica,
    scheduler::Scheduler,
    time::Timestamp,
};

/// A replica for the average reads at least this part as fast as the fastest, one for peaks that part.
const QUICK: f64 = 0.5;
const SPARE: f64 = 0.4;
/// One that runs something counts as so much worse.
const BUSY: f64 = 0.8;
/// How long a choice of replicas stands, in nanoseconds.
const STANDS: u64 = 2_000_000_000;

impl Scheduler {
    /// Sees to it that the right replicas are kept.
    pub(crate) fn reserve(&mut self, model: ModelId, now: Timestamp) {
        let (Some(pool), Some(learned)) = (self.pool.models.get(&model), self.learned.get(&model)) else { return };
        if now.0 < learned.reserved_at.0.saturating_add(STANDS) {
            return;
        }
        let wanted = learned.reserve.wanted(now, pool.serving);
        let Some(outlook) = self.outlook(model, now) else { return };
        let reserved = if wanted == 0 { Vec::new() } else { outlook.keep(&learned.reserved, wanted) };
        if let Some(learned) = self.learned.get_mut(&model) {
            (learned.reserved, learned.reserved_at) = (reserved, now);
        }
    }
}

impl Outlook<'_> {
    /// `wanted` replicas to keep, those for the average first; of those kept before as many as still will do.
    fn keep(&self, before: &[ReplicaId], wanted: usize) -> Vec<ReplicaId> {
        let serving = |id: ReplicaId| self.serving_rate(id).map(|rate| (rate, id));
        let best = self.pool.by_speed().find_map(serving).map_or(0.0, |(rate, _)| rate);
        let handicap = |id: ReplicaId| {
            let idle = self.replica(id).is_some_and(Replica::is_idle);
            if idle { 1.0 } else { BUSY }
        };
        // wanted = a + 2·sqrt(a), so a is:
        let wanted_f = wanted as f64;
        let quick = ((wanted_f + 2.0 - 2.0 * (1.0 + wanted_f).sqrt()).ceil().max(1.0) as usize).min(wanted);
        let still = |ids: &[ReplicaId], least: f64, most: usize| -> Vec<ReplicaId> {
            let good = ids.iter().copied().filter(|id| serving(*id).is_some_and(|(rate, _)| rate > least * best));
            good.take(most).collect()
        };
        let mut kept = still(before, QUICK, quick);
        let mut fast: Vec<(f64, ReplicaId)> =
            self.pool.by_speed().filter(|id| !kept.contains(id)).filter_map(serving).take(3 * wanted + 10).collect();
        fast.sort_by(|a, b| (b.0 * handicap(b.1)).total_cmp(&(a.0 * handicap(a.1))));
        kept.extend(fast.into_iter().map(|(_, id)| id).take(quick.saturating_sub(kept.len())));
        let rest: Vec<ReplicaId> = before.iter().copied().filter(|id| !kept.contains(id)).collect();
        let mut spare = still(&rest, SPARE, wanted - kept.len());
        let free = self.pool.by_speed().filter(|id| !kept.contains(id) && !spare.contains(id)).filter_map(serving);
        let mut slow: Vec<(f64, ReplicaId)> = free.filter(|(rate, _)| *rate > SPARE * best).collect();
        slow.sort_by(|a, b| (a.0 / handicap(a.1)).total_cmp(&(b.0 / handicap(b.1))));
        let missing = (wanted - kept.len()).saturating_sub(spare.len());
        spare.extend(slow.into_iter().map(|(_, id)| id).take(missing));
        kept.extend(spare);
        kept
    }
}
