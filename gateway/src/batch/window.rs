//! How many lines of which batch are begun now.
//!
//! The scheduler decides what runs where; a line that waits in its queue is there to be chosen. So just enough of them wait:
//! too few, and a slot that falls free finds nothing that suits it, or the scheduler takes the end of the queue for the end of
//! the batch and leaves slow phones idle, as the fast ones would be through with what waits before them; too many, and their
//! bodies fill the memory, and the queue for others. How many run follows from that, as phones come and go, and as more urgent
//! requests want them.

use std::collections::{BTreeMap, HashMap};

use scheduler::{ModelId, TenantId};
use store::BatchKey;

/// Fewest lines that may wait for a model: a slot that falls free has a choice.
const FEWEST: usize = 2;

/// Lines that may wait for each slot.
const DEPTH: usize = 2;

/// A batch of which lines could be begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Which.
    pub batch: BatchKey,
    /// Whose.
    pub tenant: TenantId,
    /// What for.
    pub model: ModelId,
    /// Its time is short: it goes before the same tenant's others.
    pub urgent: bool,
    /// Lines of it that run.
    pub running: usize,
}

/// What there is of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Slots of replicas that serve it.
    pub slots: usize,
}

impl Room {
    /// Lines that may wait: twice as many as there are slots. A hundred phones of which the slowest are ten times slower than the
    /// fastest take a tenth longer for a batch with half as many as slots.
    const fn waiting(self) -> usize {
        let waiting = DEPTH * self.slots;
        if waiting > FEWEST { waiting } else { FEWEST }
    }
}

/// How many lines of each batch to begin, in this order, at most `most` in all. `waiting`: requests that wait, by tenant
/// and model. A model's tenants may have as many waiting, each; so do a tenant's batches, the urgent ones and then those
/// with the fewest running lines first.
pub fn share(
    ready: &[Ready],
    rooms: &HashMap<ModelId, Room>,
    waiting: &BTreeMap<(TenantId, ModelId), usize>,
    most: usize,
) -> Vec<(BatchKey, usize)> {
    let mut by_tenant: BTreeMap<(ModelId, TenantId), Vec<Ready>> = BTreeMap::new();
    for batch in ready {
        by_tenant.entry((batch.model, batch.tenant)).or_default().push(*batch);
    }
    let mut tenants: HashMap<ModelId, usize> = HashMap::new();
    for (model, _) in by_tenant.keys() {
        *tenants.entry(*model).or_default() += 1;
    }
    let mut left = most;
    let mut shares = Vec::new();
    for ((model, tenant), mut batches) in by_tenant {
        let Some(room) = rooms.get(&model).filter(|room| room.slots > 0) else { continue };
        let may_wait = room.waiting().div_ceil(tenants[&model]);
        let waits = waiting.get(&(tenant, model)).copied().unwrap_or(0);
        let count = may_wait.saturating_sub(waits).min(left);
        left -= count;
        batches.sort_by_key(|batch| (!batch.urgent, batch.running, batch.batch));
        shares.extend(deal(&batches, count));
    }
    shares
}

/// Deals so many lines: to the urgent batches alone, if there are any; so that all have about as many in the end.
fn deal(batches: &[Ready], count: usize) -> Vec<(BatchKey, usize)> {
    let urgent = batches.iter().filter(|batch| batch.urgent).count();
    let among = if urgent > 0 { &batches[..urgent] } else { batches };
    let mut dealt: Vec<(BatchKey, usize, usize)> = among.iter().map(|batch| (batch.batch, batch.running, 0)).collect();
    for _ in 0..count {
        if let Some(next) = dealt.iter_mut().min_by_key(|(_, running, new)| running + new) {
            next.2 += 1;
        }
    }
    dealt.into_iter().filter(|(.., new)| *new > 0).map(|(batch, _, new)| (batch, new)).collect()
}

