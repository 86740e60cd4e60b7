//! What every implementation of the surface must do. Each check takes a constructor of an empty store; a new
//! implementation adds one line at the end.

use std::collections::BTreeMap;

use serde_json::json;

use crate::*;

fn by(at: u64) -> By {
    By { at: UnixMillis(at), who: "tester".into() }
}

fn phone(url: &str) -> NewReplica {
    NewReplica {
        url: url.into(),
        name: "phone".into(),
        stated: StatedFields {
            models: BTreeMap::from([("qwen".into(), Some("/m/q.gguf".into())), ("laya".into(), None)]),
            slots: Some(4),
            context_tokens: Some(16_384),
            dialect: Some("llama".into()),
            labels: BTreeMap::from([("deployment".into(), "4711".into())]),
            expires_at: Some(1_801_411_200),
            cost_acu_per_day: Some(0.57),
            prefill_rate: Some(85.0),
            decode_rate: None,
            claimed_cost_acu_per_day: Some(0.4),
            held: ["slots".to_owned()].into(),
        },
        api_key: Some(ReplicaSecret("phone-secret".into())),
        source: ReplicaSource::Admin,
        origin: None,
    }
}

/// One that announced itself.
fn announced(url: &str, key: char, at: u64) -> NewReplica {
    let origin = Origin {
        deployment: Some("Acurast:5Grw:4711".into()),
        processor: Some("5Fphone".into()),
        public_key: Some(String::from(key).repeat(64)),
        pin: Some("b".repeat(64)),
        verification: Verification::Signed,
        announced: Some(UnixMillis(at)),
    };
    NewReplica { source: ReplicaSource::Registration, origin: Some(origin), ..phone(url) }
}

fn a_key(digest: u8) -> NewKey {
    NewKey {
        tenant: "bank".into(),
        prefix: "hg-abcd".into(),
        digest: [digest; 32],
        limits: KeyLimits { requests_per_minute: Some(60), ..KeyLimits::default() },
        models: vec!["qwen".into()],
        class: Some("standard".into()),
        max_class: None,
    }
}

fn proof(at: u64) -> Proof {
    Proof { at: UnixMillis(at), models: Some(vec!["/m/q.gguf".into()]) }
}

fn actions(store: &Store) -> Vec<String> {
    let mut actions: Vec<String> = store.audit(None, 100).unwrap().into_iter().map(|record| record.action).collect();
    actions.reverse();
    actions
}

fn a_replica_comes_back_as_it_was_stated(store: &Store) {
    let new = phone("https://a.acu.run");
    let put = store.put_replica(by(7), new.clone()).unwrap();
    let Put::Created(record) = put else { panic!("{put:?}") };
    assert_eq!((record.url.as_str(), record.name.as_str()), ("https://a.acu.run", "phone"));
    assert_eq!((&record.stated, &record.api_key), (&new.stated, &new.api_key));
    assert_eq!((record.drained, record.source), (false, ReplicaSource::Admin));
    assert_eq!((record.created, record.updated), (UnixMillis(7), UnixMillis(7)));
    assert_eq!(store.replicas().unwrap(), std::slice::from_ref(&record));
    assert_eq!(store.replica(record.id).unwrap(), record);
    let bare = NewReplica { stated: StatedFields::default(), api_key: None, ..phone("https://b.acu.run") };
    let bare = store.put_replica(by(8), bare).unwrap().into_inner();
    assert_eq!(store.replica(bare.id).unwrap(), bare);
}

fn stating_a_replica_again_changes_nothing_and_leaves_no_trace(store: &Store) {
    let first = store.put_replica(by(1), phone("https://a.acu.run")).unwrap().into_inner();
    let again = store.put_replica(by(2), phone("https://a.acu.run")).unwrap();
    assert_eq!(again, Put::Unchanged(first.clone()));
    let other = NewReplica { name: "other".into(), ..phone("https://a.acu.run") };
    let Put::Updated(third) = store.put_replica(by(3), other).unwrap() else { panic!("an update") };
    assert_eq!((third.id, third.created, third.updated), (first.id, UnixMillis(1), UnixMillis(3)));
    assert_eq!(actions(store), ["replica.add", "replica.update"]);
}

