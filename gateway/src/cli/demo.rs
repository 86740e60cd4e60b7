//! `huntgroup demo`: a gateway and simulated phones in one process, to try it without a phone.
//!
//! The phones stand behind a simulated relay with TLS, answer at the speeds that were published for real ones (a few
//! times faster, so that watching is fun), and speak the different engines' dialects. The gateway is the real one, with a
//! store that keeps nothing.

mod chaos;
mod load;
mod phones;
mod welcome;

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write as _},
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;

use self::phones::Phones;
use super::{Failure, serve};
use crate::{
    app,
    auth::key::{self, NoRandomness},
    config::{Config, LogLevel, Pool, Secret, TenantLimits, TenantSection},
    shutdown::Tasks,
    upstream::{Endpoint, TlsError, Upstream},
};

/// Shown where the configuration's file is.
const NO_FILE: &str = "(the demonstration has no configuration file)";

/// Flags of `huntgroup demo`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  huntgroup demo                          eight phones; prints a key, a curl and a Python example
  huntgroup demo --phones 40 --load       with clients that keep them busy
  huntgroup demo --load --chaos           and phones that die and come back: watch no client notice

Of each model one phone that works is left alone, so that somebody can take its requests.")]
pub struct DemoArgs {
    /// Simulated phones
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1000))]
    phones: u16,
    /// Public address; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Address of the admin API; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9091")]
    admin: SocketAddr,
    /// Keep the phones busy with clients
    #[arg(long)]
    load: bool,
    /// Kill and revive phones now and then
    #[arg(long)]
    chaos: bool,
    /// Stop after so long [default: at Ctrl-C]
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u64>,
}

/// Why the demonstration can't start.
#[derive(Debug, thiserror::Error)]
pub(super) enum DemoError {
    /// A phone or the relay.
    #[error("a simulated phone can't start: {0}")]
    Phone(#[from] fakephone::SpawnError),
    /// No key.
    #[error(transparent)]
    Key(#[from] NoRandomness),
    /// The folder for the relay's certificate.
    #[error("{0}: {1}")]
    Folder(PathBuf, io::Error),
    /// A free port.
    #[error("{0}: {1}")]
    Port(SocketAddr, io::Error),
    /// The demonstration's own client.
    #[error(transparent)]
    Client(#[from] TlsError),
}

/// What the parts of the demonstration have in common.
struct Stage {
    public: SocketAddr,
    admin: SocketAddr,
    /// Of the demonstration's tenant.
    key: String,
    /// Of the admin API, where anybody could reach it.
    token: Option<String>,
    client: Upstream,
}

impl Stage {
    fn gateway(&self) -> Endpoint {
        endpoint(self.public)
    }
}

/// Where to call a listener on this machine.
fn endpoint(address: SocketAddr) -> Endpoint {
    let host = if address.ip().is_unspecified() { "127.0.0.1".to_owned() } else { bracketed(address) };
    Endpoint::new(false, &host, address.port())
}

fn bracketed(address: SocketAddr) -> String {
    if address.is_ipv6() { format!("[{}]", address.ip()) } else { address.ip().to_string() }
}

/// Runs until it is stopped.
pub(super) fn run(args: &DemoArgs) -> Result<u8, Failure> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).thread_name("demo").enable_all().build()?;
    let phones = runtime.block_on(Phones::start(args.phones)).map_err(DemoError::from)?;
    let folder = Folder::new(phones.ca_pem())?;
    let stage = Stage {
        public: concrete(args.listen)?,
        admin: concrete(args.admin)?,
        key: key::generate().map_err(DemoError::from)?,
        token: if args.admin.ip().is_loopback() { None } else { Some(key::generate().map_err(DemoError::from)?) },
        client: Upstream::new(&Pool { allow_private: true, allow_http: true, ..Pool::default() })
            .map_err(DemoError::from)?,
    };
    let config = config(&stage, &phones, &folder.ca());
    let tasks = Tasks::default();
    runtime.block_on(perform(args.clone(), stage, phones, folder, &tasks));
    // A reload would read a file, and there is none: it is refused with this in its words.
    let options = app::Options { config_path: Some(NO_FILE.into()), ..app::Options::default() };
    let done = serve::start(config, options);
    runtime.block_on(tasks.stop(Duration::from_secs(1)));
    done
}

/// Starts what happens beside the gateway.
async fn perform(args: DemoArgs, stage: Stage, phones: Phones, folder: Folder, tasks: &Tasks) {
    let stage = std::sync::Arc::new(stage);
    let phones = std::sync::Arc::new(phones);
    let stop = tasks.stop_signal();
    let (shown, present) = (std::sync::Arc::clone(&stage), std::sync::Arc::clone(&phones));
    let (with_load, with_chaos) = (args.load, args.chaos);
    let inner = tasks.clone();
    let show = async move {
        welcome::wait_for_gateway(&shown, present.count()).await;
        // The gateway has read the certificate by now.
        drop(folder);
        welcome::show(&shown, &present);
        if with_load {
            inner.spawn("load", load::run(std::sync::Arc::clone(&shown), present.count(), inner.stop_signal())).await;
        }
        if with_chaos {
            inner.spawn("chaos", chaos::run(shown, present, inner.stop_signal())).await;
        }
    };
    let mut ended = stop.clone();
    tasks
        .spawn("welcome", async move {
            tokio::select! {
                () = ended.wait() => {}
                () = show => {}
            }
        })
        .await;
    if let Some(seconds) = args.seconds {
        let mut ended = stop;
        tasks
            .spawn("end", async move {
                tokio::select! {
                    () = ended.wait() => {}
                    () = tokio::time::sleep(Duration::from_secs(seconds)) => stop_this_process(),
                }
            })
            .await;
    }
    // The phones live as long as somebody holds them.
    let mut ended = tasks.stop_signal();
    tasks
        .spawn("phones", async move {
            ended.wait().await;
            drop(phones);
        })
        .await;
}

/// As an operator would: the gateway drains, then leaves.
fn stop_this_process() {
    let sent = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM);
    if let Err(error) = sent {
        tracing::error!(%error, "the demonstration can't be stopped; press Ctrl-C");
    }
}

