//! The books, in virtual time.

use std::{sync::Arc, time::Duration};

use scheduler::{ReplicaId, Timestamp};

use super::{
    OTHER,
    account::{Account, Answer, Price, Upkeep},
    cost::{Ledger, Statement, Window},
};

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;

fn at(seconds: u64) -> Timestamp {
    Timestamp(seconds * 1_000_000_000)
}

fn name(text: &str) -> Arc<str> {
    Arc::from(text)
}

/// Of a phone whose slots cost so many ACU an hour, all together.
fn price(acu_per_hour: f64, slots: u16) -> Price {
    Price { acu_per_day: Some(24.0 * acu_per_hour), slots, deployment: Some(name("d")) }
}

fn upkeep(price: Price) -> Upkeep {
    Upkeep { price, models: vec![name("small")], takes_work: true, opens_lines: true }
}

#[track_caller]
fn close(left: f64, right: f64) {
    assert!((left - right).abs() < 1e-9 * left.abs().max(right.abs()).max(1.0), "{left} is not {right}");
}

/// Used, wasted, idle; they are the whole.
fn parts(account: &Account) -> [f64; 3] {
    [account.slots - account.wasted, account.wasted, account.pool - account.slots]
}

#[track_caller]
fn is(statement: &Statement, expected: [f64; 3]) {
    let parts = parts(&statement.sheet.all);
    parts.into_iter().zip(expected).for_each(|(part, expected)| close(part, expected));
}

#[test]
fn a_replica_costs_its_price_while_it_is_in_the_pool_used_or_not() {
    let ledger = Ledger::new(at(0));
    ledger.keep(ReplicaId(1), upkeep(price(1.0, 2)), at(0));
    let attempt = ledger.begin(&name("small"), &name("acme"), &price(1.0, 2), at(600));
    assert_eq!(ledger.end(attempt, None, at(600 + 1800)), Some(0.25), "half an hour of one slot of two");
    ledger.left(ReplicaId(1), at(2 * HOUR));
    let statement = ledger.statement(Window::All, at(3 * HOUR));
    is(&statement, [0.25, 0.0, 1.75]);
    assert_eq!((statement.now.priced, statement.now.unpriced, statement.now.acu_per_day), (0, 0, 0.0));
    close(statement.sheet.models["small"].pool, 2.0);
    close(statement.sheet.deployments["d"].pool, 2.0);
    close(statement.sheet.deployments["d"].slots, 0.25);
    close(statement.sheet.tenants["acme"].slots, 0.25);
    assert_eq!(statement.sheet.tenants["acme"].priced_s, 0.0, "tenants keep no replicas");
}

#[test]
fn how_often_anybody_looks_changes_nothing() {
    let play = |look_every: u64| {
        let ledger = Ledger::new(at(0));
        ledger.keep(ReplicaId(1), upkeep(price(0.7, 3)), at(7));
        let mut attempt = None;
        for second in 7..2 * HOUR {
            if second % 1111 == 0 {
                let began = ledger.begin(&name("small"), &name("acme"), &price(0.7, 3), at(second));
                if let Some(before) = attempt.replace(began) {
                    ledger.end(before, Some(("cut", Duration::from_secs(300))), at(second));
                }
            }
            if second % 500 == 0 {
                ledger.takes_work(ReplicaId(1), second % 1000 == 0, at(second));
            }
            if second % look_every == 0 {
                ledger.statement(Window::Hour, at(second));
            }
        }
        [Window::Hour, Window::Day, Window::All].map(|window| ledger.statement(window, at(2 * HOUR)))
    };
    for (often, seldom) in play(1).iter().zip(&play(u64::MAX)) {
        let (often, seldom) = (&often.sheet.all, &seldom.sheet.all);
        for (one, other) in [
            (often.pool, seldom.pool),
            (often.away, seldom.away),
            (often.slots, seldom.slots),
            (often.wasted, seldom.wasted),
        ] {
            close(one, other);
            assert!(one > 0.0);
        }
    }
}

