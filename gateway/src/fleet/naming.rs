//! From the names that replicas report to the names that clients use.
//!
//! One phone calls its model `/data/local/Qwen3.5-4B-Q4_K_M.gguf`, the next `qwen3.5-4b`, the third has one constant
//! name for whatever it loads. In this order decide: what the operator stated for the replica, what
//! `models.NAME.replica_names` claims, and the reported name without its directory and extension.

use std::{collections::BTreeMap, sync::Arc};

use crate::config::{ModelSection, StatedModels};

/// A model as a replica lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reported {
    /// The name that it wants to hear.
    pub id: String,
    /// Other names for it.
    pub aliases: Vec<String>,
}

impl Reported {
    fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.id).chain(&self.aliases).map(String::as_str)
    }
}

/// A model that a replica serves: the clients' name, and the replica's own.
pub type Served = (Arc<str>, Arc<str>);

/// A stated model that the replica does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the replica does not serve {stated:?} but {found}; state its name on the replica, models = {{ {stated:?} = \"…\" }}, or set models.{stated:?}.replica_names", found = list(.reported))]
pub struct NotServed {
    /// What the operator stated.
    pub stated: String,
    /// What the replica lists.
    pub reported: Vec<String>,
}

fn list(names: &[String]) -> String {
    match names {
        [] => "nothing".into(),
        names => names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", "),
    }
}

/// The operator's words about models.
#[derive(Clone, Debug, Default)]
pub struct Naming {
    models: BTreeMap<String, ModelSection>,
}

impl Naming {
    /// From the configuration.
    pub fn new(models: &BTreeMap<String, ModelSection>) -> Self {
        Self { models: models.clone() }
    }

    /// The configured models.
    pub fn models(&self) -> impl Iterator<Item = (&String, &ModelSection)> {
        self.models.iter()
    }

    /// A stated name with aliases resolved.
    fn canonical<'a>(&'a self, name: &'a str) -> &'a str {
        let alias_of = |(model, section): (&'a String, &'a ModelSection)| {
            section.aliases.iter().any(|alias| alias == name).then_some(model.as_str())
        };
        self.models.iter().find_map(alias_of).unwrap_or(name)
    }

    /// The configured model that claims a reported one.
    fn claim(&self, reported: &Reported) -> Option<&str> {
        let by_name = |name| self.models.get_key_value(name).map(|(model, _)| model.as_str());
        if let Some(model) = reported.names().map(|name| self.canonical(name)).find_map(by_name) {
            return Some(model);
        }
        let claims = |section: &ModelSection| {
            let mut names = reported.names().flat_map(|name| [name, file_name(name)]);
            names.any(|name| section.replica_names.iter().any(|pattern| matches(pattern, name)))
        };
        self.models.iter().find(|(_, section)| claims(section)).map(|(model, _)| model.as_str())
    }

    fn clients_name<'a>(&'a self, reported: &'a Reported) -> &'a str {
        self.claim(reported).unwrap_or_else(|| tidy(&reported.id))
    }

    /// The models of a replica. `reliable`: whether its list says what it really serves.
    ///
    /// # Errors
    /// The operator states a model that a reliable list does not have.
    pub fn served(
        &self,
        stated: &StatedModels,
        reported: &[Reported],
        reliable: bool,
    ) -> Result<Vec<Served>, NotServed> {
        if stated.0.is_empty() {
            let mut served: BTreeMap<&str, &str> = BTreeMap::new();
            for model in reported {
                served.entry(self.clients_name(model)).or_insert(&model.id);
            }
            return Ok(served.into_iter().map(|(name, own)| (name.into(), own.into())).collect());
        }
        stated.0.iter().map(|(name, known_as)| self.stated(name, known_as.as_deref(), reported, reliable)).collect()
    }

    fn stated(
        &self,
        name: &str,
        known_as: Option<&str>,
        reported: &[Reported],
        reliable: bool,
    ) -> Result<Served, NotServed> {
        let canonical = self.canonical(name);
        let is_it = |model: &&Reported| match known_as {
            Some(known_as) => model.names().any(|own| own == known_as || file_name(own) == known_as),
            None => model.names().any(|own| own == name) || self.clients_name(model) == canonical,
        };
        let own = match reported.iter().find(is_it) {
            Some(model) => &model.id,
            None if reliable => {
                let reported = reported.iter().map(|model| model.id.clone()).collect();
                return Err(NotServed { stated: known_as.unwrap_or(name).into(), reported });
            }
            None => known_as.or_else(|| reported.first().map(|model| model.id.as_str())).unwrap_or(name),
        };
        Ok((canonical.into(), own.into()))
    }
}

