//! The play is that of the published definition: players without any choice of ours give the figures that an independent
//! implementation gave, as stated in the scenario files.

use serde_json::Value;
use simulation::{
    play::{ClassFigures, Player, Run},
    scenario::Scenario,
};

use crate::files;

/// The names of the same players there and here.
const PLAYERS: [(&str, &str); 2] = [("leastconn", "least_connections"), ("fifo-fast1", "fifo_fastest")];
/// Files are rounded to four places, and moments to nanoseconds: an event may come before another instead of after it.
const TOLERANCE: f64 = 0.002;
/// What is quick enough without being asked for.
const FEW_PHONES: usize = 100;

fn stated(figures: &ClassFigures) -> [(&'static str, Option<f64>); 11] {
    [
        ("n", Some(figures.requests as f64)),
        ("unf", Some(figures.unfinished as f64)),
        ("mean", Some(figures.mean)),
        ("p50", Some(figures.p50)),
        ("p99", Some(figures.p99)),
        ("ttft_mean", Some(figures.ttft_mean)),
        ("ttft_p99", Some(figures.ttft_p99)),
        ("good", Some(figures.good)),
        ("lb_ratio", figures.bound_ratio),
        ("makespan", figures.makespan),
        ("mk_ratio", figures.makespan_ratio),
    ]
}

/// How many figures were compared.
fn compare(scenario: &Scenario, reference: &Value) -> usize {
    let run = Run::new(scenario, 0);
    let mut compared = 0;
    for (theirs, ours) in PLAYERS {
        let played = run.play(&Player::named(ours).expect("a player"));
        for class in &played.classes {
            let expected = reference[theirs][&class.name].as_object().expect("figures of a class");
            for (name, value) in expected {
                let value = value.as_f64().expect("a number");
                let found = stated(class).into_iter().find(|(known, _)| known == name);
                let found = found.and_then(|(_, found)| found).expect("a known figure");
                let off = (found - value).abs() - 1e-4;
                let at = format!("{} {ours} {} {name}", scenario.name, class.name);
                assert!(off <= TOLERANCE * value.abs(), "{at}: {found} is not {value}");
                compared += 1;
            }
        }
        for (name, share) in [("fail", played.waste.fail), ("cold", played.waste.cold)] {
            let value = reference[theirs]["waste"][name].as_f64().expect("a number");
            assert!((share - value).abs() < 0.001, "{} {ours} {name}: {share} is not {value}", scenario.name);
        }
    }
    compared
}

#[test]
fn players_without_a_choice_of_ours_give_the_stated_figures() {
    let mut compared = 0;
    for (scenario, file) in files::all() {
        let phones: usize = scenario.phones.classes.iter().map(|class| class.count).sum();
        if file["reference"].is_object() && (phones <= FEW_PHONES || files::everything()) {
            compared += compare(&scenario, &file["reference"]);
        }
    }
    assert!(compared >= 500, "{compared} figures");
}
