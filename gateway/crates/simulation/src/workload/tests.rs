//! The draws are those of the published definition: every scenario file that states a digest reproduces it.

use std::path::Path;

use serde_json::Value;

use super::*;

/// The files that are shipped, read and as they stand.
pub(crate) fn scenarios() -> Vec<(Scenario, Value)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../loadtest/scenarios/sim");
    let files = std::fs::read_dir(folder).expect("the scenarios' folder");
    let mut paths: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    assert!(paths.len() >= 24, "{} scenarios", paths.len());
    let read = |path| {
        let text = std::fs::read_to_string(path).expect("a scenario");
        let scenario = Scenario::from_json(&text).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        (scenario, serde_json::from_str(&text).expect("JSON"))
    };
    paths.iter().map(read).collect()
}

fn rounded(value: f64, places: i32) -> f64 {
    let scale = 10f64.powi(places);
    (value * scale).round() / scale
}

#[test]
fn every_digest_is_reproduced() {
    let mut checked = 0;
    for (scenario, file) in scenarios() {
        let Some(digest) = file["expect"]["digest"].as_array() else { continue };
        checked += 1;
        let workload = Workload::draw(&scenario, 0);
        for (index, class) in scenario.classes.iter().enumerate() {
            let requests: Vec<&Request> = workload.of_class(index).map(|(_, request)| request).collect();
            let arrivals: Vec<f64> = requests.iter().filter_map(|request| request.arrival()).collect();
            let expected = &digest[index];
            let sum =
                |tokens: fn(&Request) -> u32| requests.iter().map(|request| u64::from(tokens(request))).sum::<u64>();
            assert_eq!(expected["class"].as_str(), Some(class.name.as_str()));
            let counts = (requests.len() as u64, sum(|request| request.prompt.tokens()), sum(|request| request.output));
            let stated = ["n", "sum_in", "sum_out"].map(|key| expected[key].as_u64().expect("a count"));
            assert_eq!(counts, stated.into(), "{} {}", scenario.name, class.name);
            let ends = [arrivals.first(), arrivals.last()].map(|time| time.map(|time| rounded(*time, 6)));
            assert_eq!(ends, ["first_arrival", "last_arrival"].map(|key| expected[key].as_f64()), "{}", scenario.name);
        }
        let expected = digest.last().expect("the phones' digest");
        assert_eq!(Some(workload.phones.len() as u64), expected["phones"].as_u64());
        let speeds: f64 = workload.phones.iter().map(|phone| phone.prefill_factor).sum();
        let up: f64 = workload.timelines.iter().map(|timeline| timeline.full_seconds(scenario.horizon_s)).sum();
        assert_eq!(Some(rounded(speeds, 6)), expected["sum_s"].as_f64(), "{}", scenario.name);
        assert_eq!(Some(rounded(up, 3)), expected["sum_fac"].as_f64(), "{}", scenario.name);
    }
    assert!(checked >= 20, "{checked} digests");
}

#[test]
fn another_run_draws_other_requests_on_the_same_kinds_of_phones() {
    let (scenario, _) = scenarios().swap_remove(0);
    let (first, second) = (Workload::draw(&scenario, 0), Workload::draw(&scenario, 1));
    assert_eq!(first.seed + RUN_STRIDE, second.seed);
    assert_eq!(first.phones.len(), second.phones.len());
    assert_ne!(first.requests, second.requests);
    assert_ne!(first.timelines, second.timelines);
}
