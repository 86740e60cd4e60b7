//! Phones that die and come back.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use fakephone::{Fault, PhoneHandle};
use serde_json::Value;

use super::{Dice, Stage, endpoint, phones::Phones, say};
use crate::shutdown::Stop;

/// For one look at the gateway.
const LOOK_LIMIT: Duration = Duration::from_secs(1);
/// Shortest pause between two events, and how much longer it may be.
const PAUSE_MS: (usize, usize) = (3_000, 6_000);

/// Kills and revives until `stop`.
pub(super) async fn run(stage: Arc<Stage>, phones: Arc<Phones>, mut stop: Stop) {
    let mut dice = Dice::new();
    loop {
        let pause = Duration::from_millis((PAUSE_MS.0 + dice.roll(PAUSE_MS.1)) as u64);
        tokio::select! {
            () = stop.wait() => return,
            () = tokio::time::sleep(pause) => {}
        }
        let admin = endpoint(stage.admin);
        let answer = stage.client.get(&admin, "/admin/replicas", stage.token.as_deref(), LOOK_LIMIT).await;
        let seen = answer.ok().and_then(|answer| serde_json::from_slice(&answer.body).ok()).unwrap_or_default();
        act(&phones, &spared(&seen), &mut dice);
    }
}

/// Phones that another one can stand in for, in the gateway's own eyes: of each model one that works is left alone.
fn spared(list: &Value) -> BTreeSet<String> {
    let ready: Vec<&Value> =
        list["data"].as_array().into_iter().flatten().filter(|one| one["state"] == "ready").collect();
    let stands_in = |one: &Value, model: &Value| {
        ready.iter().any(|other| {
            other["name"] != one["name"] && other["models"].as_array().is_some_and(|models| models.contains(model))
        })
    };
    let is_spared =
        |one: &&&Value| one["models"].as_array().is_some_and(|all| all.iter().all(|model| stands_in(one, model)));
    ready.iter().filter(is_spared).filter_map(|one| one["name"].as_str().map(str::to_owned)).collect()
}

fn is_gone(phone: &PhoneHandle) -> bool {
    !phone.is_alive() || phone.order().fault != Fault::None
}

/// A third of the phones may be gone at once: what a bad day looks like.
fn act(phones: &Phones, spared: &BTreeSet<String>, dice: &mut Dice) {
    let gone: Vec<&PhoneHandle> = phones.handles.iter().filter(|phone| is_gone(phone)).collect();
    let victims: Vec<&PhoneHandle> =
        phones.handles.iter().filter(|phone| !is_gone(phone) && spared.contains(phone.id())).collect();
    // Somebody who is gone comes back: first if there are many, and otherwise as often as their share.
    let comes_back = gone.len() * 3 >= phones.count() || victims.is_empty() || dice.roll(phones.count()) < gone.len();
    if let Some(phone) = gone.get(dice.roll(gone.len())).filter(|_| comes_back) {
        let was_dead = !phone.is_alive();
        phone.clear_fault();
        phone.revive();
        say(&format!("chaos: {} {}", phone.id(), if was_dead { "starts again" } else { "has its network back" }));
    } else if let Some(phone) = victims.get(dice.roll(victims.len())) {
        if dice.roll(2) == 0 {
            phone.kill();
            say(&format!("chaos: {} dies", phone.id()));
        } else {
            phone.set_fault(Fault::TlsStall);
            say(&format!("chaos: {} loses its network", phone.id()));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_phone_is_spared_only_if_another_that_works_serves_all_of_its_models() {
        let phone = |name: &str, state: &str, models: &[&str]| json!({"name": name, "state": state, "models": models});
        let list = json!({"data": [
            phone("a", "ready", &["small"]), phone("b", "ready", &["small"]), phone("c", "probation", &["small"]),
            phone("d", "ready", &["large"]), phone("e", "out", &["large"]), phone("f", "ready", &["laya"]),
            phone("g", "ready", &["small", "large"]),
        ]});
        assert_eq!(spared(&list), ["a", "b", "d", "g"].map(str::to_owned).into());
        let alone = json!({"data": [phone("a", "ready", &["small"]), phone("b", "out", &["small"])]});
        assert!(spared(&alone).is_empty() && spared(&Value::Null).is_empty());
    }

    #[tokio::test]
    async fn however_long_it_goes_on_each_model_keeps_a_phone_that_works() {
        let phones = Phones::start(8).await.unwrap();
        let mut dice = Dice(7);
        let mut most_gone = 0;
        for _ in 0..500 {
            let as_seen = |phone: &PhoneHandle| json!({"name": phone.id(), "state": if is_gone(phone) { "out" } else { "ready" }, "models": [phone.config().model]});
            let list = json!({"data": phones.handles.iter().map(as_seen).collect::<Vec<_>>()});
            act(&phones, &spared(&list), &mut dice);
            let all: BTreeSet<String> = phones.handles.iter().map(|phone| phone.config().model.clone()).collect();
            let working =
                phones.handles.iter().filter(|phone| !is_gone(phone)).map(|phone| phone.config().model.clone());
            assert_eq!(working.collect::<BTreeSet<_>>(), all);
            most_gone = most_gone.max(phones.handles.iter().filter(|phone| is_gone(phone)).count());
        }
        assert!(most_gone >= 2, "nothing happens");
    }
}
