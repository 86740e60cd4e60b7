//! Holding a report against what its scenario expects.

use super::{Outcome, Report};
use crate::scenario::{Clock, Expectation, Measure, Point, Statistic, Total};

/// What each expectation came to.
pub(super) fn judge(expectations: &[Expectation], report: &Report) -> Vec<Outcome> {
    let outcome = |expectation: &Expectation| {
        let timed = matches!(expectation.statistic, Statistic::Class(_, Measure::Time(..)));
        let (what, value) = match &expectation.statistic {
            Statistic::Total(total) => (total.name().to_owned(), of_all(report, *total)),
            Statistic::Class(class, measure) => {
                (format!("{class} {}", name_of(*measure)), of_class(report, class, *measure))
            }
        };
        let holds = value.is_some_and(|value| expectation.bound.holds(value));
        Outcome { what, unit: if timed { "s" } else { "" }, value, bound: expectation.bound, holds }
    };
    expectations.iter().map(outcome).collect()
}

fn of_all(report: &Report, total: Total) -> Option<f64> {
    let totals = &report.totals;
    match total {
        Total::Requests => Some(totals.requests as f64),
        Total::Errors => Some(totals.errors as f64),
        Total::OverSubscribed => totals.over_subscribed.map(|count| count as f64),
        Total::Throughput => Some(totals.throughput_rps),
        Total::Tokens => Some(totals.tokens_per_s),
        Total::SecondAttempts => Some(totals.second_attempts as f64),
        Total::WastedTokens => report.waste.as_ref().map(|waste| waste.wasted_tokens_share),
        Total::LeftBusySlots => totals.left_busy_slots,
        Total::LeftQueued => totals.left_queued,
    }
}

fn of_class(report: &Report, name: &str, measure: Measure) -> Option<f64> {
    let class = report.classes.iter().find(|class| class.name == name)?;
    match measure {
        Measure::Requests => Some(class.requests as f64),
        Measure::Errors => Some(class.errors as f64),
        Measure::Good => class.good,
        Measure::Time(Clock::Total, point) => class.total.at(point),
        Measure::Time(Clock::Ttft, point) => class.ttft.at(point),
        Measure::Time(Clock::Queue, point) => class.queue.at(point),
        Measure::Time(Clock::Gap, point) => class.gap.at(point),
    }
}

/// The name in the scenario's file.
fn name_of(measure: Measure) -> String {
    let (clock, point) = match measure {
        Measure::Requests => return "requests".to_owned(),
        Measure::Errors => return "errors".to_owned(),
        Measure::Good => return "good".to_owned(),
        Measure::Time(clock, point) => (clock, point),
    };
    let clock = match clock {
        Clock::Total => "",
        Clock::Ttft => "ttft_",
        Clock::Queue => "queue_",
        Clock::Gap => "gap_",
    };
    let point = match point {
        Point::Mean => "mean",
        Point::P50 => "p50",
        Point::P90 => "p90",
        Point::P99 => "p99",
        Point::Max => "max",
    };
    format!("{clock}{point}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_measures_are_those_of_the_scenario_file() {
        for name in ["requests", "errors", "good", "p50", "ttft_p99", "queue_mean", "gap_max", "p90"] {
            assert_eq!(name_of(name.parse().expect(name)), name);
        }
        assert!("p98".parse::<Measure>().is_err() && "ttft_".parse::<Measure>().is_err());
    }
}
