//! From records to a [`Report`].

use super::{Bin, ClassReport, ErrorReport, PhoneReport, Point, Report, Totals, Waste, expectation};
use crate::{
    ledger::{Book, Record},
    observed::{Observed, PhoneCounts},
    scenario::{Fleet, Scenario},
};
use simulation::phone::Load;

/// What records do not tell.
pub(crate) struct Meta {
    /// How it was played.
    pub(crate) played: &'static str,
    /// Against what.
    pub(crate) target: String,
    /// Seconds since 1970 at the start.
    pub(crate) started_unix: u64,
    /// Until the last answer, seconds.
    pub(crate) elapsed_s: f64,
}

/// Most requests drawn as points.
const MOST_POINTS: usize = 1600;
/// Stretches of time that a timeline has at most.
const MOST_BINS: f64 = 100.0;

/// Sums up a play.
pub(crate) fn build(scenario: &Scenario, book: &Book, observed: Observed, meta: Meta) -> Report {
    let waste = waste(&scenario.fleet, book, &observed.phones);
    let mut report = Report {
        scenario: scenario.name.clone(),
        why: scenario.why.clone(),
        played: meta.played,
        target: meta.target,
        seed: scenario.seed,
        started_unix: meta.started_unix,
        duration_s: scenario.duration_s,
        warmup_s: scenario.warmup_s,
        elapsed_s: meta.elapsed_s,
        totals: totals(scenario, book, &observed, meta.elapsed_s),
        classes: (0..scenario.classes.len()).map(|index| class(scenario, book, index)).collect(),
        errors: errors(book),
        waste,
        phones: observed.phones.iter().map(|phone| phone_report(&scenario.fleet, phone)).collect(),
        expectations: Vec::new(),
        passed: false,
        kinds: book.failures.iter().map(|failure| failure.kind.clone()).collect(),
        timeline: timeline(scenario, book, meta.elapsed_s),
        points: points(book),
        samples: observed.samples,
        events: observed.events,
    };
    report.expectations = expectation::judge(&scenario.expect, &report);
    report.passed = report.expectations.iter().all(|outcome| outcome.holds)
        && report.events.iter().all(|event| !event.failed)
        && report.totals.requests > 0;
    report
}

fn end_s(record: &Record) -> f64 {
    f64::from(record.start_s) + f64::from(record.total_s)
}

fn answers(book: &Book) -> impl Iterator<Item = &Record> {
    book.records.iter().filter(|record| record.failure.is_none())
}

fn totals(scenario: &Scenario, book: &Book, observed: &Observed, elapsed_s: f64) -> Totals {
    let seen = !observed.phones.is_empty();
    let span = scenario.warmup_s..scenario.duration_s.min(elapsed_s.max(scenario.warmup_s + 0.001));
    let in_span = answers(book).filter(|record| span.contains(&end_s(record))).count();
    let tokens: u64 = answers(book).map(|record| u64::from(record.answer_tokens)).sum();
    Totals {
        requests: book.records.len() as u64,
        errors: book.records.iter().filter(|record| record.failure.is_some()).count() as u64,
        throughput_rps: in_span as f64 / (span.end - span.start),
        tokens_per_s: tokens as f64 / elapsed_s.max(0.001),
        second_attempts: book.records.iter().map(|record| u64::from(record.attempts.saturating_sub(1))).sum(),
        over_subscribed: seen.then(|| observed.phones.iter().map(|phone| phone.stats.over_subscribed).sum()),
        left_busy_slots: observed.left.map(|left| left.busy_slots),
        left_queued: observed.left.map(|left| left.queued),
    }
}

