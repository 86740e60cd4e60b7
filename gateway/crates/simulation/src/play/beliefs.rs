//! What a gateway believes before it has measured anything: off by what such knowledge is off by in life.

use crate::{rng::Rng, scenario::Scenario, workload::Workload};

/// Standard deviation of the logarithm of a phone's speed against that of its kind, as a gateway is told it.
const SPEED_SIGMA: f64 = 0.3;
/// Of a prompt's true size against its size by its bytes.
const SIZE_SIGMA: f64 = 0.05;

pub(super) struct Beliefs {
    /// Reading and writing speed as shares of the reference phone's, by phone.
    pub(super) speeds: Vec<(f64, f64)>,
    /// What the true prompt size is to be multiplied by, by request.
    pub(super) sizes: Vec<f64>,
    /// For what a player leaves to chance.
    pub(super) rng: Rng,
}

impl Beliefs {
    /// The truth: what a gateway has measured for long.
    pub(super) fn exact(workload: &Workload) -> Self {
        Self {
            speeds: workload.phones.iter().map(|phone| (phone.prefill_factor, phone.decode_factor)).collect(),
            sizes: vec![1.0; workload.requests.len()],
            rng: Rng::new(workload.seed, "policy"),
        }
    }

    pub(super) fn draw(scenario: &Scenario, workload: &Workload) -> Self {
        let mut rng = Rng::new(workload.seed, "policy");
        let speeds = workload.phones.iter().map(|phone| {
            let (prefill, decode) = (rng.normal(), rng.normal());
            let kind = scenario.phones.classes.get(phone.class);
            let (reads, writes) = kind.map_or((1.0, 1.0), |kind| (kind.prefill_factor, kind.decode_factor));
            (reads * (SPEED_SIGMA * prefill).exp(), writes * (SPEED_SIGMA * decode).exp())
        });
        let speeds = speeds.collect();
        let mut errors = Rng::new(workload.seed, "gw");
        let sizes = workload.requests.iter().map(|_| (SIZE_SIGMA * errors.normal()).exp()).collect();
        Self { speeds, sizes, rng }
    }
}
