//! Rules that hold between keys, told like every other mistake, with the place of one of the keys.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Config,
    mistake::{Mistake, Place},
    raw::Gathered,
};
use crate::fleet::{ReplicaUrl, UrlRules};

/// A tenant name becomes a metric label, a column of a table and part of a URL.
const NAME_RULE: &str = "1 to 64 of a-z, A-Z, 0-9, '-', '_', '.'";
/// A replica's name becomes a metric's label, a header's value and part of a URL.
const REPLICA_NAME_RULE: &str = "1 to 128 of a-z, A-Z, 0-9, '-', '_', '.', ':'";
/// The tenant of everybody when no key is required.
pub(crate) const ANONYMOUS: &str = "anonymous";

struct Checks<'g, 'a> {
    gathered: &'g mut Gathered<'a>,
}

impl Checks<'_, '_> {
    fn note(&mut self, key: &str, why: impl Into<String>, accepted: Option<&str>) {
        let place = self.gathered.places.get(key).cloned().unwrap_or(Place::Default);
        let accepted = accepted.map(str::to_owned);
        let why = why.into();
        self.gathered.mistakes.push(Mistake { place, key: key.into(), value: None, why, accepted, suggestion: None });
    }

    /// Whether something is wrong with this key itself, or with an entry of its list: what follows from that is no mistake of its own.
    fn is_wrong(&self, key: &str) -> bool {
        let stands = |mistake: &Mistake| {
            mistake.key.strip_prefix(key).is_some_and(|rest| rest.is_empty() || rest.starts_with('['))
        };
        self.gathered.mistakes.iter().any(stands)
    }

    fn at_most<T: PartialOrd>(&mut self, small: (&str, T), large: (&str, T)) {
        if small.1 > large.1 {
            let key = if self.gathered.places.contains_key(small.0) { small.0 } else { large.0 };
            self.note(key, format!("{} must not be larger than {}", small.0, large.0), None);
        }
    }
}

/// What stands in a URL as it is, so that a token may be pasted behind `?token=`.
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte)
}

fn check_reports(config: &Config, checks: &mut Checks<'_, '_>) {
    let reports = &config.reports;
    checks.at_most(("reports.min_battery", reports.min_battery), ("reports.low_battery", reports.low_battery));
    checks.at_most(
        ("reports.warm_temperature", reports.warm_temperature),
        ("reports.max_temperature", reports.max_temperature),
    );
}

fn check_registration(config: &Config, checks: &mut Checks<'_, '_>) {
    let registration = &config.registration;
    let token = registration.token.as_ref().map(|token| token.reveal());
    if token.is_some_and(|token| !(16..=256).contains(&token.len()) || !token.bytes().all(is_unreserved)) {
        let why = "too easy to guess, or not a token that a URL can carry as it is";
        checks.note("registration.token", why, Some("16 to 256 of a-z, A-Z, 0-9, '-', '_', '.', '~'"));
    }
    if token.is_some() && config.admin.token.as_ref().map(|token| token.reveal()) == token {
        let why = "the same as admin.token: every phone knows this one, and could do all that an operator can";
        checks.note("registration.token", why, Some("a token of its own"));
    }
    if registration.listen.is_some() && token.is_none() && !checks.is_wrong("registration.token") {
        let why = "nothing would be taken there: registration.token is not set";
        checks.note("registration.listen", why, Some("registration.token = \"env:NAME\", or listen = \"none\""));
    }
}

/// Checks everything that takes more than one key.
pub(super) fn check(config: &Config, gathered: &mut Gathered<'_>) {
    let mut checks = Checks { gathered };
    check_listeners(config, &mut checks);
    check_registration(config, &mut checks);
    check_reports(config, &mut checks);
    check_ranges(config, &mut checks);
    check_tenants(config, &mut checks);
    check_replicas(config, &mut checks);
    check_replica_names(config, &mut checks);
    check_models(config, &mut checks);
    check_chain(config, &mut checks);
}

fn check_chain(config: &Config, checks: &mut Checks<'_, '_>) {
    let chain = &config.chain;
    if chain.rpc.is_none() {
        return;
    }
    let is_empty = chain.jobs.is_empty() && chain.deployers.is_empty();
    if is_empty && !checks.is_wrong("chain.jobs") && !checks.is_wrong("chain.deployers") {
        checks.note("chain.rpc", "nothing to look up: chain.jobs and chain.deployers are both empty", None);
    }
    let url = format!("https://0123456789abcdef.{}", chain.suffix);
    if let Err(error) = ReplicaUrl::parse(&url, &UrlRules::from(&config.pool)) {
        checks.note("chain.suffix", format!("{url} {error}"), None);
    }
}

