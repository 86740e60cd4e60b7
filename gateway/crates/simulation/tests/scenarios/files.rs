//! The scenario files that are shipped with the load test.

use std::path::{Path, PathBuf};

use serde_json::Value;
use simulation::scenario::Scenario;

/// With this variable set to `all`, every file is played, the large ones included: minutes, and better in a release build.
const VARIABLE: &str = "HUNTGROUP_SCENARIOS";

/// All scenarios, and their files as they stand.
pub fn all() -> Vec<(Scenario, Value)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../loadtest/scenarios/sim");
    let files = std::fs::read_dir(folder).expect("the scenarios' folder");
    let mut paths: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    paths.iter().map(|path| read(path)).collect()
}

fn read(path: &Path) -> (Scenario, Value) {
    let text = std::fs::read_to_string(path).expect("a scenario");
    let scenario = Scenario::from_json(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    (scenario, serde_json::from_str(&text).expect("JSON"))
}

/// Everything is to be played, however long it takes.
pub fn everything() -> bool {
    std::env::var(VARIABLE).is_ok_and(|value| value == "all")
}
