//! The program as a whole: it starts phones and a gateway, plays ten seconds of load, and finds everything in order.
//!
//! The gateway is the program of this workspace, found beside this test's own; build the whole workspace before
//! (`cargo build --workspace`, or `cargo test --workspace`).

use std::{path::PathBuf, process::Command};

fn loadtest() -> Command {
    Command::new(env!("CARGO_BIN_EXE_loadtest"))
}

fn scenario(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("scenarios").join(name)
}

#[test]
fn a_healthy_fleet_behind_a_gateway_answers_everything_and_the_report_says_so() {
    let directory = tempfile::tempdir().expect("a directory");
    let (json, html) = (directory.path().join("report.json"), directory.path().join("report.html"));
    let output = loadtest()
        .args(["live", "--self"])
        .arg(scenario("smoke.toml"))
        .arg("--json")
        .arg(&json)
        .arg("--html")
        .arg(&html)
        .output()
        .expect("the program starts");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&json).expect("the JSON is there")).expect("it is JSON");
    assert_eq!(report["passed"], true);
    assert_eq!((&report["totals"]["errors"], &report["totals"]["over_subscribed"]), (&0.into(), &0.into()));
    let requests = report["totals"]["requests"].as_u64().expect("a number");
    let classes = report["classes"].as_object().expect("classes by name");
    assert_eq!(classes.values().map(|class| class["requests"].as_u64().unwrap_or(0)).sum::<u64>(), requests);
    assert_eq!(report["waste"]["completed"].as_u64(), Some(requests), "each was run once, by a phone: {said}");
    assert!(classes["chat"]["ttft_p99"].as_f64() < classes["chat"]["p99"].as_f64(), "streams begin before they end");
    let page = std::fs::read_to_string(&html).expect("the page is there");
    for outside in ["<script", "src=", "href=", "@import", "url("] {
        assert!(!page.contains(outside), "the page needs nothing but itself: {outside}");
    }
    assert!(page.matches("<svg").count() >= 6 && page.trim_end().ends_with("</html>"));
}

#[test]
fn a_scenario_with_mistakes_is_refused_with_all_of_them() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("bad.toml");
    std::fs::write(&path, "name = \"x\"\nwhy = \"x\"\nduration = \"soon\"\n[fleet]\n[[classes]]\nmodel = 3\n")
        .expect("written");
    let output = loadtest().arg("live").arg(&path).output().expect("the program starts");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    for mistake in ["line 3: duration", "line 4: fleet.phones: is missing", "line 6: classes[0].model"] {
        assert!(said.contains(mistake), "{mistake} in {said}");
    }
}

#[test]
fn a_gateway_that_is_not_there_fails_the_play_and_names_the_error() {
    let directory = tempfile::tempdir().expect("a directory");
    let json = directory.path().join("report.json");
    // Nothing listens on port 1 of this machine.
    let output = loadtest()
        .args(["live", "--url", "http://127.0.0.1:1", "--duration", "1s", "--json"])
        .arg(&json)
        .arg(scenario("smoke.toml"))
        .output()
        .expect("the program starts");
    assert_eq!(output.status.code(), Some(1));
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&json).expect("the JSON is there")).expect("it is JSON");
    assert_eq!(report["passed"], false);
    assert_eq!(report["errors"][0]["kind"], "no_connection");
    assert_eq!(report["totals"]["requests"], report["totals"]["errors"]);
}

#[test]
fn a_wrong_call_is_answered_with_usage() {
    let output = loadtest().args(["live", "--no-such-flag"]).output().expect("the program starts");
    assert_eq!(output.status.code(), Some(64));
}
