//! How much may be asked of a phone, by what it says about itself.
//!
//! A phone that is pushed until it is empty or too hot is lost for hours; one that gets less in time serves through the night. Each
//! cause has a level of its own and leaves it later than it came to it, so that a phone at a threshold does not flap. What a
//! phone last said counts only while it is fresh: one that has stopped reporting is judged by its probes alone.

use scheduler::{Event, Limit, ReplicaId};

use super::{
    feed::PoolChange,
    pool::Fleet,
    replica::Replica,
    report::{PhoneReport, Reported},
};
use crate::{
    clock,
    config::{Reports, Use},
};

/// How far it must be back before a level is left: percent of charge, and degrees. 5 % is a quarter of an hour at the charger,
/// 2 °C what a battery cools in minutes without work.
const BATTERY_BACK: f64 = 5.0;
const TEMPERATURE_BACK: f64 = 2.0;

/// What a phone is spared for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// Its battery is low, and not being charged.
    Battery,
    /// It is too warm.
    Temperature,
    /// Its network is paid for by volume.
    Metered,
    /// Somebody looks at it.
    Screen,
}

impl Cause {
    const ALL: [Self; 4] = [Self::Battery, Self::Temperature, Self::Metered, Self::Screen];

    /// The name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Battery => "battery",
            Self::Temperature => "temperature",
            Self::Metered => "metered",
            Self::Screen => "screen_on",
        }
    }
}

/// How much may be asked of a replica, and why.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limited {
    /// By cause, in the order of [`Cause`].
    levels: [Limit; Cause::ALL.len()],
    /// One line; empty where nothing is limited.
    pub reason: String,
}

impl Limited {
    /// How much: what the strictest cause asks for.
    pub fn level(&self) -> Limit {
        self.levels.into_iter().max().unwrap_or_default()
    }

    /// The causes that limit it, and how much.
    pub fn causes(&self) -> impl Iterator<Item = (Cause, Limit)> + '_ {
        Cause::ALL.into_iter().zip(self.levels).filter(|(_, level)| *level != Limit::None)
    }

    /// What follows from a report, after what has followed before.
    fn after(&self, report: &PhoneReport, rules: &Reports) -> Self {
        let judged = Cause::ALL.into_iter().zip(self.levels).map(|(cause, before)| judge(cause, before, report, rules));
        let judged: Vec<(Limit, String)> = judged.collect();
        let mut levels = self.levels;
        for (level, (now, _)) in levels.iter_mut().zip(&judged) {
            *level = *now;
        }
        let strictest = levels.iter().max().copied().unwrap_or_default();
        let reasons = judged.into_iter().filter(|(level, _)| *level == strictest && strictest != Limit::None);
        Self { levels, reason: reasons.map(|(_, reason)| reason).collect::<Vec<_>>().join("; ") }
    }
}

fn judge(cause: Cause, before: Limit, report: &PhoneReport, rules: &Reports) -> (Limit, String) {
    let nothing = (Limit::None, String::new());
    let back = |level: Limit, by: f64| if before >= level { by } else { 0.0 };
    match cause {
        Cause::Battery => {
            let Some(charge) = report.battery.filter(|_| report.charging != Some(true)) else { return nothing };
            let shown = format!("battery {charge:.0} %, not charging");
            if charge < rules.min_battery + back(Limit::Paused, BATTERY_BACK) {
                (Limit::Paused, format!("{shown}: paused below {} %", rules.min_battery))
            } else if charge < rules.low_battery + back(Limit::Fewer, BATTERY_BACK) {
                (Limit::Fewer, format!("{shown}: fewer requests below {} %", rules.low_battery))
            } else {
                nothing
            }
        }
        Cause::Temperature => {
            let Some(degrees) = report.temperature else { return nothing };
            if degrees > rules.max_temperature - back(Limit::Paused, TEMPERATURE_BACK) {
                (Limit::Paused, format!("battery {degrees:.1} °C: paused above {} °C", rules.max_temperature))
            } else if degrees > rules.warm_temperature - back(Limit::Fewer, TEMPERATURE_BACK) {
                (Limit::Fewer, format!("battery {degrees:.1} °C: fewer requests above {} °C", rules.warm_temperature))
            } else {
                nothing
            }
        }
        Cause::Metered => stated(report.metered, rules.metered, "on a metered network", "reports.metered"),
        Cause::Screen => stated(report.screen_on, rules.screen_on, "somebody uses it", "reports.screen_on"),
    }
}

fn stated(is_so: Option<bool>, rule: Use, what: &str, key: &str) -> (Limit, String) {
    match rule {
        _ if is_so != Some(true) => (Limit::None, String::new()),
        Use::Use => (Limit::None, String::new()),
        Use::Fewer => (Limit::Fewer, format!("{what}: fewer requests ({key})")),
        Use::Pause => (Limit::Paused, format!("{what}: paused ({key})")),
    }
}

