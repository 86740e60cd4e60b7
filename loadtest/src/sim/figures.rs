//! The figures of a scenario served by one policy: means over its runs.
//!
//! Each figure is the mean of the same figure over the runs, a p99 too: a run is one draw of an hour, and what is asked
//! is how an hour usually goes. Rejected: percentiles over the requests of all runs together, in which the worst run
//! hides what the others were like.

use serde::{Serialize, Serializer, ser::SerializeMap as _};
use simulation::{
    bounds::ClassBounds,
    play::{ClassFigures, KeyFigures, Played, Player, WasteShares},
    scenario::{Class, Scenario},
};
use std::collections::BTreeMap;

/// One play and what nothing can beat in it.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    /// The run.
    pub(crate) seed: u64,
    /// What came out.
    pub(crate) played: Played,
    /// Lower bounds by class.
    pub(crate) bounds: Vec<ClassBounds>,
}

/// Means over runs. Lengths of time in seconds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figures {
    /// The scenario.
    pub(crate) scenario: String,
    /// Who served it.
    pub(crate) policy: &'static str,
    /// In which runs.
    pub(crate) seeds: Vec<u64>,
    /// By class, in the scenario's order.
    #[serde(serialize_with = "by_name")]
    pub(crate) classes: Vec<ClassMeans>,
    /// Lower bounds by class, by name.
    pub(crate) bounds: BTreeMap<String, BTreeMap<String, f64>>,
    /// Work that came to nothing; `None` where that can't be seen.
    pub(crate) waste: Option<WasteShares>,
    /// How often the scheduler took which kind of decision; empty for policies that are not the gateway's.
    pub(crate) decisions: BTreeMap<&'static str, f64>,
    /// Requests refused, by reason.
    pub(crate) refused: BTreeMap<&'static str, f64>,
}

/// The figures of one class.
#[derive(Clone, Debug)]
pub(crate) struct ClassMeans {
    /// The class.
    pub(crate) name: String,
    /// Requests measured in a run.
    pub(crate) requests: f64,
    /// The scenario says which of its answers are good.
    has_objective: bool,
    /// As in [`ClassFigures::FIGURES`]; `None` where the class does not have it.
    figures: [Option<f64>; ClassFigures::FIGURES.len()],
    /// By key.
    pub(crate) keys: Vec<KeyMeans>,
    /// Times to the whole answer that 0, 1, … 100 % of the requests do not exceed; not in the JSON.
    pub(crate) curve: Vec<f64>,
}

/// The figures of one key of a class.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct KeyMeans {
    /// The key.
    name: String,
    /// Requests measured in a run.
    n: f64,
    /// Time to the whole answer.
    mean: f64,
    /// Slot time it had; `None` where that can't be seen.
    slot_seconds: Option<f64>,
}

impl Figures {
    /// The means over the runs in `measured`.
    pub(crate) fn mean(scenario: &Scenario, player: &Player, measured: &[Measured]) -> Self {
        let played = || measured.iter().map(|measured| &measured.played);
        let waste = |share: fn(&WasteShares) -> f64| mean(played().map(|played| share(&played.waste))).unwrap_or(0.0);
        let count = |counts: fn(&Played) -> &BTreeMap<&'static str, u64>| {
            let mut sums: BTreeMap<&'static str, f64> = BTreeMap::new();
            for (name, count) in played().flat_map(counts) {
                *sums.entry(name).or_default() += *count as f64 / measured.len() as f64;
            }
            sums
        };
        Self {
            scenario: scenario.name.clone(),
            policy: player.name(),
            seeds: measured.iter().map(|measured| measured.seed).collect(),
            classes: scenario.classes.iter().filter_map(|class| ClassMeans::new(class, measured)).collect(),
            bounds: scenario
                .classes
                .iter()
                .map(|class| (class.name.clone(), mean_bounds(&class.name, measured)))
                .collect(),
            waste: Some(WasteShares {
                fail: waste(|waste| waste.fail),
                hedge: waste(|waste| waste.hedge),
                preempt: waste(|waste| waste.preempt),
                cold: waste(|waste| waste.cold),
            }),
            decisions: count(|played| &played.decisions),
            refused: count(|played| &played.refused),
        }
    }

    /// The class of that name.
    pub(crate) fn class(&self, name: &str) -> Option<&ClassMeans> {
        self.classes.iter().find(|class| class.name == name)
    }

    /// A lower bound of a class.
    pub(crate) fn bound(&self, class: &str, bound: &str) -> Option<f64> {
        self.bounds.get(class)?.get(bound).copied()
    }
}