#[test]
fn a_window_has_what_was_in_it_also_of_what_began_before_and_turned_out_to_be_wasted() {
    let ledger = Ledger::new(at(0));
    ledger.keep(ReplicaId(1), upkeep(price(1.0, 1)), at(0));
    let attempt = ledger.begin(&name("small"), &name("acme"), &price(1.0, 1), at(0));
    is(&ledger.statement(Window::Hour, at(2 * HOUR)), [1.0 + 1.0 / 12.0 - 1.0 / 12.0, 0.0, 0.0]);
    let cost = ledger.end(attempt, Some(("client_gone", Duration::from_secs(2 * HOUR))), at(2 * HOUR));
    assert_eq!(cost, Some(2.0));
    let hour = ledger.statement(Window::Hour, at(2 * HOUR));
    assert_eq!(hour.length, Duration::from_secs(HOUR));
    is(&hour, [0.0, 1.0, 0.0]);
    is(&ledger.statement(Window::All, at(2 * HOUR)), [0.0, 2.0, 0.0]);
    close(hour.sheet.wasted["client_gone"], 1.0);
    let later = ledger.statement(Window::Hour, at(2 * HOUR + 301));
    assert_eq!(later.length, Duration::from_secs(HOUR + 1), "from where a slice begins");
    is(&later, [0.0, 1.0 - 300.0 / 3600.0, 301.0 / 3600.0]);
}

#[test]
fn a_day_is_kept_and_no_more() {
    let ledger = Ledger::new(at(0));
    ledger.keep(ReplicaId(1), upkeep(price(1.0, 1)), at(0));
    // Nobody looks for three days.
    let day = ledger.statement(Window::Day, at(3 * DAY));
    assert_eq!((day.length, day.counted), (Duration::from_secs(DAY), Duration::from_secs(3 * DAY)));
    is(&day, [0.0, 0.0, 24.0]);
    is(&ledger.statement(Window::All, at(3 * DAY)), [0.0, 0.0, 72.0]);
    for hour in 1..100 {
        ledger.statement(Window::Day, at(3 * DAY + hour * HOUR));
    }
    is(&ledger.statement(Window::Day, at(3 * DAY + 100 * HOUR)), [0.0, 0.0, 24.0]);
    assert!(ledger.slices() <= 290, "{} slices", ledger.slices());
}

#[test]
fn a_window_is_not_longer_than_the_books() {
    let ledger = Ledger::new(at(1000));
    let statement = ledger.statement(Window::Day, at(1600));
    assert_eq!((statement.length, statement.counted), (Duration::from_secs(600), Duration::from_secs(600)));
}

#[test]
fn an_unknown_price_is_no_price_of_zero() {
    let ledger = Ledger::new(at(0));
    let unknown = Price { acu_per_day: None, slots: 1, deployment: None };
    ledger.keep(
        ReplicaId(1),
        Upkeep { price: unknown.clone(), models: Vec::new(), takes_work: true, opens_lines: true },
        at(0),
    );
    let attempt = ledger.begin(&name("small"), &name("acme"), &unknown, at(0));
    assert_eq!(ledger.end(attempt, Some(("cut", Duration::from_secs(60))), at(60)), None);
    let Statement { sheet, now, .. } = ledger.statement(Window::All, at(HOUR));
    assert_eq!((now.priced, now.unpriced, sheet.all.has_price()), (0, 1, false));
    assert_eq!((sheet.all.unpriced_s, sheet.all.unpriced_slot_s), (3600.0, 60.0));
    assert!(sheet.wasted.is_empty() && now.by_model.is_empty());
    assert_eq!(sheet.models[OTHER].unpriced_s, 3600.0, "it has not said what it serves");
    // A price of 0 is one.
    ledger.keep(ReplicaId(1), upkeep(price(0.0, 1)), at(HOUR));
    let Statement { sheet, now, .. } = ledger.statement(Window::All, at(2 * HOUR));
    assert_eq!((now.priced, sheet.all.has_price(), sheet.all.pool), (1, true, 0.0));
}

#[test]
fn a_price_that_changes_holds_from_then_on() {
    let ledger = Ledger::new(at(0));
    ledger.keep(ReplicaId(1), upkeep(price(1.0, 1)), at(0));
    ledger.keep(ReplicaId(1), upkeep(price(3.0, 1)), at(HOUR));
    ledger.takes_work(ReplicaId(1), false, at(2 * HOUR));
    ledger.takes_work(ReplicaId(9), true, at(2 * HOUR));
    let Statement { sheet, now, .. } = ledger.statement(Window::All, at(3 * HOUR));
    close(sheet.all.pool, 1.0 + 3.0 + 3.0);
    close(sheet.all.away, 3.0);
    assert_eq!((now.priced, now.unpriced), (1, 0), "who is not in the pool does not come into it by a change of state");
    close(now.by_model["small"], 72.0);
}

