//! A simulated scenario: phones with their failings, and the requests that arrive.
//!
//! The file is JSON whose short keys are those of the published definition, so that one file serves every implementation
//! of it; the names here say what they mean. A file is the whole definition: together with a seed it determines every
//! phone, failure and request (`workload`), whatever policy serves them. What an independent implementation found for it
//! (`expect`, `reference`) may stand in the file and is not read here.

mod check;
mod error;
mod length;

use std::collections::BTreeMap;

use scheduler::{Carry, Class as Urgency};
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny, Unexpected},
};

pub use self::{error::ScenarioError, length::Length};
use crate::phone::ModelSpeed;

/// What a figure must be: the lowest and the highest value, both good.
pub type Range = [f64; 2];
/// Ranges by player, class and figure.
pub type Ranges = BTreeMap<String, BTreeMap<String, BTreeMap<String, Range>>>;

/// A scenario, as its file says. Times are seconds.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Short name, for tables and file names.
    pub name: String,
    /// What it shows.
    #[serde(default)]
    pub why: String,
    /// Source of everything random in it.
    pub seed: u64,
    /// How long work arrives. Answers may come later.
    pub horizon_s: f64,
    /// Requests that arrive before this are left out of the figures, except batches.
    pub warmup_s: f64,
    /// The model that all phones run.
    pub model: Model,
    /// How long the failure of a phone stays unnoticed.
    pub detect_s: f64,
    /// What each request costs a phone before reading starts.
    #[serde(rename = "ovh_s")]
    pub overhead_s: f64,
    /// The phones.
    pub phones: Phones,
    /// How they come and go; `None` when they stay.
    #[serde(default)]
    pub churn: Option<Churn>,
    /// Phases in which they are slower, each kind independent of the others.
    #[serde(default, rename = "mods")]
    pub slow_phases: Vec<SlowPhase>,
    /// How answers go on whose phone went away.
    #[serde(default)]
    pub continuation: Continuation,
    /// The kinds of work.
    pub classes: Vec<Class>,
    /// What its figures must be, mean over `seeds`.
    #[serde(default)]
    pub ranges: Ranges,
    /// The seeds that `ranges` holds for.
    #[serde(default = "first_seed")]
    pub seeds: Vec<u64>,
    /// Quick enough to be checked with every change.
    #[serde(default)]
    pub ci: bool,
    #[serde(default, rename = "expect")]
    _expect: IgnoredAny,
    #[serde(default, rename = "reference")]
    _reference: IgnoredAny,
}

/// The speed of the model on the reference phone; see [`ModelSpeed`].
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// What it is called.
    #[serde(default)]
    pub name: String,
    /// Reading speed on an empty context, tokens per second.
    #[serde(rename = "p0")]
    pub prefill_tokens_per_second: f64,
    /// How much longer each token takes to read for every token before it, seconds per token².
    #[serde(rename = "c")]
    pub prefill_slowdown: f64,
    /// Writing speed of one stream on an empty context, tokens per second.
    #[serde(rename = "d1")]
    pub decode_tokens_per_second: f64,
    /// The context length at which writing takes twice as long per token, tokens.
    #[serde(rename = "kappa")]
    pub decode_half_speed_context: f64,
    /// What each further parallel stream costs.
    #[serde(rename = "beta")]
    pub sharing_cost: f64,
}

impl Model {
    /// The same, as the formulas want it.
    pub const fn speed(&self) -> ModelSpeed {
        ModelSpeed {
            prefill_tokens_per_second: self.prefill_tokens_per_second,
            prefill_slowdown: self.prefill_slowdown,
            decode_tokens_per_second: self.decode_tokens_per_second,
            decode_half_speed_context: self.decode_half_speed_context,
            sharing_cost: self.sharing_cost,
        }
    }
}

