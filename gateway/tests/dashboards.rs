//! Holds dashboards, alert rules, runbook and the page about metrics against the metrics that exist.
//!
//! A panel that asks for a metric nobody emits is empty for ever and nobody notices; an alert on one never fires. So every
//! expression is read here, name by name and label by label. `gateway/tests/e2e/test_prometheus.py` runs them all.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
};

use huntgroup::{
    batch::WaitsFor,
    telemetry::names::{ALL, Audience, CONTINUATIONS_BY_OUTCOME, Kind, LINES_BY_OUTCOME, Metric},
};
use scheduler::{ChangeReason, Class, Decision, ReplicaState};
use serde_json::Value;
use store::BatchState;

const DASHBOARDS: [&str; 5] = [
    "dashboards/overview.json",
    "dashboards/fleet.json",
    "dashboards/batches.json",
    "dashboards/tenants.json",
    "dashboards/cost.json",
];
const ALERTS: &str = "dashboards/alerts.yaml";
/// Run by promtool in `gateway/tests/e2e/test_prometheus.py`.
const STORIES: &str = "dashboards/alerts_test.yaml";
const RUNBOOK: &str = "gateway/docs/runbook.md";
const METRICS: &str = "gateway/docs/metrics.md";

/// Labels that Prometheus adds.
const SCRAPED: [&str; 2] = ["instance", "job"];

fn read(path: &str) -> String {
    let full = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    fs::read_to_string(&full).unwrap_or_else(|error| panic!("{}: {error}", full.display()))
}

// --- expressions ---

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Word(String),
    Text(String),
    Sign(char),
}

/// PromQL, as far as names go: words, strings, signs. Numbers and durations become words that start with a digit.
fn tokens(expression: &str) -> Vec<Token> {
    let mut found = Vec::new();
    let mut rest = expression.chars().peekable();
    while let Some(first) = rest.next() {
        if first == '"' {
            let mut text = String::new();
            while let Some(next) = rest.next() {
                match next {
                    '"' => break,
                    '\\' => text.extend(rest.next()),
                    other => text.push(other),
                }
            }
            found.push(Token::Text(text));
        } else if first.is_ascii_alphanumeric() || "_:$.".contains(first) {
            let mut word = String::from(first);
            while let Some(next) = rest.next_if(|next| next.is_ascii_alphanumeric() || "_:.".contains(*next)) {
                word.push(next);
            }
            found.push(Token::Word(word));
        } else if !first.is_whitespace() {
            found.push(Token::Sign(first));
        }
    }
    found
}

/// One use of a metric: its name as written, and its matchers (label, operator, value).
#[derive(Debug)]
struct Selector {
    name: String,
    matchers: Vec<(String, String, String)>,
}

/// The selectors of an expression, and the labels it groups or joins by.
fn read_expression(expression: &str) -> (Vec<Selector>, Vec<String>) {
    const GROUPING: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];
    const OPERATORS: [&str; 6] = ["and", "or", "unless", "bool", "offset", "atan2"];
    let tokens = tokens(expression);
    let sign = |at: usize, sign: char| tokens.get(at) == Some(&Token::Sign(sign));
    let (mut selectors, mut grouped) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            Token::Word(word) if GROUPING.contains(&word.as_str()) => {
                let close = (at..tokens.len()).find(|at| sign(*at, ')')).expect("a grouping is closed");
                grouped.extend(words(&tokens[at + 1..close]));
                at = close;
            }
            // A range or a subquery.
            Token::Sign('[') => at = (at..tokens.len()).find(|at| sign(*at, ']')).expect("a range is closed"),
            Token::Word(word) => {
                let number = word.starts_with(|first: char| first.is_ascii_digit() || first == '.');
                // A function, or an aggregation with its grouping before the argument.
                let call = sign(at + 1, '(')
                    || matches!(tokens.get(at + 1), Some(Token::Word(next)) if GROUPING.contains(&next.as_str()) && next != "on");
                if !number && !OPERATORS.contains(&word.as_str()) && !call {
                    let (matchers, end) = if sign(at + 1, '{') { matchers(&tokens, at + 2) } else { (Vec::new(), at) };
                    selectors.push(Selector { name: word.clone(), matchers });
                    at = end;
                }
            }
            _ => {}
        }
        at += 1;
    }
    (selectors, grouped)
}

