//! What must hold of a play whoever plays.

use super::*;
use scheduler::Carry;

use crate::scenario::{Churn, Continuation, Length, SlowPhase, tests::SMALL};

fn small(change: impl FnOnce(&mut Scenario)) -> Scenario {
    let mut scenario = Scenario::from_json(SMALL).expect("a scenario");
    change(&mut scenario);
    scenario
}

/// Phones that come and go, two kinds of work and conversations.
fn rough() -> Scenario {
    small(|scenario| {
        scenario.churn = Some(Churn { mean_up_s: 60.0, mean_down_s: 20.0 });
        scenario.slow_phases = vec![SlowPhase { mean_normal_s: 50.0, mean_slow_s: 20.0, factor: 0.3 }];
        scenario.phones.classes[0].count = 6;
        scenario.phones.cache_works = 0.7;
        let mut chat = scenario.classes[0].clone();
        chat.name = "chat".to_owned();
        (chat.turns_mean, chat.think_s, chat.max_prompt) = (4.0, 5.0, 2000);
        scenario.classes.push(chat);
    })
}

#[test]
fn whoever_plays_all_requests_are_answered_despite_failures() {
    let scenario = rough();
    let run = Run::new(&scenario, 0);
    for player in Player::all() {
        let played = run.play(player);
        assert!(played.refused.is_empty(), "{}: {:?}", player.name(), played.refused);
        assert_eq!(played.classes.len(), 2);
        // The oracle sees failures coming.
        assert!(played.waste.fail > 0.0 || player.name() == "oracle", "{}: {:?}", player.name(), played.waste);
        for class in &played.classes {
            let at = format!("{} {class:?}", player.name());
            assert!(class.requests > 50 && class.unfinished == 0, "{at}");
            assert!(class.ttft_p50 < class.p50 && class.p50 < class.p99 && class.p99 <= class.max, "{at}");
            assert!((0.0..1.0).contains(&class.reuse), "{at}");
            assert_eq!((class.curve.len(), class.curve[50]), (101, class.p50));
            assert!(class.bound_ratio.is_some_and(|ratio| ratio > 1.0), "{at}");
        }
    }
}

#[test]
fn a_play_is_a_function_of_its_seed() {
    let scenario = rough();
    for player in Player::all() {
        let (first, second) = (play(&scenario, player, 3), play(&scenario, player, 3));
        assert_eq!(first, second, "{}", player.name());
        assert_ne!(first.classes, play(&scenario, player, 4).classes, "{}", player.name());
    }
}

#[test]
fn on_one_phone_with_one_slot_all_that_serve_in_order_are_the_same() {
    let scenario = small(|scenario| {
        (scenario.phones.classes[0].count, scenario.phones.classes[0].slots) = (1, 1);
        scenario.horizon_s = 1000.0;
    });
    let run = Run::new(&scenario, 0);
    let mean = |name| run.play(&Player::named(name).expect("a player")).classes[0].mean;
    let expected = mean("fifo_fastest");
    for name in ["least_busy", "round_robin", "least_connections", "random", "peak_ewma", "cache_aware"] {
        let mean = mean(name);
        assert!((mean - expected).abs() < 1e-6, "{name}: {mean} is not {expected}");
    }
}

#[test]
fn an_idle_pool_answers_in_service_time() {
    let scenario = small(|scenario| {
        scenario.phones.jitter = 0.0;
        scenario.classes[0].arrivals = crate::scenario::Arrivals::Poisson { rate: 0.05 };
        scenario.horizon_s = 2000.0;
    });
    let run = Run::new(&scenario, 0);
    for player in Player::all() {
        let ratio = run.play(player).classes[0].bound_ratio.expect("a bound");
        assert!((1.0..1.6).contains(&ratio), "{}: {ratio}", player.name());
    }
}

#[test]
fn what_is_not_answered_in_the_end_counts_to_the_end() {
    let scenario = small(|scenario| {
        scenario.churn = Some(Churn { mean_up_s: 1e-3, mean_down_s: 1e9 });
        scenario.classes[0].objective_s = 1e9;
    });
    for name in ["default", "least_connections", "fifo_fastest"] {
        let played = play(&scenario, &Player::named(name).expect("a player"), 0);
        let class = &played.classes[0];
        assert_eq!(class.unfinished, class.requests, "{name}");
        assert!(class.max > scenario.until_s() - scenario.horizon_s && class.good == 1.0, "{class:?}");
        assert!((played.end - scenario.until_s()).abs() < 1.0, "{name} ended at {}", played.end);
    }
}

