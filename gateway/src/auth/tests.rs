//! Keys as clients send them and operators manage them.

use std::path::Path;

use scheduler::Class;

use super::*;
use crate::config::{Overrides, parse};

const KEY: &str = "hg-0123456789abcdef0123456789abcdef01234567";
const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

fn config(text: &str) -> Config {
    let env = |_: &str| Some(KEY.to_owned());
    parse(text, Path::new("h.toml"), Overrides::default(), &env).unwrap_or_else(|errors| panic!("{errors}"))
}

fn by() -> By {
    By { at: UnixMillis(1), who: "tester".into() }
}

struct Bench {
    auth: Authenticator,
    store: Store,
    ticks: Ticks,
}

impl Bench {
    fn new(text: &str) -> Self {
        let (store, ticks) = (Store::in_memory().unwrap(), Ticks::manual());
        let auth = Authenticator::with_ticks(&config(text), &store, ticks.clone()).unwrap();
        Self { auth, store, ticks }
    }

    fn bearer(&self, key: &str) -> Result<Arc<Tenant>, AuthError> {
        self.auth.authenticate(Some(&format!("Bearer {key}")), None, PEER)
    }

    fn issue(&self, tenant: &str) -> Issued {
        let request = KeyRequest { tenant: tenant.into(), ..KeyRequest::default() };
        self.auth.issue(&self.store, by(), request).unwrap()
    }
}

#[test]
fn a_configured_key_is_its_tenant_in_every_way_clients_send_it() {
    let bench = Bench::new("[tenants.bank]\nkeys = [\"env:KEY\"]\nclass = \"batch\"\nmodels = [\"qwen\"]");
    let (bearer, lower) = (format!("Bearer {KEY}"), format!("bearer  {KEY} "));
    for (authorization, x_api_key) in [
        (Some(bearer.as_str()), None),
        (Some(lower.as_str()), None),
        (None, Some(KEY)),
        (Some("Basic dXNlcjpwYXNz"), Some(KEY)),
        (Some(bearer.as_str()), Some("hg-another-key-that-is-unknown")),
    ] {
        let tenant = bench.auth.authenticate(authorization, x_api_key, PEER).unwrap();
        assert_eq!((&*tenant.name, tenant.default_class), ("bank", Class::Batch));
        assert!(tenant.may_use("qwen") && !tenant.may_use("other"));
    }
}

#[test]
fn missing_malformed_unknown_and_revoked_keys_are_one_error() {
    let bench = Bench::new("[tenants.bank]\nkeys = [\"env:KEY\"]");
    let issued = bench.issue("bank");
    bench.auth.revoke(&bench.store, by(), issued.record.id).unwrap();
    let revoked = format!("Bearer {}", issued.key.reveal());
    let near = format!("Bearer {}8", &KEY[..KEY.len() - 1]);
    for authorization in
        [None, Some(""), Some("Bearer"), Some("Bearer "), Some(KEY), Some("Bearer short"), Some(&near), Some(&revoked)]
    {
        assert_eq!(bench.auth.authenticate(authorization, None, PEER), Err(AuthError::Invalid), "{authorization:?}");
    }
}

#[test]
fn a_key_works_from_the_moment_it_is_made_to_the_moment_it_is_revoked() {
    let bench = Bench::new("");
    let issued = bench.issue("bank");
    assert!(issued.key.reveal().starts_with(&issued.record.key.prefix));
    assert_eq!(&*bench.bearer(issued.key.reveal()).unwrap().name, "bank");
    assert!(bench.auth.revoke(&bench.store, by(), issued.record.id).unwrap().changed());
    assert_eq!(bench.bearer(issued.key.reveal()), Err(AuthError::Invalid));
    assert!(!bench.auth.revoke(&bench.store, by(), issued.record.id).unwrap().changed());
    let nobody = bench.auth.revoke(&bench.store, by(), 999).unwrap_err();
    assert_eq!(nobody, AuthSetupError::Store(StoreError::UnknownKey(999)));
}

