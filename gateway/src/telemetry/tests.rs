//! What requests and the pool leave behind, read the way Prometheus reads it.

use std::{
    collections::BTreeMap,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex},
    time::Duration,
};

use openai_wire::Route;
use scheduler::{Class, Limit, ReplicaId};

use super::{
    AdviceSample, BatchSample, DeploymentSample, OTHER, PoolSample, Price, QueueSample, ReplicaSample, RequestOutcome,
    RequestRecord, Telemetry, TelemetryOptions, Upkeep, WaitSample,
    names::{self, Kind, Metric},
};

const ROUTE: Route = Route::ChatCompletions;

fn telemetry() -> Arc<Telemetry> {
    Telemetry::new(TelemetryOptions { access_log: false, version: "1.2.3" })
}

fn record(telemetry: &Arc<Telemetry>) -> RequestRecord {
    let mut record = RequestRecord::new(Arc::clone(telemetry), Arc::from("req-1"), ROUTE);
    record.identify(Arc::from("acme"), Arc::from("small"), Class::Interactive);
    record
}

/// The sum over all series of `metric` (with this suffix) whose labels hold every one of `labels`.
fn sum(telemetry: &Telemetry, metric: &Metric, suffix: &str, labels: &[(&str, &str)]) -> f64 {
    let name = format!("{}{suffix}", metric.name);
    let wanted: Vec<String> = labels.iter().map(|(label, value)| format!("{label}=\"{value}\"")).collect();
    let text = telemetry.render();
    let lines = text.lines().filter(|line| line.split(['{', ' ']).next() == Some(&*name));
    let matching = lines.filter(|line| wanted.iter().all(|label| line.contains(label.as_str())));
    matching.map(|line| line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok()).expect("a value")).sum()
}

fn deployment(name: &str, slots: u32, left_s: Option<f64>) -> DeploymentSample {
    DeploymentSample { name: name.into(), slots, left_s }
}

#[test]
fn deployments_beyond_the_hundredth_are_shown_together_with_the_first_end() {
    let telemetry = telemetry();
    let deployments = (0..103).map(|n| deployment(&format!("d{n}"), 2, Some(f64::from(n)))).collect::<Vec<_>>();
    let sample = PoolSample { deployments, ..PoolSample::default() };
    telemetry.set_pool_source(Box::new(move || sample.clone()));
    assert_eq!(sum(&telemetry, &names::DEPLOYMENT_SLOTS, "", &[("deployment", OTHER)]), 6.0);
    assert_eq!(sum(&telemetry, &names::DEPLOYMENT_END, "", &[("deployment", OTHER)]), 100.0);
    assert_eq!(sum(&telemetry, &names::DEPLOYMENT_END, "", &[("deployment", "d99")]), 99.0);
}

fn replica(label: &str, state: &'static str) -> ReplicaSample {
    ReplicaSample {
        label: Arc::from(label),
        models: vec![Arc::from("small")],
        state,
        slots: 4,
        busy: 1,
        lingering: 1,
        foreign: 0,
        prefill_rate: Some(80.0),
        decode_rate: None,
        expiry_s: Some(-2.0),
        limits: Vec::new(),
    }
}

/// Of a phone with two slots.
fn price() -> Price {
    Price { acu_per_day: Some(0.5), slots: 2, deployment: None }
}