fn check_listeners(config: &Config, checks: &mut Checks<'_, '_>) {
    let server = &config.server;
    let is_empty = server.listen.is_empty() && server.tls_listen.is_empty();
    if is_empty && !checks.is_wrong("server.listen") && !checks.is_wrong("server.tls_listen") {
        checks.note("server.listen", "nothing to listen on: server.listen and server.tls_listen are both empty", None);
    }
    match (&server.tls_cert, &server.tls_key) {
        (Some(_), None) => checks.note("server.tls_cert", "server.tls_key is missing", None),
        (None, Some(_)) => checks.note("server.tls_key", "server.tls_cert is missing", None),
        (None, None) if !server.tls_listen.is_empty() => {
            checks.note("server.tls_listen", "server.tls_cert and server.tls_key are missing", None);
        }
        _ => {}
    }
    let mut seen = Vec::new();
    let admin = std::iter::once(("admin.listen", &config.admin.listen));
    let admin = admin.chain(config.registration.listen.iter().map(|address| ("registration.listen", address)));
    let public = server.listen.iter().map(|address| ("server.listen", address));
    let tls = server.tls_listen.iter().map(|address| ("server.tls_listen", address));
    for (key, address) in public.chain(tls).chain(admin) {
        if address.port() != 0 && seen.contains(address) {
            checks.note(key, format!("{address} is listened on twice"), None);
        }
        seen.push(*address);
    }
    let has_token = config.admin.token.is_some() || checks.is_wrong("admin.token");
    if !has_token && !config.admin.listen.ip().is_loopback() {
        let why = format!("{} can be reached from outside, so admin.token is required", config.admin.listen);
        checks.note("admin.listen", why, Some("a loopback address, or admin.token = \"env:NAME\""));
    }
    let token = config.admin.token.as_ref().map(|token| token.reveal());
    if token.is_some_and(|token| token.len() < 16 || !token.bytes().all(|byte| byte.is_ascii_graphic())) {
        checks.note("admin.token", "too easy to guess, or not a token", Some("16 or more visible ASCII characters"));
    }
}

fn check_ranges(config: &Config, checks: &mut Checks<'_, '_>) {
    let (streams, health) = (&config.streams, &config.health);
    checks.at_most(
        ("streams.first_token_min", streams.first_token_min),
        ("streams.first_token_cap", streams.first_token_cap),
    );
    checks.at_most(("streams.gap_min", streams.gap_min), ("streams.gap_cap", streams.gap_cap));
    checks.at_most(("streams.max_event", streams.max_event), ("streams.max_answer", streams.max_answer));
    let idempotency = &config.idempotency;
    checks
        .at_most(("idempotency.max_answer", idempotency.max_answer), ("idempotency.max_bytes", idempotency.max_bytes));
    let release = &config.scheduler.release;
    checks.at_most(("scheduler.release_min", release.min), ("scheduler.release_cap", release.cap));
    let memory = std::path::Path::new(":memory:");
    if config.store.path != memory && config.batches.file(&config.store.path) == config.store.path {
        let why = "batches have a database of their own: this is the file of store.path";
        checks.note("batches.path", why, Some("another path, or \"none\" for one beside it"));
    }
    checks.at_most(("health.timeout", health.timeout), ("health.interval", health.interval));
    checks.at_most(("health.penalty", health.ejection.penalty), ("health.penalty_cap", health.ejection.penalty_cap));
    checks.at_most(
        ("server.max_body", config.server.max_body),
        ("limits.max_buffered_bytes", config.limits.max_buffered_bytes),
    );
    checks.at_most(
        ("server.max_body", config.server.max_body.as_u64()),
        ("scheduler.max_queued_bytes", config.scheduler.queue.max_bytes),
    );
}

/// Whether a name can be a tenant's.
pub(crate) fn is_name(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=64).contains(&name.len()) && name.bytes().all(letter)
}

