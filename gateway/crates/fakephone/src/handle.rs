//! A running phone, and what a test may do to it.

use crate::authority::{Authority, CertificateError, Certificates};
use crate::config::PhoneConfig;
use crate::fault::{Fault, FaultOrder, Scope};
use crate::phone::Phone;
use crate::porch::{self, Door};
use crate::stats::{PhoneStats, SeenRequest};
use crate::tasks::Tasks;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// A phone could not be started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The port could not be bound.
    #[error("cannot listen on {address}: {cause}")]
    Listen {
        /// The address asked for.
        address: SocketAddr,
        /// What the system said.
        cause: std::io::Error,
    },
    /// The phone's certificate could not be made.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// Another phone behind the relay has the same id.
    #[error("a phone with id {0} is behind this relay already")]
    TwoOfOneId(String),
}

/// Nothing of the kind happened in time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("phone {id}: not within {waited:?}; last seen: {last}")]
pub struct WaitTimeout {
    /// The phone.
    pub id: String,
    /// How long was waited.
    pub waited: Duration,
    /// The counters at the end.
    pub last: String,
}

/// How many accepted sockets the relay may hand to a phone before the phone has taken them.
const HANDED_OVER: usize = 256;

#[derive(Debug)]
struct Running {
    phone: Arc<Phone>,
    address: SocketAddr,
    url: String,
    _tasks: Tasks,
}

/// A running phone. Clones are the same phone; it stops when the last of them is dropped.
#[derive(Debug, Clone)]
pub struct PhoneHandle(Arc<Running>);

/// Starts a phone that speaks plain HTTP on a free port of 127.0.0.1.
pub async fn spawn(config: PhoneConfig) -> Result<PhoneHandle, SpawnError> {
    spawn_at(config, SocketAddr::from(([127, 0, 0, 1], 0))).await
}

/// Starts a phone that speaks plain HTTP on `address`.
pub async fn spawn_at(config: PhoneConfig, address: SocketAddr) -> Result<PhoneHandle, SpawnError> {
    let door = Door::bind(address).map_err(|cause| SpawnError::Listen { address, cause })?;
    let address = door.address();
    let phone = Arc::new(Phone::new(config, None));
    let mut tasks = Tasks::default();
    // The sender is dropped: nobody hands sockets to a phone with a port of its own.
    let (_, sockets) = mpsc::channel(1);
    tasks.spawn(porch::run(phone.clone(), Some(door), sockets));
    Ok(PhoneHandle(Arc::new(Running { phone, address, url: format!("http://{address}"), _tasks: tasks })))
}

/// Starts a phone behind a relay at `relay`; the sender hands sockets to it.
pub(crate) fn spawn_behind(
    config: PhoneConfig,
    authority: Arc<Authority>,
    relay: SocketAddr,
) -> Result<(PhoneHandle, mpsc::Sender<TcpStream>), SpawnError> {
    let host = format!("{}.localhost", config.resolved_id());
    let certificates = Certificates::new(authority, host.clone())?;
    let phone = Arc::new(Phone::new(config, Some(certificates)));
    let (sender, sockets) = mpsc::channel(HANDED_OVER);
    let mut tasks = Tasks::default();
    tasks.spawn(porch::run(phone.clone(), None, sockets));
    let url = format!("https://{host}:{}", relay.port());
    Ok((PhoneHandle(Arc::new(Running { phone, address: relay, url, _tasks: tasks })), sender))
}

impl PhoneHandle {
    /// The 16 hex digits of its address.
    pub fn id(&self) -> &str {
        &self.0.phone.id
    }

    /// Where to connect: its own port, or the relay's.
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// Its base URL, without a slash at the end.
    pub fn url(&self) -> &str {
        &self.0.url
    }

    /// What it is.
    pub fn config(&self) -> &PhoneConfig {
        &self.0.phone.config
    }

    /// Fails in this way from now on, and in no other.
    pub fn set_fault(&self, fault: Fault) {
        self.obey(fault.into());
    }

    /// Fails in this way for as long as `scope` says.
    pub fn set_fault_within(&self, fault: Fault, scope: Scope) {
        self.obey(FaultOrder::from(fault).within(scope));
    }

    /// Carries out an order with scope and target.
    pub fn obey(&self, order: FaultOrder) {
        self.0.phone.obey(order);
    }

    /// Behaves again. Connections that fell silent go on.
    pub fn clear_fault(&self) {
        self.set_fault(Fault::None);
    }

    /// The order it carries out at present.
    pub fn order(&self) -> FaultOrder {
        self.0.phone.order()
    }

    /// The engine dies: running connections end, its own port refuses, and behind a relay the handshake is followed
    /// by an end of file.
    pub fn kill(&self) {
        self.0.phone.kill(None);
    }

    /// The same for some time: then the engine starts again under the same address.
    pub fn kill_for(&self, time: Duration) {
        self.0.phone.kill(Some(time.as_secs_f64()));
    }

    /// The tunnel loses all connections while the phone lives: it sees its clients leave, and does what it does then.
    pub fn cut_connections(&self) {
        self.0.phone.sever();
    }

    /// Somebody else's work takes up to so many of the free slots for some time. It is in no counter. Says how many it got.
    pub fn occupy(&self, slots: usize, time: Duration) -> usize {
        self.0.phone.occupy(slots, time)
    }

    /// Reads and writes at this share of its own speed from now on, what runs included: heat, or another app. 0 stands
    /// still.
    pub fn set_pace(&self, pace: f64) {
        self.0.phone.engine.set_pace(pace);
    }

    /// The engine starts again, with empty caches, loading its model.
    pub fn revive(&self) {
        self.0.phone.revive();
    }

    /// Whether the engine runs.
    pub fn is_alive(&self) -> bool {
        self.0.phone.is_alive()
    }

    /// The counters.
    pub fn stats(&self) -> PhoneStats {
        self.0.phone.book.stats()
    }

    /// Sets the counters back and forgets the requests seen.
    pub fn reset_stats(&self) {
        self.0.phone.book.reset();
    }

    /// The last requests, oldest first.
    pub fn requests(&self) -> Vec<SeenRequest> {
        self.0.phone.book.requests()
    }

    /// The last request for work: path `/v1/…` with a body.
    pub fn last_work(&self) -> Option<SeenRequest> {
        self.requests().into_iter().rev().find(|request| request.method == "POST")
    }

    /// Waits until the counters satisfy `condition`, at most `limit`; gives the counters that did.
    pub async fn wait_until(
        &self,
        limit: Duration,
        condition: impl Fn(&PhoneStats) -> bool,
    ) -> Result<PhoneStats, WaitTimeout> {
        let book = &self.0.phone.book;
        let satisfied = async {
            loop {
                let mut changed = std::pin::pin!(book.changed());
                changed.as_mut().enable();
                let stats = book.stats();
                if condition(&stats) {
                    return stats;
                }
                changed.await;
            }
        };
        tokio::time::timeout(limit, satisfied).await.map_err(|_| WaitTimeout {
            id: self.id().to_owned(),
            waited: limit,
            last: format!("{:?}", book.stats()),
        })
    }
}