#[test]
fn a_play_that_happened_elsewhere_is_measured_as_one_that_happened_here() {
    let scenario = small(|scenario| scenario.warmup_s = 0.0);
    let run = Run::new(&scenario, 0);
    let served = run.workload.requests.iter().map(|request| {
        let after = |seconds: f64| request.arrival().map(|time| time + seconds);
        let cached = request.spared() / 2;
        Progress { arrived: after(0.0), first_token: after(1.0), answered: after(3.0), cached, ..Progress::default() }
    });
    let mut served: Vec<Progress> = served.collect();
    let player = Player::named("default").expect("a player");
    let played = run.figures(&player, served.clone(), 1000.0);
    let class = &played.classes[0];
    assert_eq!((class.requests, class.unfinished), (served.len(), 0));
    assert!((class.mean - 3.0).abs() < 1e-9 && (class.ttft_p99 - 1.0).abs() < 1e-9, "{class:?}");
    assert!((0.45..=0.5).contains(&class.reuse), "{}", class.reuse);
    served[0].answered = None;
    assert_eq!(run.figures(&player, served, 1000.0).classes[0].unfinished, 1);
    assert_eq!(run.priors().len(), run.workload.phones.len());
    assert!(run.priors().iter().all(|rates| rates.prefill > rates.decode && rates.decode > 0.0));
}

/// Phones that last for less than an answer takes.
fn dying(continuation: Continuation) -> Scenario {
    small(|scenario| {
        scenario.continuation = continuation;
        scenario.churn = Some(Churn { mean_up_s: 12.0, mean_down_s: 6.0 });
        scenario.detect_s = 2.0;
        scenario.phones.classes[0].count = 12;
        scenario.classes[0].arrivals = crate::scenario::Arrivals::Poisson { rate: 0.2 };
        // 25 tokens a second: 16 s.
        scenario.classes[0].output = Length::Uniform { min: 380.0, max: 420.0 };
        scenario.horizon_s = 400.0;
    })
}

#[test]
fn answers_that_take_longer_than_phones_last_are_carried_on_to_their_end() {
    let scenario = dying(Continuation::default());
    let run = Run::new(&scenario, 0);
    let play = |name| run.play(&Player::named(name).expect("a player"));
    let [carried, anew, oracle] = ["default", "no_continuation", "oracle"].map(play);
    assert!(carried.decisions["carried_on"] > 50 && anew.decisions["carried_on"] == 0, "{:?}", carried.decisions);
    for played in [&carried, &oracle] {
        assert_eq!((played.classes[0].unfinished, &played.refused), (0, &Default::default()), "{}", played.player);
    }
    let [with, without] = [&carried, &anew].map(|played| (played.classes[0].mean, played.waste.fail));
    assert!(with.0 < 0.5 * without.0 && with.1 < 0.5 * without.1, "{with:?} against {without:?}");
    let wasted = [&carried, &anew].map(|played| played.classes[0].wasted_slot_seconds);
    assert!(0.0 < wasted[0] && wasted[0] < 0.5 * wasted[1], "{wasted:?}");
}

#[test]
fn slot_time_is_wasted_by_copies_that_do_not_answer_but_for_the_writing_that_is_carried_on() {
    let scenario = dying(Continuation::default());
    let run = Run::new(&scenario, 0);
    for player in ["default", "fifo_fastest", "least_connections"].map(|name| Player::named(name).expect("a player")) {
        let played = run.play(&player);
        let class = &played.classes[0];
        assert_eq!(class.unfinished, 0, "{}", player.name());
        // What was of use is what an answer takes on these phones, 16 s alone, however often it was broken off.
        let useful = (class.slot_seconds - class.wasted_slot_seconds) / class.requests as f64;
        assert!((10.0..40.0).contains(&useful), "{}: {useful} s of {class:?}", player.name());
    }
    let still = run_of_phones_that_stay();
    assert!(still.slot_seconds > 0.0 && still.wasted_slot_seconds == 0.0, "{still:?}");
}

/// The figures of the same work where nothing is lost.
fn run_of_phones_that_stay() -> ClassFigures {
    let mut scenario = dying(Continuation::default());
    scenario.churn = None;
    play(&scenario, &Player::named("fifo_fastest").expect("a player"), 0).classes.remove(0)
}

#[test]
fn where_each_phone_writes_in_its_own_way_answers_begin_anew_and_all_are_given() {
    let scenario = dying(Continuation { by: Carry::SameGroup, groups: 12 });
    let played = play(&scenario, &Player::named("default").expect("a player"), 0);
    assert_eq!((played.decisions["carried_on"], played.classes[0].unfinished), (0, 0));
    let several = dying(Continuation { by: Carry::SameGroup, groups: 3 });
    let played = play(&several, &Player::named("default").expect("a player"), 0);
    assert!(played.decisions["carried_on"] > 10 && played.classes[0].unfinished == 0, "{:?}", played.decisions);
}
