//! Where connections come in: the phone's own port, or sockets handed over by a relay.

use crate::link::Entrance;
use crate::phone::Phone;
use crate::tasks::Tasks;
use crate::{clock, visit};
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::Instant;

const BACKLOG: i32 = 1024;
/// Pause after an accept that failed for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Connections that fill the queue of a port which answers nobody; the kernel takes one more than its backlog.
const FILLERS: usize = 4;

/// A port that can be closed and opened again without losing it to somebody else: a second socket stays bound to it
/// and never listens.
#[derive(Debug)]
pub(crate) struct Door {
    address: SocketAddr,
    _reservation: Socket,
    state: DoorState,
}

#[derive(Debug)]
enum DoorState {
    Closed,
    Open(TcpListener),
    /// Listens with a full queue, so that the kernel drops every SYN.
    Full {
        _listener: Socket,
        _fillers: Vec<Socket>,
    },
}

fn bound(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

impl Door {
    pub(crate) fn bind(address: SocketAddr) -> io::Result<Self> {
        let reservation = bound(address)?;
        let address = reservation.local_addr()?.as_socket().unwrap_or(address);
        let mut door = Self { address, _reservation: reservation, state: DoorState::Closed };
        door.state = door.make(Entrance::Open)?;
        Ok(door)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    fn entrance(&self) -> Entrance {
        match self.state {
            DoorState::Closed => Entrance::Refused,
            DoorState::Open(_) => Entrance::Open,
            DoorState::Full { .. } => Entrance::Unanswered,
        }
    }

    fn make(&self, entrance: Entrance) -> io::Result<DoorState> {
        match entrance {
            Entrance::Refused => Ok(DoorState::Closed),
            Entrance::Open => {
                let socket = bound(self.address)?;
                socket.listen(BACKLOG)?;
                socket.set_nonblocking(true)?;
                Ok(DoorState::Open(TcpListener::from_std(socket.into())?))
            }
            Entrance::Unanswered => {
                let listener = bound(self.address)?;
                listener.listen(0)?;
                let mut fillers = Vec::new();
                for _ in 0..FILLERS {
                    let filler = Socket::new(Domain::for_address(self.address), Type::STREAM, Some(Protocol::TCP))?;
                    filler.set_nonblocking(true)?;
                    // Fails with "in progress": whether it comes about is the point.
                    filler.connect(&self.address.into()).ok();
                    fillers.push(filler);
                }
                Ok(DoorState::Full { _listener: listener, _fillers: fillers })
            }
        }
    }

    fn set(&mut self, entrance: Entrance) {
        if self.entrance() != entrance {
            self.state = DoorState::Closed;
            // A port that cannot be opened now is tried again at the next change or accept.
            self.state = self.make(entrance).unwrap_or(DoorState::Closed);
        }
    }

    async fn accept(&self) -> TcpStream {
        loop {
            match &self.state {
                DoorState::Open(listener) => match listener.accept().await {
                    Ok((stream, _)) => return stream,
                    Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
                },
                DoorState::Closed | DoorState::Full { .. } => std::future::pending().await,
            }
        }
    }
}

async fn accept(door: Option<&Door>) -> TcpStream {
    match door {
        Some(door) => door.accept().await,
        None => std::future::pending().await,
    }
}

async fn handed_over(sockets: &mut mpsc::Receiver<TcpStream>) -> TcpStream {
    match sockets.recv().await {
        Some(stream) => stream,
        None => std::future::pending().await,
    }
}

async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// Receives a phone's connections, and lets it die and come back if it flaps, until it is dropped.
pub(crate) async fn run(phone: Arc<Phone>, mut door: Option<Door>, mut sockets: mpsc::Receiver<TcpStream>) {
    let mut link = phone.link.subscribe();
    let mut guests = Tasks::default();
    let mut flaps: Option<Instant> = None;
    let mut flapped = false;
    loop {
        let now = *link.borrow_and_update();
        if let Some(door) = &mut door {
            door.set(now.entrance);
        }
        match now.flap {
            Some((up_s, _, random)) if flaps.is_none() => {
                flaps = Some(clock::now() + phone.draw_seconds(up_s, random));
            }
            None if flaps.take().is_some() && std::mem::take(&mut flapped) => phone.revive(),
            _ => {}
        }
        let cuts = now.cuts;
        tokio::select! {
            stream = accept(door.as_ref()) => guests.spawn(visit::receive(phone.clone(), stream, cuts)),
            stream = handed_over(&mut sockets) => guests.spawn(visit::receive(phone.clone(), stream, cuts)),
            _ = link.changed() => {}
            () = at(phone.next_change()) => phone.pass_time(),
            () = at(flaps) => {
                let Some((up_s, down_s, random)) = now.flap else { continue };
                let next = if flapped { phone.revive(); up_s } else { phone.kill(None); down_s };
                flapped = !flapped;
                flaps = Some(clock::now() + phone.draw_seconds(next, random));
            }
            () = guests.reap() => {}
        }
    }
}