impl Fleet {
    /// A phone says how it is. Unknown replicas are ignored.
    pub fn reported(&self, id: ReplicaId, report: PhoneReport) {
        let Some(replica) = self.replica(id) else { return };
        replica.past().report = Some(Reported { at_ms: clock::unix_ms(), report });
        self.limit(&replica);
    }

    /// Judges anew how much may be asked of a replica: it said something, its last word got stale, or the rules are others.
    pub(super) fn limit(&self, replica: &Replica) {
        let rules = &self.settings.load().reports;
        let stale = u64::try_from(rules.stale_after.as_millis()).unwrap_or(u64::MAX);
        let now = clock::unix_ms();
        let (before, after) = {
            let mut past = replica.past();
            let fresh = past.report.filter(|said| now.saturating_sub(said.at_ms) <= stale);
            let after = fresh.map(|said| past.limited.after(&said.report, rules)).unwrap_or_default();
            (std::mem::replace(&mut past.limited, after.clone()), after)
        };
        if before.level() == after.level() {
            return;
        }
        let level = after.level();
        self.dispatcher.handle(Event::ReplicaLimited { replica: replica.id, limit: level });
        let reason = (!after.reason.is_empty()).then_some(after.reason);
        tracing::info!(
            replica = &*replica.label,
            limit = level.name(),
            reason = reason.as_deref(),
            "how much is asked of a replica has changed"
        );
        self.feed.send(replica.id, &replica.label, PoolChange::Limited { limit: level, reason });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WELL: PhoneReport = PhoneReport {
        battery: Some(80.0),
        charging: Some(false),
        temperature: Some(30.0),
        metered: Some(false),
        screen_on: Some(false),
    };

    fn after(reports: &[PhoneReport]) -> Limited {
        let rules = Reports::default();
        reports.iter().fold(Limited::default(), |before, report| before.after(report, &rules))
    }

    fn charge(battery: f64) -> PhoneReport {
        PhoneReport { battery: Some(battery), ..WELL }
    }

    fn degrees(temperature: f64) -> PhoneReport {
        PhoneReport { temperature: Some(temperature), ..WELL }
    }

    #[test]
    fn a_battery_that_runs_down_gives_less_and_then_nothing_and_says_why() {
        assert_eq!(after(&[WELL]).level(), Limit::None);
        assert_eq!(after(&[charge(29.0)]).level(), Limit::Fewer);
        let empty = after(&[charge(12.0)]);
        assert_eq!(
            (empty.level(), empty.reason.as_str()),
            (Limit::Paused, "battery 12 %, not charging: paused below 15 %")
        );
        let charging = PhoneReport { charging: Some(true), ..charge(3.0) };
        assert_eq!(after(&[charge(12.0), charging]).level(), Limit::None);
        assert_eq!(after(&[PhoneReport { battery: None, ..charge(0.0) }]).level(), Limit::None, "it does not say");
    }

    #[test]
    fn a_phone_at_a_threshold_does_not_flap() {
        let back_and_forth = [14.0, 15.5, 14.9, 19.0, 16.0].map(charge);
        assert_eq!(after(&back_and_forth).level(), Limit::Paused);
        assert_eq!(after(&[charge(14.0), charge(20.0)]).level(), Limit::Fewer);
        assert_eq!(after(&[charge(29.0), charge(34.0)]).level(), Limit::Fewer);
        assert_eq!(after(&[charge(29.0), charge(35.0)]).level(), Limit::None);
        assert_eq!(after(&[degrees(45.5), degrees(43.5)]).level(), Limit::Paused);
        assert_eq!(after(&[degrees(45.5), degrees(42.0)]).level(), Limit::Fewer);
        assert_eq!(after(&[degrees(45.5), degrees(39.5)]).level(), Limit::Fewer);
        assert_eq!(after(&[degrees(45.5), degrees(38.0)]).level(), Limit::None);
    }

    #[test]
    fn the_strictest_cause_counts_and_all_of_its_level_are_told() {
        let both = PhoneReport { temperature: Some(46.0), metered: Some(true), ..charge(10.0) };
        let limited = after(&[both]);
        assert_eq!(limited.level(), Limit::Paused);
        assert!(limited.reason.contains("battery 10 %") && limited.reason.contains("46.0 °C"), "{}", limited.reason);
        assert!(!limited.reason.contains("metered"), "{}", limited.reason);
        let causes: Vec<_> = limited.causes().map(|(cause, level)| (cause.name(), level)).collect();
        assert_eq!(causes, [("battery", Limit::Paused), ("temperature", Limit::Paused), ("metered", Limit::Fewer)]);
        assert_eq!(after(&[PhoneReport { screen_on: Some(true), ..WELL }]).level(), Limit::None, "as configured");
    }
}
