//! Binding late is worth what it is known to be worth: the same choice, fewest requests in proportion to slots, taken when a
//! slot is free instead of when the request comes. If the core lost time between a free slot and the next request, or used
//! phones that are gone, it would show here.

use simulation::play::{Player, Run};

use crate::files;

#[test]
fn the_fewest_busy_slots_late_beat_the_fewest_connections_at_once() {
    let (scenario, _) = files::all().into_iter().find(|(scenario, _)| scenario.name == "dev-review-10-50").expect("it");
    let [late, early] = ["least_busy", "least_connections"].map(|name| {
        let player = Player::named(name).expect("a player");
        (0..3).map(|run| Run::new(&scenario, run).play(&player).classes[0].mean).sum::<f64>()
    });
    assert!(late < 0.9 * early, "{late} late, {early} at once");
}
