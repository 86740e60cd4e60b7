//! What came of a scenario, in one form for every way of playing it.
//!
//! [`Report`] is the JSON of `--json` (documented in `loadtest/README.md`), the table on the terminal ([`table`]) and the
//! page ([`html`]). It is made from records ([`build`]), whoever made those: a play over HTTP, or one in virtual time.

mod build;
mod chart;
mod distribution;
mod expectation;
mod html;
mod plots;
mod table;
mod text;

pub(crate) use build::{Meta, build};
pub(crate) use chart::{Chart, Scale};
pub(crate) use distribution::{Distribution, ttft};
pub(crate) use html::{date, figure, page, shell};
pub(crate) use plots::{Plot, colour, percent, tick_time};
pub(crate) use table::{grid, print};
pub(crate) use text::{escape, number, short_time, time, time_or_dash};

use crate::observed::{Event, Sample};
use serde::{Serialize, Serializer};

/// The result of a play. Lengths of time in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Report {
    /// Name of the scenario.
    pub(crate) scenario: String,
    /// What it is for.
    pub(crate) why: String,
    /// How it was played: `live`.
    pub(crate) played: &'static str,
    /// Against what.
    pub(crate) target: String,
    /// Seed of all that was random.
    pub(crate) seed: u64,
    /// Seconds since 1970 at the start.
    pub(crate) started_unix: u64,
    /// How long work arrived.
    pub(crate) duration_s: f64,
    /// Requests that started earlier are not in the times.
    pub(crate) warmup_s: f64,
    /// Until the last answer.
    pub(crate) elapsed_s: f64,
    /// All classes together.
    pub(crate) totals: Totals,
    /// By class, in the scenario's order.
    #[serde(serialize_with = "by_name")]
    pub(crate) classes: Vec<ClassReport>,
    /// Kinds of errors, the most frequent first.
    pub(crate) errors: Vec<ErrorReport>,
    /// Work that came to nothing; null when the phones can't be seen.
    pub(crate) waste: Option<Waste>,
    /// Each phone; empty when they can't be seen.
    pub(crate) phones: Vec<PhoneReport>,
    /// What was expected, and what was.
    pub(crate) expectations: Vec<Outcome>,
    /// Whether everything was as expected.
    pub(crate) passed: bool,
    /// What was done to the fleet.
    pub(crate) events: Vec<Event>,
    /// Kinds of errors in the order of the timeline.
    pub(crate) kinds: Vec<String>,
    /// Requests by time.
    pub(crate) timeline: Vec<Bin>,
    /// The fleet by time.
    pub(crate) samples: Vec<Sample>,
    /// Requests as points for the plots; not in the JSON.
    #[serde(skip)]
    pub(crate) points: Vec<Point>,
}

/// All classes together.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Totals {
    /// Requests that ended.
    pub(crate) requests: u64,
    /// Of those, without a whole and right answer.
    pub(crate) errors: u64,
    /// Answers a second, while work arrived.
    pub(crate) throughput_rps: f64,
    /// Tokens of whole answers a second, from the start to the last answer.
    pub(crate) tokens_per_s: f64,
    /// Attempts beyond the first of each answer, as the gateway says.
    pub(crate) second_attempts: u64,
    /// Requests that came to a phone whose slots were all taken; null when the phones can't be seen.
    pub(crate) over_subscribed: Option<u64>,
    /// Busy slots by the gateway's own count after the last answer; null without its admin API.
    pub(crate) left_busy_slots: Option<f64>,
    /// The same of queued requests.
    pub(crate) left_queued: Option<f64>,
}

/// One class of work.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ClassReport {
    /// Its name: the key in the JSON.
    #[serde(skip)]
    pub(crate) name: String,
    /// Requests that ended, warm-up included.
    pub(crate) requests: u64,
    /// Of those, failed.
    pub(crate) errors: u64,
    /// Share of good answers among the timed requests, if the scenario says what is good.
    pub(crate) good: Option<f64>,
    /// From request to the end of the answer.
    #[serde(flatten)]
    pub(crate) total: Distribution,
    /// From request to the first token of a stream.
    #[serde(flatten, serialize_with = "distribution::ttft")]
    pub(crate) ttft: Distribution,
    /// In the gateway's queue.
    #[serde(flatten, serialize_with = "distribution::queue")]
    pub(crate) queue: Distribution,
    /// The longest pause between tokens of each stream.
    #[serde(flatten, serialize_with = "distribution::gap")]
    pub(crate) gap: Distribution,
}

