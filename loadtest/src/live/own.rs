//! `--self`: phones in this process, a gateway as its child, and nothing left behind.
//!
//! The phones stand behind a fake relay, as real ones do behind the real one: the gateway reaches them by TLS and name.
//! The gateway is the real program with a configuration of its own, not a library: what is tested is what is shipped.

use super::{
    admin::{Admin, AdminError},
    fleet::{Fleet, OwnPhone},
    play::settle,
};
use crate::{
    client::{BadUrl, Pool, call},
    scenario::{PhoneGroup, Scenario},
};
use fakephone::{Dialect, PhoneConfig, Relay, SpawnError};
use simulation::rng::Rng;
use std::{
    fmt::Write as _,
    fs::File,
    io,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};
use tempfile::TempDir;

/// Key of the only tenant. The gateway listens on this machine's loopback only, for as long as the play lasts.
pub(crate) const KEY: &str = "hg-loadtest-own-gateway";
const TOKEN: &str = "loadtest-own-operator";
/// File with the certificate of the relay's authority.
const AUTHORITY: &str = "relay-ca.pem";
/// Ports tried for the gateway: below those that systems hand out by themselves.
const PORTS: std::ops::Range<u16> = 20_000..30_000;
/// For a gateway to start and find all its phones well.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// A gateway that is told to end and does not, is ended.
const GOODBYE: Duration = Duration::from_secs(20);

