//! A gateway that is this program's child, and nothing left behind.
//!
//! It is the real program with a configuration of its own, not a library: what is tested is what is shipped.

use super::{
    admin::{Admin, AdminError},
    play::settle,
};
use crate::client::{BadUrl, Pool, call};
use fakephone::SpawnError;
use std::{
    fs::File,
    io,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};
use tempfile::TempDir;

const TOKEN: &str = "loadtest-own-operator";
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

/// What a configuration needs to know.
pub(crate) struct Site<'s> {
    /// Where everything of this gateway lies.
    pub(crate) directory: &'s Path,
    public: u16,
    operator: u16,
}

impl Site<'_> {
    /// The sections that are the same for every gateway of a load test; `more` goes into `[server]`.
    pub(crate) fn sections(&self, more: &str) -> String {
        format!(
            "[server]\nlisten = [\"127.0.0.1:{}\"]\nmax_connections_per_address = 60000\n{more}\n\
             [admin]\nlisten = \"127.0.0.1:{}\"\ntoken = \"env:LOADTEST_TOKEN\"\n\n\
             [store]\npath = {:?}\n\n\
             [telemetry]\naccess_log = false\nlog_level = \"info\"\n\n",
            self.public,
            self.operator,
            self.directory.join("huntgroup.db"),
        )
    }
}

/// A running gateway; it ends with this value.
pub(crate) struct Process {
    child: Ending,
    directory: TempDir,
    /// Where clients find it.
    pub(crate) url: String,
    admin_url: String,
}

struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        // Ended already, in the usual case; then there is nothing to kill.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Process {
    /// Starts the program with these arguments and variables, and a configuration that `config` writes.
    pub(crate) fn start(
        program: &Path,
        arguments: &[String],
        variables: &[(String, String)],
        config: impl FnOnce(&Site<'_>) -> Result<String, OwnError>,
    ) -> Result<Self, OwnError> {
        if !program.is_file() {
            return Err(OwnError::NoProgram(program.to_owned()));
        }
        let directory = tempfile::tempdir().map_err(|error| OwnError::File(std::env::temp_dir(), error))?;
        let (public, operator) = two_free_ports()?;
        let site = Site { directory: directory.path(), public, operator };
        let path = directory.path().join("huntgroup.toml");
        write(&path, &config(&site)?)?;
        let log = log_of(directory.path());
        let file = File::create(&log).map_err(|error| OwnError::File(log.clone(), error))?;
        let copy = file.try_clone().map_err(|error| OwnError::File(log, error))?;
        let child = Command::new(program)
            .arg("serve")
            .arg("--config")
            .arg(&path)
            .args(arguments)
            .env("LOADTEST_TOKEN", TOKEN)
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(copy)
            .spawn()
            .map_err(|error| OwnError::Program(program.to_owned(), error))?;
        let (url, admin_url) = (format!("http://127.0.0.1:{public}"), format!("http://127.0.0.1:{operator}"));
        Ok(Self { child: Ending(child), directory, url, admin_url })
    }

    /// Its number.
    pub(crate) fn id(&self) -> u32 {
        self.child.0.id()
    }

    /// Its admin API.
    pub(crate) async fn admin(&self) -> Result<Admin, AdminError> {
        Admin::new(&self.admin_url, Some(TOKEN)).await
    }

    /// Waits until so many phones are ready.
    pub(crate) async fn wait_until_ready(&mut self, expected: usize) -> Result<(), OwnError> {
        let (pool, admin) = (Pool::new(&self.url).await?, self.admin().await?);
        let child = &mut self.child.0;
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
        let pid = rustix::process::Pid::from_child(&self.child.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).ok();
        let ended = tokio::time::timeout(GOODBYE, async {
            loop {
                if let Ok(Some(status)) = self.child.0.try_wait() {
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

/// Writes a file.
pub(super) fn write(path: &Path, text: &str) -> Result<(), OwnError> {
    std::fs::write(path, text).map_err(|error| OwnError::File(path.to_owned(), error))
}

/// The last lines of a file.
fn tail(path: &Path) -> String {
    let text = std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// Two ports that nobody listens on at this moment.
fn two_free_ports() -> Result<(u16, u16), OwnError> {
    let span = PORTS.end - PORTS.start;
    let from = (std::process::id() * 37 % u32::from(span)) as u16;
    let candidates = (0..span).map(|step| PORTS.start + (from + step) % span);
    let mut free = candidates.filter(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok());
    free.next().zip(free.next()).ok_or(OwnError::NoPort)
}
