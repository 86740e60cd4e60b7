//! Capacity advice of the running gateway: how many phones each model should have.
//!
//! The advice itself is pure ([`simulation::advice`]). Here is what it needs of the process: a copy of the scheduler's measurements,
//! the batches' last look, a thread that may compute for a second, and a place where the last advice stands for whoever shows it.
//! No request waits for any of that; the scheduler's mutex is held for the copy alone.

use std::{cmp::Ordering, collections::BTreeMap, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use scheduler::{ModelId, Timestamp, Usage};
use simulation::advice::{Advice, Backlog, Effort, Objectives, Question, Steady, Verdict, advise};

use crate::{clock, gateway::Gateway, shutdown::Stop, telemetry::AdviceSample};

/// Looks take at most one part in so many of a core's time.
const SHARE_OF_A_CORE: u32 = 20;

/// But none waits longer than this for the next, or the number of an hour ago would be shown as today's.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// Advice on one model.
#[derive(Clone, Debug)]
pub struct ModelAdvice {
    /// Which.
    pub id: ModelId,
    /// Its name.
    pub model: Arc<str>,
    /// What the last look found.
    pub advice: Advice,
    /// Phones that there should be; what stands, of all looks, so that it does not change with every one.
    pub wanted: Option<usize>,
}

impl ModelAdvice {
    /// What follows from the number that stands, when so many phones are there.
    pub fn verdict(&self, now: usize) -> Verdict {
        match (self.advice.verdict, self.wanted) {
            (Verdict::Unattainable, _) => Verdict::Unattainable,
            (_, None) => Verdict::Unknown,
            (_, Some(wanted)) => match wanted.cmp(&now) {
                Ordering::Greater => Verdict::More,
                Ordering::Less => Verdict::Fewer,
                Ordering::Equal => Verdict::Enough,
            },
        }
    }
}

/// What the last look found.
#[derive(Clone, Debug, Default)]
pub struct Looked {
    /// When, in seconds since 1970; `None` before the first.
    pub at: Option<u64>,
    /// How far back it looked.
    pub window: Duration,
    /// By model, in the order of their names.
    pub models: Vec<ModelAdvice>,
}

/// The place where advice stands.
#[derive(Debug, Default)]
pub struct Adviser {
    looked: ArcSwap<Looked>,
}

/// What is to be advised on.
struct Asked {
    model: Arc<str>,
    usage: Usage,
    objectives: Objectives,
    backlog: Vec<Backlog>,
}

impl Adviser {
    /// The last look.
    pub fn looked(&self) -> Arc<Looked> {
        self.looked.load_full()
    }

    /// What the gauges show.
    pub fn sample(&self) -> Vec<AdviceSample> {
        let looked = self.looked.load();
        let sample = |model: &ModelAdvice| AdviceSample {
            model: Arc::clone(&model.model),
            wanted: model.wanted,
            attained: model.advice.classes.iter().filter_map(|class| Some((class.class, class.attained?))).collect(),
        };
        looked.models.iter().map(sample).collect()
    }

    /// Looks again and again until `stop`.
    pub async fn run(self: Arc<Self>, gateway: Arc<Gateway>, mut stop: Stop) {
        let mut steady: BTreeMap<ModelId, Steady> = BTreeMap::new();
        let mut took = Duration::ZERO;
        loop {
            tokio::select! {
                () = stop.wait() => return,
                () = tokio::time::sleep(pause(gateway.config().capacity.every, took)) => {}
            }
            let window = gateway.config().capacity.window;
            let asked = ask(&gateway, window);
            let now = clock::now();
            let before = steady;
            let looked = tokio::select! {
                // The process does not wait for a thread that computes.
                () = stop.wait() => return,
                looked = tokio::task::spawn_blocking(move || answer(asked, before, now)) => looked,
            };
            let Ok((models, after)) = looked else {
                tracing::error!("capacity advice panicked; it begins anew");
                steady = BTreeMap::new();
                continue;
            };
            steady = after;
            took = clock::now().since(now);
            tracing::debug!(?took, models = models.len(), "looked at capacity");
            self.looked.store(Arc::new(Looked { at: Some(clock::unix().as_secs()), window, models }));
        }
    }
}

/// Until the next look, after one that took so long.
fn pause(every: Duration, took: Duration) -> Duration {
    every.max(took.saturating_mul(SHARE_OF_A_CORE).min(LONGEST_PAUSE))
}

/// Everything that has to be known, by model.
fn ask(gateway: &Gateway, window: Duration) -> Vec<Asked> {
    let config = gateway.config();
    let now_ms = clock::unix_ms();
    let mut backlogs: BTreeMap<Arc<str>, Vec<Backlog>> = BTreeMap::new();
    for (batch, _) in gateway.batches.list() {
        let named = batch.model.as_deref().and_then(|name| gateway.fleet.resolve_model(name));
        let Some(model) = named.and_then(|model| gateway.fleet.model_name(model.id)).filter(|_| batch.seal.is_none())
        else {
            continue;
        };
        let counts = batch.counts;
        let lines = u64::from(counts.total.saturating_sub(counts.completed + counts.failed));
        let left_s = (batch.times.expires.0 as f64 - now_ms as f64) / 1e3;
        backlogs.entry(model).or_default().push(Backlog { lines, left_s });
    }
    let asked = gateway.dispatcher.usage(window).into_iter().filter_map(|usage| {
        let model = gateway.fleet.model_name(usage.model)?;
        let own = config.models.get(&*model);
        let objectives =
            config.capacity.objectives(own.and_then(|own| own.interactive_ttft), own.and_then(|own| own.standard_ttft));
        let backlog = backlogs.remove(&model).unwrap_or_default();
        Some(Asked { model, usage, objectives, backlog })
    });
    asked.collect()
}

/// Computes; models that are gone are forgotten.
fn answer(
    asked: Vec<Asked>,
    mut before: BTreeMap<ModelId, Steady>,
    now: Timestamp,
) -> (Vec<ModelAdvice>, BTreeMap<ModelId, Steady>) {
    let mut after = BTreeMap::new();
    let mut models = Vec::with_capacity(asked.len());
    for Asked { model, usage, objectives, backlog } in asked {
        let mut steady = before.remove(&usage.model).unwrap_or_default();
        let last = steady.said();
        let effort = Effort::default();
        let advice = advise(&Question { usage: &usage, objectives: &objectives, backlog: &backlog, effort, last });
        let wanted = steady.look(advice.wanted, now);
        after.insert(usage.model, steady);
        models.push(ModelAdvice { id: usage.model, model, advice, wanted });
    }
    models.sort_by(|a, b| a.model.cmp(&b.model));
    (models, after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_a_twentieth_of_a_core_but_never_more_than_five_minutes_apart() {
        let s = Duration::from_secs;
        assert_eq!(pause(s(30), s(1)), s(30));
        assert_eq!(pause(s(30), s(4)), s(80));
        assert_eq!(pause(s(30), s(60)), s(300));
        assert_eq!(pause(s(900), s(60)), s(900), "what is configured holds");
    }
}
