//! A batch through the Files and Batch API on phones that come and go, small enough for every change.
//!
//! The gateway is the program of this workspace, found beside this test's own; build the whole workspace before
//! (`cargo build --workspace`, or `cargo test --workspace`).

use serde_json::Value;
use std::process::Command;

/// 400 lines and some guards on eight phones of which one is always away, all in a minute.
const NIGHT: &str = r#"{
    "name": "short-night", "seed": 8, "horizon_s": 60, "warmup_s": 5, "detect_s": 5, "ovh_s": 0.1,
    "model": { "p0": 1107, "c": 3.54e-7, "d1": 60, "kappa": 20000, "beta": 0.304 },
    "phones": { "jitter": 0.1, "classes": [
        { "name": "fast", "count": 4, "s": 1, "q": 1, "slots": 1 },
        { "name": "slow", "count": 4, "s": 0.4, "q": 0.5, "slots": 2 }] },
    "churn": { "mean_up_s": 60, "mean_down_s": 8 },
    "classes": [
        { "name": "guard", "band": 0, "arrivals": { "type": "poisson", "rate": 1 }, "slo_s": 5, "slo_on_ttft": true,
          "keys": [{ "name": "k", "weight": 1 }], "templates": [{ "tokens": 120, "weight": 1 }],
          "suffix": { "dist": "uniform", "min": 40, "max": 90 }, "out": { "dist": "uniform", "min": 1, "max": 20 } },
        { "name": "lines", "band": 2, "arrivals": { "type": "closed", "n": 400, "at": 0 },
          "keys": [{ "name": "a", "weight": 3 }, { "name": "b", "weight": 1 }],
          "templates": [{ "tokens": 300, "weight": 2 }, { "tokens": 250, "weight": 1 }],
          "suffix": { "dist": "uniform", "min": 20, "max": 90 }, "out": { "dist": "uniform", "min": 5, "max": 20 } }]
}"#;

#[test]
fn every_line_of_a_night_has_one_right_result_while_phones_flap_and_guards_ask() {
    let directory = tempfile::tempdir().expect("a directory");
    let (file, page) = (directory.path().join("night.json"), directory.path().join("night.html"));
    std::fs::write(&file, NIGHT).expect("written");
    let mut program = Command::new(env!("CARGO_BIN_EXE_loadtest"));
    program.args(["live", "--batch-api", "--speedup", "15", "--json", "-", "--html"]).arg(&page).arg(&file);
    let output = program.output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("no JSON: {error}; {said}"));
    let run = &report["batches"][0];
    let ledger = run["ledger"].as_array().expect("a ledger");
    let wrong: Vec<&Value> = ledger.iter().filter(|check| check["wrong"] != 0).collect();
    assert!(output.status.success() && ledger.len() == 7 && wrong.is_empty(), "{wrong:?} {said}");
    let batches = run["batches"].as_array().expect("batches");
    assert_eq!(batches.len(), 2, "each key has its own");
    let lines: u64 = batches.iter().filter_map(|batch| batch["lines"].as_u64()).sum();
    assert_eq!(lines, 400);
    for batch in batches {
        assert_eq!(batch["status"], "completed");
        assert!(batch["bytes"].as_u64() > batch["lines"].as_u64().map(|lines| 1_000 * lines), "{batch}");
        assert!(batch["accepted_s"].as_f64() > Some(0.0) && batch["last_s"].as_f64() > Some(1.0), "{batch}");
    }
    let (slots, busy, wasted) = (&run["slot_s"], &run["busy_slot_s"], &run["wasted_slot_s"]);
    assert!(busy.as_f64() > Some(10.0) && busy.as_f64() <= slots.as_f64() && wasted.as_f64() < busy.as_f64(), "{run}");
    assert!(run["memory"]["running"].as_u64().is_none_or(|bytes| bytes > 1 << 20));
    let lines = &report["live"]["classes"]["lines"];
    assert_eq!((&lines["n"], &lines["unfinished"]), (&400.0.into(), &0.0.into()));
    assert!(lines["makespan_ratio"].as_f64() > Some(0.99) && lines["reuse"].as_f64() > Some(0.3), "{lines}");
    for side in ["live", "simulated"] {
        for with in ["with", "without"] {
            let times = &run["beside"]["classes"][0][side][with];
            assert!(
                times["n"].as_u64() > Some(2) && times["p99"].as_f64() >= times["p50"].as_f64(),
                "{side} {with} {times}"
            );
        }
    }
    let page = std::fs::read_to_string(page).expect("the page is there");
    for plot in ["lines: lines with results", "<h2>Slots</h2>", "<h2>Memory of the gateway</h2>"] {
        assert!(page.contains(plot), "{plot}");
    }
    for tag in ["section", "figure", "svg", "table", "div", "header"] {
        let opened = page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
    }
    assert!(!page.contains("<script"));
}