fn words(tokens: &[Token]) -> impl Iterator<Item = String> {
    tokens.iter().filter_map(|token| if let Token::Word(word) = token { Some(word.clone()) } else { None })
}

/// The matchers from `at` up to the closing brace, whose place is returned.
fn matchers(tokens: &[Token], mut at: usize) -> (Vec<(String, String, String)>, usize) {
    let mut found = Vec::new();
    while tokens[at] != Token::Sign('}') {
        if let Token::Word(label) = &tokens[at] {
            let mut operator = String::new();
            while let Some(Token::Sign(sign)) = tokens.get(at + 1) {
                operator.push(*sign);
                at += 1;
            }
            let Token::Text(value) = &tokens[at + 1] else { panic!("{label} is matched with no string") };
            found.push((label.clone(), operator, value.clone()));
            at += 1;
        }
        at += 1;
    }
    (found, at)
}

/// The metric behind a name as written, and whether it is a histogram's bucket.
fn metric(name: &str) -> Option<(&'static Metric, bool)> {
    for metric in ALL {
        match metric.kind {
            Kind::Histogram(_) => {
                if let Some(part) = name.strip_prefix(metric.name)
                    && ["_bucket", "_sum", "_count"].contains(&part)
                {
                    return Some((metric, part == "_bucket"));
                }
            }
            Kind::Counter | Kind::Gauge if name == metric.name => return Some((metric, false)),
            Kind::Counter | Kind::Gauge => {}
        }
    }
    None
}

/// The values a label can have, where the set is fixed.
fn known_values(metric: &str, label: &str) -> Option<Vec<&'static str>> {
    let states = || ReplicaState::ALL.iter().map(|state| state.name()).collect();
    match (metric, label) {
        ("huntgroup_replicas", "state") | ("huntgroup_replica_state_changes_total", "to") => Some(states()),
        ("huntgroup_replica_slots", "state") => Some(vec!["busy", "lingering", "foreign", "free"]),
        ("huntgroup_replica_state_changes_total", "reason") => {
            let used = [ChangeReason::HardFailure, ChangeReason::SoftFailure, ChangeReason::RelayDown];
            Some(used.iter().map(|reason| reason.name()).collect())
        }
        ("huntgroup_requests_in_flight_age_seconds", "phase") => Some(vec!["queued", "running"]),
        ("huntgroup_decisions_total", "decision") => Some(Decision::ALL.iter().map(|kind| kind.name()).collect()),
        ("huntgroup_hedges_total", "outcome") => Some(vec!["lost", "won"]),
        ("huntgroup_continuations_total", "outcome") => Some(CONTINUATIONS_BY_OUTCOME.to_vec()),
        ("huntgroup_batches", "state") => {
            Some(BatchState::ALL.iter().filter(|state| !state.is_terminal()).map(|state| state.name()).collect())
        }
        ("huntgroup_batches_waiting", "reason") => Some(WaitsFor::ALL.iter().map(|what| what.name()).collect()),
        ("huntgroup_batch_lines", "state") => Some(vec!["waiting", "running", "completed", "failed"]),
        ("huntgroup_batch_lines_ended_total", "outcome") => Some(LINES_BY_OUTCOME.to_vec()),
        ("huntgroup_store_failures_total", "store") => Some(vec!["state", "batches"]),
        ("huntgroup_tokens_total" | "huntgroup_tenant_tokens_total", "direction") => Some(vec!["prompt", "completion"]),
        (_, "class") => Some(Class::ALL.iter().map(|class| class.name()).collect()),
        _ => None,
    }
}

