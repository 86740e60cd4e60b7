//! The work of a scenario: who asks what, and when.

use super::table::{Item, Table};
use simulation::scenario::{Length, Template};

/// One kind of work.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Class {
    /// What the report calls it.
    pub(crate) name: String,
    /// How urgent its requests say they are: `interactive`, `standard` or `batch`.
    pub(crate) urgency: String,
    /// The model they ask for.
    pub(crate) model: String,
    /// When they come.
    pub(crate) arrivals: Arrivals,
    /// Share of the requests that ask for a stream.
    pub(crate) stream: f64,
    /// Shared beginnings of their prompts.
    pub(crate) templates: Vec<Template>,
    /// Tokens of their own after the shared beginning; of one turn, in a conversation.
    pub(crate) prompt: Length,
    /// Tokens of the answer.
    pub(crate) answer: Length,
    /// Mean number of turns of a conversation; 1 for work that is no conversation.
    pub(crate) turns: f64,
    /// Mean pause between an answer and the next turn, or the client's next request, seconds.
    pub(crate) think_s: f64,
    /// A conversation ends before its prompt is longer than this, tokens.
    pub(crate) longest_prompt: u32,
    /// A whole answer within this time is a good one, seconds.
    pub(crate) good_within_s: Option<f64>,
}

/// When requests come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Arrivals {
    /// At random, so many a second on average, whether or not earlier ones were answered.
    Poisson {
        /// Conversations a second.
        rate: f64,
    },
    /// The same in two intensities that take turns.
    OnOff {
        /// A second, while busy.
        high: f64,
        /// A second, while quiet.
        low: f64,
        /// Mean length of a busy stretch, seconds.
        high_s: f64,
        /// Mean length of a quiet stretch, seconds.
        low_s: f64,
    },
    /// All at once.
    Batch {
        /// How many.
        count: u64,
        /// When, seconds.
        at_s: f64,
    },
    /// So many clients, each with one request at a time.
    Clients {
        /// How many.
        count: u64,
    },
}

/// Longest prompt or answer of a scenario, tokens: far beyond what a phone's context holds.
const LONGEST: f64 = 1e6;
const URGENCIES: [&str; 3] = ["interactive", "standard", "batch"];

pub(super) fn read_class(table: Table<'_>) -> Class {
    for key in ["name", "model", "arrivals", "prompt", "answer"] {
        table.demand(key);
    }
    let urgency = table.text("class").unwrap_or_else(|| "standard".to_owned());
    if !URGENCIES.contains(&urgency.as_str()) {
        table.wrong_at("class", "expected \"interactive\", \"standard\" or \"batch\"");
    }
    let templates = table.tables("templates").into_iter().map(read_template).collect();
    let class = Class {
        name: table.text("name").unwrap_or_default(),
        urgency,
        model: table.text("model").unwrap_or_default(),
        arrivals: table.item("arrivals").and_then(read_arrivals).unwrap_or(Arrivals::Batch { count: 0, at_s: 0.0 }),
        stream: table.number("stream", 0.0..=1.0).unwrap_or(0.0),
        templates,
        prompt: table.item("prompt").and_then(read_length).unwrap_or(Length::Uniform { min: 1.0, max: 1.0 }),
        answer: table.item("answer").and_then(read_length).unwrap_or(Length::Uniform { min: 1.0, max: 1.0 }),
        turns: table.number("turns", 1.0..=1000.0).unwrap_or(1.0),
        think_s: table.seconds("think").unwrap_or(0.0),
        longest_prompt: table.count("longest_prompt", 1..=LONGEST as u64).unwrap_or(LONGEST as u64) as u32,
        good_within_s: table.seconds("good_within"),
    };
    table.close();
    class
}

fn read_template(table: Table<'_>) -> Template {
    table.demand("tokens");
    let template = Template {
        tokens: table.count("tokens", 1..=LONGEST as u64).unwrap_or(1) as u32,
        weight: table.number("weight", 0.0..=1e9).unwrap_or(1.0),
    };
    table.close();
    template
}

/// `{ poisson = 5 }`, `{ high = 10, low = 1, high_for = "10s", low_for = "30s" }`, `{ batch = 100, at = "5s" }` or
/// `{ clients = 20 }`.
fn read_arrivals(item: Item<'_>) -> Option<Arrivals> {
    const MANY: f64 = 1e6;
    let table = item.table()?;
    let kinds = [
        table.number("poisson", 0.001..=MANY).map(|rate| Arrivals::Poisson { rate }),
        table.count("clients", 1..=100_000).map(|count| Arrivals::Clients { count }),
        table
            .count("batch", 1..=1_000_000)
            .map(|count| Arrivals::Batch { count, at_s: table.seconds("at").unwrap_or(0.0) }),
        table.number("high", 0.001..=MANY).map(|high| Arrivals::OnOff {
            high,
            low: table.number("low", 0.0..=MANY).unwrap_or(0.0),
            high_s: table.seconds("high_for").filter(|s| *s > 0.0).unwrap_or(10.0),
            low_s: table.seconds("low_for").filter(|s| *s > 0.0).unwrap_or(10.0),
        }),
    ];
    if ["poisson", "clients", "batch", "high"].iter().filter(|key| table.item(key).is_some()).count() != 1 {
        table.wrong("expected exactly one of poisson, clients, batch, high");
    }
    let read = kinds.into_iter().flatten().next();
    table.close();
    read
}

/// `30`, `[15, 40]`, or `{ mean = 1500, sigma = 0.35, min = 300, max = 4000 }`.
fn read_length(item: Item<'_>) -> Option<Length> {
    use toml::de::DeValue;
    match item.value {
        DeValue::Array(_) => {
            let bounds: Vec<f64> = item.items().iter().filter_map(|bound| bound.number(1.0..=LONGEST)).collect();
            match bounds[..] {
                [min, max] if min <= max => Some(Length::Uniform { min, max }),
                _ => {
                    item.wrong("expected [smallest, largest]");
                    None
                }
            }
        }
        DeValue::Table(_) => {
            let table = item.table()?;
            table.demand("mean");
            let mean = table.number("mean", 1.0..=LONGEST)?;
            let length = Length::LogNormal {
                mean,
                sigma: table.number("sigma", 0.0..=5.0).unwrap_or(0.35),
                min: table.number("min", 1.0..=LONGEST).unwrap_or(1.0),
                max: table.number("max", 1.0..=LONGEST).unwrap_or(LONGEST),
            };
            table.close();
            Some(length)
        }
        _ => item.number(1.0..=LONGEST).map(|exact| Length::Uniform { min: exact, max: exact }),
    }
}