/// Phones and gateway could not be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OwnError {
    /// The phones.
    #[error("fake phones: {0}")]
    Phones(#[from] SpawnError),
    /// Files.
    #[error("{0}: {1}")]
    File(PathBuf, io::Error),
    /// The program of the gateway.
    #[error("the gateway {0}: {1}")]
    Program(PathBuf, io::Error),
    /// The program is not where it is looked for.
    #[error("no gateway at {0}: build it (cargo build --release -p huntgroup), or say where it is with --huntgroup")]
    NoProgram(PathBuf),
    /// It does not come up.
    #[error("the gateway did not get ready ({0}); it said:\n{1}")]
    NotReady(String, String),
    /// No port.
    #[error("no free port from {start} to {end}", start = PORTS.start, end = PORTS.end)]
    NoPort,
    /// Its address.
    #[error(transparent)]
    Url(#[from] BadUrl),
    /// Its admin API.
    #[error(transparent)]
    Admin(#[from] AdminError),
}

/// A gateway that ends with this value.
pub(crate) struct Own {
    gateway: Gateway,
    directory: TempDir,
    _relay: Relay,
    /// Where clients find it.
    pub(crate) url: String,
    /// Where operators find it.
    pub(crate) admin_url: String,
}

struct Gateway(Child);

impl Drop for Gateway {
    fn drop(&mut self) {
        // Ended already, in the usual case; then there is nothing to kill.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Own {
    /// Starts phones and gateway, and waits until every phone is ready.
    pub(crate) async fn start(scenario: &Scenario, program: &Path) -> Result<(Self, Fleet), OwnError> {
        if !program.is_file() {
            return Err(OwnError::NoProgram(program.to_owned()));
        }
        let relay = Relay::start_local().await?;
        let phones = spawn_phones(scenario, &relay)?;
        let directory = tempfile::tempdir().map_err(|error| OwnError::File(std::env::temp_dir(), error))?;
        let (public, operator) = two_free_ports()?;
        let config = config(scenario, &phones, directory.path(), public, operator);
        write(&directory.path().join(AUTHORITY), relay.ca_pem())?;
        let path = directory.path().join("huntgroup.toml");
        write(&path, &config)?;
        let log = log_of(directory.path());
        let file = File::create(&log).map_err(|error| OwnError::File(log.clone(), error))?;
        let copy = file.try_clone().map_err(|error| OwnError::File(log, error))?;
        let child = Command::new(program)
            .arg("serve")
            .arg("--config")
            .arg(&path)
            .env("LOADTEST_KEY", KEY)
            .env("LOADTEST_TOKEN", TOKEN)
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(copy)
            .spawn()
            .map_err(|error| OwnError::Program(program.to_owned(), error))?;
        let mut own = Self {
            gateway: Gateway(child),
            directory,
            _relay: relay,
            url: format!("http://127.0.0.1:{public}"),
            admin_url: format!("http://127.0.0.1:{operator}"),
        };
        let expected = phones.iter().filter(|phone| !phone.spare).count();
        own.wait_until_ready(expected).await?;
        Ok((own, Fleet::Own(phones)))
    }

    /// Its admin API.
    pub(crate) async fn admin(&self) -> Result<Admin, AdminError> {
        Admin::new(&self.admin_url, Some(TOKEN)).await
    }

    async fn wait_until_ready(&mut self, expected: usize) -> Result<(), OwnError> {
        let (pool, admin) = (Pool::new(&self.url).await?, self.admin().await?);
        let child = &mut self.gateway.0;
        let why = settle(READY_LIMIT, async || {
            if let Ok(Some(status)) = child.try_wait() {
                return (Some(status.to_string()), true);
            }
            if let Err(failure) = call(&pool, "GET", "/healthz", None, None).await {
                return (Some(failure.to_string()), false);
            }
            match admin.ready().await {
                Ok((ready, _)) if ready >= expected => (None, true),
                Ok((ready, of)) => (Some(format!("{ready} of {of} phones are ready")), false),
                Err(error) => (Some(error.to_string()), false),
            }
        })
        .await;
        why.map_or(Ok(()), |why| Err(OwnError::NotReady(why, tail(&log_of(self.directory.path())))))
    }

    /// Tells the gateway to drain and end, and waits for it; what it logged, if it did not end well.
    pub(crate) async fn stop(mut self) -> Option<String> {
        let pid = rustix::process::Pid::from_child(&self.gateway.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).ok();
        let ended = tokio::time::timeout(GOODBYE, async {
            loop {
                if let Ok(Some(status)) = self.gateway.0.try_wait() {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        let wrong = match ended {
            Ok(status) if status.success() => return None,
            Ok(status) => format!("the gateway ended with {status}"),
            Err(_) => format!("the gateway did not end within {} s of SIGTERM", GOODBYE.as_secs()),
        };
        Some(format!("{wrong}; it said:\n{}", tail(&log_of(self.directory.path()))))
    }

    /// Copies the gateway's log.
    pub(crate) fn keep_log(&self, to: &Path) -> Result<(), OwnError> {
        std::fs::copy(log_of(self.directory.path()), to).map_err(|error| OwnError::File(to.to_owned(), error))?;
        Ok(())
    }
}

fn log_of(directory: &Path) -> PathBuf {
    directory.join("gateway.log")
}

fn write(path: &Path, text: &str) -> Result<(), OwnError> {
    std::fs::write(path, text).map_err(|error| OwnError::File(path.to_owned(), error))
}

/// The last lines of a file.
fn tail(path: &Path) -> String {
    let text = std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

fn spawn_phones(scenario: &Scenario, relay: &Relay) -> Result<Vec<OwnPhone>, OwnError> {
    let mut phones = Vec::with_capacity(scenario.fleet.len());
    for (number, (group, kind)) in scenario.fleet.phones().enumerate() {
        let mut chance = Rng::new(scenario.seed, &format!("phone:{number}:speed"));
        let factor = (kind.jitter * chance.normal()).exp();
        let mut config = phone_config(kind, factor, scenario.fleet.time_scale);
        config.seed = scenario.seed.wrapping_mul(1_000_003).wrapping_add(number as u64);
        config.stall = Duration::from_secs_f64(scenario.fleet.stall_s);
        phones.push(OwnPhone {
            name: format!("{}-{number}", kind.name),
            group,
            spare: kind.spare,
            handle: relay.spawn(config)?,
        });
    }
    Ok(phones)
}

fn phone_config(kind: &PhoneGroup, factor: f64, time_scale: f64) -> PhoneConfig {
    PhoneConfig::default()
        .with_model(kind.model.clone())
        .with_slots(kind.slots)
        .with_context(kind.context)
        .with_speed(kind.speed.scaled(factor), time_scale)
        .with_dialect(kind.dialect)
}

/// The configuration of a gateway that has nothing but these phones.
fn config(scenario: &Scenario, phones: &[OwnPhone], directory: &Path, public: u16, operator: u16) -> String {
    let mut text = format!(
        "[server]\nlisten = [\"127.0.0.1:{public}\"]\nmax_connections_per_address = 60000\n\n\
         [admin]\nlisten = \"127.0.0.1:{operator}\"\ntoken = \"env:LOADTEST_TOKEN\"\n\n\
         [store]\npath = {:?}\n\n[pool]\nca_file = {:?}\nallow_private = true\n\n\
         [telemetry]\naccess_log = false\nlog_level = \"info\"\n\n\
         [tenants.loadtest]\nkeys = [\"env:LOADTEST_KEY\"]\n",
        directory.join("huntgroup.db"),
        directory.join(AUTHORITY)
    );
    for phone in phones.iter().filter(|phone| !phone.spare) {
        write!(text, "\n[[replicas]]\nurl = {:?}\nname = {:?}\n", phone.handle.url(), phone.name).ok();
        let kind = &scenario.fleet.groups[phone.group];
        if kind.dialect != Dialect::Llama {
            // These engines say neither which model they run nor how many requests they take.
            write!(text, "models = [{:?}]\nslots = {}\n", kind.model, kind.slots).ok();
        }
    }
    text
}

/// Two ports that nobody listens on at this moment.
fn two_free_ports() -> Result<(u16, u16), OwnError> {
    let span = PORTS.end - PORTS.start;
    let from = (std::process::id() * 37 % u32::from(span)) as u16;
    let candidates = (0..span).map(|step| PORTS.start + (from + step) % span);
    let mut free = candidates.filter(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok());
    free.next().zip(free.next()).ok_or(OwnError::NoPort)
}
