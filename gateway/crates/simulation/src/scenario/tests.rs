//! Files are read whole or refused with what is wrong.

use super::*;

pub(crate) const SMALL: &str = r#"{
  "name": "small", "seed": 1, "horizon_s": 100, "warmup_s": 10,
  "model": {"name": "m", "p0": 1000, "c": 0, "d1": 50, "kappa": 20000, "beta": 0.3},
  "detect_s": 15, "ovh_s": 0.1,
  "phones": {"classes": [{"name": "mid", "count": 2, "s": 0.5, "q": 0.5, "slots": 2}], "jitter": 0.1},
  "classes": [{"name": "guard", "band": 0, "arrivals": {"type": "poisson", "rate": 1},
    "keys": [{"name": "k", "weight": 1}], "templates": [{"tokens": 100, "weight": 1}],
    "suffix": {"dist": "uniform", "min": 10, "max": 20}, "out": {"dist": "lognormal", "mean": 9, "sigma": 0.2, "min": 1, "max": 99}}],
  "expect": {"whatever": 1}, "reference": [2]
}"#;

fn mistake(from: &str, to: &str) -> String {
    assert!(SMALL.contains(from), "{from}");
    Scenario::from_json(&SMALL.replace(from, to)).expect_err("refused").to_string()
}

#[test]
fn a_small_file_is_read() {
    let scenario = Scenario::from_json(SMALL).expect("a scenario");
    assert_eq!(scenario.classes[0].urgency, Urgency::Interactive);
    assert_eq!((scenario.phones.cache_works, scenario.seeds.as_slice(), scenario.ci), (1.0, [0].as_slice(), false));
    assert_eq!(scenario.until_s(), 21_700.0);
    assert_eq!(scenario.continuation, Continuation { by: Carry::Anyone, groups: 1 });
    assert!(!scenario.classes[0].is_chat() && !scenario.classes[0].is_closed());
}

#[test]
fn what_is_wrong_is_said_with_its_place_and_what_would_be_right() {
    let texts = [
        (r#""seed": 1"#, r#""sede": 1"#, "unknown field `sede`"),
        (r#""seed": 1, "#, "", "missing field `seed`"),
        (r#""band": 0"#, r#""band": 3"#, "expected 0 (interactive), 1 (standard) or 2 (batch)"),
        (r#""type": "poisson""#, r#""type": "poison""#, "expected one of `poisson`, `onoff`, `closed`"),
        (r#""dist": "uniform""#, r#""dist": "normal""#, "unknown variant `normal`"),
        (r#""rate": 1"#, r#""rate": 1, "burst": 2"#, "unknown field `burst`"),
    ];
    for (from, to, said) in texts {
        let text = mistake(from, to);
        assert!(text.contains(said) && text.contains("line"), "{text}");
    }
    let senses = [
        (r#""horizon_s": 100"#, r#""horizon_s": 0"#, "horizon_s: is 0: expected a number above 0"),
        (r#""warmup_s": 10"#, r#""warmup_s": 100"#, "warmup_s: must be below horizon_s"),
        (r#""count": 2"#, r#""count": 0"#, "no phone"),
        (r#""slots": 2"#, r#""slots": 0"#, "phones.classes.mid.slots: expected 1"),
        (r#""min": 10"#, r#""min": 30"#, "classes.guard.suffix: is 30 to 20 tokens"),
        (
            r#""tokens": 100, "weight": 1"#,
            r#""tokens": 100, "weight": 0"#,
            "classes.guard.templates: expected one or more",
        ),
        (r#""seed": 1"#, r#""seed": 1, "continuation": {"groups": 0}"#, "continuation.groups: is 0"),
        (r#""name": "small""#, r#""name": "a/b""#, "name: expected letters"),
        (r#""band": 0"#, r#""band": 0, "turns_mean": 2"#, "classes.guard.max_prompt: is missing"),
        (r#""reference": [2]"#, r#""ranges": {"default": {"gard": {"p99": [0, 1]}}}"#, "\"gard\" is no class"),
    ];
    for (from, to, said) in senses {
        let text = mistake(from, to);
        assert!(text.contains(said), "{text}");
    }
}

#[test]
fn all_mistakes_are_listed() {
    let text = mistake(r#""horizon_s": 100, "warmup_s": 10"#, r#""horizon_s": -1, "warmup_s": -2"#);
    assert_eq!(text.lines().count(), 3, "{text}");
}
