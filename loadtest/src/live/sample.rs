//! Looking at the fleet a few times a second while a scenario is played.

use super::play::{Play, REST_LIMIT, settle};
use crate::observed::{Event, Observed, PhoneCounts, Sample};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// What is noted during a play.
#[derive(Debug, Default)]
pub(super) struct Notes(Mutex<Noted>);

#[derive(Debug, Default)]
struct Noted {
    samples: Vec<Sample>,
    events: Vec<Event>,
    /// The counters before the play.
    before: Vec<PhoneCounts>,
    /// Sums of each phone's busy slots over the samples.
    busy: Vec<u64>,
}

impl Notes {
    fn with<T>(&self, change: impl FnOnce(&mut Noted) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes something that was done.
    pub(super) fn event(&self, at_s: f64, what: String) {
        self.with(|noted| noted.events.push(Event { at_s, what, failed: false }));
    }

    /// Notes something that should have been done.
    pub(super) fn not_done(&self, at_s: f64, why: String) {
        self.with(|noted| noted.events.push(Event { at_s, what: why, failed: true }));
    }
}

/// Between two samples: so that a play has about 300, and no more than five a second.
fn period(duration_s: f64) -> Duration {
    Duration::from_secs_f64((duration_s / 300.0).max(0.2))
}

/// Samples until it is cancelled.
pub(super) async fn run(play: Arc<Play>) {
    let mut ticks = tokio::time::interval(period(play.scenario.duration_s));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let phones = play.setting.fleet.phones().await;
        let seen = !phones.is_empty();
        let sum = |count: &dyn Fn(&PhoneCounts) -> u64| seen.then(|| phones.iter().map(count).sum::<u64>());
        play.notes.with(|noted| {
            let earlier: u64 = noted.before.iter().map(|phone| phone.stats.over_subscribed).sum();
            noted.busy.resize(phones.len(), 0);
            for (busy, phone) in noted.busy.iter_mut().zip(&phones) {
                *busy += u64::from(phone.stats.running_now);
            }
            noted.samples.push(Sample {
                at_s: play.seconds(),
                in_flight: play.ledger.tally().in_flight(),
                busy_slots: sum(&|phone| u64::from(phone.stats.running_now)),
                slots: sum(&|phone| if phone.well { phone.slots } else { 0 }),
                waiting_on_phones: sum(&|phone| u64::from(phone.stats.waiting_now)),
                over_subscribed: sum(&|phone| phone.stats.over_subscribed).map(|now| now.saturating_sub(earlier)),
            });
        });
    }
}

/// Remembers the counters from before the play.
pub(super) async fn begin(play: &Play) {
    let before = play.setting.fleet.phones().await;
    play.notes.with(|noted| noted.before = before);
}

/// Waits until the phones are at rest, and gives everything noted, counters less those from before the play.
pub(super) async fn finish(play: &Play) -> Observed {
    let mut phones = settle(REST_LIMIT, async || {
        let phones = play.setting.fleet.phones().await;
        let at_rest = phones.iter().all(|phone| phone.stats.running_now + phone.stats.waiting_now == 0);
        (phones, at_rest)
    })
    .await;
    let noted = play.notes.with(std::mem::take);
    let samples = noted.samples.len().max(1) as f64;
    for (index, phone) in phones.iter_mut().enumerate() {
        phone.mean_busy = noted.busy.get(index).copied().unwrap_or(0) as f64 / samples;
        if let Some(before) = noted.before.get(index) {
            subtract(&mut phone.stats, &before.stats);
        }
    }
    Observed { samples: noted.samples, events: noted.events, phones, left: None }
}

fn subtract(stats: &mut fakephone::PhoneStats, before: &fakephone::PhoneStats) {
    for (now, then) in [
        (&mut stats.started, before.started),
        (&mut stats.completed, before.completed),
        (&mut stats.cancelled, before.cancelled),
        (&mut stats.failed, before.failed),
        (&mut stats.lost, before.lost),
        (&mut stats.over_subscribed, before.over_subscribed),
        (&mut stats.waited, before.waited),
        (&mut stats.probes, before.probes),
        (&mut stats.connections, before.connections),
        (&mut stats.prompt_tokens, before.prompt_tokens),
        (&mut stats.cached_tokens, before.cached_tokens),
        (&mut stats.written_tokens, before.written_tokens),
    ] {
        *now = now.saturating_sub(then);
    }
}
