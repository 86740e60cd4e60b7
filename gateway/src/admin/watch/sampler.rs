//! The task that looks while anybody reads.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use scheduler::ReplicaId;
use serde::Serialize;
use tokio::time::{MissedTickBehavior, interval};

use super::{
    super::{AppState, advice, cost::CostView, deployments::DeploymentList, events::EventView},
    Watch,
    board::Changes,
    hour,
    look::{Calendar, batches, look},
    view::{EventNow, EventsNow, PointView, RegistrationNow, ReplicaNow},
};
use crate::{fleet::PoolEvent, shutdown::Stop};

/// From one look to the next. A second: faster than anybody reads a page of numbers.
const EVERY: Duration = Duration::from_secs(1);
/// Pool changes that who joins is told.
const MAX_EVENTS: usize = 200;
/// Pool changes told of one look: as many as the pool keeps.
const MAX_NEWS: usize = 1024;

/// A body that is told whole, and how many looks lie between two of it.
struct Body {
    name: &'static str,
    every: u64,
    body: fn(&AppState) -> String,
}

/// Bodies that change slowly.
const BODIES: [Body; 5] = [
    Body { name: "batches", every: 5, body: |app| json(&batches(app)) },
    Body { name: "advice", every: 10, body: |app| json(&advice::fed(app)) },
    Body { name: "cost", every: 10, body: |app| json(&CostView::of_a_day(&app.telemetry)) },
    Body { name: "deployments", every: 30, body: |app| json(&DeploymentList::now(app)) },
    Body { name: "registration", every: 1, body: |app| json(&RegistrationNow::new(&app.registrar)) },
];

/// Looks while anybody reads, until `stop`.
pub(in super::super) async fn run(watch: Arc<Watch>, app: AppState, mut stop: Stop) {
    loop {
        tokio::select! {
            () = stop.wait() => return,
            () = watch.joined.notified() => {}
        }
        let (mut sampler, mut ticks) = (Sampler::default(), interval(EVERY));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        while watch.has_readers() {
            tokio::select! {
                () = stop.wait() => return,
                _ = ticks.tick() => watch.board.post(sampler.look(&app)),
            }
        }
        watch.board.clear();
    }
}

/// What was seen at the last look.
#[derive(Default)]
struct Sampler {
    looks: u64,
    calendar: Calendar,
    replicas: BTreeMap<ReplicaId, ReplicaNow>,
    /// The newest pool change that was told.
    event: u64,
    /// The newest point that was told.
    point: Option<u64>,
}

impl Sampler {
    fn look(&mut self, app: &AppState) -> Changes {
        self.calendar.refresh();
        let seen = look(app, self.calendar);
        let mut changes = Changes::default();
        self.compare(seen.replicas, &mut changes);
        changes.wholes.push(("totals", json(&seen.totals)));
        changes.wholes.push(("queue", json(&seen.queue)));
        changes.wholes.push(("requests", json(&seen.requests)));
        let due = BODIES.iter().filter(|body| self.looks.is_multiple_of(body.every));
        changes.wholes.extend(due.map(|body| (body.name, (body.body)(app))));
        self.hear(app, &mut changes);
        self.looks += 1;
        changes
    }

    fn compare(&mut self, seen: BTreeMap<ReplicaId, ReplicaNow>, changes: &mut Changes) {
        let different = seen.iter().filter(|(id, now)| self.replicas.get(id) != Some(now));
        changes.replicas = different.map(|(id, now)| (*id, json(now))).collect();
        changes.gone = self.replicas.keys().filter(|id| !seen.contains_key(id)).copied().collect();
        self.replicas = seen;
    }

    /// What has happened since the last look: points of the history, changes of the pool.
    fn hear(&mut self, app: &AppState, changes: &mut Changes) {
        let is_first = self.looks == 0;
        let newest = app.telemetry.history().newest();
        if is_first || newest.map(|point| point.at) != self.point {
            self.point = newest.map(|point| point.at);
            changes.kept.push(("history", json(&hour(app))));
            changes.news.extend(newest.map(|point| ("point", json(&PointView::from(point)))));
        }
        let events = app.fleet.recent_events(self.event, MAX_NEWS);
        let Some(last) = events.last() else {
            if is_first {
                changes.kept.push(("events", json(&EventsNow { data: Vec::new() })));
            }
            return;
        };
        self.event = last.number;
        changes.news.extend(events.iter().map(|event| ("event", json(&EventNow::from(event)))));
        let data = app.fleet.recent_events(0, MAX_EVENTS).iter().map(EventNow::from).collect();
        changes.kept.push(("events", json(&EventsNow { data })));
    }
}

impl From<&PoolEvent> for EventNow {
    fn from(event: &PoolEvent) -> Self {
        Self { event: event.what.name(), what: EventView::from(event) }
    }
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