/// Everything in the expression that does not exist.
fn mistakes(expression: &str) -> Vec<String> {
    let (selectors, grouped) = read_expression(expression);
    let mut wrong = Vec::new();
    let mut labels: BTreeSet<&str> = SCRAPED.into_iter().collect();
    for selector in &selectors {
        if selector.name == "up" {
            continue;
        }
        let Some((metric, bucket)) = metric(&selector.name) else {
            wrong.push(format!("no metric {}", selector.name));
            continue;
        };
        labels.extend(metric.labels);
        if bucket {
            labels.insert("le");
        }
        for (label, _, value) in &selector.matchers {
            let exists = metric.labels.contains(&label.as_str())
                || SCRAPED.contains(&label.as_str())
                || (bucket && label == "le");
            if !exists {
                wrong.push(format!("{} has no label {label}", selector.name));
            }
            if value.starts_with('$') {
                continue;
            }
            for value in value.split('|') {
                if known_values(metric.name, label).is_some_and(|known| !known.contains(&value)) {
                    wrong.push(format!("{label} of {} is never {value:?}", metric.name));
                }
                if label == "le" && !has_bucket(metric, value) {
                    wrong.push(format!("{} has no bucket {value}", metric.name));
                }
            }
        }
    }
    if selectors.is_empty() {
        wrong.push("asks for no metric".to_owned());
    }
    wrong.extend(
        grouped
            .iter()
            .filter(|label| !labels.contains(label.as_str()))
            .map(|label| format!("groups by unknown label {label}")),
    );
    wrong
}

fn has_bucket(metric: &Metric, bound: &str) -> bool {
    matches!(metric.kind, Kind::Histogram(buckets) if bound.parse().is_ok_and(|bound| buckets.contains(&bound)))
}

// --- files ---

struct Panel {
    title: String,
    place: [i64; 4],
    json: Value,
    expressions: Vec<String>,
}

fn panels(path: &str) -> Vec<Panel> {
    let dashboard: Value = serde_json::from_str(&read(path)).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels").iter();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    panels
        .map(|panel| Panel {
            title: text(&panel["title"]),
            place: ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_i64().expect("a place")),
            expressions: panel["targets"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|target| text(&target["expr"]))
                .collect(),
            json: panel.clone(),
        })
        .collect()
}

#[derive(Debug)]
struct Alert {
    name: String,
    expression: String,
    runbook: String,
    summary: String,
    severity: String,
}

/// The rules, whose file says that each value stands on one line.
fn alerts() -> Vec<Alert> {
    let text = read(ALERTS);
    let value = |block: &str, key: &str| {
        let line = block.lines().find_map(|line| line.trim().strip_prefix(key)?.strip_prefix(": "));
        line.unwrap_or_else(|| panic!("no {key} in {block}")).trim().trim_matches('"').to_owned()
    };
    let blocks = text.split("- alert: ").skip(1);
    blocks
        .map(|block| Alert {
            name: block.lines().next().unwrap_or_default().trim().to_owned(),
            expression: value(block, "expr"),
            runbook: value(block, "runbook_url"),
            summary: value(block, "summary"),
            severity: value(block, "labels"),
        })
        .collect()
}

fn headings(text: &str, level: &str) -> Vec<String> {
    text.lines().filter_map(|line| line.strip_prefix(level)?.strip_prefix(' ')).map(str::to_owned).collect()
}

/// The anchor that a heading gets on GitHub and GitLab.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|each| each.is_alphanumeric() || " -_".contains(*each));
    kept.map(|each| if each == ' ' { '-' } else { each.to_ascii_lowercase() }).collect()
}

// --- promises ---