/// A gateway to which everything has happened that is counted.
fn busy_telemetry() -> Arc<Telemetry> {
    let telemetry = telemetry();
    let mut sample = PoolSample { replicas: vec![replica("a", "ready"), replica("b", "out")], ..PoolSample::default() };
    sample.replicas[0].decode_rate = Some(9.0);
    sample.replicas[0].limits.push(("battery", Limit::Paused));
    sample.deployments.push(deployment("a", 4, Some(60.0)));
    sample.waits.push(WaitSample { model: Arc::from("small"), class: Class::Batch, seconds: 12.5 });
    sample.decisions.push(("placed", 4));
    sample.queued.push(QueueSample { model: Arc::from("small"), class: Class::Batch, waiting: 3 });
    sample.batches = BatchSample {
        states: vec![("in_progress", 1)],
        waiting: vec![("replica", 1)],
        left_s: Some(60.0),
        expiry_s: Some(50.0),
        slack_s: Some(-10.0),
        ..BatchSample::default()
    };
    sample.chain.insert("running", 1);
    (sample.chain_readable, sample.relays) = (Some(true), vec![("acu.run:443".into(), false)]);
    sample.store_failures.push(("state", 1));
    sample.advice.push(AdviceSample {
        model: Arc::from("small"),
        wanted: Some(3),
        attained: vec![(Class::Standard, 0.9)],
    });
    telemetry.set_pool_source(Box::new(move || sample.clone()));
    let models = vec![Arc::from("small")];
    telemetry.replica_kept(ReplicaId(1), Upkeep { price: price(), models, takes_work: true, opens_lines: true });
    telemetry.quarantine("passed");
    let mut record = record(&telemetry);
    record.queued();
    let attempt = record.dispatched(&Arc::from("a"), false, &price());
    record.attempt_ended(attempt, "connect");
    let (attempt, copy) =
        (record.dispatched(&Arc::from("b"), false, &price()), record.dispatched(&Arc::from("a"), true, &price()));
    record.first_token();
    record.attempt_ended(copy, names::OUTCOME_HEDGE_LOST);
    record.attempt_ended(attempt, names::OUTCOME_OK);
    record.usage(100, 20, 60, true);
    record.status(200);
    record.outcome(RequestOutcome::Ok);
    drop(record);
    telemetry.shed("queue_full");
    telemetry.failover("connect", "refused");
    telemetry.upstream_plain(names::PLAIN_ENGINE);
    telemetry.replica_changed("a", "ready", "probe");
    telemetry.panic_seen();
    telemetry.call("list_files", names::OUTCOME_OK);
    telemetry.chain_polled("ok");
    telemetry
}

#[test]
fn every_metric_is_shown_with_its_kind_and_its_labels() {
    let text = busy_telemetry().render();
    for metric in names::ALL {
        let kind = match metric.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram(_) => "histogram",
        };
        assert!(text.contains(&format!("# TYPE {} {kind}\n", metric.name)), "{} is not shown as {kind}", metric.name);
        let suffix = if kind == "histogram" { "_count" } else { "" };
        let start = format!("\n{}{suffix}", metric.name);
        let series = text.split(&start).nth(1).and_then(|rest| rest.lines().next()).unwrap_or_default();
        for label in metric.labels {
            assert!(series.contains(&format!("{label}=\"")), "{} lacks {label}: {series}", metric.name);
        }
    }
}

#[test]
fn names_follow_the_conventions() {
    for metric in names::ALL {
        let counter = metric.kind == Kind::Counter;
        assert_eq!(metric.name.ends_with("_total"), counter, "{}", metric.name);
        assert!(metric.name.starts_with("huntgroup_") || metric.name.starts_with("process_"), "{}", metric.name);
        assert!(metric.help.ends_with('.'), "{}", metric.name);
        if let Kind::Histogram(buckets) = metric.kind {
            assert!(buckets.is_sorted(), "{}", metric.name);
            assert_eq!(buckets.last(), Some(&3600.0), "{} does not reach one hour", metric.name);
        }
    }
}

#[test]
fn a_record_that_is_only_dropped_is_a_client_that_left() {
    let telemetry = telemetry();
    let mut record = record(&telemetry);
    record.queued();
    let attempt = record.dispatched(&Arc::from("a"), false, &Price::default());
    assert_eq!(sum(&telemetry, &names::REQUESTS_IN_FLIGHT, "", &[]), 1.0);
    drop((attempt, record));
    assert_eq!(sum(&telemetry, &names::REQUESTS_IN_FLIGHT, "", &[]), 0.0);
    assert_eq!(sum(&telemetry, &names::REQUESTS, "", &[]), 1.0);
    assert_eq!(sum(&telemetry, &names::REQUESTS, "", &[("outcome", "client_gone"), ("model", "small")]), 1.0);
    assert_eq!(sum(&telemetry, &names::ATTEMPTS, "", &[("replica", "a"), ("outcome", "client_gone")]), 1.0);
    assert!(sum(&telemetry, &names::WASTED_SLOT_SECONDS, "", &[("reason", "client_gone")]) > 0.0);
    assert_eq!(sum(&telemetry, &names::REQUEST_DURATION, "_count", &[]), 0.0, "only whole answers have a duration");
}