/// A name for people: of a file's path the name without directory, extension and part number; others as they are.
fn tidy(name: &str) -> &str {
    let is_path = name.starts_with(['/', '.', '~']) || name.contains('\\') || ends_in_gguf(name);
    if !is_path {
        return name;
    }
    let file = file_name(name);
    let stem = if ends_in_gguf(file) { &file[..file.len() - GGUF.len()] } else { file };
    let stem = without_part(stem);
    if stem.is_empty() { name } else { stem }
}

const GGUF: &str = ".gguf";

fn ends_in_gguf(name: &str) -> bool {
    name.len() > GGUF.len() && name.as_bytes()[name.len() - GGUF.len()..].eq_ignore_ascii_case(GGUF.as_bytes())
}

fn file_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}

/// `model-00001-of-00003` is `model`.
fn without_part(stem: &str) -> &str {
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    let split = stem.rsplit_once("-of-").and_then(|(front, total)| {
        let (name, part) = front.rsplit_once('-')?;
        (is_number(total) && is_number(part)).then_some(name)
    });
    split.unwrap_or(stem)
}

/// Whether a pattern, in which `*` stands for any letters, fits the whole text; capital letters don't matter.
fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.to_lowercase(), text.to_lowercase());
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // Where to go on after the last star: behind it in the pattern, and one letter further in the text each time.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&'*') {
            star = Some((p + 1, t));
            p += 1;
        } else if pattern.get(p) == Some(&text[t]) {
            (p, t) = (p + 1, t + 1);
        } else if let Some((behind, from)) = star {
            star = Some((behind, from + 1));
            (p, t) = (behind, from + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|letter| *letter == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn naming() -> Naming {
        let section = ModelSection {
            aliases: vec!["reviewer".into()],
            replica_names: vec!["*qwen3.5-4b*.gguf".into()],
            ..ModelSection::default()
        };
        Naming::new(&BTreeMap::from([("qwen-4b".to_owned(), section)]))
    }

    fn reported(id: &str) -> Vec<Reported> {
        vec![Reported { id: id.into(), aliases: Vec::new() }]
    }

    fn stated(models: &[(&str, Option<&str>)]) -> StatedModels {
        StatedModels(models.iter().map(|(name, own)| ((*name).to_owned(), own.map(str::to_owned))).collect())
    }

    fn pair(name: &str, own: &str) -> Vec<Served> {
        vec![(name.into(), own.into())]
    }

    #[test]
    fn a_claimed_path_gets_the_models_name_and_an_unclaimed_one_is_tidied() {
        let served = |id: &str| naming().served(&StatedModels::default(), &reported(id), true).unwrap();
        let path = "/data/Models/Qwen3.5-4B-Q4_K_M.gguf";
        assert_eq!(served(path), pair("qwen-4b", path));
        assert_eq!(served("/data/tiny.gguf"), pair("tiny", "/data/tiny.gguf"));
        assert_eq!(served("big-00001-of-00002.GGUF"), pair("big", "big-00001-of-00002.GGUF"));
        assert_eq!(served("org/model"), pair("org/model", "org/model"));
        assert_eq!(served("reviewer"), pair("qwen-4b", "reviewer"));
    }

    #[test]
    fn a_stated_model_must_be_what_a_reliable_replica_lists() {
        let serve = |models: &[(&str, Option<&str>)], id| naming().served(&stated(models), &reported(id), true);
        assert_eq!(serve(&[("tiny", None)], "/m/tiny.gguf").unwrap(), pair("tiny", "/m/tiny.gguf"));
        assert_eq!(serve(&[("reviewer", None)], "qwen3.5-4b.gguf").unwrap(), pair("qwen-4b", "qwen3.5-4b.gguf"));
        assert_eq!(serve(&[("mine", Some("tiny.gguf"))], "/m/tiny.gguf").unwrap(), pair("mine", "/m/tiny.gguf"));
        let error = serve(&[("qwen-9b", None)], "tiny").unwrap_err();
        assert_eq!(error, NotServed { stated: "qwen-9b".into(), reported: vec!["tiny".into()] });
        assert!(serve(&[("mine", Some("other"))], "tiny").is_err());
    }

    #[test]
    fn where_the_list_says_nothing_the_operator_is_believed() {
        let constant = reported("ModelScope/MNN/Qwen2.5-0.5B-Instruct");
        let served = naming().served(&stated(&[("qwen-9b", None)]), &constant, false).unwrap();
        assert_eq!(served, pair("qwen-9b", "ModelScope/MNN/Qwen2.5-0.5B-Instruct"));
        assert_eq!(naming().served(&stated(&[("laya", None)]), &[], false).unwrap(), pair("laya", "laya"));
    }

    #[test]
    fn stars_stand_for_any_letters() {
        for (pattern, text, fits) in [
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*c", "ab", false),
            ("abc", "ABC", true),
            ("*.gguf", "x.gguf.bak", false),
            ("", "a", false),
            ("**a", "ba", true),
        ] {
            assert_eq!(matches(pattern, text), fits, "{pattern} {text}");
        }
    }
}