fn a_drain_survives_stating_the_replica_anew(store: &Store) {
    let id = store.put_replica(by(1), phone("https://a.acu.run")).unwrap().into_inner().id;
    assert!(store.set_drained(by(2), id, true).unwrap().changed());
    assert!(!store.set_drained(by(3), id, true).unwrap().changed());
    let anew = NewReplica { name: "anew".into(), ..phone("https://a.acu.run") };
    assert!(store.put_replica(by(4), anew).unwrap().record().drained);
    assert!(!store.set_drained(by(5), id, false).unwrap().record().drained);
    assert_eq!(actions(store), ["replica.add", "replica.drain", "replica.update", "replica.undrain"]);
    assert_eq!(store.set_drained(by(6), 999, true), Err(StoreError::UnknownReplica(999)));
}

fn a_patch_changes_what_it_names_and_takes_statements_back(store: &Store) {
    let before = store.put_replica(by(1), phone("https://a.acu.run")).unwrap().into_inner();
    let patch = ReplicaPatch {
        slots: Some(None),
        decode_rate: Some(Some(9.5)),
        labels: Some(BTreeMap::new()),
        api_key: Some(Some(ReplicaSecret("second-secret".into()))),
        ..ReplicaPatch::default()
    };
    let after = store.patch_replica(by(2), before.id, patch.clone()).unwrap().into_inner();
    let stated = StatedFields { slots: None, decode_rate: Some(9.5), labels: BTreeMap::new(), ..before.stated.clone() };
    assert_eq!((&after.stated, after.api_key.as_ref()), (&stated, Some(&ReplicaSecret("second-secret".into()))));
    assert!(!store.patch_replica(by(3), before.id, patch).unwrap().changed());
    let trail = store.audit(None, 1).unwrap();
    assert_eq!(trail[0].detail["slots"], json!({"from": 4, "to": null}));
    assert_eq!(trail[0].detail["api_key"], json!({"from": "***", "to": "***"}));
    assert_eq!(trail[0].detail["decode_rate"], json!({"from": null, "to": 9.5}));
    assert_eq!(trail[0].detail.as_object().unwrap().len(), 4, "{:?}", trail[0].detail);
    let nobody = store.patch_replica(by(4), 999, ReplicaPatch::default());
    assert_eq!(nobody, Err(StoreError::UnknownReplica(999)));
}

fn a_removed_number_is_never_given_again(store: &Store) {
    let first = store.put_replica(by(1), phone("https://a.acu.run")).unwrap().into_inner();
    assert_eq!(store.remove_replica(by(2), first.id).unwrap(), Some(first.clone()));
    assert_eq!(store.remove_replica(by(3), first.id).unwrap(), None);
    let second = store.put_replica(by(4), phone("https://a.acu.run")).unwrap().into_inner();
    assert!(second.id > first.id);
    assert_eq!(actions(store), ["replica.add", "replica.remove", "replica.add"]);
}

fn the_last_measured_speed_is_kept_as_long_as_its_replica(store: &Store) {
    let id = store.put_replica(by(1), phone("https://a.acu.run")).unwrap().into_inner().id;
    let at = |measured, prefill| Speed {
        replica: id,
        models: vec!["qwen".into()],
        prefill_rate: Some(prefill),
        decode_rate: None,
        measured: UnixMillis(measured),
    };
    let nobody = Speed { replica: id + 1, ..at(5, 1.0) };
    store.put_speeds(vec![at(5, 80.0), nobody]).unwrap();
    store.put_speeds(vec![at(9, 90.0)]).unwrap();
    store.put_speeds(vec![at(7, 70.0)]).unwrap();
    assert_eq!(store.speeds().unwrap(), [at(9, 90.0)], "the newest one, of a replica that is there");
    assert!(store.put_speeds(vec![at(10, 91.0), at(11, -1.0)]).is_err());
    assert_eq!(store.speeds().unwrap(), [at(9, 90.0)], "all or none");
    let anew = NewReplica { name: "anew".into(), ..phone("https://a.acu.run") };
    store.put_replica(by(12), anew).unwrap();
    assert_eq!(store.speeds().unwrap().len(), 1, "a statement does not touch what was measured");
    store.remove_replica(by(13), id).unwrap();
    assert_eq!(store.speeds().unwrap(), []);
    assert_eq!(actions(store), ["replica.add", "replica.update", "replica.remove"], "measuring is nobody's change");
}