#[test]
fn a_panic_in_a_request_counts_it_once_as_a_panic() {
    let telemetry = telemetry();
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let _record = record(&telemetry);
        panic!("a defect");
    }));
    assert!(unwound.is_err());
    assert_eq!(sum(&telemetry, &names::REQUESTS, "", &[]), 1.0);
    assert_eq!(sum(&telemetry, &names::REQUESTS, "", &[("outcome", "panic")]), 1.0);
    assert_eq!(sum(&telemetry, &names::REQUESTS_IN_FLIGHT, "", &[]), 0.0);
}

#[test]
fn an_error_counts_under_its_code_and_a_request_nobody_identified_under_other() {
    let telemetry = telemetry();
    let mut record = RequestRecord::new(Arc::clone(&telemetry), Arc::from("r"), ROUTE);
    record.status(401);
    record.outcome(RequestOutcome::Error("invalid_api_key"));
    drop(record);
    let labels = [("outcome", "invalid_api_key"), ("model", OTHER), ("class", "standard"), ("route", ROUTE.name())];
    assert_eq!(sum(&telemetry, &names::REQUESTS, "", &labels), 1.0);
}

#[test]
fn a_failover_and_a_second_copy_count_one_request_three_attempts_and_one_wait() {
    let telemetry = busy_telemetry();
    assert_eq!(sum(&telemetry, &names::REQUESTS, "", &[("outcome", "ok")]), 1.0);
    assert_eq!(sum(&telemetry, &names::ATTEMPTS, "", &[]), 3.0);
    assert_eq!(sum(&telemetry, &names::ATTEMPTS, "", &[("replica", "a"), ("outcome", "hedge_lost")]), 1.0);
    assert_eq!(sum(&telemetry, &names::HEDGES, "", &[("outcome", "lost")]), 1.0);
    assert_eq!(sum(&telemetry, &names::HEDGES, "", &[]), 1.0);
    assert_eq!(sum(&telemetry, &names::ATTEMPTS, "", &[("replica", "b"), ("outcome", "ok")]), 1.0);
    assert_eq!(sum(&telemetry, &names::QUEUE_WAIT, "_count", &[("model", "small")]), 1.0);
    assert_eq!(sum(&telemetry, &names::TIME_TO_FIRST_TOKEN, "_count", &[("class", "interactive")]), 1.0);
    assert_eq!(sum(&telemetry, &names::TOKENS_COUNTED, "", &[("direction", "completion")]), 20.0);
    assert_eq!(sum(&telemetry, &names::CACHED_PROMPT_TOKENS, "", &[]), 60.0);
}

#[tokio::test]
async fn the_parts_of_a_request_sum_up_to_its_whole() {
    let telemetry = telemetry();
    let mut record = record(&telemetry);
    record.queued();
    passes(Duration::from_millis(3)).await;
    assert!(record.queue_wait() >= Duration::from_millis(3), "the running wait counts");
    let attempt = record.dispatched(&Arc::from("a"), false, &Price::default());
    passes(Duration::from_millis(3)).await;
    record.attempt_ended(attempt, "reset");
    let after_first = record.queue_wait();
    passes(Duration::from_millis(3)).await;
    let attempt = record.dispatched(&Arc::from("b"), false, &Price::default());
    assert!(record.queue_wait() >= after_first + Duration::from_millis(3), "the way to the next slot is a wait");
    assert_eq!(record.attempts(), 2);
    record.attempt_ended(attempt, names::OUTCOME_OK);
    let waited = record.queue_wait().as_secs_f64();
    record.outcome(RequestOutcome::Ok);
    drop(record);
    let part = |metric| sum(&telemetry, metric, "_sum", &[]);
    assert!((part(&names::QUEUE_WAIT) - waited).abs() < 1e-9);
    let (total, wasted) = (part(&names::REQUEST_DURATION), sum(&telemetry, &names::WASTED_SLOT_SECONDS, "", &[]));
    assert!(wasted >= 0.003, "the failed attempt's slot time is wasted: {wasted}");
    assert!(part(&names::GATEWAY_OVERHEAD) <= total - waited - wasted + 1e-9);
}

