//! The waiting room: requests wait here, never on a phone.
//!
//! Per model there are *lanes*, one for each kind of request that the choice of replica can tell apart (class, route,
//! context). Inside a lane only the list of replicas already tried differs, so a free slot looks at the head of each
//! lane instead of at each request. One list per model was rejected: a phone with a small context would walk past
//! thousands of long prompts at every completion.
//!
//! Inside a lane the order is by tag, then by arrival. Tags come from the fair share between tenants; where the policy
//! gives none, all are zero and the order is that of arrival.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, btree_map::Entry},
    time::Duration,
};

use crate::{
    event::Class,
    id::{ModelId, RequestId},
    request::{Need, Request},
    time::Timestamp,
};

/// What requests of one lane have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LaneKey {
    pub(crate) class: Class,
    pub(crate) route: u8,
    pub(crate) need: Need,
}

impl LaneKey {
    pub(crate) fn of(request: &Request) -> Self {
        Self { class: request.spec.class, route: request.spec.route, need: request.need }
    }
}

/// A place in the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) request: RequestId,
    pub(crate) queued_from: Timestamp,
    /// Needs room in the retry budget.
    pub(crate) retry: bool,
}

/// A place in the order of a lane: the tag as bits (positive floats order like their bits), then the arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    tag: u64,
    order: u64,
}

impl Position {
    pub(crate) fn of(request: &Request) -> Self {
        // What comes back keeps the order of arrival: it has had its turn before.
        let tag = if request.has_run() { 0.0 } else { request.plan.tag.max(0.0) };
        Self { tag: tag.to_bits(), order: request.order }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Lane {
    /// Failed over or given back: before the others of their class.
    pub(crate) returned: BTreeMap<Position, Place>,
    pub(crate) fresh: BTreeMap<Position, Place>,
    /// No replica that serves now fits the lane.
    pub(crate) orphan: bool,
}

#[derive(Debug, Default)]
pub(crate) struct ModelQueue {
    pub(crate) lanes: BTreeMap<LaneKey, Lane>,
    waiting: [usize; 3],
    /// Their work, by class; seconds of a typical replica.
    work: [f64; 3],
}

/// What a free slot may take. The smallest is next: the most urgent class (after promotion), failed over before
/// fresh, then by arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn {
    class: Class,
    fresh: bool,
    position: Position,
    pub(crate) request: RequestId,
}

/// How a slot sees the queue.
pub(crate) struct Look {
    pub(crate) now: Timestamp,
    pub(crate) promote_after: Duration,
    /// Whether the retry budget has room.
    pub(crate) retries: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) models: BTreeMap<ModelId, ModelQueue>,
    waiting: usize,
    fresh: usize,
    bytes: u64,
}

impl Queue {
    /// `orphan` says whether no serving replica fits the request's lane; looked at only when the lane is new.
    pub(crate) fn push(&mut self, id: RequestId, request: &Request, orphan: bool) {
        let queue = self.models.entry(request.spec.model).or_default();
        let lane = match queue.lanes.entry(LaneKey::of(request)) {
            Entry::Occupied(lane) => lane.into_mut(),
            Entry::Vacant(vacant) => vacant.insert(Lane { orphan, ..Lane::default() }),
        };
        let side = if request.has_run() { &mut lane.returned } else { &mut lane.fresh };
        let retry = request.failed && !request.advanced;
        let place = Place { request: id, queued_from: request.queued_from, retry };
        side.insert(Position::of(request), place);
        queue.waiting[request.spec.class as usize] += 1;
        queue.work[request.spec.class as usize] += request.plan.work;
        self.waiting += 1;
        self.fresh += usize::from(!request.has_run());
        self.bytes += request.spec.body_bytes;
    }

