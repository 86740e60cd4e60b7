//! The file as operators meet it: defaults, mistakes, reloads.

use std::{path::Path, time::Duration};

use scheduler::{Class, HedgeConfig, Policy, SchedulerConfig, Share};

use super::*;
use crate::fleet::Dialect;

fn read_with(text: &str, overrides: Overrides) -> Result<Config, ConfigErrors> {
    let env = |name: &str| match name {
        "KEY" => Some("hg-0123456789abcdef0123456789abcdef01234567".to_owned()),
        "OTHER_KEY" => Some("hg-ffffffffffffffffffffffffffffffffffffffff".to_owned()),
        _ => None,
    };
    parse(text, Path::new("h.toml"), overrides, &env)
}

fn read(text: &str) -> Result<Config, ConfigErrors> {
    read_with(text, Overrides::default())
}

/// The mistakes as lines of text.
fn mistakes(text: &str) -> Vec<String> {
    read(text).expect_err("must be refused").mistakes.iter().map(ToString::to_string).collect()
}

fn reference() -> (std::path::PathBuf, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/huntgroup.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    (path, text)
}

#[test]
fn the_reference_file_is_the_defaults() {
    let (path, text) = reference();
    let config = parse(&text, &path, Overrides::default(), &|_| None).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(config, Config::default());
}

#[test]
fn the_reference_file_writes_every_key_once() {
    let (_, text) = reference();
    let mut missing = Vec::new();
    for path in diff::all_keys() {
        let (section, key) = path.rsplit_once('.').unwrap();
        let body = text.split(&format!("\n[{section}]\n")).nth(1).unwrap_or_else(|| panic!("no [{section}]"));
        let body = body.split("\n[").next().unwrap();
        if body.lines().filter(|line| line.starts_with(&format!("{key} = "))).count() != 1 {
            missing.push(path);
        }
    }
    assert_eq!(missing, Vec::<String>::new());
}

#[test]
fn the_examples_of_the_reference_file_work_when_their_marks_are_removed() {
    let (path, text) = reference();
    let examples: String = text
        .lines()
        .map(|line| line.strip_prefix("#: ").or_else(|| line.strip_prefix("#:")).unwrap_or(line))
        .flat_map(|line| [line, "\n"])
        .collect();
    let env = |_: &str| Some("hg-0123456789abcdef0123456789abcdef01234567".to_owned());
    let config = parse(&examples, &path, Overrides::default(), &env).unwrap_or_else(|errors| panic!("{errors}"));
    assert!(!config.tenants.is_empty() && !config.replicas.is_empty() && !config.models.is_empty());
    // Every key of those sections is shown.
    for key in [
        "keys",
        "requests_per_minute",
        "weight",
        "max_running",
        "models",
        "class",
        "max_class",
        "url",
        "name",
        "slots",
        "context_tokens",
        "api_key",
        "dialect",
        "labels",
        "expires_at",
        "cost_acu_per_day",
        "prefill_rate",
        "decode_rate",
        "aliases",
        "default_class",
        "replica_names",
    ] {
        assert!(text.lines().any(|line| line.starts_with(&format!("#: {key} = "))), "{key} is not shown");
    }
}

#[test]
fn no_file_is_the_defaults_and_they_are_the_cores_own() {
    let config = load(None, Overrides::default()).unwrap();
    assert_eq!(config, Config::default());
    assert_eq!(config.scheduler(BTreeMap::new()), SchedulerConfig::default());
}

