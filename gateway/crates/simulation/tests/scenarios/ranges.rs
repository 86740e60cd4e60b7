//! Scenario files are tests: each may state, by player, class and figure, where the mean over its seeds has to lie.

use simulation::{
    play::{ClassFigures, Player, Run},
    scenario::Scenario,
};

use crate::files;

/// What is outside its range, or does not exist.
fn check(scenario: &Scenario, mistakes: &mut Vec<String>) {
    let runs: Vec<Run<'_>> = scenario.seeds.iter().map(|seed| Run::new(scenario, *seed)).collect();
    for (name, classes) in &scenario.ranges {
        let player = Player::named(name).unwrap_or_else(|error| panic!("{}: {error}", scenario.name));
        let plays: Vec<_> = runs.iter().map(|run| run.play(&player)).collect();
        for (class, figures) in classes {
            let of_class = |figure: &str| -> Option<f64> {
                let found = |classes: &[ClassFigures]| classes.iter().find(|known| known.name == *class)?.get(figure);
                let values: Option<Vec<f64>> = plays.iter().map(|played| found(&played.classes)).collect();
                values.map(|values| values.iter().sum::<f64>() / values.len() as f64)
            };
            for (figure, [low, high]) in figures {
                let at = format!("{} {name} {class} {figure}", scenario.name);
                match of_class(figure) {
                    Some(mean) if (*low..=*high).contains(&mean) => {}
                    Some(mean) => mistakes.push(format!("{at} is {mean}, expected {low} to {high}")),
                    None => mistakes
                        .push(format!("{at}: no such figure, expected one of {}", ClassFigures::FIGURES.join(", "))),
                }
            }
        }
    }
}

#[test]
fn figures_are_within_the_ranges_that_their_files_state() {
    let mut mistakes = Vec::new();
    let mut checked = 0;
    for (scenario, _) in files::all() {
        if !scenario.ranges.is_empty() && (scenario.ci || files::everything()) {
            check(&scenario, &mut mistakes);
            checked += 1;
        }
    }
    assert!(checked > 0, "no file is marked \"ci\" and states ranges");
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}

#[test]
fn a_figure_outside_its_range_and_one_that_does_not_exist_are_found() {
    let (mut scenario, _) =
        files::all().into_iter().find(|(scenario, _)| scenario.name == "dev-review-10-50").expect("it");
    let impossible = [("mean", [0.0, 1.0]), ("median", [0.0, 1e9])].map(|(figure, range)| (figure.to_owned(), range));
    let classes = [("reviewer".to_owned(), impossible.into())];
    scenario.ranges = [("fifo_fastest".to_owned(), classes.into())].into();
    let mut mistakes = Vec::new();
    check(&scenario, &mut mistakes);
    assert_eq!(mistakes.len(), 2, "{mistakes:?}");
    assert!(mistakes[0].contains("expected 0 to 1") && mistakes[1].contains("no such figure"), "{mistakes:?}");
}