/// A kind of error.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ErrorReport {
    /// Its short name.
    pub(crate) kind: String,
    /// How often.
    pub(crate) count: u64,
    /// When the first of its kind was seen.
    pub(crate) first_at_s: f64,
    /// When the last was.
    pub(crate) last_at_s: f64,
    /// The first, in words.
    pub(crate) example: String,
}

/// Work of phones that came to nothing, over all phones.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Waste {
    /// Attempts that reached a phone.
    pub(crate) attempts: u64,
    /// Of those, answered whole.
    pub(crate) completed: u64,
    /// Of those, left by the gateway.
    pub(crate) cancelled: u64,
    /// Of those, ended by a fault.
    pub(crate) failed: u64,
    /// Of those, ended by the death of their phone.
    pub(crate) lost: u64,
    /// Tokens that phones wrote.
    pub(crate) written_tokens: u64,
    /// Of those, not part of a whole answer.
    pub(crate) wasted_tokens: u64,
    /// Their share.
    pub(crate) wasted_tokens_share: f64,
    /// Prompt tokens that phones were given.
    pub(crate) prompt_tokens: u64,
    /// Of those, found in a phone's cache.
    pub(crate) cached_tokens: u64,
    /// Prompt tokens of attempts that brought no answer, most likely.
    pub(crate) wasted_prompt_tokens: u64,
    /// How long phones read those, about, from their speeds; null when these are not known. An attempt that ended while it
    /// read counts whole.
    pub(crate) wasted_prefill_s: Option<f64>,
}

/// One phone.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct PhoneReport {
    /// Its name.
    pub(crate) name: String,
    /// Name of its group.
    pub(crate) group: String,
    /// Its slots.
    pub(crate) slots: u64,
    /// Attempts that reached it.
    pub(crate) attempts: u64,
    /// Of those, answered whole.
    pub(crate) completed: u64,
    /// Of those, came when all slots were taken.
    pub(crate) over_subscribed: u64,
    /// Mean share of its slots that worked.
    pub(crate) busy_share: f64,
}

/// A number that was expected to lie within a bound.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Outcome {
    /// Which.
    pub(crate) what: String,
    /// Its unit: `s` or nothing.
    pub(crate) unit: &'static str,
    /// It; null if it was not measured, which is a failure.
    pub(crate) value: Option<f64>,
    /// Where it should lie.
    pub(crate) bound: crate::scenario::Bound,
    /// Whether it does.
    pub(crate) holds: bool,
}

/// Requests that ended within a stretch of time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Bin {
    /// Start of the stretch.
    pub(crate) at_s: f64,
    /// Whole answers, by class.
    pub(crate) answered: Vec<u64>,
    /// Errors, by kind as in [`Report::kinds`].
    pub(crate) failed: Vec<u64>,
    /// Tokens of whole answers.
    pub(crate) tokens: u64,
}

/// One request, as a point in a plot.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Point {
    /// When it started.
    pub(crate) start_s: f32,
    /// How long it took.
    pub(crate) total_s: f32,
    /// Its class.
    pub(crate) class: u32,
    /// Whether it failed.
    pub(crate) failed: bool,
}

impl Outcome {
    /// The value with its unit.
    fn shown(&self) -> String {
        self.value.map_or_else(
            || "not measured".to_owned(),
            |value| format!("{} {}", text::number(value), self.unit).trim_end().to_owned(),
        )
    }

    /// Where it should lie, with the unit.
    fn wanted(&self) -> String {
        format!("{} {}", self.bound, self.unit).trim_end().to_owned()
    }
}

fn by_name<S: Serializer>(classes: &[ClassReport], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(classes.iter().map(|class| (&class.name, class)))
}