#[tokio::test]
async fn the_time_in_which_several_copies_run_counts_once_and_the_winner_is_whose_answer_it_is() {
    let telemetry = Telemetry::new(TelemetryOptions { access_log: true, version: "1" });
    let mut record = record(&telemetry);
    record.queued();
    let first = record.dispatched(&Arc::from("winner"), false, &Price::default());
    passes(Duration::from_millis(3)).await;
    let second = record.dispatched(&Arc::from("loser"), true, &Price::default());
    assert_eq!(record.attempts(), 2);
    passes(Duration::from_millis(3)).await;
    record.attempt_ended(second, names::OUTCOME_HEDGE_LOST);
    let waited = record.queue_wait();
    passes(Duration::from_millis(3)).await;
    assert_eq!(record.queue_wait(), waited, "one copy still runs, so the request does not wait");
    record.attempt_ended(first, names::OUTCOME_OK);
    record.outcome(RequestOutcome::Ok);
    let text = logged(true, || drop(record));
    assert!(text.contains("\"replica\":\"winner\""), "{text}");
    let (total, ours) = (
        sum(&telemetry, &names::REQUEST_DURATION, "_sum", &[]),
        sum(&telemetry, &names::GATEWAY_OVERHEAD, "_sum", &[]),
    );
    assert!(ours <= total - 0.009, "nine of {total} s ran on replicas, {ours} are ours");
    let lost = sum(&telemetry, &names::WASTED_SLOT_SECONDS, "", &[("reason", "hedge_lost")]);
    assert!((0.003..total).contains(&lost), "{lost}");
}

/// The record reads the process's clock, so that is what has to move.
async fn passes(time: Duration) {
    tokio::time::sleep_until(crate::clock::instant(crate::clock::now() + time)).await;
}

#[tokio::test]
async fn the_time_in_which_a_part_was_written_is_wasted_only_if_the_part_is_given_up() {
    let second = Duration::from_secs(1);
    for (outcome, reason) in [
        (RequestOutcome::Ok, None),
        (RequestOutcome::ClientGone, Some("abandoned")),
        (RequestOutcome::Error("deadline_exceeded"), Some("abandoned")),
        (RequestOutcome::Error("upstream_error"), Some("failed")),
    ] {
        let telemetry = telemetry();
        let wasted = |reason| sum(&telemetry, &names::WASTED_SLOT_SECONDS, "", &[("reason", reason)]);
        let mut record = record(&telemetry);
        record.queued();
        let attempt = record.dispatched(&Arc::from("a"), false, &Price::default());
        passes(Duration::from_millis(5)).await;
        // No attempt writes for longer than it runs.
        record.attempt_broke_off(attempt, "reset", second);
        assert!(wasted("reset") < 0.001, "all of its time went into what is kept: {}", wasted("reset"));
        let attempt = record.dispatched(&Arc::from("b"), false, &Price::default());
        passes(Duration::from_millis(5)).await;
        record.attempt_broke_off(attempt, "cut", Duration::from_millis(1));
        assert!(wasted("cut") >= 0.004, "what it read is read again: {}", wasted("cut"));
        record.outcome(outcome);
        drop(record);
        for given_up in ["abandoned", "failed"] {
            assert_eq!(wasted(given_up) >= 0.006, reason == Some(given_up), "{outcome:?}");
        }
    }
    let telemetry = telemetry();
    let mut record = record(&telemetry);
    let attempt = record.dispatched(&Arc::from("a"), false, &Price::default());
    passes(Duration::from_millis(5)).await;
    record.attempt_broke_off(attempt, "reset", second);
    record.begins_anew();
    record.outcome(RequestOutcome::Ok);
    drop(record);
    assert!(sum(&telemetry, &names::WASTED_SLOT_SECONDS, "", &[("reason", "failed")]) >= 0.005);
}

#[test]
fn labels_stay_bounded_whatever_phones_claim_to_serve() {
    let telemetry = telemetry();
    for number in 0..400 {
        let mut record = RequestRecord::new(Arc::clone(&telemetry), Arc::from("r"), ROUTE);
        record.identify(Arc::from("acme"), Arc::from(format!("model-{number}")), Class::Standard);
    }
    for number in 0..6_000 {
        telemetry.attempt(&Arc::from(format!("replica-{number}")), names::OUTCOME_OK);
    }
    let text = telemetry.render();
    let series = |metric: &Metric| text.lines().filter(|line| line.starts_with(metric.name)).count();
    assert!(series(&names::CACHED_PROMPT_TOKENS) <= 257, "{}", series(&names::CACHED_PROMPT_TOKENS));
    assert_eq!(series(&names::ATTEMPTS), 5_001);
    assert_eq!(sum(&telemetry, &names::ATTEMPTS, "", &[("replica", OTHER)]), 1_000.0);
    assert_eq!(sum(&telemetry, &names::REQUESTS, "", &[]), 400.0);
}

