//! How fast a replica should be, before its first answer has told.
//!
//! Problem: the scheduler weighs phones by speeds that it measures. A phone that has just come has none, and a first long
//! prompt on a 9B model costs minutes that a 0.8B one would have needed seconds for.
//!
//! Choice, the first that there is: what the operator states; what was measured before a restart, if it still serves the
//! same models; what is typical of a model of its size, as the engine or the model's name tells it. Rejected: a
//! benchmark (it takes a slot from those who wait, and a phone that warms up under it is then measured slow).

use scheduler::Rates;
use store::Speed;

use super::replica::{Facts, Stated};

/// Published rates on the fastest phones of 2025: billions of parameters, prompt and answer tokens a second.
const PUBLISHED: [(f64, Rates); 3] = [
    (0.8, Rates { prefill: 1107.0, decode: 60.0 }),
    (4.0, Rates { prefill: 171.3, decode: 18.5 }),
    (9.0, Rates { prefill: 85.2, decode: 9.3 }),
];
/// A typical phone's share of them: last years' models, warm hands, other apps.
const TYPICAL: f64 = 0.5;
/// Sizes that phones run, in billions: what lies beyond is a slip or a boast.
const SIZES: std::ops::RangeInclusive<f64> = 0.05..=100.0;

/// A speed of which one half may be unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Known {
    pub(super) prefill: Option<f64>,
    pub(super) decode: Option<f64>,
}

impl Known {
    fn or(self, other: Self) -> Self {
        Self { prefill: self.prefill.or(other.prefill), decode: self.decode.or(other.decode) }
    }
}

/// What the scheduler is to believe about a replica that it has not measured.
pub(super) fn prior(stated: &Stated, kept: Option<&Speed>, facts: &Facts) -> Option<Rates> {
    let stated = Known { prefill: stated.prefill_rate, decode: stated.decode_rate };
    let kept = kept.filter(|kept| kept.models == names(facts));
    let kept = kept.map(|kept| Known { prefill: kept.prefill_rate, decode: kept.decode_rate }).unwrap_or_default();
    let typical = typical(facts).map(|rates| Known { prefill: Some(rates.prefill), decode: Some(rates.decode) });
    let known = stated.or(kept).or(typical.unwrap_or_default());
    Some(Rates { prefill: known.prefill?, decode: known.decode? })
}

/// The models that a replica serves, by the name that clients use, as they are kept with a measurement.
pub(super) fn names(facts: &Facts) -> Vec<String> {
    let mut names: Vec<String> = facts.models.iter().map(|model| model.name.to_string()).collect();
    names.sort();
    names
}

/// Of several models the largest counts: too slow a guess is corrected by the first answer, too fast a one by whoever
/// waited for it.
fn typical(facts: &Facts) -> Option<Rates> {
    let by_name = facts.models.iter().filter_map(|model| size(&model.own).or_else(|| size(&model.name)));
    let counted = facts.parameters.map(|count| count as f64 / 1e9);
    // A name that says how many parameters are active says more than their number.
    let billions = by_name.fold(None, |largest: Option<f64>, size| Some(largest.map_or(size, |l| l.max(size))));
    of_size(billions.or(counted).filter(|size| SIZES.contains(size))?)
}

/// Between and beyond the published sizes by straight lines through the logarithms: work grows as a power of the size.
fn of_size(billions: f64) -> Option<Rates> {
    let [small, middle, large] = PUBLISHED;
    let ((size, from), (next, to)) = if billions < middle.0 { (small, middle) } else { (middle, large) };
    let share = (billions / size).ln() / (next / size).ln();
    let between = |from: f64, to: f64| TYPICAL * from * (to / from).powf(share);
    Some(Rates { prefill: between(from.prefill, to.prefill), decode: between(from.decode, to.decode) })
}

/// Billions of parameters that a model's name tells, such as `Qwen3.5-4B-Q4_K_M.gguf` or `smollm2-135m`. Of `30B-A3B` the
/// active ones count: those are read for each token.
fn size(name: &str) -> Option<f64> {
    let words = name.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '.');
    let sizes: Vec<(bool, f64)> = words.filter_map(word_size).filter(|(_, size)| SIZES.contains(size)).collect();
    sizes.iter().find(|(active, _)| *active).or(sizes.first()).map(|(_, size)| *size)
}

