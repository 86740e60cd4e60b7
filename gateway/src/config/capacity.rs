//! `[capacity]`: what clients are promised, which says how many phones there should be.

use std::time::Duration;

use simulation::advice::{Objective, Objectives};

use super::visit::{Section, Visitor, live};

/// What is promised, and how advice on it is made.
#[derive(Clone, Debug, PartialEq)]
pub struct Capacity {
    /// How far back is looked. 1 h: long enough to hold a peak, short enough to be about today.
    pub window: Duration,
    /// Between two looks. 30 s; each may take a second of one core. A look that takes long makes the next one wait longer.
    pub every: Duration,
    /// From an interactive request's arrival to its first token. 2 s: somebody waits for it.
    pub interactive_ttft: Duration,
    /// Share of the interactive requests for which that must hold. 0.95: all of them would take phones that idle for a burst
    /// a week.
    pub interactive_share: f64,
    /// The same of standard requests. 1 min: a long prompt is read in that on a phone that holds its beginning.
    pub standard_ttft: Duration,
    /// And their share.
    pub standard_share: f64,
}

impl Default for Capacity {
    fn default() -> Self {
        Self {
            window: Duration::from_secs(3600),
            every: Duration::from_secs(30),
            interactive_ttft: Duration::from_secs(2),
            interactive_share: 0.95,
            standard_ttft: Duration::from_secs(60),
            standard_share: 0.95,
        }
    }
}

impl Capacity {
    /// What is promised, but where a model has promises of its own.
    pub fn objectives(&self, interactive: Option<Duration>, standard: Option<Duration>) -> Objectives {
        let objective = |ttft: Duration, share| Objective { ttft_s: ttft.as_secs_f64(), share };
        Objectives {
            interactive: objective(interactive.unwrap_or(self.interactive_ttft), self.interactive_share),
            standard: objective(standard.unwrap_or(self.standard_ttft), self.standard_share),
        }
    }
}

/// Of first tokens: sooner than the network, and later than anybody waits.
pub(super) const TTFT: std::ops::RangeInclusive<Duration> = Duration::from_millis(50)..=Duration::from_secs(24 * 3600);

impl Section for Capacity {
    fn visit<V: Visitor>(&mut self, v: &mut V) {
        v.ranged(live("window"), &mut self.window, Duration::from_secs(300)..=Duration::from_secs(24 * 3600));
        v.ranged(live("every"), &mut self.every, Duration::from_secs(1)..=Duration::from_secs(3600));
        v.ranged(live("interactive_ttft"), &mut self.interactive_ttft, TTFT);
        v.ranged(live("interactive_share"), &mut self.interactive_share, 0.01..=1.0);
        v.ranged(live("standard_ttft"), &mut self.standard_ttft, TTFT);
        v.ranged(live("standard_share"), &mut self.standard_share, 0.01..=1.0);
    }
}