fn who_a_replica_is_comes_back_and_an_operators_word_leaves_it(store: &Store) {
    let record = store.put_replica(by(1), announced("https://a.acu.run", 'a', 1)).unwrap().into_inner();
    assert_eq!(Some(record.origin.clone()), announced("https://a.acu.run", 'a', 1).origin);
    assert_eq!((&record.proven, store.replica(record.id).unwrap()), (&None, record.clone()));
    let stated = NewReplica { name: "anew".into(), ..phone("https://a.acu.run") };
    assert_eq!(store.put_replica(by(2), stated).unwrap().record().origin, record.origin);
    let twin = store.put_replica(by(3), announced("https://b.acu.run", 'a', 3));
    assert!(matches!(twin, Err(StoreError::Failed(_))), "a key is one phone's: {twin:?}");
    assert_eq!(store.replicas().unwrap().len(), 1);
}

fn that_a_replica_announced_itself_again_is_kept_and_no_change(store: &Store) {
    let first = store.put_replica(by(1), announced("https://a.acu.run", 'a', 1)).unwrap().into_inner();
    let again = store.put_replica(by(2), announced("https://a.acu.run", 'a', 2)).unwrap();
    assert!(!again.changed());
    let kept = store.replica(first.id).unwrap();
    assert_eq!((kept.origin.announced, kept.updated), (Some(UnixMillis(2)), UnixMillis(1)));
    assert_eq!(actions(store), ["replica.add"]);
}

fn a_moved_replica_keeps_its_number_its_speeds_and_its_drain_and_has_to_prove_itself_again(store: &Store) {
    let id = store.put_replica(by(1), announced("https://a.acu.run", 'a', 1)).unwrap().into_inner().id;
    let speed = Speed {
        replica: id,
        models: vec!["qwen".into()],
        prefill_rate: Some(80.0),
        decode_rate: None,
        measured: UnixMillis(2),
    };
    store.put_speeds(vec![speed.clone()]).unwrap();
    store.set_drained(by(3), id, true).unwrap();
    assert!(store.set_proven(by(4), id, Some(proof(4))).unwrap().changed());
    assert!(!store.set_proven(by(5), id, Some(proof(4))).unwrap().changed());
    let moved = store.move_replica(by(6), id, announced("https://b.acu.run", 'a', 6), false).unwrap();
    let Put::Updated(moved) = moved else { panic!("{moved:?}") };
    assert_eq!((moved.id, moved.url.as_str(), moved.drained), (id, "https://b.acu.run", true));
    assert_eq!((&moved.proven, moved.created), (&None, UnixMillis(1)));
    assert_eq!(store.replicas().unwrap(), [moved]);
    assert_eq!(store.speeds().unwrap(), [speed]);
    assert_eq!(actions(store), ["replica.add", "replica.drain", "replica.prove", "replica.move"]);
    let detail = &store.audit(None, 1).unwrap()[0].detail;
    assert_eq!(detail["url"], json!({"from": "https://a.acu.run", "to": "https://b.acu.run"}));
    assert_eq!(detail.as_object().unwrap().len(), 2, "the address and what it proved: {detail}");
    let nobody = store.move_replica(by(7), 999, announced("https://c.acu.run", 'c', 7), true);
    assert_eq!(nobody, Err(StoreError::UnknownReplica(999)));
    assert_eq!(store.set_proven(by(8), 999, None), Err(StoreError::UnknownReplica(999)));
}

fn a_replica_takes_the_address_of_another_one_only_with_its_place(store: &Store) {
    let first = store.put_replica(by(1), announced("https://a.acu.run", 'a', 1)).unwrap().into_inner().id;
    let second = store.put_replica(by(1), phone("https://b.acu.run")).unwrap().into_inner().id;
    assert!(store.move_replica(by(2), first, announced("https://b.acu.run", 'a', 2), true).is_err());
    assert_eq!(store.replica(first).unwrap().url, "https://a.acu.run");
    let unknown = store.move_replica_over(by(3), 999, second, announced("https://b.acu.run", 'a', 3), true);
    assert_eq!(unknown, Err(StoreError::UnknownReplica(999)));
    assert!(store.replica(second).is_ok(), "both or neither");
    let over = store.move_replica_over(by(4), first, second, announced("https://b.acu.run", 'a', 4), true).unwrap();
    assert_eq!((over.record().id, store.replicas().unwrap().len()), (first, 1));
    assert_eq!(actions(store), ["replica.add", "replica.add", "replica.remove", "replica.move"]);
}

