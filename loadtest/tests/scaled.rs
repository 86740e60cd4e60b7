//! Scenarios of the simulator, live: what comes through sockets and a gateway is what was simulated.
//!
//! The gateway is the program of this workspace, found beside this test's own; build the whole workspace before
//! (`cargo build --workspace`, or `cargo test --workspace`).

use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

fn live(scenario: &Path, flags: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_loadtest"));
    program.args(["live", "--json", "-"]).args(flags).arg(scenario).output().expect("the program starts")
}

fn report(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("no JSON: {error}; {said}"))
}

#[test]
fn reviews_on_ten_phones_take_as_long_through_a_gateway_as_simulated() {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("scenarios/sim/dev-review-10-50.json");
    let output = live(&file, &["--for", "900s", "--speedup", "30"]);
    let report = report(&output);
    assert!(output.status.success(), "nothing was asked of the figures");
    let (live, simulated) = (&report["live"]["classes"]["reviewer"], &report["simulated"]["classes"]["reviewer"]);
    assert!(live["n"].as_f64() > Some(20.0) && live["n"] == simulated["n"], "{report}");
    assert_eq!((&live["unfinished"], &report["asked_again"]), (&0.0.into(), &serde_json::json!({})));
    assert!(live["reuse"].as_f64() > Some(0.9), "prompts share their template, on phones as in the model: {live}");
    assert!(live["ttft_mean"].is_null() && report["live"]["waste"].is_null(), "what can't be seen is not told");
    let ratio = report["ratios"]["reviewer"]["mean"].as_f64().expect("a ratio");
    let cpu = &report["cpu"][0];
    // A machine that is busy with something else measures itself; it is told so, and nobody is to believe it.
    let believable = report["short_of_cpu"] == false;
    assert!(!believable || (0.75..1.3).contains(&ratio), "{ratio} times the simulated mean; {cpu}");
}

/// Conversations and short requests on a few phones that come and go, all in two minutes.
const ROUGH: &str = r#"{
    "name": "rough", "seed": 7, "horizon_s": 120, "warmup_s": 20, "detect_s": 5, "ovh_s": 0.1,
    "model": { "p0": 1107, "c": 3.54e-7, "d1": 60, "kappa": 20000, "beta": 0.304 },
    "phones": { "jitter": 0.1, "cache_works": 0.8, "classes": [
        { "name": "fast", "count": 4, "s": 1, "q": 1, "slots": 1 },
        { "name": "slow", "count": 4, "s": 0.4, "q": 0.5, "slots": 2 }] },
    "churn": { "mean_up_s": 60, "mean_down_s": 20 },
    "mods": [{ "mean_normal_s": 60, "mean_slow_s": 20, "factor": 0.4 }],
    "classes": [
        { "name": "guard", "band": 0, "arrivals": { "type": "poisson", "rate": 0.5 },
          "keys": [{ "name": "k", "weight": 1 }], "templates": [{ "tokens": 120, "weight": 1 }],
          "suffix": { "dist": "uniform", "min": 40, "max": 90 }, "out": { "dist": "uniform", "min": 1, "max": 20 } },
        { "name": "chat", "band": 1, "arrivals": { "type": "poisson", "rate": 0.1 },
          "keys": [{ "name": "a", "weight": 1 }, { "name": "b", "weight": 1 }],
          "templates": [{ "tokens": 300, "weight": 1 }], "slo_s": 20, "slo_on_ttft": true,
          "suffix": { "dist": "uniform", "min": 20, "max": 90 }, "out": { "dist": "uniform", "min": 20, "max": 90 },
          "turns_mean": 3, "think_s": 5, "max_prompt": 4000 }]
}"#;

#[test]
fn everything_is_answered_on_phones_that_come_and_go_and_what_is_off_fails_the_play() {
    let directory = tempfile::tempdir().expect("a directory");
    let (file, page) = (directory.path().join("rough.json"), directory.path().join("rough.html"));
    std::fs::write(&file, ROUGH).expect("written");
    let html = page.to_str().expect("a path");
    // No two plays are alike to a millionth.
    let output = live(&file, &["--speedup", "12", "--within", "0.0001%", "--html", html]);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let report = report(&output);
    assert_eq!(report["holds"], false, "{report}");
    assert!(report["off"].as_array().is_some_and(|off| !off.is_empty()), "{report}");
    for class in ["guard", "chat"] {
        let class = &report["live"]["classes"][class];
        assert!(class["unfinished"] == 0.0 && class["n"].as_f64() > Some(10.0), "{report}");
    }
    let chat = &report["live"]["classes"]["chat"];
    assert!(chat["ttft_mean"].as_f64() < chat["mean"].as_f64(), "streams begin before they end: {chat}");
    assert!(chat["reuse"].as_f64() > Some(0.3), "conversations find their past in the phones' caches: {chat}");
    let page = std::fs::read_to_string(page).expect("the page is there");
    assert!(page.contains("rough, live and simulated") && page.contains("<svg") && !page.contains("<script"));
}

#[test]
fn flags_of_the_other_kind_of_scenario_are_a_wrong_call() {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("scenarios/sim/dev-review-10-50.json");
    let output = live(&file, &["--seed", "3"]);
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--seeds"));
}
