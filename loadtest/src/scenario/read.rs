//! From a scenario's text to a [`Scenario`], or to everything that is wrong with it.

use super::{
    Scenario, StepAt,
    expect::read_expectations,
    fleet::{Pick, Step, read_fleet, read_steps},
    table::{Gathered, Mistake, Table},
    work::read_class,
};
use std::collections::BTreeSet;
use toml::de::DeTable;

/// Reads a scenario.
///
/// # Errors
/// Every mistake, by line.
pub(crate) fn read(text: &str) -> Result<Scenario, Vec<Mistake>> {
    let gathered = Gathered::new(text);
    let (table, broken) = DeTable::parse_recoverable(text);
    for error in broken {
        gathered.add(error.span().map_or(0, |span| span.start), "", format_args!("not TOML: {}", error.message()));
    }
    let scenario = read_root(Table::new(table.get_ref(), String::new(), 0, &gathered));
    let mistakes = gathered.into_sorted();
    if mistakes.is_empty() { Ok(scenario) } else { Err(mistakes) }
}

fn read_root(root: Table<'_>) -> Scenario {
    for key in ["name", "why", "duration", "fleet", "classes"] {
        root.demand(key);
    }
    let classes: Vec<_> = root.tables("classes").into_iter().map(read_class).collect();
    let names: Vec<String> = classes.iter().map(|class| class.name.clone()).collect();
    let scenario = Scenario {
        name: root.text("name").unwrap_or_default(),
        why: root.text("why").unwrap_or_default().trim().to_owned(),
        seed: root.count("seed", 0..=u64::from(u32::MAX)).unwrap_or(1),
        duration_s: root.seconds("duration").unwrap_or(1.0),
        warmup_s: root.seconds("warmup").unwrap_or(0.0),
        timeout_s: root.seconds("timeout").unwrap_or(120.0),
        fleet: root.table("fleet").map(read_fleet).unwrap_or_default(),
        steps: read_steps(&root),
        expect: read_expectations(&root, &names),
        classes,
    };
    check(&root, &scenario);
    root.close();
    scenario
}

/// What no single key can tell.
fn check(root: &Table<'_>, scenario: &Scenario) {
    if scenario.duration_s <= 0.0 {
        root.wrong_at("duration", "must be above 0");
    }
    if scenario.warmup_s >= scenario.duration_s {
        root.wrong_at("warmup", "must be shorter than the duration");
    }
    let safe = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !scenario.name.chars().all(safe) {
        root.wrong_at("name", "expected letters, digits, - and _");
    }
    for (what, names) in [
        ("classes", scenario.classes.iter().map(|class| &class.name).collect::<Vec<_>>()),
        ("fleet", scenario.fleet.groups.iter().map(|group| &group.name).collect()),
    ] {
        let mut seen = BTreeSet::new();
        for name in names.into_iter().filter(|name| !seen.insert(name.as_str())) {
            root.wrong_at(what, format_args!("the name {name:?} stands twice"));
        }
    }
    for class in &scenario.classes {
        if !scenario.fleet.groups.iter().any(|group| group.model == class.model) {
            root.wrong_at("classes", format_args!("{}: no phones serve the model {:?}", class.name, class.model));
        }
    }
    for StepAt { at_s, step } in &scenario.steps {
        check_step(root, scenario, *at_s, step);
    }
}

