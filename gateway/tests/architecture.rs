//! The arrows between our crates, read from the resolved dependency graph: any other than these is a failure.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

use serde_json::Value;

/// Who may depend on whom. `huntgroup → fakephone` is the feature `demo`; `huntgroup → simulation` is the record that the
/// one writes and the other plays again.
const ARROWS: &[(&str, &[&str])] = &[
    ("huntgroup", &["scheduler", "openai-wire", "simulation", "store", "fakephone"]),
    ("scheduler", &[]),
    ("openai-wire", &[]),
    ("store", &[]),
    ("simulation", &["scheduler"]),
    ("fakephone", &["simulation", "openai-wire"]),
    ("loadtest", &["scheduler", "simulation", "fakephone", "openai-wire"]),
];

/// What the pure crates may use besides: no runtime, no clock, no socket, no log, no randomness.
const PURE: &[(&str, &[&str])] = &[
    ("scheduler", &["serde"]),
    ("simulation", &["scheduler", "serde", "serde_json", "thiserror"]),
    ("openai-wire", &["bytes", "memchr", "serde", "serde_json", "thiserror"]),
];

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--locked", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo metadata runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON")
}

/// Direct dependencies of each of our crates (not those of its tests), by name.
fn graph() -> BTreeMap<String, BTreeSet<String>> {
    let metadata = metadata();
    let members: BTreeSet<&str> = texts(&metadata["workspace_members"]).collect();
    let names: BTreeMap<&str, &str> = items(&metadata["packages"])
        .map(|package| (package["id"].as_str().expect("id"), package["name"].as_str().expect("name")))
        .collect();
    let normal = |dependency: &Value| items(&dependency["dep_kinds"]).any(|kind| kind["kind"].is_null());
    items(&metadata["resolve"]["nodes"])
        .filter(|node| members.contains(node["id"].as_str().expect("id")))
        .map(|node| {
            let used = items(&node["deps"]).filter(|dependency| normal(dependency));
            let used = used.map(|dependency| names[dependency["pkg"].as_str().expect("pkg")].to_owned()).collect();
            (names[node["id"].as_str().expect("id")].to_owned(), used)
        })
        .collect()
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().expect("an array").iter()
}

fn texts(value: &Value) -> impl Iterator<Item = &str> {
    items(value).map(|text| text.as_str().expect("a string"))
}

#[test]
fn our_crates_depend_on_each_other_only_along_the_arrows() {
    let graph = graph();
    let ours: BTreeSet<&str> = ARROWS.iter().map(|(name, _)| *name).collect();
    assert_eq!(graph.keys().map(String::as_str).collect::<BTreeSet<_>>(), ours, "a crate without arrows");
    for (name, allowed) in ARROWS {
        let used: BTreeSet<&str> = graph[*name].iter().map(String::as_str).filter(|used| ours.contains(used)).collect();
        let allowed: BTreeSet<&str> = allowed.iter().copied().collect();
        assert!(used.is_subset(&allowed), "{name} uses {:?}", used.difference(&allowed).collect::<Vec<_>>());
    }
}

#[test]
fn the_pure_crates_use_nothing_that_reads_the_world() {
    let graph = graph();
    for (name, allowed) in PURE {
        let used: Vec<&String> = graph[*name].iter().filter(|used| !allowed.contains(&used.as_str())).collect();
        assert!(used.is_empty(), "{name} uses {used:?}: a pure crate gets time and randomness as arguments");
    }
}