impl ClassMeans {
    /// `None` if no run measured any of it.
    fn new(class: &Class, measured: &[Measured]) -> Option<Self> {
        let name = &class.name;
        let of_run = |measured| -> Option<&ClassFigures> {
            let measured: &Measured = measured;
            measured.played.classes.iter().find(|class| class.name == *name)
        };
        let runs: Vec<&ClassFigures> = measured.iter().filter_map(of_run).collect();
        let first = runs.first()?;
        let figure = |figure: &str| mean(runs.iter().filter_map(|class| class.get(figure)));
        Some(Self {
            name: name.clone(),
            has_objective: class.objective_s > 0.0,
            requests: mean(runs.iter().map(|class| class.requests as f64))?,
            figures: ClassFigures::FIGURES.map(figure),
            keys: first.keys.iter().filter_map(|key| KeyMeans::new(&key.name, &runs)).collect(),
            curve: mean_curve(&runs),
        })
    }

    /// Share of good answers, if the scenario says what is good.
    pub(crate) fn good(&self) -> Option<f64> {
        self.get("good").filter(|_| self.has_objective)
    }

    /// The figure of that name.
    pub(crate) fn get(&self, figure: &str) -> Option<f64> {
        let index = ClassFigures::FIGURES.iter().position(|name| *name == figure)?;
        self.figures.get(index).copied().flatten()
    }
}

impl ClassMeans {
    /// Leaves out what only a simulated gateway can see of its phones.
    pub(crate) fn leave_out_slot_time(&mut self) {
        self.keys.iter_mut().for_each(|key| key.slot_seconds = None);
        self.leave_out("slot_seconds");
        self.leave_out("wasted_slot_seconds");
    }

    /// Leaves out all figures whose names begin so: they could not be seen.
    pub(crate) fn leave_out(&mut self, start: &str) {
        for (name, figure) in ClassFigures::FIGURES.iter().zip(&mut self.figures) {
            if name.starts_with(start) {
                *figure = None;
            }
        }
    }
}

impl KeyMeans {
    fn new(name: &str, runs: &[&ClassFigures]) -> Option<Self> {
        let keys: Vec<&KeyFigures> =
            runs.iter().filter_map(|class| class.keys.iter().find(|key| key.name == name)).collect();
        Some(Self {
            name: name.to_owned(),
            n: mean(keys.iter().map(|key| key.requests as f64))?,
            mean: mean(keys.iter().map(|key| key.mean))?,
            slot_seconds: mean(keys.iter().map(|key| key.slot_seconds)),
        })
    }
}

/// At each share the mean of the runs' times.
fn mean_curve(runs: &[&ClassFigures]) -> Vec<f64> {
    let points = runs.iter().map(|class| class.curve.len()).min().unwrap_or(0);
    (0..points).filter_map(|point| mean(runs.iter().filter_map(|class| class.curve.get(point).copied()))).collect()
}

/// The bounds of a class by the names they have in JSON: this program compares some and passes on all.
fn mean_bounds(name: &str, measured: &[Measured]) -> BTreeMap<String, f64> {
    let mut values: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for class in measured.iter().flat_map(|measured| &measured.bounds).filter(|class| class.name == name) {
        let Ok(serde_json::Value::Object(bounds)) = serde_json::to_value(class) else { continue };
        for (bound, value) in bounds.iter().filter_map(|(bound, value)| Some((bound, value.as_f64()?))) {
            values.entry(bound.clone()).or_default().push(value);
        }
    }
    values.into_iter().filter_map(|(bound, values)| Some((bound, mean(values.into_iter())?))).collect()
}

/// `None` of nothing.
fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

