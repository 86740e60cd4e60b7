//! A relay as the tunnel runs it: one port for all phones, routed by the name in the TLS ClientHello.
//!
//! The real relay copies bytes between two sockets. Here phone and relay share a process, so after a look at the
//! ClientHello, which stays in the socket, the socket itself is handed to the phone, which terminates TLS. What a
//! client sees is the same, at half the work. As with the real one, the whole ClientHello must be there in the first
//! read, and whoever asks for an unknown phone is reset.

use crate::authority::Authority;
use crate::config::PhoneConfig;
use crate::handle::{PhoneHandle, SpawnError, spawn_behind};
use crate::tasks::Tasks;
use crate::wire;
use std::collections::BTreeMap;
use std::io::Cursor;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// How long a connection may take to say whom it wants.
const HELLO_LIMIT: Duration = Duration::from_secs(10);
/// Most bytes of a ClientHello that the first read takes.
const HELLO_BYTES: usize = 16 * 1024;
/// Pause after an accept that failed for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

type Routes = Mutex<BTreeMap<String, mpsc::Sender<TcpStream>>>;

#[derive(Debug)]
struct Running {
    address: SocketAddr,
    authority: Arc<Authority>,
    routes: Arc<Routes>,
    _tasks: Tasks,
}

/// A running relay. Clones are the same relay; it stops when the last of them is dropped.
#[derive(Debug, Clone)]
pub struct Relay(Arc<Running>);

fn lock(routes: &Routes) -> MutexGuard<'_, BTreeMap<String, mpsc::Sender<TcpStream>>> {
    routes.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Relay {
    /// Starts a relay on `address`; port 0 takes a free one.
    pub async fn start(address: SocketAddr) -> Result<Self, SpawnError> {
        let failed = |cause| SpawnError::Listen { address, cause };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let authority = Arc::new(Authority::new()?);
        let routes = Arc::new(Routes::default());
        let mut tasks = Tasks::default();
        tasks.spawn(run(listener, routes.clone()));
        Ok(Self(Arc::new(Running { address, authority, routes, _tasks: tasks })))
    }

    /// Starts a relay on a free port of 127.0.0.1.
    pub async fn start_local() -> Result<Self, SpawnError> {
        Self::start(SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// The certificate, in PEM, of the authority that signed its phones' certificates.
    pub fn ca_pem(&self) -> &str {
        self.0.authority.pem()
    }

    /// Starts a phone at `https://<id>.localhost:<port of the relay>`.
    pub fn spawn(&self, config: PhoneConfig) -> Result<PhoneHandle, SpawnError> {
        let id = config.resolved_id();
        let known = lock(&self.0.routes).get(&id).is_some_and(|route| !route.is_closed());
        if known {
            return Err(SpawnError::TwoOfOneId(id));
        }
        let (handle, route) = spawn_behind(config, self.0.authority.clone(), self.0.address)?;
        lock(&self.0.routes).insert(id, route);
        Ok(handle)
    }
}

async fn run(listener: TcpListener, routes: Arc<Routes>) {
    let mut guests = Tasks::default();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => guests.spawn(route(stream, routes.clone())),
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
            () = guests.reap() => {}
        }
    }
}

/// Reads once whom a connection wants, and hands it over or resets it.
async fn route(stream: TcpStream, routes: Arc<Routes>) {
    let mut hello = vec![0; HELLO_BYTES];
    let peeked = tokio::time::timeout(HELLO_LIMIT, stream.peek(&mut hello)).await;
    let Ok(Ok(count @ 1..)) = peeked else { return };
    let route = wanted(&hello[..count]).and_then(|id| lock(&routes).get(&id).cloned());
    let Some(route) = route else { return wire::reset(&stream) };
    if let Err(mpsc::error::SendError(stream)) = route.send(stream).await {
        wire::reset(&stream);
    }
}

/// The first label of the name in a complete ClientHello.
fn wanted(bytes: &[u8]) -> Option<String> {
    let mut acceptor = rustls::server::Acceptor::default();
    let mut cursor = Cursor::new(bytes);
    while (cursor.position() as usize) < bytes.len() {
        if acceptor.read_tls(&mut cursor).ok()? == 0 {
            break;
        }
    }
    let accepted = acceptor.accept().ok()??;
    let hello = accepted.client_hello();
    let name = hello.server_name()?;
    name.split('.').next().map(str::to_ascii_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_whole_client_hello_names_nobody() {
        assert_eq!(wanted(b"GET / HTTP/1.1\r\n\r\n"), None);
        assert_eq!(wanted(&[0x16, 3, 1, 0, 200, 1, 0, 0]), None);
        assert_eq!(wanted(&[]), None);
    }
}