#[test]
fn how_a_replica_failed_last_is_known_until_it_is_forgotten() {
    let telemetry = telemetry();
    let replica = Arc::from("p");
    for outcome in [names::OUTCOME_OK, "status", names::OUTCOME_OK, names::OUTCOME_CLIENT_GONE] {
        telemetry.attempt(&replica, outcome);
    }
    assert_eq!(telemetry.last_failure("p"), Some("status"));
    assert_eq!(telemetry.attempts("p"), [("ok", 2), ("status", 1), ("client_gone", 1)]);
    telemetry.forget_replica("p");
    assert_eq!((telemetry.last_failure("p"), telemetry.attempts("p").len()), (None, 0));
}

#[test]
fn a_replica_that_is_gone_leaves_no_series_not_even_by_a_late_attempt() {
    let telemetry = busy_telemetry();
    let here = [("replica", "gone")];
    telemetry.attempt(&Arc::from("gone"), "reset");
    telemetry.replica_changed("gone", "out", "hard_failure");
    assert_eq!(sum(&telemetry, &names::ATTEMPTS, "", &here), 1.0);
    telemetry.forget_replica("gone");
    assert!(!telemetry.render().contains("replica=\"gone\""));
    telemetry.attempt(&Arc::from("gone"), "reset");
    assert_eq!(sum(&telemetry, &names::ATTEMPTS, "", &here), 1.0, "one scrape may see it");
    assert!(!telemetry.render().contains("replica=\"gone\""), "two do not");
    assert_eq!(sum(&telemetry, &names::REPLICA_STATE_CHANGES, "", &[("replica", "a")]), 1.0, "the pool's own stay");
}

#[test]
fn the_pool_is_shown_as_its_source_has_it_now() {
    let telemetry = telemetry();
    let sample = Arc::new(Mutex::new(PoolSample { replicas: vec![replica("a", "ready")], ..PoolSample::default() }));
    let source = Arc::clone(&sample);
    telemetry.set_pool_source(Box::new(move || source.lock().expect("no panic holds it").clone()));
    let slots = |state| sum(&telemetry, &names::REPLICA_SLOTS, "", &[("replica", "a"), ("state", state)]);
    assert_eq!(["busy", "lingering", "foreign", "free"].map(slots), [1.0, 1.0, 0.0, 2.0]);
    assert_eq!(sum(&telemetry, &names::REPLICAS, "", &[("model", "small"), ("state", "ready")]), 1.0);
    assert_eq!(sum(&telemetry, &names::REPLICA_EXPIRY, "", &[("replica", "a")]), -2.0);
    assert!(telemetry.render().contains("huntgroup_queue_depth{class=\"batch\",model=\"small\"} 0"));

    let decided = |decision| sum(&telemetry, &names::DECISIONS, "", &[("decision", decision)]);
    sample.lock().expect("no panic holds it").decisions = vec![("placed", 4), ("hedged_late", 0)];
    assert_eq!((decided("placed"), decided("placed"), decided("hedged_late")), (4.0, 4.0, 0.0), "not added up");

    let mut changed = replica("b", "out");
    changed.models.clear();
    changed.prefill_rate = None;
    *sample.lock().expect("no panic holds it") = PoolSample {
        store_failures: vec![("state", 2), ("batches", 0)],
        replicas: vec![changed],
        queued: vec![QueueSample { model: Arc::from("small"), class: Class::Batch, waiting: 7 }],
        queued_by_tenant: vec![(Arc::from("acme"), 7)],
        waits: Vec::new(),
        decisions: vec![("placed", 9), ("hedged_late", 1)],
        retries_in_flight: 2,
        kept_answer_bytes: 4096,
        oldest_queued_s: 9.5,
        oldest_running_s: 0.0,
        batches: BatchSample::default(),
        chain: BTreeMap::from([("running", 3)]),
        chain_readable: Some(false),
        relays: vec![("acu.run:443".into(), true), ("other:443".into(), false)],
        deployments: vec![deployment("a", 4, Some(60.0)), deployment("b", 2, None)],
        advice: Vec::new(),
    };
    assert_eq!(sum(&telemetry, &names::REPLICA_SLOTS, "", &[("replica", "a")]), 0.0);
    assert_eq!(sum(&telemetry, &names::DEPLOYMENT_SLOTS, "", &[("deployment", "a")]), 4.0);
    assert_eq!(sum(&telemetry, &names::DEPLOYMENT_END, "", &[]), 60.0);
    assert_eq!(
        sum(&telemetry, &names::REPLICA_SLOTS, "", &[("replica", "b"), ("state", "free")]),
        0.0,
        "out: none free"
    );
    assert_eq!(sum(&telemetry, &names::REPLICAS, "", &[("model", OTHER), ("state", "out")]), 1.0);
    assert!(!telemetry.render().contains(names::REPLICA_PREFILL.name));
    assert_eq!(sum(&telemetry, &names::QUEUE_DEPTH, "", &[("class", "batch")]), 7.0);
    assert_eq!(sum(&telemetry, &names::REQUESTS_IN_FLIGHT_AGE, "", &[("phase", "queued")]), 9.5);
    assert_eq!((decided("placed"), decided("hedged_late")), (9.0, 1.0));
    assert_eq!(sum(&telemetry, &names::RETRIES_IN_FLIGHT, "", &[]), 2.0);
    assert_eq!(sum(&telemetry, &names::KEPT_ANSWER_BYTES, "", &[]), 4096.0);
    assert_eq!(sum(&telemetry, &names::CHAIN_REPLICAS, "", &[("state", "running")]), 3.0);
    let relay = |relay| sum(&telemetry, &names::RELAY_DOWN, "", &[("relay", relay)]);
    assert_eq!((relay("acu.run:443"), relay("other:443")), (1.0, 0.0));
    assert!(telemetry.render().contains("huntgroup_chain_readable 0\n"));
    *sample.lock().expect("no panic holds it") = PoolSample::default();
    let page = telemetry.render();
    assert!(
        !page.contains("huntgroup_relay_down{") && !page.contains("huntgroup_chain_readable "),
        "what is gone ends"
    );
}

