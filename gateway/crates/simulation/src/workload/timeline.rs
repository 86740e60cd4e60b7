//! How fast a phone is when: up or down, hot or cool.

use crate::{rng::Rng, scenario::Scenario};

/// A time in which a phone's speed does not change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Phase {
    /// When it starts, seconds.
    pub start: f64,
    /// When it ends, seconds; infinite for the last.
    pub end: f64,
    /// Speed as a share of the phone's own; 0 is down.
    pub factor: f64,
}

impl Phase {
    /// The phone is up.
    pub fn is_up(&self) -> bool {
        self.factor > 0.0
    }
}

/// All phases of one phone, without gaps from time 0 on.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline(Vec<Phase>);

impl Timeline {
    /// What befalls phone number `phone` before `until` seconds. A longer draw begins like a shorter one.
    pub fn draw(scenario: &Scenario, phone: usize, until: f64, seed: u64) -> Self {
        let churn = scenario.churn.map(|churn| ("churn".to_owned(), churn.mean_up_s, churn.mean_down_s, 0.0));
        let slow = scenario.slow_phases.iter().enumerate();
        let slow =
            slow.map(|(index, slow)| (format!("mod:{index}"), slow.mean_normal_s, slow.mean_slow_s, slow.factor));
        // The order of the factors is part of the definition: a product of floats depends on it in its last bit.
        let processes = churn.into_iter().chain(slow).map(|(name, normal_s, other_s, factor)| {
            let rng = Rng::new(seed, &format!("phone:{phone}:{name}"));
            changes(rng, [normal_s, other_s], factor, until)
        });
        Self::overlaid(&processes.collect::<Vec<_>>())
    }

    /// The product of independent processes, each the times at which its factor changes, and what it is from there on; before, it is 1.
    pub fn overlaid(processes: &[Vec<(f64, f64)>]) -> Self {
        let numbered = processes.iter().enumerate();
        let mut cuts: Vec<(f64, usize, f64)> = numbered
            .flat_map(|(index, changes)| changes.iter().map(move |(time, factor)| (*time, index, *factor)))
            .collect();
        cuts.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut factors = vec![1.0; processes.len()];
        let mut phases = Vec::with_capacity(cuts.len() + 1);
        let mut start = 0.0;
        for (end, index, factor) in cuts {
            phases.push(Phase { start, end, factor: factors.iter().product() });
            if let Some(changed) = factors.get_mut(index) {
                *changed = factor;
            }
            start = end;
        }
        phases.push(Phase { start, end: f64::INFINITY, factor: factors.iter().product() });
        Self(phases)
    }

    /// The same from `start` seconds on, which is then time 0. Every phone begins at full speed: here for no time at all.
    #[must_use]
    pub fn from(self, start: f64) -> Self {
        let later = self.0.into_iter().filter(|phase| phase.end > start);
        let later = later.map(|phase| Phase { start: (phase.start - start).max(0.0), end: phase.end - start, ..phase });
        Self(std::iter::once(Phase { start: 0.0, end: 0.0, factor: 1.0 }).chain(later).collect())
    }

    /// The phases, in order; at least one.
    pub fn phases(&self) -> &[Phase] {
        &self.0
    }

    /// What a phone of speed 1 does between 0 and `end`: seconds of full speed.
    pub fn full_seconds(&self, end: f64) -> f64 {
        self.0.iter().map(|phase| (phase.end.min(end) - phase.start.min(end)) * phase.factor).sum()
    }
}

/// The times at which a process that begins as normal changes, and its factor from there on.
fn changes(mut rng: Rng, means_s: [f64; 2], factor: f64, until: f64) -> Vec<(f64, f64)> {
    let mut now = 0.0;
    let states = means_s.into_iter().zip([factor, 1.0]).cycle();
    let times = states.map(|(mean_s, next)| {
        now += rng.exponential(mean_s);
        (now, next)
    });
    times.take_while(|(time, _)| *time <= until).collect()
}
