//! What must come out of a scenario: bounds on named statistics.

use super::table::{Item, Table};
use serde::Serialize;
use std::str::FromStr;

/// A bound on one statistic.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Expectation {
    /// Which number.
    pub(crate) statistic: Statistic,
    /// Where it must lie.
    pub(crate) bound: Bound,
}

/// A number of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Statistic {
    /// Of the whole play.
    Total(Total),
    /// Of one class of work.
    Class(String, Measure),
}

/// A statistic of the whole play.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Total {
    /// How many requests.
    Requests,
    /// How many of them failed.
    Errors,
    /// How many came to a phone whose slots were all taken.
    OverSubscribed,
    /// Answers a second.
    Throughput,
    /// Tokens a second.
    Tokens,
    /// Attempts beyond the first.
    SecondAttempts,
    /// Share of the written tokens that are in no answer.
    WastedTokens,
    /// Busy slots after the last answer.
    LeftBusySlots,
    /// Queued requests after the last answer.
    LeftQueued,
}

impl Total {
    /// All of them, with their names.
    pub(crate) const ALL: [(&str, Self); 9] = [
        ("requests", Self::Requests),
        ("errors", Self::Errors),
        ("over_subscribed", Self::OverSubscribed),
        ("throughput_rps", Self::Throughput),
        ("tokens_per_s", Self::Tokens),
        ("second_attempts", Self::SecondAttempts),
        ("wasted_tokens_share", Self::WastedTokens),
        ("left_busy_slots", Self::LeftBusySlots),
        ("left_queued", Self::LeftQueued),
    ];

    /// The name in the file and in the report.
    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, total)| *total == self).map_or("", |(name, _)| name)
    }
}

/// A statistic of one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Measure {
    /// How many requests.
    Requests,
    /// How many of them failed.
    Errors,
    /// The share of good answers.
    Good,
    /// Seconds, at a point of a distribution.
    Time(Clock, Point),
}

/// What was timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clock {
    /// From the request to the end of the answer.
    Total,
    /// From the request to the first token, of streams.
    Ttft,
    /// In the gateway's queue, as it says itself.
    Queue,
    /// The longest pause between two tokens of a stream.
    Gap,
}

/// A point of a distribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Point {
    /// The mean.
    Mean,
    /// The median.
    P50,
    /// Nine of ten are below.
    P90,
    /// 99 of 100 are below.
    P99,
    /// The largest.
    Max,
}

/// Both ends are included.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Bound {
    /// At least.
    pub(crate) min: Option<f64>,
    /// At most.
    pub(crate) max: Option<f64>,
}

impl Bound {
    /// Whether a number lies inside.
    pub(crate) fn holds(&self, value: f64) -> bool {
        self.min.is_none_or(|min| value >= min) && self.max.is_none_or(|max| value <= max)
    }
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.min, self.max) {
            (Some(min), Some(max)) if min == max => write!(f, "exactly {min}"),
            (Some(min), Some(max)) => write!(f, "{min} to {max}"),
            (Some(min), None) => write!(f, "at least {min}"),
            (None, Some(max)) => write!(f, "at most {max}"),
            (None, None) => f.write_str("anything"),
        }
    }
}

/// A name that is no statistic of a class.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "no statistic of a class: expected requests, errors, good, or mean, p50, p90, p99, max, alone or after ttft_, queue_ or gap_"
)]
pub(crate) struct UnknownMeasure;

impl FromStr for Measure {
    type Err = UnknownMeasure;

    fn from_str(name: &str) -> Result<Self, UnknownMeasure> {
        match name {
            "requests" => return Ok(Self::Requests),
            "errors" => return Ok(Self::Errors),
            "good" => return Ok(Self::Good),
            _ => {}
        }
        let (clock, point) = match name.split_once('_') {
            Some(("ttft", point)) => (Clock::Ttft, point),
            Some(("queue", point)) => (Clock::Queue, point),
            Some(("gap", point)) => (Clock::Gap, point),
            Some(_) => return Err(UnknownMeasure),
            None => (Clock::Total, name),
        };
        let point = match point {
            "mean" => Point::Mean,
            "p50" => Point::P50,
            "p90" => Point::P90,
            "p99" => Point::P99,
            "max" => Point::Max,
            _ => return Err(UnknownMeasure),
        };
        Ok(Self::Time(clock, point))
    }
}

/// Reads `[expect]` and `[expect.classes.NAME]`.
pub(super) fn read_expectations(root: &Table<'_>, classes: &[String]) -> Vec<Expectation> {
    let Some(table) = root.table("expect") else { return Vec::new() };
    let mut expectations = Vec::new();
    for (key, item) in table.all() {
        if key == "classes" {
            continue;
        }
        match Total::ALL.iter().find(|(name, _)| *name == key) {
            Some((_, total)) => {
                let bound = read_bound(&item);
                expectations.extend(bound.map(|bound| Expectation { statistic: Statistic::Total(*total), bound }));
            }
            None => {
                let known = Total::ALL.map(|(name, _)| name).join(", ");
                item.wrong(format_args!("no statistic: expected classes, {known}"));
            }
        }
    }
    for (name, item) in table.table("classes").iter().flat_map(Table::all) {
        if !classes.iter().any(|class| class == name) {
            item.wrong(format_args!("no class of this scenario: expected {}", classes.join(", ")));
        }
        let Some(class) = item.table() else { continue };
        for (key, item) in class.all() {
            match key.parse() {
                Ok(measure) => expectations.extend(
                    read_bound(&item)
                        .map(|bound| Expectation { statistic: Statistic::Class(name.to_owned(), measure), bound }),
                ),
                Err(error) => item.wrong(error),
            }
        }
    }
    expectations
}

/// `0` is exactly that; `{ min = 1, max = 2 }` a range.
fn read_bound(item: &Item<'_>) -> Option<Bound> {
    if !matches!(item.value, toml::de::DeValue::Table(_)) {
        let exact = item.number(f64::MIN..=f64::MAX)?;
        return Some(Bound { min: Some(exact), max: Some(exact) });
    }
    let table = item.table()?;
    let bound = Bound { min: table.number("min", f64::MIN..=f64::MAX), max: table.number("max", f64::MIN..=f64::MAX) };
    if bound.min.is_none() && bound.max.is_none() {
        table.wrong("expected a number, or a table with min, max or both");
    }
    table.close();
    Some(bound)
}