/// A batch to be worked on as a whole: its lines are to be looked at, or its files to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// Which.
    pub batch: BatchKey,
    /// Whose.
    pub tenant: TenantId,
    /// Its files are to be written.
    pub sealed: bool,
}

/// Takes out the one that is worked on next, and counts it in `working`. Tenants in turn: one with a hundred new batches keeps nobody
/// waiting. Of a tenant's, files first, which somebody waits for; then the oldest.
pub fn next_job(due: &mut Vec<Due>, working: &mut HashMap<TenantId, usize>) -> Option<BatchKey> {
    let place = |at: &usize| due.get(*at).map(|due| (working.get(&due.tenant).copied(), !due.sealed, due.batch));
    let next = due.remove((0..due.len()).min_by_key(place)?);
    *working.entry(next.tenant).or_default() += 1;
    Some(next.batch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_batches_are_worked_on_for_tenants_in_turn_and_files_are_written_first() {
        let due = |batch, tenant, sealed| Due { batch: BatchKey(batch), tenant: TenantId(tenant), sealed };
        let mut waiting: Vec<Due> = (0..100).map(|batch| due(batch, 1, batch == 70)).collect();
        waiting.extend([due(200, 2, false), due(201, 3, true), due(202, 2, false)]);
        let mut working = HashMap::from([(TenantId(3), 1)]);
        let order: Vec<u64> = std::iter::from_fn(|| next_job(&mut waiting, &mut working)).map(|key| key.0).collect();
        assert_eq!(order[..7], [70, 200, 201, 0, 202, 1, 2]);
        assert_eq!((order.len(), waiting.len()), (103, 0));
    }

    fn ready(batch: u64, tenant: u32, running: usize) -> Ready {
        Ready { batch: BatchKey(batch), tenant: TenantId(tenant), model: ModelId(1), urgent: false, running }
    }

    fn shared(batches: &[Ready], slots: usize, waiting: &[(u32, usize)], most: usize) -> Vec<(u64, usize)> {
        let rooms = HashMap::from([(ModelId(1), Room { slots })]);
        let waiting = waiting.iter().map(|(tenant, count)| ((TenantId(*tenant), ModelId(1)), *count)).collect();
        share(batches, &rooms, &waiting, most).into_iter().map(|(batch, count)| (batch.0, count)).collect()
    }

    #[test]
    fn twice_as_many_wait_as_run() {
        assert_eq!(shared(&[ready(1, 1, 0)], 400, &[], 1000), [(1, 800)]);
        assert_eq!(shared(&[ready(1, 1, 350)], 400, &[(1, 780)], 1000), [(1, 20)]);
        assert_eq!(shared(&[ready(1, 1, 350)], 400, &[(1, 900)], 1000), []);
        assert_eq!(shared(&[ready(1, 1, 0)], 1, &[], 1000), [(1, 2)]);
        assert_eq!(shared(&[ready(1, 1, 0)], 0, &[], 1000), []);
        assert_eq!(shared(&[ready(1, 1, 0)], 400, &[], 7), [(1, 7)]);
    }

    #[test]
    fn tenants_have_equal_parts_of_the_queue_whatever_they_have_running() {
        let batches = [ready(1, 1, 90), ready(2, 1, 10), ready(3, 2, 0)];
        let shares = shared(&batches, 25, &[(1, 20)], 1000);
        assert_eq!(shares, [(2, 5), (3, 25)], "the batch with few running lines catches up");
    }

    #[test]
    fn batches_of_a_tenant_end_up_with_equally_many_and_urgent_ones_go_first() {
        let batches = [ready(1, 1, 4), ready(2, 1, 0), ready(3, 1, 2)];
        assert_eq!(shared(&batches, 5, &[], 9), [(2, 5), (3, 3), (1, 1)]);
        let urgent = Ready { urgent: true, ..ready(1, 1, 4) };
        assert_eq!(shared(&[urgent, batches[1]], 5, &[], 9), [(1, 9)]);
    }
}