fn check_step(root: &Table<'_>, scenario: &Scenario, at_s: f64, step: &Step) {
    if at_s > scenario.duration_s {
        root.wrong_at("steps", format_args!("the step at {at_s} s comes after the end"));
    }
    let pick: Option<&Pick> = match step {
        Step::Fail { phones, .. } | Step::Drain(phones) | Step::Add(phones) | Step::Remove(phones) => Some(phones),
        Step::Heal | Step::RelayDown { .. } | Step::Undrain => None,
    };
    if let Some(group) = pick.and_then(|pick| pick.group.as_ref())
        && !scenario.fleet.groups.iter().any(|known| known.name == *group)
    {
        root.wrong_at("steps", format_args!("the step at {at_s} s picks phones of {group:?}, which is no group"));
    }
    if matches!(step, Step::Fail { ways, .. } if ways.is_empty()) {
        root.wrong_at("steps", format_args!("the step at {at_s} s has no way to fail"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Arrivals, Length, Statistic, Total};

    const GOOD: &str = r#"
name = "small"
why = "It is read."
duration = "10s"
[fleet]
time_scale = 20
[[fleet.phones]]
name = "mid"
count = 4
model = "m"
speed = "0.8b*0.5"
slots = 2
[[classes]]
name = "chat"
class = "interactive"
model = "m"
arrivals = { poisson = 5 }
prompt = [10, 20]
answer = { mean = 30, sigma = 0.5 }
[[steps]]
at = "5s"
do = "fail"
phones = "50%"
ways = ["kill", "tls_stall", { fault = "cut_after", chunks = 3 }]
for = "2s"
[expect]
errors = 0
[expect.classes.chat]
ttft_p99 = { max = 2 }
"#;

    #[test]
    fn a_scenario_is_read_whole() {
        let scenario = read(GOOD).expect("a good scenario");
        assert_eq!((scenario.fleet.len(), scenario.fleet.time_scale), (4, 20.0));
        assert_eq!(scenario.classes[0].arrivals, Arrivals::Poisson { rate: 5.0 });
        assert_eq!(scenario.classes[0].prompt, Length::Uniform { min: 10.0, max: 20.0 });
        let Step::Fail { ways, for_s, .. } = &scenario.steps[0].step else { panic!("not a failure") };
        assert_eq!((ways.len(), ways[0].is_none(), *for_s), (3, true, Some(2.0)));
        assert_eq!(scenario.expect.len(), 2);
        assert_eq!(scenario.expect[0].statistic, Statistic::Total(Total::Errors));
        assert!(!scenario.expect[0].bound.holds(1.0) && scenario.expect[1].bound.holds(2.0));
    }

    #[test]
    fn every_mistake_is_told_with_its_line_and_key() {
        let bad = r#"
name = "no spaces"
why = "x"
duration = "soon"
colour = "red"
[fleet]
[[fleet.phones]]
name = "mid"
count = 0
model = "m"
speed = "7b"
dialect = "klingon"
[[classes]]
name = "chat"
class = "vip"
model = "other"
arrivals = { poisson = 5, clients = 3 }
prompt = [20, 10]
[[steps]]
at = "5s"
do = "fail"
phones = "most"
ways = ["explode"]
[[steps]]
at = "1s"
do = "drain"
phones = 1
group = "none"
[expect]
mistakes = 0
[expect.classes.chat]
p98 = { max = 1 }
[expect.classes.nobody]
"#;
        let mistakes = read(bad).expect_err("many mistakes");
        let told: Vec<(usize, &str)> = mistakes.iter().map(|one| (one.line, one.key.as_str())).collect();
        let expected = [
            (2, "name"),
            (4, "duration"),
            (5, "colour"),
            (9, "fleet.phones[0].count"),
            (11, "fleet.phones[0].speed"),
            (12, "fleet.phones[0].dialect"),
            (13, "classes"),
            (13, "classes[0].answer"),
            (15, "classes[0].class"),
            (17, "classes[0].arrivals"),
            (18, "classes[0].prompt"),
            (19, "steps"),
            (22, "steps[0].phones"),
            (23, "steps[0].ways[0]"),
            (30, "expect.mistakes"),
            (32, "expect.classes.chat.p98"),
            (33, "expect.classes.nobody"),
        ];
        assert_eq!(told, expected, "{mistakes:#?}");
    }

    #[test]
    fn broken_toml_is_told_with_its_line() {
        let mistakes = read("name = \"x\"\nwhy = \n").expect_err("broken");
        assert!(mistakes.iter().any(|one| one.line == 2 && one.why.starts_with("not TOML")), "{mistakes:?}");
    }

    #[test]
    fn every_scenario_of_the_project_is_read_and_says_what_it_expects() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");
        let mut count = 0;
        let paths = std::fs::read_dir(directory).expect("the scenarios").map(|entry| entry.expect("a file").path());
        for path in paths.filter(|path| path.extension().is_some_and(|extension| extension == "toml")) {
            let text = std::fs::read_to_string(&path).expect("text");
            let scenario = read(&text).unwrap_or_else(|mistakes| panic!("{}: {mistakes:#?}", path.display()));
            assert_eq!(Some(scenario.name.as_str()), path.file_stem().and_then(|name| name.to_str()));
            assert!(text.starts_with('#') && !scenario.expect.is_empty(), "{}", path.display());
            count += 1;
        }
        assert!(count >= 7, "{count}");
    }
}