/// The phones.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phones {
    /// The kinds of phones.
    pub classes: Vec<PhoneClass>,
    /// Spread of the speeds within a kind: the standard deviation of their logarithm.
    pub jitter: f64,
    /// Share of the phones whose prompt cache works at all.
    #[serde(default = "one")]
    pub cache_works: f64,
}

/// One kind of phone.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PhoneClass {
    /// What it is called.
    pub name: String,
    /// How many there are.
    pub count: usize,
    /// Reading speed as a share of the reference phone's.
    #[serde(rename = "s")]
    pub prefill_factor: f64,
    /// Writing speed as a share of the reference phone's.
    #[serde(rename = "q")]
    pub decode_factor: f64,
    /// Requests it takes at once.
    pub slots: usize,
    /// Number of the model that it serves, where there are several. They are all as fast as [`Model`] says, on the reference phone.
    /// Only players that are the gateway's core tell models apart.
    #[serde(default, rename = "serves")]
    pub model: u32,
}

/// How phones come and go: exponential times.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Churn {
    /// Mean time up.
    pub mean_up_s: f64,
    /// Mean time down.
    pub mean_down_s: f64,
}

impl Churn {
    /// The share of time that a phone is up.
    pub fn up(&self) -> f64 {
        self.mean_up_s / (self.mean_up_s + self.mean_down_s)
    }
}

/// How answers go on whose phone went away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Continuation {
    /// Who may carry on what a phone has written: `never`, `same_group` or `anyone`.
    pub by: Carry,
    /// Into so many groups, which write alike, the phones are dealt in turn. All can carry on.
    pub groups: u32,
}

impl Default for Continuation {
    fn default() -> Self {
        Self { by: Carry::Anyone, groups: 1 }
    }
}

/// Phases of lower speed: heat, another app. Exponential times.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlowPhase {
    /// Mean time between the phases.
    pub mean_normal_s: f64,
    /// Mean length of a phase.
    pub mean_slow_s: f64,
    /// Speed in the phase as a share of the normal one.
    pub factor: f64,
}

/// One kind of work.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Class {
    /// What it is called.
    pub name: String,
    /// Number of the model that it is for, where phones serve several.
    #[serde(default, rename = "for")]
    pub model: u32,
    /// How urgent it is: 0 is interactive, 1 standard, 2 batch.
    #[serde(rename = "band", deserialize_with = "urgency")]
    pub urgency: Urgency,
    /// When it arrives.
    pub arrivals: Arrivals,
    /// The API keys it comes under, each its own tenant.
    pub keys: Vec<Key>,
    /// The beginnings its prompts share.
    pub templates: Vec<Template>,
    /// Prompt tokens after the template; of a chat, tokens of one user turn.
    pub suffix: Length,
    /// Tokens of the answer.
    #[serde(rename = "out")]
    pub output: Length,
    /// A request answered within this is a good one; 0 for none.
    #[serde(default, rename = "slo_s")]
    pub objective_s: f64,
    /// The objective is for the first token, not for the whole answer.
    #[serde(default, rename = "slo_on_ttft")]
    pub objective_on_first_token: bool,
    /// Above 0 each arrival is a conversation of this many turns in the mean, each turn's prompt holding all before it.
    #[serde(default)]
    pub turns_mean: f64,
    /// Mean time between an answer and the next turn.
    #[serde(default)]
    pub think_s: f64,
    /// A conversation ends before its prompt would be longer, tokens.
    #[serde(default)]
    pub max_prompt: u32,
}

impl Class {
    /// Its requests belong to conversations.
    pub fn is_chat(&self) -> bool {
        self.turns_mean > 0.0
    }

    /// Its requests all arrive at one moment.
    pub const fn is_closed(&self) -> bool {
        matches!(self.arrivals, Arrivals::Closed { .. })
    }
}

