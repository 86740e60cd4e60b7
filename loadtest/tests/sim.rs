//! Scenarios in virtual time, as who calls the program sees them.

use serde_json::{Value, json};
use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

fn loadtest(arguments: &[&str], files: &[&Path]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_loadtest"));
    command.args(arguments).args(files).output().expect("the program starts")
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The JSON objects of a successful call.
fn lines(arguments: &[&str], files: &[&Path]) -> Vec<Value> {
    let output = loadtest(arguments, files);
    assert!(output.status.success(), "{}", said(&output));
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().map(|line| serde_json::from_str(line).expect("a JSON object a line")).collect()
}

/// Three phones, guards for some minutes and a batch of reviews.
fn small() -> Value {
    let one = json!([{ "name": "k", "weight": 1 }]);
    json!({
        "name": "small", "seed": 11, "horizon_s": 300, "warmup_s": 30, "why": "Small enough for a test.",
        "model": { "name": "m", "p0": 1107, "c": 3.54e-7, "d1": 60, "kappa": 20000, "beta": 0.304 },
        "detect_s": 15, "ovh_s": 0.1,
        "phones": { "jitter": 0.1, "classes": [
            { "name": "high", "count": 1, "s": 0.5, "q": 0.7, "slots": 2 },
            { "name": "mid", "count": 2, "s": 0.22, "q": 0.37, "slots": 4 },
        ]},
        "classes": [
            { "name": "guard", "band": 0, "keys": one, "templates": [{ "tokens": 120, "weight": 1 }],
              "arrivals": { "type": "poisson", "rate": 0.3 }, "slo_s": 5,
              "suffix": { "dist": "uniform", "min": 40, "max": 250 }, "out": { "dist": "uniform", "min": 1, "max": 20 } },
            { "name": "batch", "band": 2, "keys": one, "templates": [{ "tokens": 2000, "weight": 1 }],
              "arrivals": { "type": "closed", "n": 20, "at": 0 },
              "suffix": { "dist": "uniform", "min": 300, "max": 900 }, "out": { "dist": "uniform", "min": 10, "max": 40 } },
        ],
    })
}

/// A file of its own for a scenario, which lives as long as the directory.
fn file(directory: &tempfile::TempDir, scenario: &Value) -> PathBuf {
    let path = directory.path().join("small.json");
    std::fs::write(&path, serde_json::to_string_pretty(scenario).expect("JSON")).expect("written");
    path
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

#[test]
fn json_has_one_object_a_line_for_each_file_and_policy_with_every_figure() {
    let directory = directory();
    let path = file(&directory, &small());
    let played = lines(&["sim", "--policy", "default,least_connections", "--json"], &[&path, &path]);
    let policies: Vec<&Value> = played.iter().map(|line| &line["policy"]).collect();
    assert_eq!(policies, ["default", "least_connections", "default", "least_connections"]);
    assert_eq!(played[0], played[2], "the same file and policy give the same figures");
    for line in &played {
        assert_eq!((&line["scenario"], &line["seeds"]), (&json!("small"), &json!([0])));
        for class in ["guard", "batch"] {
            let figures = &line["classes"][class];
            for figure in ["mean", "p50", "p99", "ttft_mean", "ttft_p99", "good", "n"] {
                assert!(figures[figure].is_number(), "{class} {figure} in {line}");
            }
            assert!(figures["ttft_mean"].as_f64() < figures["mean"].as_f64());
            assert!(figures["p50"].as_f64() <= figures["p99"].as_f64());
        }
        assert!(line["classes"]["guard"]["makespan_ratio"].is_null(), "an open class has no end: {line}");
        assert!(line["classes"]["batch"]["makespan_ratio"].as_f64() >= Some(1.0), "no policy beats the bound: {line}");
        assert!(line["classes"]["guard"]["mean"].as_f64() >= line["bounds"]["guard"]["mean"].as_f64());
        assert_eq!(line["classes"]["batch"]["n"], 20.0);
        let shares = ["fail", "hedge", "preempt", "cold"].map(|share| line["waste"][share].as_f64());
        assert!(shares.iter().all(|share| share.is_some_and(|share| (0.0..=1.0).contains(&share))), "{line}");
    }
}

#[test]
fn figures_are_means_over_the_seeds() {
    let directory = directory();
    let path = file(&directory, &small());
    let [alone, other, both] =
        ["0", "3", "0,3"].map(|seeds| lines(&["sim", "--seeds", seeds, "--json"], &[&path]).remove(0));
    assert_eq!((&alone["seeds"], &both["seeds"]), (&json!([0]), &json!([0, 3])));
    let places = ["/classes/guard/mean", "/classes/guard/p99", "/classes/batch/makespan_ratio", "/bounds/guard/mean"];
    for place in places {
        let at = |line: &Value| line.pointer(place).and_then(Value::as_f64).expect("a number");
        assert_ne!(at(&alone), at(&other), "{place}: another seed is another draw");
        assert!((at(&both) - (at(&alone) + at(&other)) / 2.0).abs() < 1e-9, "{place}");
    }
}

#[test]
fn people_get_a_table() {
    let directory = directory();
    let path = file(&directory, &small());
    let output = loadtest(&["sim", "--seeds", "0-1"], &[&path]);
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    for part in ["small, mean over seeds 0, 1", "guard", "batch", "makespan", "work in vain"] {
        assert!(said.contains(part), "{part} in {said}");
    }
}

#[test]
fn policies_are_listed_and_an_unknown_one_is_answered_with_the_list() {
    let output = loadtest(&["sim", "--policy", "list"], &[]);
    assert!(output.status.success());
    for name in ["default", "least_connections", "oracle", "fifo_fastest"] {
        assert!(said(&output).contains(name), "{}", said(&output));
    }
    let output = loadtest(&["sim", "--policy", "leastconn", "any.json"], &[]);
    assert_eq!(output.status.code(), Some(64));
    assert!(said(&output).contains("\"leastconn\": expected one of default, oracle, "), "{}", said(&output));
}

#[test]
fn wrong_calls_are_answered_with_usage() {
    for arguments in
        [&["sim"][..], &["compare"], &["replay"], &["sim", "--seeds", "4-0", "x.json"], &["sim", "--check"]]
    {
        let output = loadtest(arguments, &[]);
        assert_eq!(output.status.code(), Some(64), "{arguments:?}: {}", said(&output));
    }
}

#[test]
fn a_file_that_is_no_scenario_is_refused_with_file_line_and_key() {
    let directory = directory();
    let refused = |scenario: &Value, parts: &[&str]| {
        let path = file(&directory, scenario);
        let output = loadtest(&["sim"], &[&path]);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("small.json") && parts.iter().all(|part| said.contains(part)), "{parts:?} in {said}");
    };
    let mut scenario = small();
    scenario["phones"]["colour"] = json!("red");
    refused(&scenario, &["unknown field `colour`", "line "]);
    let mut scenario = small();
    scenario["horizon_s"] = json!(0);
    refused(&scenario, &["horizon_s: is 0: expected a number above 0"]);
    let live = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios/smoke.toml");
    assert!(said(&loadtest(&["sim"], &[&live])).contains("for `loadtest live`"));
    let missing = said(&loadtest(&["sim"], &[Path::new("missing.json")]));
    assert!(missing.starts_with("loadtest: missing.json: "), "{missing}");
}

#[test]
fn figures_are_checked_against_the_ranges_of_the_file() {
    let directory = directory();
    let mean = |line: &Value| line["classes"]["guard"]["mean"].as_f64().expect("a number");
    let mut scenario = small();
    let path = file(&directory, &scenario);
    let mean = mean(&lines(&["sim", "--seeds", "0,1", "--json"], &[&path])[0]);
    scenario["seeds"] = json!([0, 1]);
    scenario["ranges"] = json!({ "default": { "guard": { "mean": [mean - 1e-6, mean + 1e-6], "p99": [0, 1e6] } } });
    let output = loadtest(&["sim", "--check"], &[&file(&directory, &scenario)]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("2 of 2 figures are within their ranges"), "{}", said(&output));

    scenario["ranges"]["default"]["guard"]["mean"] = json!([0, mean / 2.0]);
    let output = loadtest(&["sim", "--check"], &[&file(&directory, &scenario)]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("small, default: guard mean is "), "{}", said(&output));
    assert!(said(&output).contains("1 of 2 figures"), "{}", said(&output));

    // A file that states nothing is passed over beside one that does, and is an error alone.
    let silent = directory.path().join("silent.json");
    std::fs::write(&silent, small().to_string()).expect("written");
    scenario["ranges"]["default"]["guard"]["mean"] = json!([0, 1e6]);
    let output = loadtest(&["sim", "--check"], &[&silent, &file(&directory, &scenario)]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("silent.json: has no \"ranges\""), "{}", said(&output));

    for (ranges, why) in [
        (json!({}), "expected at least one file with \"ranges\""),
        (json!({ "default": { "guard": { "meen": [0, 1] } } }), "ranges.default.guard: unknown figure \"meen\""),
        (json!({ "leastconn": { "guard": { "mean": [0, 1] } } }), "ranges.leastconn: unknown player"),
    ] {
        scenario["ranges"] = ranges;
        let output = loadtest(&["sim", "--check"], &[&file(&directory, &scenario)]);
        assert_eq!(output.status.code(), Some(1));
        assert!(said(&output).contains(why), "{why} in {}", said(&output));
    }
}

#[test]
fn a_comparison_has_ratios_and_a_page_that_needs_nothing_but_itself() {
    let directory = directory();
    let path = file(&directory, &small());
    let page = directory.path().join("page.html");
    let html = page.to_str().expect("text");
    let names = "default,least_connections,fifo_fastest";
    let compared = lines(&["compare", "--policies", names, "--seeds", "0,1", "--html", html, "--json"], &[&path]);
    assert_eq!((compared.len(), &compared[0]["scenario"]), (1, &json!("small")));
    let policies = &compared[0]["policies"];
    let guard = |policy: &str, figure: &str| policies[policy]["classes"]["guard"][figure].as_f64().expect("a number");
    let ratio = |policy: &str| policies[policy]["classes"]["guard"]["ratios"]["least_connections"]["mean"].as_f64();
    assert_eq!(ratio("least_connections"), Some(1.0));
    assert_eq!(ratio("default"), Some(guard("default", "mean") / guard("least_connections", "mean")));
    assert!(policies["default"]["classes"]["guard"]["ratios"]["oracle"].is_null(), "it was not played");
    assert!(compared[0]["bounds"]["batch"]["makespan"].is_number() && policies["default"]["waste"]["cold"].is_number());

    let page = std::fs::read_to_string(&page).expect("the page is there");
    for outside in ["<script", "src=", "@import", "url(", "href=\"http"] {
        assert!(!page.contains(outside), "the page needs nothing but itself: {outside}");
    }
    for tag in ["main", "section", "figure", "svg", "table", "div", "header", "style"] {
        let opened = page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
    }
    assert_eq!(page.matches("<svg").count(), 4, "bars and a distribution of each class");
    assert!(names.split(',').all(|name| page.matches(name).count() >= 5));
}

#[test]
fn a_comparison_of_several_scenarios_has_a_table_each_and_an_overview() {
    let directory = directory();
    let path = file(&directory, &small());
    let page = directory.path().join("page.html");
    let output = loadtest(
        &["compare", "--policies", "default,least_connections", "--html", page.to_str().expect("text")],
        &[&path, &path],
    );
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("small, seed 0\n").count(), 2, "{said}");
    assert!(said.contains("× least conn.") && said.contains("Small enough for a test."), "{said}");
    let page = std::fs::read_to_string(&page).expect("the page is there");
    assert!(page.contains("Policies on 2 scenarios") && page.contains("Times the bound"));
}