fn what_a_replica_proved_comes_back_with_its_models_and_moves_with_it_only_when_it_is_surely_the_same(store: &Store) {
    let first = store.put_replica(by(1), announced("https://a.acu.run", 'a', 1)).unwrap().into_inner().id;
    let second = store.put_replica(by(1), announced("https://b.acu.run", 'b', 1)).unwrap().into_inner().id;
    let unknown = Proof { at: UnixMillis(3), models: None };
    let proved = store.prove_replicas(by(2), vec![(first, proof(2)), (second, unknown.clone())]).unwrap();
    assert_eq!(proved, store.replicas().unwrap());
    assert_eq!((&proved[0].proven, &proved[1].proven), (&Some(proof(2)), &Some(unknown.clone())));
    let again = store.put_replica(by(4), announced("https://a.acu.run", 'a', 4)).unwrap();
    assert_eq!(again.record().proven, Some(proof(2)), "a statement does not touch it");
    let moved = store.move_replica(by(5), first, announced("https://c.acu.run", 'a', 5), true).unwrap();
    assert_eq!(moved.record().proven, Some(proof(2)));
    let over = store.move_replica_over(by(6), first, second, announced("https://b.acu.run", 'a', 6), true).unwrap();
    assert_eq!((over.record().proven.clone(), store.replicas().unwrap().len()), (Some(proof(2)), 1));
    let away = store.move_replica(by(7), first, announced("https://d.acu.run", 'a', 7), false).unwrap();
    assert_eq!(away.record().proven, None);
    let nobody = store.prove_replicas(by(8), vec![(first, proof(8)), (999, proof(8))]);
    assert_eq!(nobody, Err(StoreError::UnknownReplica(999)));
    assert_eq!(store.replica(first).unwrap().proven, None, "all or none");
    let cleared = store.set_proven(by(9), first, None).unwrap();
    assert!(!cleared.changed());
}

fn a_replica_comes_in_the_place_of_another_one_both_or_neither(store: &Store) {
    let first = store.put_replica(by(1), announced("https://a.acu.run", 'a', 1)).unwrap().into_inner();
    let other = store.put_replica(by(1), announced("https://b.acu.run", 'b', 1)).unwrap().into_inner();
    let twin = store.put_replica_over(by(2), first.id, announced("https://a.acu.run", 'b', 2));
    assert!(matches!(twin, Err(StoreError::Failed(_))), "a key is one phone's: {twin:?}");
    assert_eq!(store.replicas().unwrap(), [first.clone(), other.clone()], "neither");
    let there = store.put_replica_over(by(3), first.id, announced("https://a.acu.run", 'c', 3)).unwrap();
    let Put::Created(there) = there else { panic!("{there:?}") };
    assert!(there.id > other.id && there.proven.is_none(), "it is another one: {there:?}");
    let elsewhere = store.put_replica_over(by(4), other.id, phone("https://d.acu.run")).unwrap();
    assert_eq!(store.replicas().unwrap(), [there, elsewhere.into_inner()]);
    assert!(store.put_replica_over(by(5), 999, phone("https://e.acu.run")).unwrap().changed());
    let expected = ["add", "add", "remove", "add", "remove", "add", "add"].map(|action| format!("replica.{action}"));
    assert_eq!(actions(store), expected);
}

fn many_replicas_are_put_in_one_go(store: &Store) {
    let all: Vec<NewReplica> = (0..1_000).map(|n| phone(&format!("https://{n}.acu.run"))).collect();
    let put = store.put_replicas(by(1), all.clone()).unwrap();
    assert!(put.len() == 1_000 && put.iter().all(|put| matches!(put, Put::Created(_))));
    assert!(store.put_replicas(by(2), all).unwrap().iter().all(|put| !put.changed()));
    assert_eq!(store.replicas().unwrap().len(), 1_000);
}

