//! Measured speeds, kept over a restart.

use std::{collections::BTreeMap, time::Duration};

use store::{Speed, StoreError, UnixMillis};

use super::{pool::Fleet, prior::names};
use crate::clock;

/// Speeds are kept this often, besides at the end: what a crash loses is learned again in as long.
pub(super) const KEEP_EVERY: Duration = Duration::from_secs(300);

impl Fleet {
    /// Reads what was kept. Before the first replica is taken over: it is told to the scheduler with that.
    pub(super) async fn recall_speeds(&self) -> Result<(), StoreError> {
        let kept = self.keep(|store| store.speeds()).await?;
        let kept: BTreeMap<u32, Speed> = kept.into_iter().map(|speed| (speed.replica, speed)).collect();
        self.kept_speeds.store(kept.into());
        Ok(())
    }

    /// Keeps what traffic has told so far. A failure is no reason to stop anything: the next time may do.
    pub(super) async fn keep_speeds(&self) {
        let measured = self.measured_speeds();
        if measured.is_empty() {
            return;
        }
        if let Err(error) = self.keep(move |store| store.put_speeds(measured)).await {
            tracing::warn!(%error, "measured speeds are not kept");
        }
    }

    fn measured_speeds(&self) -> Vec<Speed> {
        let (view, kept, at) = (self.view.load(), self.kept_speeds.load(), UnixMillis(clock::unix_ms()));
        let snapshot = self.dispatcher.snapshot();
        let speed = |state: &scheduler::ReplicaView| {
            let replica = view.replicas.get(&state.replica)?;
            let models = names(&replica.facts());
            if state.prefill_rate.or(state.decode_rate).is_none() {
                // That it has served them is worth keeping as well, but not in the place of what was measured before a restart.
                let is_news = kept.get(&replica.record).is_none_or(|kept| kept.models != models);
                let has_served = replica.past().has_served;
                (is_news && has_served && !models.is_empty()).then_some(())?;
            }
            // The store refuses a row that no phone can have, and all the others with it.
            let sound = |rate: Option<f64>| rate.filter(|rate| *rate > 0.0 && rate.is_finite());
            Some(Speed {
                replica: replica.record,
                models,
                prefill_rate: sound(state.prefill_rate),
                decode_rate: sound(state.decode_rate),
                measured: at,
            })
        };
        snapshot.replicas.iter().filter_map(speed).collect()
    }
}