/// `4B`, `0.8b`, `A3B`, `E4B`, `350M`, also before `.gguf`. Whether they are only the active parameters, and billions.
fn word_size(word: &str) -> Option<(bool, f64)> {
    let number = word.trim_start_matches(['a', 'A', 'e', 'E']);
    let digits = number.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
    let (digits, unit) = number.split_at(digits);
    let count: f64 = digits.parse().ok()?;
    let mut unit = unit.chars();
    let billions = match (unit.next()?.to_ascii_lowercase(), unit.next()) {
        ('b', None | Some('.')) => count,
        // `1M` is a length of context.
        ('m', None | Some('.')) if count >= 50.0 => count / 1e3,
        _ => return None,
    };
    Some((number.len() < word.len(), billions))
}

#[cfg(test)]
mod tests {
    use scheduler::ModelId;
    use store::UnixMillis;

    use super::*;
    use crate::fleet::ServedModel;

    fn serving(own: &str, parameters: Option<u64>) -> Facts {
        let model = ServedModel { id: ModelId(1), name: "reviewer".into(), own: own.into() };
        Facts { models: vec![model], parameters, ..Facts::default() }
    }

    #[test]
    fn names_tell_sizes_and_other_numbers_in_them_do_not() {
        for (name, billions) in [
            ("/data/Models/Qwen3.5-4B-Q4_K_M.gguf", Some(4.0)),
            ("qwen3.5-0.8b.gguf", Some(0.8)),
            ("llama3:8b", Some(8.0)),
            ("smollm2-135m-instruct", Some(0.135)),
            ("Qwen3-30B-A3B-Instruct", Some(3.0)),
            ("gemma-3n-E4B-it", Some(4.0)),
            ("Qwen2.5-7B-Instruct-1M", Some(7.0)),
            ("phi-3-mini-4k", None),
            ("model-4bit", None),
            ("9000b", None),
            ("tiny", None),
            ("", None),
        ] {
            assert_eq!(size(name), billions, "{name}");
        }
    }

    #[test]
    fn a_typical_phone_has_half_the_published_speed_and_other_sizes_lie_between_and_beyond() {
        let rates = of_size(4.0).unwrap();
        assert!((rates.prefill - 85.65).abs() < 0.01 && (rates.decode - 9.25).abs() < 0.01, "{rates:?}");
        let sizes = [0.3, 0.8, 2.0, 4.0, 7.0, 9.0, 14.0].map(|size| of_size(size).unwrap());
        for pair in sizes.windows(2) {
            assert!(pair[0].prefill > pair[1].prefill && pair[0].decode > pair[1].decode, "{pair:?}");
        }
    }

    #[test]
    fn the_engines_count_serves_where_the_name_tells_nothing() {
        assert_eq!(prior(&Stated::default(), None, &serving("tiny", None)), None);
        assert_eq!(prior(&Stated::default(), None, &serving("tiny", Some(4_000_000_000))), of_size(4.0));
        assert_eq!(prior(&Stated::default(), None, &serving("m-30b-a3b", Some(30_000_000_000))), of_size(3.0));
        assert_eq!(prior(&Stated::default(), None, &serving("tiny", Some(u64::MAX))), None);
    }

    #[test]
    fn what_is_stated_goes_before_what_was_measured_and_that_before_what_is_typical() {
        let facts = serving("qwen-4b", None);
        let kept = |models: &[&str]| Speed {
            replica: 1,
            models: models.iter().map(|name| (*name).to_owned()).collect(),
            prefill_rate: Some(50.0),
            decode_rate: Some(5.0),
            measured: UnixMillis(1),
        };
        let stated = Stated { decode_rate: Some(7.0), ..Stated::default() };
        let rates = |prefill, decode| Some(Rates { prefill, decode });
        assert_eq!(prior(&stated, Some(&kept(&["reviewer"])), &facts), rates(50.0, 7.0));
        assert_eq!(prior(&Stated::default(), Some(&kept(&["reviewer"])), &facts), rates(50.0, 5.0));
        let typical = of_size(4.0).unwrap();
        assert_eq!(prior(&stated, Some(&kept(&["another"])), &facts), rates(typical.prefill, 7.0));
    }
}
