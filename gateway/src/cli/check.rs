//! `huntgroup check`: everything that is wrong with a configuration, before it matters.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use super::client::CliError;
use crate::config::{self, Auth, Config, ConfigErrors, Overrides};

/// Flags of `huntgroup check`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  huntgroup check --config huntgroup.toml
  huntgroup check --config huntgroup.toml && kill -HUP \"$(cat huntgroup.pid)\"

Exits with 0 if the gateway would start with it, with 1 if not. Every key with its default and its
reason is in config/huntgroup.toml.")]
pub struct CheckArgs {
    /// The file to check
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
}

/// Checks the file and the files that it names. Prints a summary, or all mistakes; returns the exit code.
///
/// # Errors
/// The output can't be written.
pub fn run(args: &CheckArgs, out: &mut dyn Write, err: &mut dyn Write) -> Result<u8, CliError> {
    let config = match config::load(Some(&args.config), Overrides::default()) {
        Ok(config) => config,
        Err(errors) => return refuse(&errors, err),
    };
    let unreadable = unreadable(&config);
    for line in &unreadable {
        writeln!(err, "{}: {line}", args.config.display())?;
    }
    if !unreadable.is_empty() {
        return Ok(1);
    }
    for (tenant, models) in config::unstated_models(&config) {
        let (path, models) = (args.config.display(), models.join(", "));
        writeln!(
            err,
            "{path}: warning: tenants.{tenant}.models: {models}: no model or alias here, and none that a replica here states; \
             requests for it are answered only if a replica reports it under that name"
        )?;
    }
    write!(out, "{}", summary(&args.config, &config))?;
    Ok(0)
}