fn class(scenario: &Scenario, book: &Book, index: usize) -> ClassReport {
    let class = &scenario.classes[index];
    let all: Vec<&Record> = book.records.iter().filter(|record| record.class as usize == index).collect();
    let warm = |record: &&&Record| f64::from(record.start_s) >= scenario.warmup_s;
    let timed: Vec<&Record> = all.iter().filter(warm).copied().collect();
    let whole: Vec<&Record> = timed.iter().filter(|record| record.failure.is_none()).copied().collect();
    let good = class.good_within_s.filter(|_| !timed.is_empty()).map(|limit| {
        whole.iter().filter(|record| f64::from(record.total_s) <= limit).count() as f64 / timed.len() as f64
    });
    ClassReport {
        name: class.name.clone(),
        requests: all.len() as u64,
        errors: all.iter().filter(|record| record.failure.is_some()).count() as u64,
        good,
        total: whole.iter().map(|record| record.total_s).collect(),
        ttft: whole.iter().filter_map(|record| record.ttft_s).collect(),
        queue: whole.iter().filter_map(|record| record.queue_s).collect(),
        gap: whole.iter().filter_map(|record| record.gap_s).collect(),
    }
}

fn errors(book: &Book) -> Vec<ErrorReport> {
    let mut errors: Vec<ErrorReport> = book
        .failures
        .iter()
        .map(|failure| ErrorReport {
            kind: failure.kind.clone(),
            count: 0,
            first_at_s: f64::INFINITY,
            last_at_s: 0.0,
            example: failure.example.clone(),
        })
        .collect();
    for record in &book.records {
        if let Some(error) = record.failure.and_then(|kind| errors.get_mut(kind as usize)) {
            error.count += 1;
            error.first_at_s = error.first_at_s.min(end_s(record));
            error.last_at_s = error.last_at_s.max(end_s(record));
        }
    }
    errors.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.kind.cmp(&b.kind)));
    errors
}

fn waste(fleet: &Fleet, book: &Book, phones: &[PhoneCounts]) -> Option<Waste> {
    if phones.is_empty() {
        return None;
    }
    let mut sum = fakephone::PhoneStats::default();
    for phone in phones {
        sum.add(&phone.stats);
    }
    let delivered: u64 = answers(book).map(|record| u64::from(record.answer_tokens)).sum();
    let asked: u64 = answers(book).map(|record| u64::from(record.prompt_tokens)).sum();
    let wasted_tokens = sum.written_tokens.saturating_sub(delivered);
    let wasted_prompt_tokens = sum.prompt_tokens.saturating_sub(asked);
    Some(Waste {
        attempts: sum.started,
        completed: sum.completed,
        cancelled: sum.cancelled,
        failed: sum.failed,
        lost: sum.lost,
        written_tokens: sum.written_tokens,
        wasted_tokens,
        wasted_tokens_share: wasted_tokens as f64 / (sum.written_tokens.max(1)) as f64,
        prompt_tokens: sum.prompt_tokens,
        cached_tokens: sum.cached_tokens,
        wasted_prompt_tokens,
        wasted_prefill_s: prefill_s(fleet, phones, wasted_prompt_tokens),
    })
}

/// How long the phones take to read `tokens`, by the mean over the phones whose attempts came to nothing, in proportion to
/// how many did.
fn prefill_s(fleet: &Fleet, phones: &[PhoneCounts], tokens: u64) -> Option<f64> {
    let (mut weighted, mut weights) = (0.0, 0.0);
    for phone in phones {
        let group = fleet.groups.get(phone.group?)?;
        let stats = &phone.stats;
        let read = stats.prompt_tokens.saturating_sub(stats.cached_tokens) as f64 / stats.started.max(1) as f64;
        if read > 0.0 {
            let alone = Load { active: 1, decoding: 0 };
            let each_s = group.speed.prefill_seconds(0.0, read, alone) / fleet.time_scale / read;
            let unfinished = (stats.cancelled + stats.failed + stats.lost) as f64;
            weighted += unfinished * each_s;
            weights += unfinished;
        }
    }
    Some(if weights > 0.0 { tokens as f64 * weighted / weights } else { 0.0 })
}