#[test]
fn stored_keys_work_after_a_restart_and_the_store_does_not_know_them() {
    let directory = std::env::temp_dir().join(format!("huntgroup-auth-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("store.db");
    let issued = {
        let store = Store::open(&path).unwrap();
        let auth = Authenticator::new(&config(""), &store).unwrap();
        auth.issue(&store, by(), KeyRequest { tenant: "bank".into(), ..KeyRequest::default() }).unwrap()
    };
    let store = Store::open(&path).unwrap();
    let auth = Authenticator::new(&config(""), &store).unwrap();
    assert!(auth.authenticate(None, Some(issued.key.reveal()), PEER).is_ok());
    drop(store);
    let bytes = std::fs::read(&path).unwrap();
    let key = issued.key.reveal().as_bytes();
    assert!(!bytes.windows(key.len()).any(|window| window == key));
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn an_address_with_too_many_wrong_keys_is_refused_even_with_a_right_one() {
    let bench = Bench::new("limits.failed_auth_per_minute = 3\n[tenants.bank]\nkeys = [\"env:KEY\"]");
    for _ in 0..3 {
        assert_eq!(bench.bearer("hg-wrong-wrong-wrong-wrong"), Err(AuthError::Invalid));
    }
    let refused = AuthError::TooMany { retry_after: Duration::from_secs(20) };
    assert_eq!(bench.bearer(KEY), Err(refused));
    assert!(bench.auth.authenticate(None, Some(KEY), "192.0.2.2".parse().unwrap()).is_ok());
    bench.ticks.advance(Duration::from_secs(20));
    assert!(bench.bearer(KEY).is_ok());
}

#[test]
fn requests_without_a_key_use_up_no_budget() {
    let bench = Bench::new("limits.failed_auth_per_minute = 1\n[tenants.bank]\nkeys = [\"env:KEY\"]");
    for _ in 0..10 {
        assert_eq!(bench.auth.authenticate(None, None, PEER), Err(AuthError::Invalid));
    }
    assert!(bench.bearer(KEY).is_ok());
}

#[test]
fn without_authentication_everybody_is_anonymous_and_may_send_any_key() {
    let bench = Bench::new("server.auth = \"none\"\n[tenants.anonymous]\nmodels = [\"qwen\"]\nmax_in_flight = 3");
    for authorization in [None, Some("Bearer sk-anything"), Some("nonsense")] {
        let tenant = bench.auth.authenticate(authorization, None, PEER).unwrap();
        assert_eq!((&*tenant.name, tenant.limits.max_in_flight), ("anonymous", Some(3)));
        assert!(!tenant.may_use("other"));
    }
}

#[test]
fn a_reload_changes_tenants_and_keeps_their_numbers_and_stored_keys() {
    let bench = Bench::new("[tenants.a]\n[tenants.bank]\nkeys = [\"env:KEY\"]");
    let before = bench.bearer(KEY).unwrap();
    let issued = bench.issue("guard");
    bench.auth.reconfigure(&config("limits.requests_per_minute = 5"), &bench.store).unwrap();
    assert_eq!(bench.bearer(KEY), Err(AuthError::Invalid));
    assert_eq!(bench.bearer(issued.key.reveal()).unwrap().limits.requests_per_minute, Some(5));
    bench.auth.reconfigure(&config("[tenants.z]\n[tenants.bank]\nkeys = [\"env:KEY\"]"), &bench.store).unwrap();
    let after = bench.bearer(KEY).unwrap();
    assert_eq!((before.id, &before.name), (after.id, &after.name));
    assert_ne!(after.id, bench.bearer(issued.key.reveal()).unwrap().id);
}

#[test]
fn a_key_for_a_name_that_is_none_is_refused() {
    let bench = Bench::new("");
    for name in ["", "a b", "anonymous", "é", "a/b"] {
        let request = KeyRequest { tenant: name.into(), ..KeyRequest::default() };
        let error = bench.auth.issue(&bench.store, by(), request).unwrap_err();
        assert_eq!(error, AuthSetupError::TenantName(name.into()));
    }
    assert!(bench.store.keys().unwrap().is_empty());
}

#[test]
fn no_key_shows_in_debug_output() {
    let bench = Bench::new("[tenants.bank]\nkeys = [\"env:KEY\"]");
    let issued = bench.issue("bank");
    let shown = format!("{:?} {issued:?}", bench.auth);
    assert!(!shown.contains(KEY) && !shown.contains(issued.key.reveal()), "{shown}");
}

#[test]
fn a_configured_share_is_that_of_its_tenant_wherever_the_key_comes_from() {
    let bench = Bench::new(
        "[tenants.bank]\nweight = 3\n[tenants.guard]\nmax_running = 2\nkeys = [\"env:KEY\"]\n[tenants.usual]",
    );
    let bank = bench.bearer(bench.issue("bank").key.reveal()).unwrap().id;
    let stranger = bench.bearer(bench.issue("stranger").key.reveal()).unwrap().id;
    let guard = bench.bearer(KEY).unwrap().id;
    let shares = bench.auth.shares();
    assert_eq!(shares.get(&bank), Some(&Share { weight: 3.0, ..Share::default() }));
    assert_eq!(shares.get(&guard), Some(&Share { max_running: Some(2), ..Share::default() }));
    assert_eq!((shares.len(), shares.contains_key(&stranger)), (2, false), "all others have the usual share");
    bench.auth.reconfigure(&config("[tenants.bank]\nweight = 0.5"), &bench.store).unwrap();
    assert_eq!(bench.auth.shares(), BTreeMap::from([(bank, Share { weight: 0.5, ..Share::default() })]));
}
