//! The bounds are those of the published definition, and behave as bounds must.

use serde_json::Value;

use super::*;
use crate::workload::tests::scenarios;

#[test]
fn the_stated_bounds_are_found() {
    let mut checked = 0;
    for (scenario, file) in scenarios() {
        let workload = Workload::draw(&scenario, 0);
        let Some(stated) = file["expect"]["bounds"].as_object() else {
            continue;
        };
        for (found, class) in bounds(&scenario, &workload).iter().zip(&scenario.classes) {
            let stated = stated[&class.name].as_object().expect("the bounds of a class");
            let found = [
                ("smin_mean", Some(found.service_mean)),
                ("smin_p99", Some(found.service_p99)),
                ("srpt_mean", found.pooled_mean),
                ("fluid_mean", found.fluid_mean),
                ("fluid_p99", found.fluid_p99),
                ("rho", found.load),
                ("mean", found.mean),
                ("makespan", found.makespan),
            ];
            for (name, value) in stated {
                let (_, found) = found.iter().find(|(known, _)| known == name).expect("a known bound");
                let (found, stated) = (found.expect("a bound"), value.as_f64().expect("a number"));
                // The files round to four places.
                let off = (found - stated).abs() - 5.1e-5;
                assert!(off <= 1e-3 * stated.abs(), "{} {} {name}: {found} is not {stated}", scenario.name, class.name);
                checked += 1;
            }
        }
    }
    assert!(checked >= 100, "{checked} bounds");
}

fn bounds_of(scenario: &Scenario) -> ClassBounds {
    bounds(scenario, &Workload::draw(scenario, 0)).swap_remove(0)
}

fn named(name: &str) -> Scenario {
    let (scenario, _): (Scenario, Value) =
        scenarios().into_iter().find(|(scenario, _)| scenario.name == name).expect("a scenario");
    scenario
}

#[test]
fn twice_the_requests_of_a_batch_take_twice_the_time() {
    let mut scenario = named("dev-batch-100");
    scenario.churn = None;
    scenario.slow_phases.clear();
    let times = [2000, 4000].map(|n| {
        scenario.classes[0].arrivals = crate::scenario::Arrivals::Closed { n, at: 0.0 };
        bounds_of(&scenario).makespan.expect("a makespan")
    });
    assert!((1.8..2.1).contains(&(times[1] / times[0])), "{times:?}");
}

#[test]
fn more_load_and_slower_phones_raise_every_bound() {
    let mut scenario = named("dev-review-10-50");
    let before = bounds_of(&scenario);
    for class in &mut scenario.phones.classes {
        (class.prefill_factor, class.decode_factor) = (0.8 * class.prefill_factor, 0.8 * class.decode_factor);
    }
    let slower = bounds_of(&scenario);
    assert!(slower.service_mean > 1.2 * before.service_mean);
    assert!(slower.pooled_mean > before.pooled_mean && slower.fluid_mean > before.fluid_mean);
    let load = slower.load.expect("a load") / before.load.expect("a load");
    assert!((load - 1.25).abs() < 1e-9, "{load}");
}
