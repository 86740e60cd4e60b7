//! What no single key of a scenario can tell.

use std::{collections::BTreeSet, fmt::Display};

use super::{Arrivals, Class, Length, Phones, Scenario, ScenarioError};

/// All mistakes at once: a file is mended in one go.
pub(super) fn check(scenario: &Scenario) -> Result<(), ScenarioError> {
    let mut mistakes = Mistakes::default();
    check_times(scenario, &mut mistakes);
    check_phones(&scenario.phones, &mut mistakes);
    mistakes.unless(scenario.continuation.groups > 0, "continuation.groups", "is 0: expected at least one");
    mistakes.unless(!scenario.classes.is_empty(), "classes", "is empty: nothing would arrive");
    mistakes.unique("classes", scenario.classes.iter().map(|class| &class.name));
    for class in &scenario.classes {
        check_class(class, &mut mistakes);
    }
    for (player, classes) in &scenario.ranges {
        for name in classes.keys().filter(|name| !scenario.classes.iter().any(|class| class.name == **name)) {
            mistakes.add(format_args!("ranges.{player}"), format_args!("{name:?} is no class of this scenario"));
        }
    }
    mistakes.unless(!scenario.seeds.is_empty(), "seeds", "is empty: expected at least one, as in [0]");
    if mistakes.0.is_empty() { Ok(()) } else { Err(ScenarioError::Sense(mistakes.0)) }
}

fn check_times(scenario: &Scenario, mistakes: &mut Mistakes) {
    let safe = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let named = !scenario.name.is_empty() && scenario.name.chars().all(safe);
    mistakes.unless(named, "name", "expected letters, digits, - and _: files are called after it");
    mistakes.positive("horizon_s", scenario.horizon_s);
    mistakes.not_negative("warmup_s", scenario.warmup_s);
    mistakes.not_negative("detect_s", scenario.detect_s);
    mistakes.not_negative("ovh_s", scenario.overhead_s);
    mistakes.unless(
        scenario.warmup_s < scenario.horizon_s,
        "warmup_s",
        "must be below horizon_s, or nothing is measured",
    );
    let model = &scenario.model;
    mistakes.positive("model.p0", model.prefill_tokens_per_second);
    mistakes.not_negative("model.c", model.prefill_slowdown);
    mistakes.positive("model.d1", model.decode_tokens_per_second);
    mistakes.positive("model.kappa", model.decode_half_speed_context);
    mistakes.not_negative("model.beta", model.sharing_cost);
    if let Some(churn) = scenario.churn {
        mistakes.positive("churn.mean_up_s", churn.mean_up_s);
        mistakes.positive("churn.mean_down_s", churn.mean_down_s);
    }
    for (index, phase) in scenario.slow_phases.iter().enumerate() {
        mistakes.positive(format_args!("mods[{index}].mean_normal_s"), phase.mean_normal_s);
        mistakes.positive(format_args!("mods[{index}].mean_slow_s"), phase.mean_slow_s);
        mistakes.positive(format_args!("mods[{index}].factor"), phase.factor);
    }
}

fn check_phones(phones: &Phones, mistakes: &mut Mistakes) {
    let count: usize = phones.classes.iter().map(|class| class.count).sum();
    mistakes.unless(count > 0, "phones.classes", "have no phone among them: expected a count above 0");
    mistakes.unique("phones.classes", phones.classes.iter().map(|class| &class.name));
    mistakes.not_negative("phones.jitter", phones.jitter);
    let share = (0.0..=1.0).contains(&phones.cache_works);
    mistakes.unless(share, "phones.cache_works", "expected a share from 0 to 1");
    for class in &phones.classes {
        let at = format!("phones.classes.{}", class.name);
        mistakes.positive(format_args!("{at}.s"), class.prefill_factor);
        mistakes.positive(format_args!("{at}.q"), class.decode_factor);
        let slots = (1..=usize::from(u16::MAX)).contains(&class.slots);
        mistakes.unless(slots, format_args!("{at}.slots"), "expected 1 to 65535");
    }
}