fn check_tenants(config: &Config, checks: &mut Checks<'_, '_>) {
    let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
    for (name, tenant) in &config.tenants {
        let table = format!("tenants.{}", quoted(name));
        if !is_name(name) {
            checks.note(&table, "not a tenant's name", Some(NAME_RULE));
        }
        if name == ANONYMOUS && !tenant.keys.is_empty() {
            let why = "\"anonymous\" is everybody without a key; it can't have one";
            checks.note(&format!("{table}.keys"), why, None);
        }
        if tenant.class < tenant.max_class {
            let key = format!("{table}.class");
            checks.note(&key, "more urgent than max_class, the most urgent class that the tenant may use", None);
        }
        for (index, key) in tenant.keys.iter().enumerate() {
            let path = format!("{table}.keys");
            if !crate::auth::key::is_well_formed(key.reveal()) {
                let why = format!("key {index} is not one that a client could send");
                checks.note(&path, why, Some(crate::auth::key::RULE));
            }
            if let Some(owner) = owners.insert(key.reveal(), name) {
                checks.note(&path, format!("key {index} is already a key of tenant {owner}"), None);
            }
        }
    }
}

/// Whether a name can be a replica's. Addresses of IPv6 are in brackets.
pub(crate) fn is_replica_name(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:[]".contains(&byte);
    (1..=128).contains(&name.len()) && name.bytes().all(letter)
}

fn check_replica_names(config: &Config, checks: &mut Checks<'_, '_>) {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, replica) in config.replicas.iter().enumerate() {
        let Some(name) = replica.name.as_deref() else { continue };
        let key = format!("replicas[{index}].name");
        if !is_replica_name(name) {
            checks.note(&key, "not a replica's name", Some(REPLICA_NAME_RULE));
        }
        if let Some(first) = seen.insert(name, index) {
            checks.note(&key, format!("replicas[{first}] is called that"), None);
        }
    }
}

fn check_replicas(config: &Config, checks: &mut Checks<'_, '_>) {
    let rules = UrlRules::from(&config.pool);
    let mut seen: BTreeMap<ReplicaUrl, usize> = BTreeMap::new();
    if config.replicas.len() > config.pool.max_replicas {
        let why = format!("{} replicas are more than pool.max_replicas", config.replicas.len());
        checks.note("replicas", why, None);
    }
    for (index, replica) in config.replicas.iter().enumerate().filter(|(_, replica)| !replica.url.is_empty()) {
        let key = format!("replicas[{index}].url");
        if !checks.gathered.places.contains_key(&key) {
            continue; // from a flag, and checked there
        }
        match ReplicaUrl::parse(&replica.url, &rules) {
            Err(why) => checks.note(&key, why.to_string(), Some("https://HOST[:PORT]")),
            Ok(url) => {
                if let Some(first) = seen.insert(url, index) {
                    checks.note(&key, format!("the same address as replicas[{first}]"), None);
                }
            }
        }
    }
}

fn check_models(config: &Config, checks: &mut Checks<'_, '_>) {
    let mut owners: BTreeMap<&str, &str> = config.models.keys().map(|name| (name.as_str(), name.as_str())).collect();
    for (name, model) in &config.models {
        for alias in &model.aliases {
            if let Some(owner) = owners.insert(alias, name) {
                let key = format!("models.{}.aliases", quoted(name));
                checks.note(&key, format!("{alias:?} already names the model {owner:?}"), None);
            }
        }
    }
}

/// The models that tenants of this configuration may use, and that are no model or alias of it and none that a replica in it states, by
/// tenant: a replica has to report them, or nobody can use them.
pub fn unstated_models(config: &Config) -> BTreeMap<&str, Vec<&str>> {
    let aliases = config.models.values().flat_map(|model| &model.aliases);
    let stated = config.replicas.iter().flat_map(|replica| replica.models.0.keys());
    let known: BTreeSet<&str> = config.models.keys().chain(aliases).chain(stated).map(String::as_str).collect();
    let tenants = config.tenants.iter().map(|(name, tenant)| {
        let models = tenant.models.iter().map(String::as_str);
        (name.as_str(), models.filter(|model| !known.contains(model)).collect::<Vec<_>>())
    });
    tenants.filter(|(_, models)| !models.is_empty()).collect()
}

/// A name as a part of a key's path.
fn quoted(name: &str) -> String {
    let bare = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if bare { name.into() } else { format!("{name:?}") }
}
