//! What the process does when it is told something by a signal.
//!
//! TERM drains and leaves; INT too; QUIT hands the listeners to a successor and then drains; HUP reloads.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use async_trait::async_trait;
use pingora::server::{ShutdownSignal, ShutdownSignalWatch};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tokio::signal::unix::{SignalKind, signal};

use super::{AppError, Reloader};
use crate::{
    config::Config,
    shutdown::{Stop, Tasks},
};

/// pingora's successor gives up waiting for the listeners after 6 s.
const SUCCESSOR_WAITS: Duration = Duration::from_secs(5);
/// For calls of operators and phones that run when the listeners are handed over. 2 s: the successor waits meanwhile.
const CALLS_LIMIT: Duration = Duration::from_secs(2);

/// Tells pingora when to stop, and how.
pub struct Signals {
    upgrade_socket: Option<PathBuf>,
    desks: Tasks,
}

impl Signals {
    /// `upgrade_socket` is where a successor waits. `desks` are the listeners of operators and phones: what they change after the
    /// hand-over the successor would not know, so they end before it.
    pub fn new(upgrade_socket: Option<PathBuf>, desks: Tasks) -> Self {
        Self { upgrade_socket, desks }
    }
}

#[async_trait]
impl ShutdownSignalWatch for Signals {
    async fn recv(&self) -> ShutdownSignal {
        let (Ok(mut term), Ok(mut int), Ok(mut quit)) =
            (signal(SignalKind::terminate()), signal(SignalKind::interrupt()), signal(SignalKind::quit()))
        else {
            tracing::error!("signals can't be watched: leaving at once is the only way to end this process");
            return std::future::pending().await;
        };
        loop {
            tokio::select! {
                _ = term.recv() => return ShutdownSignal::GracefulTerminate,
                _ = int.recv() => return ShutdownSignal::GracefulTerminate,
                _ = quit.recv() => {
                    if self.upgrade_socket.as_deref().is_some_and(someone_listens) {
                        tracing::info!("handing over to a successor");
                        self.desks.stop(CALLS_LIMIT).await;
                        return ShutdownSignal::GracefulUpgrade;
                    }
                    // Handing the listeners to nobody would be an outage.
                    tracing::error!("QUIT, but no successor waits at server.upgrade_socket: staying. \
                                     Upgrade with `huntgroup serve --upgrade`, stop with TERM.");
                }
            }
        }
    }
}

/// A successor has bound the socket. It is not connected to: that would be taken for the hand-over.
fn someone_listens(socket: &Path) -> bool {
    let Ok(table) = std::fs::read_to_string("/proc/net/unix") else { return socket.exists() };
    let path = socket.display().to_string();
    table.lines().any(|line| line.ends_with(&path))
}

/// A write beyond the process's file-size limit must be an error of that write, which the store reports, and not the end
/// of the process: a handler is enough for that.
pub fn survive_file_size_limit() {
    if let Err(error) = signal(SignalKind::from_raw(Signal::XFSZ.as_raw())) {
        tracing::warn!(%error, "XFSZ can't be watched: a file-size limit would end this process");
    }
}

/// Resolves when another signal to end comes during a drain.
pub async fn second_signal() {
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}

/// Reloads the configuration whenever HUP says so.
pub async fn reload_on_hangup(reloader: Arc<Reloader>, mut stop: Stop) {
    let Ok(mut hangup) = signal(SignalKind::hangup()) else {
        tracing::error!("HUP can't be watched: reload with POST /admin/reload");
        return;
    };
    loop {
        tokio::select! {
            () = stop.wait() => return,
            _ = hangup.recv() => {
                if let Err(error) = reloader.reload("SIGHUP").await {
                    tracing::error!("reload refused, the old configuration stays:\n{error}");
                }
            }
        }
    }
}

/// Asks the running process for its listeners, as soon as this one waits for them.
pub fn call_predecessor(config: &Config) -> Result<(), AppError> {
    let (Some(pid_file), Some(socket)) = (&config.server.pid_file, config.server.upgrade_socket.clone()) else {
        return Err(AppError::Upgrade("needs server.pid_file and server.upgrade_socket in the configuration"));
    };
    let text = std::fs::read_to_string(pid_file).map_err(|e| AppError::PidFile(pid_file.clone(), e))?;
    let pid = text.trim().parse().ok().and_then(Pid::from_raw);
    let pid = pid.ok_or(AppError::Upgrade("server.pid_file holds no process id"))?;
    if test_kill_process(pid).is_err() {
        return Err(AppError::Upgrade("the process in server.pid_file does not run: start without --upgrade"));
    }
    thread::spawn(move || {
        let step = Duration::from_millis(20);
        for _ in 0..SUCCESSOR_WAITS.as_millis() / step.as_millis() {
            if someone_listens(&socket) {
                if let Err(error) = kill_process(pid, Signal::QUIT) {
                    tracing::error!(%error, "the running process could not be told to hand over");
                }
                return;
            }
            thread::sleep(step);
        }
        tracing::error!(socket = %socket.display(), "the upgrade socket did not come up");
    });
    Ok(())
}