#[test]
fn silly_amounts_of_waste_change_nothing() {
    let telemetry = telemetry();
    for amount in [-1.0, f64::NAN, f64::INFINITY, 0.0] {
        telemetry.wasted("stalled", amount);
    }
    assert_eq!(sum(&telemetry, &names::WASTED_SLOT_SECONDS, "", &[]), 0.0);
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic holds it").extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn logged(json: bool, act: impl FnOnce()) -> String {
    let lines = Lines::default();
    let writer = lines.clone();
    let builder = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
    if json {
        tracing::subscriber::with_default(builder.json().flatten_event(true).finish(), act);
    } else {
        tracing::subscriber::with_default(builder.finish(), act);
    }
    String::from_utf8(lines.0.lock().expect("no panic holds it").clone()).expect("UTF-8")
}

#[test]
fn the_access_line_says_who_what_where_how_long_and_how_it_ended() {
    let telemetry = Telemetry::new(TelemetryOptions { access_log: true, version: "1" });
    let text = logged(true, || {
        let mut record = record(&telemetry);
        record.queued();
        let attempt = record.dispatched(&Arc::from("phone-7"), false, &Price::default());
        record.status(502);
        record.attempt_ended(attempt, "reset");
        record.outcome(RequestOutcome::Error("upstream_error"));
    });
    let line: serde_json::Value = serde_json::from_str(text.trim()).expect("one JSON line");
    for (field, value) in [
        ("target", "access"),
        ("request_id", "req-1"),
        ("tenant", "acme"),
        ("model", "small"),
        ("route", ROUTE.name()),
        ("class", "interactive"),
        ("replica", "phone-7"),
        ("outcome", "upstream_error"),
    ] {
        assert_eq!(line[field], value, "{text}");
    }
    assert_eq!((&line["status"], &line["attempts"]), (&502.into(), &1.into()));
    assert!(line["total_ms"].is_u64() && line["queue_ms"].is_u64() && line.get("first_token_ms").is_none(), "{text}");
}

#[test]
fn a_replica_can_not_write_escapes_or_lines_into_the_log() {
    let telemetry = Telemetry::new(TelemetryOptions { access_log: true, version: "1" });
    for json in [false, true] {
        let text = logged(json, || {
            let mut record = record(&telemetry);
            drop(record.dispatched(&Arc::from("evil\u{1b}[2J\nfake line"), false, &Price::default()));
        });
        assert!(!text.contains('\u{1b}'), "{text:?}");
        assert_eq!(text.trim_end().lines().count(), 1, "{text:?}");
    }
}