/// When the requests of a class arrive. Rates are per second.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum Arrivals {
    /// Independently of each other.
    Poisson {
        /// How many.
        rate: f64,
    },
    /// The same, in phases of high and low rate of exponential length; it begins low.
    OnOff {
        /// How many in a high phase.
        rate_hi: f64,
        /// How many in a low phase.
        rate_lo: f64,
        /// Mean length of a high phase.
        mean_hi_s: f64,
        /// Mean length of a low phase.
        mean_lo_s: f64,
    },
    /// All at once.
    Closed {
        /// How many.
        n: usize,
        /// When.
        at: f64,
    },
}

/// A beginning that prompts share.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Template {
    /// How long it is.
    pub tokens: u32,
    /// How often it is used, in proportion to the others.
    pub weight: f64,
}

/// An API key.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// What it is called.
    pub name: String,
    /// How many requests come under it, in proportion to the others.
    pub weight: f64,
}

impl Scenario {
    /// One that is measured and not read: its phones and requests are given beside it. `seed` is always the same.
    #[expect(clippy::too_many_arguments, reason = "each is a key of a scenario's file")]
    pub(crate) fn given(
        model: Model,
        overhead_s: f64,
        detect_s: f64,
        horizon_s: f64,
        phones: Phones,
        churn: Option<Churn>,
        continuation: Continuation,
        classes: Vec<Class>,
    ) -> Self {
        Self {
            name: "measured".to_owned(),
            why: String::new(),
            seed: 0,
            horizon_s,
            warmup_s: 0.0,
            model,
            detect_s,
            overhead_s,
            phones,
            churn,
            slow_phases: Vec::new(),
            continuation,
            classes,
            ranges: Ranges::new(),
            seeds: first_seed(),
            ci: false,
            _expect: IgnoredAny,
            _reference: IgnoredAny,
        }
    }

    /// The same with so many phones of a model, of the kinds that there are: those that stand at even distances when all stand in
    /// the order of their speed.
    #[must_use]
    pub fn with_phones(&self, model: u32, phones: usize) -> Self {
        let mut scenario = self.clone();
        let kinds = self.phones.classes.iter().enumerate().filter(|(_, kind)| kind.model == model);
        let mut all: Vec<usize> = kinds.flat_map(|(at, kind)| std::iter::repeat_n(at, kind.count)).collect();
        let speed = |at: &usize| self.phones.classes.get(*at).map_or(0.0, |kind| kind.prefill_factor);
        all.sort_by(|a, b| speed(a).total_cmp(&speed(b)));
        for kind in scenario.phones.classes.iter_mut().filter(|kind| kind.model == model) {
            kind.count = 0;
        }
        for number in 0..phones {
            let stands = ((2 * number + 1) * all.len()) / (2 * phones);
            if let Some(kind) = all.get(stands).and_then(|at| scenario.phones.classes.get_mut(*at)) {
                kind.count += 1;
            }
        }
        scenario
    }

    /// Reads a scenario.
    ///
    /// # Errors
    /// The first mistake in the text itself, or else everything that is wrong with what it says.
    pub fn from_json(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = serde_json::from_str(text)?;
        check::check(&scenario)?;
        Ok(scenario)
    }

    /// When a play of it is broken off: what is unanswered then has found no phone.
    pub fn until_s(&self) -> f64 {
        const PATIENCE_S: f64 = 21_600.0;
        (3.0 * self.horizon_s).max(self.horizon_s + PATIENCE_S)
    }
}

const fn one() -> f64 {
    1.0
}

fn first_seed() -> Vec<u64> {
    vec![0]
}

fn urgency<'de, D: Deserializer<'de>>(band: D) -> Result<Urgency, D::Error> {
    let band = u8::deserialize(band)?;
    let unknown =
        || D::Error::invalid_value(Unexpected::Unsigned(band.into()), &"0 (interactive), 1 (standard) or 2 (batch)");
    Urgency::ALL.get(usize::from(band)).copied().ok_or_else(unknown)
}

#[cfg(test)]
pub(crate) mod tests;