fn refuse(errors: &ConfigErrors, err: &mut dyn Write) -> Result<u8, CliError> {
    writeln!(err, "{errors}")?;
    let count = errors.mistakes.len();
    writeln!(err, "{count} mistake{}", plural(count))?;
    Ok(1)
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// Files that are opened later, and could be opened now.
fn unreadable(config: &Config) -> Vec<String> {
    let files = [
        ("server.tls_cert", &config.server.tls_cert),
        ("server.tls_key", &config.server.tls_key),
        ("pool.ca_file", &config.pool.ca_file),
    ];
    let open = |(key, path): (&str, &Option<PathBuf>)| {
        let path = path.as_ref()?;
        let error = std::fs::File::open(path).err()?;
        Some(format!("{key} = \"{}\": can't be read: {error}", path.display()))
    };
    files.into_iter().filter_map(open).collect()
}

fn summary(path: &Path, config: &Config) -> String {
    let list =
        |addresses: &[std::net::SocketAddr]| addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let server = &config.server;
    let tls =
        if server.tls_listen.is_empty() { String::new() } else { format!(", TLS on {}", list(&server.tls_listen)) };
    let admin = if config.admin.token.is_some() { "with a token" } else { "without a token" };
    let phones = match (&config.registration.token, config.registration.listen) {
        (None, _) => "do not announce themselves: registration.token is not set".to_owned(),
        (Some(_), None) => "announce themselves on the admin address".to_owned(),
        (Some(_), Some(listen)) => format!("announce themselves on {listen}, and on the admin address"),
    };
    let keys: usize = config.tenants.values().map(|tenant| tenant.keys.len()).sum();
    let auth = match server.auth {
        Auth::Required => {
            let tenants = config.tenants.len();
            let (s, t) = (plural(keys), plural(tenants));
            format!("{tenants} tenant{t} with {keys} key{s} here; others are made with `huntgroup keys create`")
        }
        Auth::None => "no keys: everybody may ask".into(),
    };
    let changed = Config::default().diff(config);
    let mut changed: Vec<String> = changed.applied.into_iter().chain(changed.needs_restart).collect();
    changed.retain(|key| !["tenants.", "replicas[", "models."].iter().any(|part| key.starts_with(part)));
    changed.sort();
    let changed = if changed.is_empty() { "nothing".into() } else { changed.join(", ") };
    format!(
        "{path} is right.\n  listens on   {listen}{tls}\n  admin        {admin_listen}, {admin}\n  phones       {phones}\n  store        {store}\n  \
         clients      {auth}\n  replicas     {replicas}\n  models       {models}\n  not default  {changed}\n",
        path = path.display(),
        listen = list(&server.listen),
        admin_listen = config.admin.listen,
        store = config.store.path.display(),
        replicas = config.replicas.len(),
        models = config.models.len(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> (u8, String, String) {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("huntgroup-check-{}-{number}.toml", std::process::id()));
        std::fs::write(&path, text).unwrap();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = run(&CheckArgs { config: path.clone() }, &mut out, &mut err).unwrap();
        std::fs::remove_file(&path).unwrap();
        let clean = |bytes| String::from_utf8(bytes).unwrap().replace(&path.display().to_string(), "FILE");
        (code, clean(out), clean(err))
    }

    #[test]
    fn all_mistakes_are_printed_with_their_lines_and_counted() {
        let (code, out, err) = check("[server]\nmax_bodi = 1\nthreads = 0\n");
        assert_eq!((code, out.as_str()), (1, ""));
        let expected = "FILE:2:1: server.max_bodi: unknown key; did you mean `server.max_body`?\n\
                        FILE:3:11: server.threads = 0: too small; accepted: 1 to 1024\n2 mistakes\n";
        assert_eq!(err, expected);
    }

    #[test]
    fn a_right_file_is_summed_up() {
        let (code, out, err) = check("server.expose_replica = false\n[[replicas]]\nurl = \"https://a.acu.run\"\n");
        assert_eq!((code, err.as_str()), (0, ""));
        for line in [
            "FILE is right.",
            "  listens on   0.0.0.0:8080",
            "  admin        127.0.0.1:9091, without a token",
            "  replicas     1",
            "  not default  server.expose_replica",
        ] {
            assert!(out.lines().any(|found| found == line), "{line}\n{out}");
        }
    }

    #[test]
    fn the_address_where_phones_announce_themselves_is_named() {
        let path = std::env::temp_dir().join(format!("huntgroup-check-token-{}", std::process::id()));
        std::fs::write(&path, "phones-0123456789abcdef").unwrap();
        let (shown, on) = (path.display(), "listen = \"127.0.0.1:9092\"");
        let phones = |text: &str| {
            let (code, out, err) = check(text);
            assert_eq!((code, err.as_str()), (0, ""));
            out.lines().find_map(|line| line.strip_prefix("  phones       ")).unwrap().to_owned()
        };
        let token = format!("[registration]\ntoken = \"file:{shown}\"\n");
        assert_eq!(
            phones(&format!("{token}{on}\n")),
            "announce themselves on 127.0.0.1:9092, and on the admin address"
        );
        assert_eq!(phones(&token), "announce themselves on the admin address");
        assert!(phones("").contains("registration.token is not set"));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_variable_that_is_not_set_is_one_mistake() {
        for (text, key) in [
            ("[admin]\nlisten = \"0.0.0.0:9091\"\ntoken = \"env:HUNTGROUP_NOT_SET\"\n", "admin.token"),
            ("[registration]\nlisten = \"127.0.0.1:9092\"\ntoken = \"env:HUNTGROUP_NOT_SET\"\n", "registration.token"),
        ] {
            let (code, _, err) = check(text);
            assert!(code == 1 && err.contains(&format!("{key}: the environment has no variable")), "{err}");
            assert!(err.ends_with("\n1 mistake\n"), "{err}");
        }
        let (_, _, err) = check("[admin]\nlisten = \"0.0.0.0:9091\"\n");
        assert!(err.contains("admin.token is required"), "{err}");
    }

    #[test]
    fn models_of_tenants_that_nobody_states_are_a_warning_that_names_them() {
        let tenant = "[tenants.bank]\nmodels = [\"ghost\", \"small\", \"chat\", \"stated\", \"gone\"]\n";
        let known =
            "[models.small]\naliases = [\"chat\"]\n[[replicas]]\nurl = \"https://a.acu.run\"\nmodels = [\"stated\"]\n";
        let (code, out, err) = check(&format!("{tenant}{known}"));
        assert!(code == 0 && out.contains("FILE is right."), "{out}{err}");
        assert!(err.starts_with("FILE: warning: tenants.bank.models: ghost, gone: no model"), "{err}");
        assert_eq!(err.lines().count(), 1);
    }

    #[test]
    fn a_file_that_is_named_and_not_there_is_a_mistake() {
        let (code, _, err) = check("pool.ca_file = \"/no/such.pem\"\n");
        assert!(code == 1 && err.contains("pool.ca_file = \"/no/such.pem\": can't be read"), "{err}");
    }
}