fn config(stage: &Stage, phones: &Phones, ca: &Path) -> Config {
    let mut config = Config::default();
    config.server.listen = vec![stage.public];
    config.admin.listen = stage.admin;
    config.admin.token = stage.token.as_ref().map(Secret::new);
    config.store.path = ":memory:".into();
    config.pool.ca_file = Some(ca.to_owned());
    config.pool.allow_private = true;
    // The welcome and what the phones do shall be seen, not one line a request.
    config.telemetry.access_log = false;
    config.telemetry.log_level = LogLevel::Warn;
    let tenant = TenantSection { keys: vec![Secret::new(&stage.key)], ..TenantSection::new(TenantLimits::default()) };
    config.tenants = BTreeMap::from([("demo".to_owned(), tenant)]);
    config.models = phones::models();
    config.replicas = phones.stated();
    config
}

/// The address with a port that is known beforehand.
fn concrete(address: SocketAddr) -> Result<SocketAddr, DemoError> {
    if address.port() != 0 {
        return Ok(address);
    }
    let free = TcpListener::bind(address).and_then(|listener| listener.local_addr());
    free.map_err(|error| DemoError::Port(address, error))
}

/// `1 phone`, `2 phones`.
fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// Says something to whoever watches. That nobody does is no reason to end.
fn say(line: &str) {
    drop(writeln!(io::stdout(), "{line}"));
}

/// A folder for the relay's certificate, gone when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(ca_pem: &str) -> Result<Self, DemoError> {
        let path = std::env::temp_dir().join(format!(
            "huntgroup-demo-{}-{}",
            std::process::id(),
            crate::clock::unix().as_nanos()
        ));
        let made = fs::create_dir(&path);
        let folder = Self(path);
        made.and_then(|()| fs::write(folder.ca(), ca_pem))
            .map_err(|error| DemoError::Folder(folder.0.clone(), error))?;
        Ok(folder)
    }

    fn ca(&self) -> PathBuf {
        self.0.join("ca.pem")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // At worst a small file stays in the temporary folder.
        drop(fs::remove_dir_all(&self.0));
    }
}

/// Numbers that differ from run to run; for choosing phones and prompts, nothing else.
struct Dice(u64);

impl Dice {
    fn new() -> Self {
        Self(crate::clock::unix().as_nanos() as u64)
    }

    /// SplitMix64.
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % sides.max(1) as u64) as usize
    }
}
