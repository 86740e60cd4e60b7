//! From a file and flags to a [`Config`].
//!
//! File first, then flags over it; the environment is read only where the file refers to it. Everything wrong in any
//! of them is told in one go.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use toml::de::DeTable;

use super::{
    Config,
    check::check,
    diff,
    mistake::{ConfigErrors, Mistake, Place},
    raw::{Gathered, read_root},
    replicas::StatedReplica,
    secret::Sources,
};
use crate::fleet::{ReplicaUrl, UrlRules};

/// Largest configuration file. 4 MiB: 5,000 replicas with labels fit.
const MAX_FILE: u64 = 4 << 20;

/// What the command line says over the file.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// `--replica`: added to the file's.
    pub replicas: Vec<String>,
    /// `--listen`: instead of the file's, if there are any.
    pub listen: Vec<SocketAddr>,
    /// `--admin-listen`: instead of the file's.
    pub admin_listen: Option<SocketAddr>,
    /// `--store`: instead of the file's.
    pub store: Option<PathBuf>,
}

/// Reads a configuration file (or none: the defaults) and the flags over it.
///
/// # Errors
/// Everything that is wrong, at once.
pub fn load(path: Option<&Path>, overrides: Overrides) -> Result<Config, ConfigErrors> {
    let env = |name: &str| std::env::var(name).ok();
    let Some(path) = path else { return parse("", Path::new("(no file)"), overrides, &env) };
    let text = read_file(path).map_err(|why| {
        let place = Place::WholeFile { path: path.into() };
        let mistake = Mistake { place, key: String::new(), value: None, why, accepted: None, suggestion: None };
        ConfigErrors { mistakes: vec![mistake] }
    })?;
    parse(&text, path, overrides, &env)
}

fn read_file(path: &Path) -> Result<String, String> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(|error| format!("can't be read: {error}"))?;
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(|error| format!("can't be read: {error}"))?;
    if bytes.len() as u64 > MAX_FILE {
        return Err("larger than 4MiB".into());
    }
    String::from_utf8(bytes).map_err(|error| format!("not UTF-8 after byte {}", error.utf8_error().valid_up_to()))
}

/// [`load`] with the file's text and the environment as arguments. `path` names the file in mistakes, and relative
/// `file:` references start from its directory.
///
/// # Errors
/// Everything that is wrong, at once.
pub fn parse(
    text: &str,
    path: &Path,
    overrides: Overrides,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Config, ConfigErrors> {
    let all_keys = diff::all_keys();
    let mut gathered = Gathered {
        mistakes: Vec::new(),
        places: Default::default(),
        sources: Sources { env, base: path.parent().unwrap_or(Path::new("")) },
        file: path,
        text,
        all_keys: &all_keys,
    };
    let mut config = Config::default();
    let (table, syntax) = DeTable::parse_recoverable(text);
    read_root(&table, &mut config, &mut gathered);
    // What was read of a broken line says nothing that the broken syntax does not.
    let broken: Vec<Mistake> = syntax.iter().map(|error| syntax_mistake(error, &gathered)).collect();
    gathered.mistakes.retain(|mistake| !broken.iter().any(|broken| same_line(&broken.place, &mistake.place)));
    gathered.mistakes.extend(broken);
    apply(&mut config, overrides, &mut gathered.mistakes);
    check(&config, &mut gathered);
    let mut mistakes = gathered.mistakes;
    if mistakes.is_empty() {
        return Ok(config);
    }
    mistakes.sort_by(|a, b| a.place.cmp(&b.place));
    Err(ConfigErrors { mistakes })
}

fn syntax_mistake(error: &toml::de::Error, gathered: &Gathered<'_>) -> Mistake {
    Mistake {
        place: gathered.place(error.span().unwrap_or(0..0)),
        key: String::new(),
        value: None,
        why: format!("not TOML: {}", error.message().replace('\n', ", ")),
        accepted: None,
        suggestion: None,
    }
}

fn same_line(a: &Place, b: &Place) -> bool {
    matches!((a, b), (Place::File { line: a, .. }, Place::File { line: b, .. }) if a == b)
}

fn apply(config: &mut Config, overrides: Overrides, mistakes: &mut Vec<Mistake>) {
    if !overrides.listen.is_empty() {
        config.server.listen = overrides.listen;
    }
    if let Some(listen) = overrides.admin_listen {
        config.admin.listen = listen;
    }
    if let Some(path) = overrides.store {
        config.store.path = path;
    }
    let rules = UrlRules::from(&config.pool);
    let same = |known: &StatedReplica, url: &ReplicaUrl| ReplicaUrl::read(&known.url).is_ok_and(|known| known == *url);
    for text in overrides.replicas {
        match ReplicaUrl::parse(&text, &rules) {
            // The text is not repeated: it may hold a password.
            Err(why) => mistakes.push(Mistake {
                place: Place::Flag("--replica"),
                key: String::new(),
                value: None,
                why: format!("the address {why}"),
                accepted: Some("https://HOST[:PORT]".into()),
                suggestion: None,
            }),
            Ok(url) if config.replicas.iter().any(|known| same(known, &url)) => {}
            Ok(url) => config.replicas.push(StatedReplica { url: url.to_string(), ..StatedReplica::default() }),
        }
    }
}