fn a_key_is_made_listed_and_revoked_once(store: &Store) {
    let made = store.create_key(by(5), a_key(1)).unwrap();
    assert_eq!((&made.key, made.created, made.revoked), (&a_key(1), UnixMillis(5), None));
    assert_eq!(store.create_key(by(6), a_key(1)), Err(StoreError::DuplicateKey));
    assert_eq!(store.keys().unwrap(), std::slice::from_ref(&made));
    let ended = store.revoke_key(by(7), made.id).unwrap();
    assert!(ended.changed() && ended.record().revoked == Some(UnixMillis(7)));
    let again = store.revoke_key(by(8), made.id).unwrap();
    assert!(!again.changed() && again.record().revoked == Some(UnixMillis(7)));
    assert_eq!(store.revoke_key(by(9), 999), Err(StoreError::UnknownKey(999)));
    assert_eq!(actions(store), ["key.create", "key.revoke"]);
}

fn the_first_pepper_stays(store: &Store) {
    assert_eq!(store.pepper(by(1), [1; 32]).unwrap(), [1; 32]);
    assert_eq!(store.pepper(by(2), [2; 32]).unwrap(), [1; 32]);
    assert_eq!(actions(store), ["pepper.create"]);
}

fn the_trail_is_read_newest_first_in_pages(store: &Store) {
    for n in 0..25 {
        store.note(by(n), "config.reload".into(), "config".into(), json!({ "n": n })).unwrap();
    }
    let mut seen = Vec::new();
    let mut before = None;
    loop {
        let page = store.audit(before, 10).unwrap();
        let Some(last) = page.last() else { break };
        before = Some(last.id);
        seen.extend(page.iter().map(|record| record.at.0));
    }
    assert_eq!(seen, (0..25).rev().collect::<Vec<_>>());
}

fn no_secret_is_in_the_trail_or_in_debug_output(store: &Store) {
    let record = store.put_replica(by(1), phone("https://a.acu.run")).unwrap().into_inner();
    store.remove_replica(by(2), record.id).unwrap();
    let key = store.create_key(by(3), a_key(0xAB)).unwrap();
    store.pepper(by(4), [0xCD; 32]).unwrap();
    let seen = format!("{record:?} {key:?} {:?}", store.audit(None, 100).unwrap());
    assert!(!seen.contains("phone-secret") && !seen.contains("171, 171") && !seen.contains("205, 205"), "{seen}");
}

fn calls_from_many_threads_lose_nothing(store: &Store) {
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let store = store.clone();
            scope.spawn(move || {
                for n in 0..25 {
                    store.put_replica(by(n), phone(&format!("https://{thread}-{n}.acu.run"))).unwrap();
                }
            });
        }
    });
    let replicas = store.replicas().unwrap();
    assert_eq!((replicas.len(), store.audit(None, 1_000).unwrap().len()), (200, 200));
}

macro_rules! conformance {
    ($implementation:ident, $make:expr, [$($check:ident),* $(,)?]) => {
        mod $implementation {
            $(#[test]
            fn $check() {
                let (store, _keep) = $make();
                super::$check(&store);
            })*
        }
    };
}

macro_rules! implementations {
    ($($implementation:ident: $make:expr;)*) => {$(
        conformance!($implementation, $make, [
            a_replica_comes_back_as_it_was_stated,
            stating_a_replica_again_changes_nothing_and_leaves_no_trace,
            a_drain_survives_stating_the_replica_anew,
            a_patch_changes_what_it_names_and_takes_statements_back,
            a_removed_number_is_never_given_again,
            the_last_measured_speed_is_kept_as_long_as_its_replica,
            who_a_replica_is_comes_back_and_an_operators_word_leaves_it,
            that_a_replica_announced_itself_again_is_kept_and_no_change,
            a_moved_replica_keeps_its_number_its_speeds_and_its_drain_and_has_to_prove_itself_again,
            a_replica_takes_the_address_of_another_one_only_with_its_place,
            what_a_replica_proved_comes_back_with_its_models_and_moves_with_it_only_when_it_is_surely_the_same,
            a_replica_comes_in_the_place_of_another_one_both_or_neither,
            many_replicas_are_put_in_one_go,
            a_key_is_made_listed_and_revoked_once,
            the_first_pepper_stays,
            the_trail_is_read_newest_first_in_pages,
            no_secret_is_in_the_trail_or_in_debug_output,
            calls_from_many_threads_lose_nothing,
        ]);
    )*};
}

fn sqlite_file() -> (Store, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    (Store::open(&directory.path().join("store.db")).unwrap(), directory)
}

fn sqlite_memory() -> (Store, ()) {
    (Store::in_memory().unwrap(), ())
}

implementations! {
    file: super::sqlite_file;
    memory: super::sqlite_memory;
}
