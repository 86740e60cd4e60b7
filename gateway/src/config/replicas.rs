//! `[[replicas]]` and `[models.*]`: what the operator states about phones and models.

use std::{collections::BTreeMap, time::Duration};

use scheduler::Class;
use toml::de::DeValue;

use super::{
    capacity::TTFT,
    moment::Moment,
    secret::{Secret, Sources},
    value::{Refused, Value},
    visit::{Section, Visitor, live},
};
use crate::fleet::Dialect;

/// The models of a replica: names that clients use, each with the name that the replica knows, if it is another.
/// Empty: what a probe finds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatedModels(pub BTreeMap<String, Option<String>>);

impl Value for StatedModels {
    const ACCEPTED: &'static str = "[\"model\", …] or { \"model\" = \"name on the replica\", … }";

    fn read(raw: &DeValue<'_>, sources: &Sources<'_>) -> Result<Self, Refused> {
        let mut models = BTreeMap::new();
        match raw {
            DeValue::Array(names) => {
                for name in names.iter() {
                    models.insert(String::read(name.get_ref(), sources)?, None);
                }
            }
            DeValue::Table(table) => {
                for (name, known_as) in table.iter() {
                    models.insert(name.get_ref().to_string(), Some(String::read(known_as.get_ref(), sources)?));
                }
            }
            _ => return Err(Refused::because("neither a list nor a table of models")),
        }
        Ok(Self(models))
    }

    fn show(&self) -> String {
        let entry = |(name, known_as): (&String, &Option<String>)| match known_as {
            Some(known_as) => format!("{name:?} = {known_as:?}"),
            None => format!("{name:?}"),
        };
        self.0.iter().map(entry).collect::<Vec<_>>().join(", ")
    }
}

impl Value for Dialect {
    const ACCEPTED: &'static str = "\"llama\", \"qvac\", \"mnn\", \"mnn_app\", \"laya\" or \"openai\"";

    fn read(raw: &DeValue<'_>, _: &Sources<'_>) -> Result<Self, Refused> {
        let named = if let DeValue::String(name) = raw { Self::by_name(name) } else { None };
        named.ok_or_else(|| Refused::because("not one of the choices"))
    }

    fn show(&self) -> String {
        self.name().into()
    }
}

/// Tokens a second that a phone can have.
pub(crate) const RATES: std::ops::RangeInclusive<f64> = 0.01..=1_000_000.0;

/// A replica as the file states it. What it does not state is found by probing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatedReplica {
    /// `https://HOST[:PORT]`, nothing more.
    pub url: String,
    /// For people; the host's first label when absent.
    pub name: Option<String>,
    /// Its models.
    pub models: StatedModels,
    /// Concurrent requests it takes.
    pub slots: Option<u16>,
    /// Tokens that prompt and answer of one slot must fit.
    pub context_tokens: Option<u32>,
    /// Sent to it as a bearer token.
    pub api_key: Option<Secret>,
    /// The engine.
    pub dialect: Option<Dialect>,
    /// Free words for operators.
    pub labels: BTreeMap<String, String>,
    /// The end of its deployment.
    pub expires_at: Option<Moment>,
    /// What it costs.
    pub cost_acu_per_day: Option<f64>,
    /// Prompt tokens a second that it reads, one request alone. Until it is measured.
    pub prefill_rate: Option<f64>,
    /// Answer tokens a second that it writes, one request alone. Until it is measured.
    pub decode_rate: Option<f64>,
}

impl Section for StatedReplica {
    fn visit<V: Visitor>(&mut self, v: &mut V) {
        v.required(live("url"), &mut self.url);
        v.value(live("name"), &mut self.name);
        v.value(live("models"), &mut self.models);
        v.ranged(live("slots"), &mut self.slots, 1..=1024);
        v.ranged(live("context_tokens"), &mut self.context_tokens, 1..=100_000_000);
        v.value(live("api_key"), &mut self.api_key);
        v.value(live("dialect"), &mut self.dialect);
        v.map(live("labels"), &mut self.labels);
        v.value(live("expires_at"), &mut self.expires_at);
        v.ranged(live("cost_acu_per_day"), &mut self.cost_acu_per_day, 0.0..=1_000_000.0);
        v.ranged(live("prefill_rate"), &mut self.prefill_rate, RATES);
        v.ranged(live("decode_rate"), &mut self.decode_rate, RATES);
    }

    fn label(&self) -> Option<String> {
        (!self.url.is_empty()).then(|| self.url.clone())
    }
}

/// What the operator says about a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelSection {
    /// Other names that clients may use for it.
    pub aliases: Vec<String>,
    /// How urgent its requests are that do not say; goes before the tenant's own default.
    pub default_class: Option<Class>,
    /// Names that replicas report for it, such as a file's path; `*` stands for any letters.
    pub replica_names: Vec<String>,
    /// Goes before `capacity.interactive_ttft`.
    pub interactive_ttft: Option<Duration>,
    /// Goes before `capacity.standard_ttft`.
    pub standard_ttft: Option<Duration>,
}

impl Section for ModelSection {
    fn visit<V: Visitor>(&mut self, v: &mut V) {
        v.list(live("aliases"), &mut self.aliases);
        v.value(live("default_class"), &mut self.default_class);
        v.list(live("replica_names"), &mut self.replica_names);
        v.ranged(live("interactive_ttft"), &mut self.interactive_ttft, TTFT);
        v.ranged(live("standard_ttft"), &mut self.standard_ttft, TTFT);
    }
}