fn phone_report(fleet: &Fleet, phone: &PhoneCounts) -> PhoneReport {
    PhoneReport {
        name: phone.name.clone(),
        group: phone
            .group
            .and_then(|group| fleet.groups.get(group))
            .map(|group| group.name.clone())
            .unwrap_or_default(),
        slots: phone.slots,
        attempts: phone.stats.started,
        completed: phone.stats.completed,
        over_subscribed: phone.stats.over_subscribed,
        busy_share: phone.mean_busy / phone.slots.max(1) as f64,
    }
}

/// A round width that divides `elapsed_s` into at most [`MOST_BINS`].
fn bin_width(elapsed_s: f64) -> f64 {
    const ROUND: [f64; 3] = [1.0, 2.0, 5.0];
    let mut decade = 0.1;
    loop {
        if let Some(width) = ROUND.iter().map(|step| step * decade).find(|width| elapsed_s / width <= MOST_BINS) {
            return width;
        }
        decade *= 10.0;
    }
}

fn timeline(scenario: &Scenario, book: &Book, elapsed_s: f64) -> Vec<Bin> {
    let width = bin_width(elapsed_s);
    let count = (elapsed_s / width).ceil().max(1.0) as usize;
    let empty = |index: usize| Bin {
        at_s: index as f64 * width,
        answered: vec![0; scenario.classes.len()],
        failed: vec![0; book.failures.len()],
        tokens: 0,
    };
    let mut bins: Vec<Bin> = (0..count).map(empty).collect();
    for record in &book.records {
        let bin = &mut bins[((end_s(record) / width) as usize).min(count - 1)];
        match record.failure {
            Some(kind) => bin.failed[kind as usize] += 1,
            None => {
                bin.answered[record.class as usize] += 1;
                bin.tokens += u64::from(record.answer_tokens);
            }
        }
    }
    bins
}