#[test]
fn models_of_one_replica_share_its_cost() {
    let ledger = Ledger::new(at(0));
    let models = vec![name("small"), name("large")];
    ledger.keep(ReplicaId(1), Upkeep { price: price(1.0, 1), models, takes_work: true, opens_lines: true }, at(0));
    let Statement { sheet, now, .. } = ledger.statement(Window::All, at(HOUR));
    close(sheet.models["small"].pool, 0.5);
    close(sheet.models["large"].pool, 0.5);
    close(sheet.all.pool, 1.0);
    close(now.by_model["large"], 12.0);
}

#[test]
fn tenants_past_the_cap_share_a_line() {
    let ledger = Ledger::new(at(0));
    let attempts: Vec<_> = (0..150)
        .map(|number| ledger.begin(&name("small"), &name(&format!("tenant-{number}")), &price(1.0, 1), at(0)))
        .collect();
    for attempt in attempts {
        ledger.end(attempt, None, at(HOUR));
    }
    let sheet = ledger.statement(Window::All, at(HOUR)).sheet;
    assert_eq!(sheet.tenants.len(), 101);
    close(sheet.tenants[OTHER].slots, 50.0);
    close(sheet.tenants.values().map(|account| account.slots).sum(), sheet.all.slots);
}

#[test]
fn answers_count_with_what_reading_and_writing_cost() {
    let ledger = Ledger::new(at(0));
    let answer = |split| Answer { prompt_tokens: 100, completion_tokens: 10, split };
    ledger.answered(&name("small"), &name("acme"), &answer(Some((0.2, 0.3))), at(10));
    ledger.answered(&name("small"), &name("acme"), &answer(None), at(20));
    ledger.waste(&name("small"), &name("acme"), "abandoned", 0.5, at(30));
    let sheet = ledger.statement(Window::Hour, at(40)).sheet;
    for account in [&sheet.all, &sheet.models["small"], &sheet.tenants["acme"]] {
        assert_eq!((account.answers, account.prompt_tokens, account.completion_tokens), (2, 200, 20));
        assert_eq!((account.split.prompt_tokens, account.split.reading, account.split.writing), (100, 0.2, 0.3));
        assert_eq!(account.wasted, 0.5);
    }
}

/// A replica of a model and a deployment of the same name, that costs an ACU an hour.
fn of(what: &str, opens_lines: bool) -> Upkeep {
    let price = Price { deployment: Some(name(what)), ..price(1.0, 1) };
    Upkeep { price, models: vec![name(what)], takes_work: true, opens_lines }
}

/// Models and deployments add up to all, in every window.
#[track_caller]
fn adds_up(ledger: &Ledger, now: Timestamp) {
    for window in [Window::Hour, Window::Day, Window::All] {
        let sheet = ledger.statement(window, now).sheet;
        close(sheet.models.values().map(|account| account.pool).sum(), sheet.all.pool);
        close(sheet.deployments.values().map(|account| account.pool).sum(), sheet.all.pool);
    }
}

#[test]
fn replicas_that_have_shown_nothing_open_no_lines() {
    let ledger = Ledger::new(at(0));
    ledger.keep(ReplicaId(0), of("known", true), at(0));
    for id in 1..=500 {
        ledger.keep(ReplicaId(id), of(&format!("strange-{id}"), false), at(0));
    }
    ledger.keep(ReplicaId(501), of("known", false), at(0));
    adds_up(&ledger, at(HOUR));
    let sheet = ledger.statement(Window::All, at(HOUR)).sheet;
    let names = |accounts: &std::collections::BTreeMap<Arc<str>, Account>| accounts.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&sheet.models), [name("known"), name(OTHER)]);
    assert_eq!(names(&sheet.deployments), [name("known"), name(OTHER)]);
    close(sheet.models["known"].pool, 2.0);
    // It has shown it now.
    ledger.keep(ReplicaId(1), of("strange-1", true), at(HOUR));
    close(ledger.statement(Window::All, at(2 * HOUR)).sheet.models["strange-1"].pool, 1.0);
}