#[test]
fn every_kind_of_value_is_read() {
    let config = read(
        r#"
        [server]
        listen = ["127.0.0.1:1", "[::1]:2"]
        threads = 3
        max_body = "1MiB"
        auth = "none"
        pid_file = "/run/h.pid"
        [scheduler]
        policy = "round_robin"
        max_age_interactive = "none"
        max_age_batch = "2h"
        retry_share = 1
        hedge = false
        hedge_share = 0.1
        give_back = false
        [streams]
        head_after = "1m30s"
        keepalive = "chunk"
        [idempotency]
        join_by_body = "retries"
        [pool]
        allow_http = true
        allow_private = true
        [limits]
        requests_per_minute = 60
        [tenants.bank]
        keys = ["env:KEY"]
        requests_per_minute = "none"
        tokens_per_minute = 9000
        weight = 2
        max_running = 8
        models = ["qwen"]
        max_class = "standard"
        [tenants.guard]
        [models.qwen]
        aliases = ["gpt-4o"]
        default_class = "batch"
        replica_names = ["*/qwen*.gguf"]
        [[replicas]]
        url = "https://a.acu.run"
        models = ["qwen"]
        slots = 4
        labels = { rack = "one" }
        expires_at = 2027-01-31T18:00:00+02:00
        cost_acu_per_day = 0.57
        [[replicas]]
        url = "http://b.acu.run:8080"
        models = { qwen = "/models/q.gguf" }
        dialect = "mnn"
        api_key = "env:KEY"
        "#,
    )
    .unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(config.server.listen.len(), 2);
    assert_eq!(config.server.threads, Some(3));
    assert_eq!(config.server.max_body, ByteSize::mib(1));
    assert_eq!(config.server.auth, Auth::None);
    assert_eq!(config.scheduler.policy, Policy::RoundRobin);
    assert_eq!(config.scheduler.queue.max_age, [None, Some(Duration::from_secs(600)), Some(Duration::from_secs(7200))]);
    assert_eq!(config.scheduler.retry.budget_share, 1.0);
    let hedge = HedgeConfig { enabled: false, budget_share: 0.1, give_back: false };
    assert_eq!(config.scheduler(BTreeMap::new()).hedge, hedge);
    assert_eq!(config.streams.head_after, Duration::from_secs(90));
    assert_eq!(config.streams.keepalive, Keepalive::Chunk);
    assert_eq!(config.idempotency.join_by_body, JoinByBody::Retries);
    let bank = &config.tenants["bank"];
    assert_eq!(bank.limits.requests_per_minute, None, "\"none\" takes the general limit away");
    assert_eq!(bank.limits.tokens_per_minute, Some(9000));
    assert_eq!(bank.share, Share { weight: 2.0, max_running: Some(8) });
    assert_eq!(bank.max_class, Class::Standard);
    assert_eq!(config.tenants["guard"].limits.requests_per_minute, Some(60), "the general limit");
    assert_eq!(config.models["qwen"].default_class, Some(Class::Batch));
    let [a, b] = config.replicas.as_slice() else { panic!("two replicas") };
    assert_eq!(a.models.0["qwen"], None);
    assert_eq!(a.expires_at.map(Moment::unix_seconds), Some(1_801_411_200));
    assert_eq!(a.labels["rack"], "one");
    assert_eq!(b.models.0["qwen"].as_deref(), Some("/models/q.gguf"));
    assert_eq!(b.dialect, Some(Dialect::Mnn));
    assert!(!format!("{config:?}").contains("0123456789abcdef"), "secrets never show");
}

#[test]
fn a_share_is_above_nothing_and_a_policy_one_of_three() {
    let lines = mistakes("[scheduler]\npolicy = \"least\"\n[tenants.a]\nweight = 0\nmax_running = 0\n");
    assert_eq!(lines.len(), 3, "{lines:#?}");
    for (line, words) in
        lines.iter().zip(["\"least_work\", \"least_busy\" or \"round_robin\"", "0.001 to 1000", "1 to"])
    {
        assert!(line.contains(words), "{line}");
    }
}