/// The slowest requests, the failed ones, and an even choice of the others.
fn points(book: &Book) -> Vec<Point> {
    let mut slowest: Vec<usize> = (0..book.records.len()).collect();
    slowest.sort_unstable_by(|a, b| book.records[*b].total_s.total_cmp(&book.records[*a].total_s));
    let special = MOST_POINTS / 4;
    let failed = (0..book.records.len()).filter(|index| book.records[*index].failure.is_some()).take(special);
    let even = (0..book.records.len()).step_by(book.records.len() / (MOST_POINTS / 2) + 1);
    let mut chosen: Vec<usize> = slowest.iter().copied().take(special).chain(failed).chain(even).collect();
    chosen.sort_unstable();
    chosen.dedup();
    let point = |index: usize| {
        let record = &book.records[index];
        Point {
            start_s: record.start_s,
            total_s: record.total_s,
            class: record.class,
            failed: record.failure.is_some(),
        }
    };
    chosen.into_iter().map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        client::{Failure, Reply},
        ledger::{Ledger, Sent},
        observed::{Event, Left},
        scenario::read,
    };

    fn scenario() -> Scenario {
        read(
            "name='t'\nwhy='t'\nduration='10s'\nwarmup='1s'\n[fleet]\ntime_scale=2\n[[fleet.phones]]\nname='p'\ncount=1\n\
             model='m'\nspeed='4b'\n[[classes]]\nname='c'\nmodel='m'\narrivals={clients=1}\nprompt=10\nanswer=5\n\
             good_within='2s'\n[expect]\nerrors=1\nover_subscribed=0\nthroughput_rps={min=0.2}\nleft_queued=0\n\
             [expect.classes.c]\np99={max=3}\nttft_p99={max=3}\n",
        )
        .expect("a good scenario")
    }

    fn book() -> Book {
        let ledger = Ledger::default();
        for (start_s, total_s, failed) in [(0.5, 9.0, false), (1.5, 1.0, false), (2.0, 3.0, false), (4.0, 1.0, true)] {
            let reply = Reply { total_s, attempts: Some(2), ..Reply::default() };
            let sent = Sent { class: 0, start_s, prompt_tokens: 12, answer_tokens: 5 };
            ledger.enter(sent, &reply, &if failed { Err(Failure::SilentCut) } else { Ok(()) });
        }
        ledger.take()
    }

    fn observed() -> Observed {
        let stats = fakephone::PhoneStats {
            started: 5,
            completed: 3,
            cancelled: 2,
            written_tokens: 20,
            prompt_tokens: 60,
            ..fakephone::PhoneStats::default()
        };
        let phone = PhoneCounts { name: "p-0".into(), group: Some(0), slots: 2, well: true, stats, mean_busy: 1.0 };
        let left = Some(Left { busy_slots: 0.0, queued: 0.0 });
        Observed { phones: vec![phone], left, ..Observed::default() }
    }

    fn meta() -> Meta {
        Meta { played: "live", target: "here".into(), started_unix: 0, elapsed_s: 9.5 }
    }

    #[test]
    fn times_leave_out_the_warm_up_and_the_failed_and_counts_leave_out_nothing() {
        let report = build(&scenario(), &book(), observed(), meta());
        let class = &report.classes[0];
        assert_eq!((class.requests, class.errors, class.total.count()), (4, 1, 2));
        assert_eq!((class.total.quantile(1.0), class.good), (Some(3.0), Some(1.0 / 3.0)));
        assert_eq!((report.totals.requests, report.totals.second_attempts), (4, 4));
        assert!((report.totals.throughput_rps - 2.0 / 8.5).abs() < 1e-9, "{}", report.totals.throughput_rps);
        assert_eq!(report.errors[0].first_at_s, 5.0);
    }

    #[test]
    fn waste_is_what_phones_did_less_what_clients_got() {
        let waste = build(&scenario(), &book(), observed(), meta()).waste.expect("phones are seen");
        assert_eq!((waste.written_tokens, waste.wasted_tokens, waste.wasted_prompt_tokens), (20, 5, 24));
        let each_s = 1.0 / 171.3 / 2.0;
        assert!((waste.wasted_prefill_s.expect("speeds are known") - 24.0 * each_s).abs() < 0.001);
    }

    #[test]
    fn a_play_passes_only_if_all_was_measured_and_as_expected() {
        let report = build(&scenario(), &book(), observed(), meta());
        let failed: Vec<&str> =
            report.expectations.iter().filter(|one| !one.holds).map(|one| one.what.as_str()).collect();
        assert_eq!(failed, ["c ttft_p99"], "no stream was measured");
        let mut without = scenario();
        without.expect.retain(|one| !format!("{one:?}").contains("Ttft"));
        assert!(build(&without, &book(), observed(), meta()).passed);
        let mut broken = observed();
        broken.events.push(Event { at_s: 1.0, what: "drain".into(), failed: true });
        assert!(!build(&without, &book(), broken, meta()).passed, "a step was not made");
        assert!(!build(&without, &Book::default(), observed(), meta()).passed, "nothing was asked");
        assert!(!build(&without, &book(), Observed::default(), meta()).passed, "phones were not seen");
    }

    #[test]
    fn every_request_is_in_one_stretch_of_the_timeline() {
        let report = build(&scenario(), &book(), observed(), meta());
        let answered: u64 = report.timeline.iter().map(|bin| bin.answered[0]).sum();
        let failed: u64 = report.timeline.iter().map(|bin| bin.failed[0]).sum();
        assert_eq!((answered, failed), (3, 1));
        assert_eq!((bin_width(9.5), bin_width(30.0), bin_width(3600.0)), (0.1, 0.5, 50.0));
        assert!(report.timeline.len() <= MOST_BINS as usize);
    }

    #[test]
    fn points_show_the_slowest_and_stay_few() {
        let ledger = Ledger::default();
        for number in 0..20_000 {
            let reply = Reply { total_s: if number == 7777 { 99.0 } else { 1.0 }, ..Reply::default() };
            let sent = Sent { class: 0, start_s: 1.0, prompt_tokens: 1, answer_tokens: 1 };
            ledger.enter(sent, &reply, &Ok(()));
        }
        let points = points(&ledger.take());
        assert!(points.len() <= MOST_POINTS && points.iter().any(|point| point.total_s == 99.0));
    }
}