impl Serialize for ClassMeans {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("n", &self.requests)?;
        for (name, value) in ClassFigures::FIGURES.iter().zip(&self.figures) {
            map.serialize_entry(name, value)?;
        }
        map.serialize_entry("keys", &self.keys)?;
        map.end()
    }
}

fn by_name<S: Serializer>(classes: &[ClassMeans], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(classes.iter().map(|class| (&class.name, class)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(seed: u64, mean: f64, makespan: Option<f64>) -> Measured {
        let key = KeyFigures { name: "k".into(), requests: 10, mean, slot_seconds: 100.0 };
        let class =
            ClassFigures { name: "a".into(), requests: 10, mean, p99: 3.0 * mean, makespan, ..ClassFigures::default() };
        let played = Played {
            classes: vec![ClassFigures { keys: vec![key], ..class }],
            waste: WasteShares { cold: mean / 100.0, ..WasteShares::default() },
            decisions: BTreeMap::from([("placed", seed)]),
            ..Played::default()
        };
        let bound = ClassBounds { name: "a".into(), mean: Some(mean / 2.0), ..ClassBounds::default() };
        Measured { seed, played, bounds: vec![bound, ClassBounds { name: "b".into(), ..ClassBounds::default() }] }
    }

    /// The means of runs of a scenario with two classes.
    fn means(runs: &[Measured]) -> Figures {
        let class = |name| {
            format!(
                r#"{{ "name": "{name}", "band": 0, "arrivals": {{ "type": "poisson", "rate": 1 }},
                     "keys": [{{ "name": "k", "weight": 1 }}], "templates": [{{ "tokens": 9, "weight": 1 }}],
                     "suffix": {{ "dist": "uniform", "min": 1, "max": 2 }},
                     "out": {{ "dist": "uniform", "min": 1, "max": 2 }} }}"#
            )
        };
        let text = format!(
            r#"{{ "name": "s", "seed": 1, "horizon_s": 9, "warmup_s": 1, "detect_s": 1, "ovh_s": 0,
                 "model": {{ "p0": 9, "c": 0, "d1": 9, "kappa": 9, "beta": 0 }},
                 "phones": {{ "jitter": 0, "classes": [{{ "name": "p", "count": 1, "s": 1, "q": 1, "slots": 1 }}] }},
                 "classes": [{}, {}] }}"#,
            class("a"),
            class("b")
        );
        let scenario = Scenario::from_json(&text).expect("a scenario");
        Figures::mean(&scenario, &Player::named("default").expect("there is one"), runs)
    }

    #[test]
    fn every_figure_is_its_mean_over_the_runs() {
        let figures = means(&[measured(0, 1.0, None), measured(4, 3.0, None)]);
        let class = figures.class("a").expect("it was measured");
        assert_eq!((class.get("mean"), class.get("p99"), class.get("makespan")), (Some(2.0), Some(6.0), None));
        assert_eq!((figures.bound("a", "mean"), figures.bound("b", "mean")), (Some(1.0), None));
        assert_eq!((figures.waste.map(|waste| waste.cold), figures.decisions["placed"]), (Some(0.02), 2.0));
        assert!(figures.class("b").is_none(), "nothing of it was measured");
        assert_eq!((class.get("good"), class.good()), (Some(0.0), None), "nobody said what is good");
    }

    #[test]
    fn the_json_has_every_figure_with_null_where_there_is_none() {
        let figures = means(&[measured(0, 1.0, None)]);
        let json = serde_json::to_value(&figures).expect("JSON");
        assert_eq!(
            (&json["scenario"], &json["policy"], &json["seeds"][0]),
            (&"s".into(), &"default".into(), &0.into())
        );
        let class = json["classes"]["a"].as_object().expect("by name");
        assert!(class["makespan_ratio"].is_null() && class.contains_key("ttft_p99"));
        assert_eq!((&class["mean"], &class["n"], &class["keys"][0]["mean"]), (&1.0.into(), &10.0.into(), &1.0.into()));
        assert_eq!((&json["bounds"]["a"]["mean"], &json["waste"]["cold"]), (&0.5.into(), &0.01.into()));
    }
}