    /// Whether it was there.
    pub(crate) fn remove(&mut self, request: &Request) -> bool {
        let key = LaneKey::of(request);
        let Some(queue) = self.models.get_mut(&request.spec.model) else { return false };
        let Some(lane) = queue.lanes.get_mut(&key) else { return false };
        let side = if request.has_run() { &mut lane.returned } else { &mut lane.fresh };
        if side.remove(&Position::of(request)).is_none() {
            return false;
        }
        if lane.returned.is_empty() && lane.fresh.is_empty() {
            queue.lanes.remove(&key);
        }
        let class = request.spec.class as usize;
        queue.waiting[class] -= 1;
        // From zero anew each time: sums of floats drift.
        queue.work[class] =
            if queue.waiting[class] == 0 { 0.0 } else { (queue.work[class] - request.plan.work).max(0.0) };
        if queue.lanes.is_empty() {
            self.models.remove(&request.spec.model);
        }
        self.waiting -= 1;
        self.fresh -= usize::from(!request.has_run());
        self.bytes -= request.spec.body_bytes;
        true
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Those that were never dispatched: the ones the bounds are about.
    pub(crate) fn fresh(&self) -> usize {
        self.fresh
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn waiting_for(&self, model: ModelId) -> usize {
        self.models.get(&model).map_or(0, |queue| queue.waiting.iter().sum())
    }

    /// Waiting requests that a new one of this class stands behind.
    pub(crate) fn ahead_of(&self, model: ModelId, class: Class) -> usize {
        self.models.get(&model).map_or(0, |queue| queue.waiting[..=class as usize].iter().sum())
    }

    /// Work that waits in that class, as planned on arrival, in seconds of a typical replica.
    pub(crate) fn work_in(&self, model: ModelId, class: Class) -> f64 {
        self.models.get(&model).map_or(0.0, |queue| queue.work[class as usize])
    }

    /// How many of its own class are served before a waiting request.
    pub(crate) fn before(&self, request: &Request) -> usize {
        let Some(queue) = self.models.get(&request.spec.model) else { return 0 };
        let (position, returned) = (Position::of(request), request.has_run());
        let lanes = queue.lanes.iter().filter(|(key, _)| key.class == request.spec.class);
        let before = |lane: &Lane| {
            let all_returned = if returned { lane.returned.range(..position).count() } else { lane.returned.len() };
            all_returned + if returned { 0 } else { lane.fresh.range(..position).count() }
        };
        lanes.map(|(_, lane)| before(lane)).sum()
    }

    /// How many wait in that class alone.
    pub(crate) fn waiting_in(&self, model: ModelId, class: Class) -> usize {
        self.models.get(&model).map_or(0, |queue| queue.waiting[class as usize])
    }

    pub(crate) fn depths(&self) -> BTreeMap<(ModelId, Class), usize> {
        let by_class = |(model, queue): (&ModelId, &ModelQueue)| {
            Class::ALL.map(|class| ((*model, class), queue.waiting[class as usize]))
        };
        self.models.iter().flat_map(by_class).filter(|(_, waiting)| *waiting > 0).collect()
    }
}

impl ModelQueue {
    /// Whose turn it is at a slot that `fits` some lanes, and whether a retry was passed over for want of budget.
    pub(crate) fn next(
        &self,
        look: &Look,
        fits: impl Fn(&LaneKey) -> bool,
        untried: impl Fn(RequestId) -> bool,
    ) -> (Option<Turn>, bool) {
        let (mut best, mut starved) = (None, false);
        for (key, lane) in self.lanes.iter().filter(|(key, _)| fits(key)) {
            let fresh = lane.fresh.first_key_value().map(|place| (true, place));
            let affordable = |place: &Place| look.retries || !place.retry;
            starved |= lane.returned.values().any(|place| !affordable(place));
            let mut returned = lane.returned.iter();
            let returned = returned.find(|(_, place)| affordable(place) && untried(place.request));
            for (fresh, (position, place)) in fresh.into_iter().chain(returned.map(|place| (false, place))) {
                let class = promoted(key.class, look.now.since(place.queued_from), look.promote_after);
                let turn = Turn { class, fresh, position: *position, request: place.request };
                if best.is_none_or(|best| turn < best) {
                    best = Some(turn);
                }
            }
        }
        (best, starved)
    }

    /// The next of a class that may go to lanes which `fits` allows, in order, at most `most`, into `window`. Those that come
    /// back may go few places each, so of them only such as `may` allows.
    pub(crate) fn window(
        &self,
        class: Class,
        fits: impl Fn(&LaneKey) -> bool,
        may: impl Fn(RequestId) -> bool,
        most: usize,
        window: &mut Vec<RequestId>,
    ) {
        let least = Need { tokens: 0, measured: false };
        let of_class =
            || self.lanes.range(LaneKey { class, route: 0, need: least }..).take_while(|(key, _)| key.class == class);
        let lanes = || of_class().filter(|(key, _)| fits(key));
        let returned = lanes().flat_map(|(_, lane)| lane.returned.values()).map(|place| place.request);
        window.extend(returned.filter(|request| may(*request)).take(most));
        // The heads of all lanes, the earliest on top; few lanes are occupied at once.
        let mut streams: Vec<_> = lanes().map(|(_, lane)| lane.fresh.iter()).collect();
        let mut heads: BinaryHeap<_> = BinaryHeap::with_capacity(streams.len());
        for (stream, places) in streams.iter_mut().enumerate() {
            heads.extend(places.next().map(|(position, place)| Reverse((*position, stream, place.request))));
        }
        while window.len() < most
            && let Some(Reverse((_, stream, request))) = heads.pop()
        {
            window.push(request);
            let next = streams.get_mut(stream).and_then(Iterator::next);
            heads.extend(next.map(|(position, place)| Reverse((*position, stream, place.request))));
        }
    }

    /// When the one that has waited longest in a class began to wait, as far as the heads of its lanes tell.
    pub(crate) fn eldest(&self, class: Class) -> Option<Timestamp> {
        let lanes = self.lanes.iter().filter(|(key, _)| key.class == class);
        let heads = lanes.filter_map(|(_, lane)| lane.fresh.first_key_value().map(|(_, place)| place.queued_from));
        heads.min()
    }
}

/// Protection from starvation: one class up for each `after` waited. Counted when somebody chooses, so it needs no timer.
fn promoted(class: Class, waited: Duration, after: Duration) -> Class {
    let steps = if after.is_zero() { 2 } else { (waited.as_nanos() / after.as_nanos()).min(2) as usize };
    Class::ALL[(class as usize).saturating_sub(steps)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        event::{Carry, RequestSpec},
        id::TenantId,
        prefix::Prefix,
    };

    const LOOK: Look = Look { now: Timestamp(0), promote_after: Duration::from_secs(60), retries: true };

    fn request(class: Class, order: u64, queued_from: u64) -> Request {
        let spec = RequestSpec {
            model: ModelId(1),
            route: 0,
            tenant: TenantId(1),
            class,
            deadline: None,
            prompt_tokens: 10,
            max_output: Some(10),
            stream: false,
            carry: Carry::Never,
            body_bytes: 100,
            prefix: Prefix::default(),
        };
        Request { queued_from: Timestamp(queued_from), ..Request::new(spec, order, Timestamp(queued_from)) }
    }

    fn turn(queue: &Queue, look: &Look) -> Option<RequestId> {
        queue.models.get(&ModelId(1))?.next(look, |_| true, |_| true).0.map(|turn| turn.request)
    }

    #[test]
    fn classes_come_in_order_and_fifo_inside_a_class() {
        let mut queue = Queue::default();
        let waiting = [(Class::Batch, 1), (Class::Standard, 2), (Class::Interactive, 3), (Class::Interactive, 4)];
        let requests = waiting.map(|(class, order)| request(class, order, 0));
        for (id, request) in requests.iter().enumerate() {
            queue.push(RequestId(id as u64), request, false);
        }
        let mut seen = Vec::new();
        while let Some(next) = turn(&queue, &LOOK) {
            seen.push(next.0);
            assert!(queue.remove(&requests[next.0 as usize]));
        }
        assert_eq!(seen, [2, 3, 1, 0]);
        assert_eq!((queue.waiting(), queue.bytes(), queue.depths().len()), (0, 0, 0));
    }

    #[test]
    fn a_batch_request_that_waited_twice_the_promotion_goes_before_younger_interactive_ones() {
        let mut queue = Queue::default();
        let minute = 60_000_000_000;
        queue.push(RequestId(1), &request(Class::Batch, 1, 0), false);
        queue.push(RequestId(2), &request(Class::Interactive, 2, minute), false);
        assert_eq!(turn(&queue, &Look { now: Timestamp(2 * minute - 1), ..LOOK }), Some(RequestId(2)));
        assert_eq!(turn(&queue, &Look { now: Timestamp(2 * minute), ..LOOK }), Some(RequestId(1)));
    }

    #[test]
    fn a_failed_over_request_goes_to_the_front_of_its_class_only() {
        let mut queue = Queue::default();
        queue.push(RequestId(1), &request(Class::Interactive, 1, 0), false);
        queue.push(RequestId(2), &request(Class::Standard, 2, 0), false);
        queue.push(RequestId(3), &Request { dispatches: 1, failed: true, ..request(Class::Standard, 3, 0) }, false);
        assert_eq!(turn(&queue, &LOOK), Some(RequestId(1)));
        queue.remove(&request(Class::Interactive, 1, 0));
        assert_eq!(turn(&queue, &LOOK), Some(RequestId(3)));
        let (next, starved) = queue.models[&ModelId(1)].next(&Look { retries: false, ..LOOK }, |_| true, |_| true);
        assert_eq!((next.map(|turn| turn.request), starved), (Some(RequestId(2)), true));
    }
}