fn check_class(class: &Class, mistakes: &mut Mistakes) {
    let at = format!("classes.{}", class.name);
    match class.arrivals {
        Arrivals::Poisson { rate } => mistakes.positive(format_args!("{at}.arrivals.rate"), rate),
        Arrivals::OnOff { rate_hi, rate_lo, mean_hi_s, mean_lo_s } => {
            mistakes.positive(format_args!("{at}.arrivals.rate_hi"), rate_hi);
            mistakes.not_negative(format_args!("{at}.arrivals.rate_lo"), rate_lo);
            mistakes.positive(format_args!("{at}.arrivals.mean_hi_s"), mean_hi_s);
            mistakes.positive(format_args!("{at}.arrivals.mean_lo_s"), mean_lo_s);
        }
        Arrivals::Closed { at: moment, .. } => mistakes.not_negative(format_args!("{at}.arrivals.at"), moment),
    }
    for (what, weights) in [
        ("keys", class.keys.iter().map(|key| key.weight).collect::<Vec<_>>()),
        ("templates", class.templates.iter().map(|template| template.weight).collect()),
    ] {
        let fair =
            weights.iter().all(|weight| weight.is_finite() && *weight >= 0.0) && weights.iter().sum::<f64>() > 0.0;
        mistakes.unless(
            fair,
            format_args!("{at}.{what}"),
            "expected one or more, with weights of 0 or more, not all 0",
        );
    }
    mistakes.unique(format_args!("{at}.keys"), class.keys.iter().map(|key| &key.name));
    for (what, length) in [("suffix", &class.suffix), ("out", &class.output)] {
        check_length(format_args!("{at}.{what}"), length, mistakes);
    }
    mistakes.not_negative(format_args!("{at}.slo_s"), class.objective_s);
    if !class.is_chat() {
        return;
    }
    mistakes.unless(class.turns_mean >= 1.0, format_args!("{at}.turns_mean"), "expected 1 or more, or 0 for no chats");
    mistakes.positive(format_args!("{at}.think_s"), class.think_s);
    mistakes.unless(class.max_prompt > 0, format_args!("{at}.max_prompt"), "is missing: chats need a longest prompt");
    mistakes.unless(
        !class.is_closed(),
        format_args!("{at}.arrivals"),
        "chats can't be a closed batch: turns come one by one",
    );
}

fn check_length(at: impl Display, length: &Length, mistakes: &mut Mistakes) {
    /// Longer than the context of any model a phone runs; keeps sums of tokens within `u32`.
    const LONGEST: f64 = 1e6;
    let (min, max) = length.limits();
    let ordered = min >= 0.0 && min <= max && max <= LONGEST;
    mistakes.unless(
        ordered,
        format_args!("{at}"),
        format_args!("is {min} to {max} tokens: expected 0 <= min <= max <= {LONGEST}"),
    );
    if let Length::LogNormal { mean, sigma, .. } = *length {
        mistakes.positive(format_args!("{at}.mean"), mean);
        mistakes.not_negative(format_args!("{at}.sigma"), sigma);
    }
}

#[derive(Default)]
struct Mistakes(Vec<String>);

impl Mistakes {
    fn add(&mut self, at: impl Display, what: impl Display) {
        self.0.push(format!("{at}: {what}"));
    }

    fn unless(&mut self, fine: bool, at: impl Display, what: impl Display) {
        if !fine {
            self.add(at, what);
        }
    }

    fn positive(&mut self, at: impl Display, value: f64) {
        self.unless(value.is_finite() && value > 0.0, at, format_args!("is {value}: expected a number above 0"));
    }

    fn not_negative(&mut self, at: impl Display, value: f64) {
        self.unless(value.is_finite() && value >= 0.0, at, format_args!("is {value}: expected a number of at least 0"));
    }

    fn unique<'a>(&mut self, at: impl Display, names: impl Iterator<Item = &'a String>) {
        let mut seen = BTreeSet::new();
        for name in names.filter(|name| !seen.insert(name.as_str())) {
            self.add(&at, format_args!("the name {name:?} stands twice"));
        }
    }
}