#[test]
fn the_reader_of_expressions_finds_every_kind_of_mistake() {
    let fine = r#"topk(3, sum by (le, class) (rate(huntgroup_queue_wait_seconds_bucket{le=~"30|30.0",class="batch"}[5m:1m]))) / on (instance) group_left () (up > 1e3)"#;
    assert_eq!(mistakes(fine), Vec::<String>::new());
    for (expression, mistake) in [
        ("rate(huntgroup_request_total[5m])", "no metric huntgroup_request_total"),
        ("huntgroup_queue_wait_seconds", "no metric huntgroup_queue_wait_seconds"),
        (r#"huntgroup_shed_total{cause="x"}"#, "huntgroup_shed_total has no label cause"),
        (r#"huntgroup_replicas{state=~"ready|alive"}"#, r#"state of huntgroup_replicas is never "alive""#),
        (r#"huntgroup_queue_wait_seconds_bucket{le="31"}"#, "huntgroup_queue_wait_seconds has no bucket 31"),
        ("sum by (model) (huntgroup_shed_total)", "groups by unknown label model"),
        ("vector(0)", "asks for no metric"),
    ] {
        assert_eq!(mistakes(expression), [mistake], "{expression}");
    }
}

#[test]
fn every_expression_asks_for_metrics_and_labels_that_exist() {
    let mut wrong = Vec::new();
    for path in DASHBOARDS {
        for panel in panels(path) {
            for expression in &panel.expressions {
                wrong.extend(
                    mistakes(expression).into_iter().map(|mistake| format!("{path}, {}: {mistake}", panel.title)),
                );
            }
        }
    }
    for alert in alerts() {
        wrong.extend(mistakes(&alert.expression).into_iter().map(|mistake| format!("{}: {mistake}", alert.name)));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_metric_for_operators_is_on_a_dashboard() {
    let mut shown = BTreeSet::new();
    for panel in DASHBOARDS.into_iter().flat_map(panels) {
        for expression in &panel.expressions {
            shown.extend(
                read_expression(expression).0.iter().filter_map(|selector| Some(metric(&selector.name)?.0.name)),
            );
        }
    }
    let missing: Vec<_> = ALL
        .iter()
        .filter(|metric| metric.audience == Audience::Operator && !shown.contains(metric.name))
        .map(|metric| metric.name)
        .collect();
    assert!(missing.is_empty(), "on no dashboard: {missing:?}");
}

#[test]
fn every_panel_asks_a_question_and_has_a_place_of_its_own() {
    for path in DASHBOARDS {
        let panels = panels(path);
        let (mut titles, mut ids) = (BTreeSet::new(), BTreeSet::new());
        for panel in &panels {
            assert!(titles.insert(&panel.title), "{path}: two panels {:?}", panel.title);
            assert!(ids.insert(panel.json["id"].as_i64().expect("an id")), "{path}: {} shares its id", panel.title);
            let [x, y, w, h] = panel.place;
            assert!(x >= 0 && x + w <= 24, "{path}: {} leaves the grid", panel.title);
            for other in panels.iter().filter(|other| other.title != panel.title) {
                let [ox, oy, ow, oh] = other.place;
                let apart = x + w <= ox || ox + ow <= x || y + h <= oy || oy + oh <= y;
                assert!(apart, "{path}: {:?} covers {:?}", panel.title, other.title);
            }
            if panel.json["type"] == "row" {
                continue;
            }
            assert!(panel.title.ends_with('?'), "{path}: {:?} asks nothing", panel.title);
            assert!(!panel.expressions.is_empty(), "{path}: {} shows nothing", panel.title);
            assert!(
                panel.json["description"].as_str().is_some_and(|text| text.ends_with('.')),
                "{path}: {}",
                panel.title
            );
            assert_eq!(panel.json["datasource"]["uid"], "${datasource}", "{path}: {}", panel.title);
        }
    }
}

#[test]
fn every_alert_has_its_runbook_section_and_every_section_its_alert() {
    let runbook = read(RUNBOOK);
    let sections = headings(&runbook, "##");
    let alerts = alerts();
    assert!(alerts.len() >= 10, "the rules were not read: {alerts:?}");
    let stories = read(STORIES);
    let names: Vec<_> = alerts.iter().map(|alert| alert.name.clone()).collect();
    assert_eq!(names, sections, "alerts and sections, in the same order");
    for alert in &alerts {
        assert_eq!(alert.runbook, format!("{RUNBOOK}#{}", anchor(&alert.name)), "{}", alert.name);
        assert!(alert.summary.ends_with('.'), "{} has no summary", alert.name);
        assert!(
            stories.contains(&format!("- alertname: {}\n", alert.name)),
            "{} has no story in {STORIES}",
            alert.name
        );
        assert!(["{severity: critical}", "{severity: warning}"].contains(&alert.severity.as_str()), "{alert:?}");
    }
    for section in runbook.split("\n## ").skip(1) {
        for part in ["**Means.** ", "**Look at.** ", "**Do.** "] {
            assert!(section.contains(part), "{} lacks {part}", section.lines().next().unwrap_or_default());
        }
    }
}

#[test]
fn links_and_panel_titles_in_the_documents_lead_somewhere() {
    let titles: BTreeSet<String> = DASHBOARDS.into_iter().flat_map(panels).map(|panel| panel.title).collect();
    let anchors = |text: &str| -> BTreeSet<String> {
        ["#", "##", "###"].iter().flat_map(|level| headings(text, level)).map(|heading| anchor(&heading)).collect()
    };
    for path in [RUNBOOK, METRICS] {
        let text = read(path);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (page, target) = link.split_once('#').map_or((link, None), |(page, target)| (page, Some(target)));
            let page = if page.is_empty() { text.clone() } else { read(&format!("gateway/docs/{page}")) };
            assert!(target.is_none_or(|target| anchors(&page).contains(target)), "{path}: {link} leads nowhere");
        }
    }
    let runbook = read(RUNBOOK).replace('\n', " ").replace("**", "");
    let quoted: Vec<_> = runbook.split('*').skip(1).step_by(2).filter(|text| text.ends_with('?')).collect();
    assert!(quoted.len() > 20, "the quoted titles were not found");
    for title in quoted {
        assert!(titles.contains(title), "the runbook sends to {title:?}, which is no panel");
    }
}

#[test]
fn the_page_about_metrics_lists_exactly_those_that_exist() {
    let page = read(METRICS);
    let mut listed = BTreeMap::new();
    for section in page.split("\n### ").skip(1) {
        let mut lines = section.lines();
        let name = lines.next().unwrap_or_default().trim_matches('`').to_owned();
        let signature = lines.next().unwrap_or_default().to_owned();
        let text: String = lines.skip_while(|line| line.is_empty()).take_while(|line| !line.starts_with('#')).collect();
        assert!(text.len() > 30, "{name} is not explained");
        assert!(listed.insert(name.clone(), signature).is_none(), "{name} stands there twice");
    }
    let exist: BTreeMap<_, _> = ALL
        .iter()
        .map(|metric| {
            let kind = match metric.kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Histogram(_) => "histogram",
            };
            let labels = if metric.labels.is_empty() { "none".to_owned() } else { metric.labels.join(", ") };
            (metric.name.to_owned(), format!("{kind}: {labels}"))
        })
        .collect();
    assert_eq!(listed, exist);
    for reason in scheduler_reasons() {
        assert!(page.contains(&format!("`{reason}`")), "reason {reason} of a state change is not explained");
    }
    let (_, decisions) = page.split_once("### `huntgroup_decisions_total`").expect("its section");
    let decisions = decisions.split("\n### ").next().unwrap_or_default();
    for decision in Decision::ALL {
        assert!(decisions.contains(&format!("`{}`", decision.name())), "{} is not explained", decision.name());
    }
}

fn scheduler_reasons() -> Vec<&'static str> {
    [
        ChangeReason::Probe,
        ChangeReason::HardFailure,
        ChangeReason::SoftFailure,
        ChangeReason::PenaltyOver,
        ChangeReason::Success,
        ChangeReason::Operator,
        ChangeReason::Loading,
        ChangeReason::Misconfigured,
        ChangeReason::RelayDown,
        ChangeReason::PoolProtection,
        ChangeReason::Moved,
        ChangeReason::Unproven,
        ChangeReason::Proven,
        ChangeReason::Ending,
        ChangeReason::Moved,
    ]
    .iter()
    .map(|reason| reason.name())
    .collect()
}

#[test]
fn metric_names_are_written_in_one_file_only() {
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut folders = vec![source.clone()];
    let mut read = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|kind| kind == "rs") {
                read += 1;
                let text = fs::read_to_string(&path).expect("a source file");
                let home = path.ends_with("telemetry/names.rs") || path.ends_with("telemetry/tests.rs");
                let written = ALL.iter().find(|metric| text.contains(&format!("{}\"", metric.name)));
                assert!(
                    home || written.is_none(),
                    "{} writes {}",
                    path.display(),
                    written.map_or("", |metric| metric.name)
                );
            }
        }
    }
    assert!(read > 5, "the sources were not found below {}", source.display());
}