#[test]
fn all_mistakes_are_told_at_once_in_the_order_of_the_file() {
    let lines = mistakes(concat!(
        "[server]\n",
        "listen = [\"0.0.0.0:8080\", \"here\"]\n",
        "max_body = \"16MB\"\n",
        "thread = 4\n",
        "drain_limit = 600\n",
        "[pool]\n",
        "max_replicas = 0\n",
        "idle = true\n",
        "head_after = \"1s\"\n",
        "[tenants.a]\n",
        "keys = [\"hg-secret-secret-secret\"]\n",
        "class = \"urgent\"\n",
        "[[replicas]]\n",
        "slots = 70000\n",
    ));
    let expected = [
        "h.toml:2:27: server.listen[1] = \"here\": not an address with a port; accepted: ADDRESS:PORT, such as \"0.0.0.0:8080\" or \"[::]:8080\"",
        "h.toml:3:12: server.max_body = \"16MB\": write KiB, MiB or GiB (1024 bytes and its powers); accepted: a size, such as \"512B\", \"64KiB\", \"16MiB\", \"1GiB\"",
        "h.toml:4:1: server.thread: unknown key; did you mean `server.threads`?",
        "h.toml:5:15: server.drain_limit = 600: a length of time needs a unit, such as \"600s\"; accepted: a length of time, such as \"500ms\", \"30s\", \"5m\", \"1h30m\"",
        "h.toml:7:16: pool.max_replicas = 0: too small; accepted: 1 to 100000",
        "h.toml:8:8: pool.idle = true: true or false is not expected here; accepted: a length of time, such as \"500ms\", \"30s\", \"5m\", \"1h30m\"",
        "h.toml:9:1: pool.head_after: unknown key; did you mean `streams.head_after`?",
        "h.toml:11:9: tenants.a.keys[0]: a secret is not written here but referred to: \"env:NAME\" or \"file:PATH\"; accepted: \"env:NAME\" or \"file:PATH\"",
        "h.toml:12:9: tenants.a.class = \"urgent\": not one of the choices; accepted: \"interactive\", \"standard\" or \"batch\"",
        "h.toml:13:1: replicas[0].url: missing; accepted: a string that is not empty",
        "h.toml:14:9: replicas[0].slots = 70000: too large; accepted: a whole number",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn a_broken_line_does_not_hide_the_mistakes_of_the_others() {
    let lines = mistakes("[server]\nmax_body = = 3\nthreads = -1\n");
    assert!(lines.iter().any(|line| line.starts_with("h.toml:2:") && line.contains("not TOML")), "{lines:#?}");
    assert!(
        lines.iter().any(|line| line.starts_with("h.toml:3:11: server.threads = -1: must not be negative")),
        "{lines:#?}"
    );
}

#[test]
fn a_file_that_is_not_toml_or_not_there_is_one_mistake_and_no_panic() {
    for text in [
        "\u{0}",
        "[[[[",
        "a = ",
        "= =",
        "[server",
        "\"\\u{110000}\" = 1",
        "server = 3",
        "replicas = {}",
        "tenants = []",
    ] {
        assert!(!mistakes(text).is_empty(), "{text:?}");
    }
    let error = load(Some(Path::new("/no/such/file")), Overrides::default()).unwrap_err();
    assert!(error.to_string().starts_with("/no/such/file: can't be read"), "{error}");
    assert!(load(Some(Path::new("/dev/zero")), Overrides::default()).unwrap_err().to_string().contains("4MiB"));
}

#[test]
fn one_value_stands_for_an_array_of_one_and_an_address_may_stand_in_one() {
    let one = read("server.listen = \"127.0.0.1:1\"\nadmin.listen = \"127.0.0.1:2\"\nadmin.hosts = \"ops\"").unwrap();
    let text = "server.listen = [\"127.0.0.1:1\"]\nadmin.listen = [\"127.0.0.1:2\"]\nadmin.hosts = [\"ops\"]";
    assert_eq!(read(text).unwrap(), one);
    assert_eq!(one.server.listen, ["127.0.0.1:1".parse().unwrap()]);
    assert_eq!(one.admin.listen, "127.0.0.1:2".parse().unwrap());
    for (text, expected) in [
        (
            "server.listen = \"here\"",
            "h.toml:1:17: server.listen = \"here\": not an address with a port; accepted: ADDRESS:PORT",
        ),
        (
            "server.tls_listen = \"none\"",
            "server.tls_listen: an array is expected here, and an empty one is written []",
        ),
        ("server.listen = 8080", "server.listen = 8080: a whole number is not expected here; accepted: ADDRESS:PORT"),
        ("tenants.a.keys = \"hg-secret\"", "tenants.a.keys: a secret is not written here"),
        ("admin.listen = [\"127.0.0.1:1\", \"[::1]:1\"]", "admin.listen = […]: one address is expected here, not 2"),
        ("registration.listen = []", "registration.listen = […]: one address is expected here, not 0"),
    ] {
        let lines = mistakes(text);
        assert!(lines.iter().any(|line| line.contains(expected)), "{text}: {lines:#?}");
        assert!(!lines.concat().contains("hg-secret"), "{lines:#?}");
    }
}

#[test]
fn rules_between_keys_are_checked_with_a_place() {
    for (text, expected) in [
        ("server.listen = []", "h.toml:1:8: server.listen: nothing to listen on"),
        (
            "server.tls_listen = [\"0.0.0.0:443\"]",
            "h.toml:1:8: server.tls_listen: server.tls_cert and server.tls_key are missing",
        ),
        ("server.tls_cert = \"c.pem\"", "server.tls_cert: server.tls_key is missing"),
        ("admin.listen = \"0.0.0.0:9091\"", "h.toml:1:7: admin.listen: 0.0.0.0:9091 can be reached from outside"),
        (
            "admin.listen = \"127.0.0.1:8080\"\nserver.listen = [\"127.0.0.1:8080\"]",
            "127.0.0.1:8080 is listened on twice",
        ),
        ("streams.gap_cap = \"10s\"", "streams.gap_cap: streams.gap_min must not be larger than streams.gap_cap"),
        (
            "idempotency.max_bytes = \"1MiB\"",
            "h.toml:1:13: idempotency.max_bytes: idempotency.max_answer must not be larger than idempotency.max_bytes",
        ),
        (
            "store.path = \"a.db\"\nbatches.path = \"a.db\"",
            "h.toml:2:9: batches.path: batches have a database of their own: this is the file of store.path",
        ),
        ("health.timeout = \"20s\"", "health.timeout: health.timeout must not be larger than health.interval"),
        ("tenants.\"a b\".models = []", "tenants.\"a b\": not a tenant's name"),
        (
            "tenants.a.keys = [\"env:KEY\"]\ntenants.b.keys = [\"env:KEY\"]",
            "h.toml:2:11: tenants.b.keys: key 0 is already a key of tenant a",
        ),
        (
            "tenants.a.class = \"interactive\"\ntenants.a.max_class = \"batch\"",
            "tenants.a.class: more urgent than max_class",
        ),
        ("tenants.anonymous.keys = [\"env:KEY\"]", "it can't have one"),
        ("models.a.aliases = [\"b\"]\nmodels.b.aliases = []", "models.a.aliases: \"b\" already names the model \"b\""),
        (
            "[[replicas]]\nurl = \"https://a.acu.run\"\n[[replicas]]\nurl = \"https://a.acu.run/\"",
            "h.toml:4:1: replicas[1].url: the same address as replicas[0]",
        ),
        ("[[replicas]]\nurl = \"http://a.acu.run\"", "h.toml:2:1: replicas[0].url: plain http is off"),
    ] {
        let lines = mistakes(text);
        assert!(lines.len() == 1 && lines[0].contains(expected), "{text}\n{lines:#?}");
    }
    assert!(read("admin.listen = \"0.0.0.0:9091\"\nadmin.token = \"env:KEY\"").is_ok());
}

#[test]
fn every_dialect_has_its_name_in_the_list_of_choices() {
    for dialect in Dialect::ALL {
        assert!(<Dialect as value::Value>::ACCEPTED.contains(&format!("\"{}\"", dialect.name())));
    }
}

#[test]
fn flags_go_over_the_file_and_their_mistakes_are_told_with_the_files() {
    let file = "pool.allow_http = true\npool.allow_private = true\n[[replicas]]\nurl = \"http://a.acu.run\"";
    let flags = Overrides {
        replicas: vec!["http://b.acu.run/".into(), "http://A.acu.run:80".into()],
        listen: vec!["127.0.0.1:1".parse().unwrap()],
        admin_listen: Some("127.0.0.1:2".parse().unwrap()),
        store: Some(":memory:".into()),
    };
    let config = read_with(file, flags).unwrap();
    assert_eq!(
        config.replicas.iter().map(|r| r.url.as_str()).collect::<Vec<_>>(),
        ["http://a.acu.run", "http://b.acu.run"]
    );
    assert_eq!(config.server.listen, ["127.0.0.1:1".parse().unwrap()]);
    assert_eq!(config.store.path, Path::new(":memory:"));
    let flags = Overrides { replicas: vec!["https://me:passw0rd@a.acu.run".into()], ..Overrides::default() };
    let error = read_with("server.thread = 1", flags).unwrap_err();
    assert_eq!(error.mistakes.len(), 2);
    let told = error.mistakes[1].to_string();
    assert!(
        told.starts_with("--replica: the address must not contain a user name") && !told.contains("passw0rd"),
        "{told}"
    );
}

#[test]
fn a_reload_names_what_it_applies_and_what_needs_a_restart() {
    let base = "[tenants.a]\nkeys = [\"env:KEY\"]\n[[replicas]]\nurl = \"https://a.acu.run\"\n";
    let old = read(base).unwrap();
    assert!(old.diff(&old.clone()).is_empty());
    let new = read(
        r#"
        server.listen = ["127.0.0.1:1"]
        streams.head_after = "1s"
        telemetry.log = "json"
        [tenants.a]
        keys = ["env:OTHER_KEY"]
        [[replicas]]
        url = "https://a.acu.run"
        slots = 2
        "#,
    )
    .unwrap();
    let changes = old.diff(&new);
    assert_eq!(changes.applied, ["replicas[https://a.acu.run].slots", "streams.head_after", "tenants.a.keys"]);
    assert_eq!(changes.needs_restart, ["server.listen", "telemetry.log"]);
    assert_eq!(new.diff(&old).applied, changes.applied);
}

#[test]
fn a_replica_or_tenant_that_goes_is_a_change() {
    let with = read("[tenants.a]\n[[replicas]]\nurl = \"https://a.acu.run\"\n").unwrap();
    let changes = with.diff(&Config::default());
    assert!(changes.applied.contains(&"replicas[https://a.acu.run].url".to_owned()), "{changes:?}");
    assert!(changes.applied.iter().any(|key| key.starts_with("tenants.a.")), "{changes:?}");
    assert_eq!(changes.needs_restart, Vec::<String>::new());
}

#[test]
fn a_replicas_name_is_a_word_and_its_own() {
    let named = |first: &str, second: &str| {
        format!(
            "[[replicas]]\nurl = \"https://a.acu.run\"\nname = {first:?}\n[[replicas]]\nurl = \"https://b.acu.run\"\nname = {second:?}\n"
        )
    };
    assert!(read(&named("pixel-7", "[2001:db8::1]:443")).is_ok());
    let found = mistakes(&named("pixel 7", "f\u{fc}nf"));
    assert!(
        found.len() == 2 && found[0].contains("replicas[0].name") && found[1].contains("replicas[1].name"),
        "{found:?}"
    );
    let found = mistakes(&named("pixel-7", "pixel-7"));
    assert!(found.len() == 1 && found[0].contains("replicas[0] is called that"), "{found:?}");
}

#[test]
fn what_follows_from_a_wrong_entry_of_a_list_is_no_mistake_of_its_own() {
    let found = mistakes(
        "[server]\nlisten = [\"0.0.0.0:99999\"]\n[chain]\nrpc = \"https://node.example\"\njobs = [\"Acurast:5Grw:abc\"]\n",
    );
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(found[0].contains("server.listen[0]") && found[1].contains("chain.jobs[0]"), "{found:#?}");
    let found = mistakes("[server]\nlisten = []\n[chain]\nrpc = \"https://node.example\"\n");
    assert_eq!(found.len(), 2, "lists that are empty are empty: {found:#?}");
}