#[test]
fn a_name_that_is_gone_gives_its_line_to_a_new_one_the_oldest_first_and_the_sums_stay() {
    let ledger = Ledger::new(at(0));
    ledger.keep(ReplicaId(0), of("stays", true), at(0));
    let running = ledger.begin(&name("runs"), &name("acme"), &price(1.0, 1), at(0));
    // One after the other, each for an hour: more than there are lines.
    for id in 1..=400_u32 {
        let hour = u64::from(id) * HOUR;
        ledger.keep(ReplicaId(id), of(&format!("m{id:03}"), true), at(hour));
        ledger.left(ReplicaId(id), at(hour + HOUR));
        adds_up(&ledger, at(hour + HOUR));
    }
    let now = at(402 * HOUR);
    let Statement { sheet, dropped, .. } = ledger.statement(Window::All, now);
    assert_eq!((sheet.models.len(), sheet.deployments.len()), (257, 101), "and the line of the others");
    let kept = |model: &str| sheet.models.contains_key(model);
    assert!(kept("stays") && kept("runs"), "what is there, and what runs, keeps its line");
    assert!(kept("m400") && kept("m147") && !kept("m146") && !kept("m001"), "{:?}", sheet.models.keys());
    close(dropped.pool, 146.0);
    close(sheet.models[OTHER].pool, 146.0);
    close(sheet.all.pool, 402.0 + 400.0);
    assert!(ledger.end(running, None, now).is_some());
    // A name that comes back begins a line of its own.
    ledger.keep(ReplicaId(401), of("m001", true), now);
    close(ledger.statement(Window::All, at(403 * HOUR)).sheet.models["m001"].pool, 1.0);
}

#[test]
fn a_replica_with_many_new_models_takes_no_line_from_itself_and_opens_none_beyond_the_last() {
    let ledger = Ledger::new(at(0));
    for id in 1..=8_u32 {
        let hour = u64::from(id) * HOUR;
        let models = (0..64).map(|model| name(&format!("m{id}-{model}"))).collect();
        ledger.keep(ReplicaId(id), Upkeep { models, ..of("d", true) }, at(hour));
        ledger.left(ReplicaId(id), at(hour + HOUR));
        adds_up(&ledger, at(hour + HOUR));
    }
    let sheet = ledger.statement(Window::All, at(9 * HOUR)).sheet;
    assert_eq!(sheet.models.len(), 257, "and the line of the others");
    // One that has more models than there are lines: those that found one have it all to themselves.
    let models = (0..300).map(|model| name(&format!("last-{model:03}"))).collect();
    ledger.keep(ReplicaId(9), Upkeep { models, ..of("d", true) }, at(9 * HOUR));
    adds_up(&ledger, at(10 * HOUR));
    let sheet = ledger.statement(Window::Hour, at(10 * HOUR)).sheet;
    assert_eq!(sheet.models.keys().filter(|model| model.starts_with("last-")).count(), 256);
    close(sheet.models["last-000"].pool, 1.0 / 300.0);
}

#[test]
fn a_counter_never_counts_again_what_went_from_a_line_to_the_others() {
    let registry = prometheus::Registry::new();
    let (ledger, series) = (Ledger::new(at(0)), super::cost::CostSeries::new(&registry));
    let counters = || -> std::collections::BTreeMap<String, f64> {
        let families = registry.gather();
        let pool = families.iter().find(|family| family.name() == super::names::POOL_COST.name).expect("a family");
        let read = |metric: &prometheus::proto::Metric| {
            (metric.get_label()[0].value().to_owned(), metric.get_counter().get_value())
        };
        pool.get_metric().iter().map(read).collect()
    };
    for id in 1..=300_u32 {
        let hour = u64::from(id) * HOUR;
        ledger.keep(ReplicaId(id), of(&format!("m{id:03}"), true), at(hour));
        ledger.left(ReplicaId(id), at(hour + HOUR));
        series.refresh(&ledger.statement(Window::All, at(hour + HOUR)));
    }
    let counters = counters();
    assert!(counters.get(OTHER).is_none_or(|counted| *counted == 0.0), "{:?}", counters.get(OTHER));
    assert_eq!(counters.iter().filter(|(_, counted)| **counted == 1.0).count(), 256);
}
