//! Connections of the admin listener and of the phones' one: bounded in number, in all and from one address, and in time.
//!
//! `axum::serve` accepts without bound and waits for a request's head for ever, and descriptors are one budget for the
//! whole process: anybody who reaches the port could take them all from clients and replicas, without a token. The bounds
//! are the socket's, so that they hold before and below HTTP; what a connection is about, a head, a call or nothing, is told by the
//! bytes that come and by [`serving`], which stands around every call. Rejected: a server of our own on hyper, for its deadline of a
//! head alone: it has none for an answer that nobody reads.

use std::{
    future::Future as _,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::Body,
    extract::{ConnectInfo, Request, connect_info::Connected},
    middleware::Next,
    response::{IntoResponse as _, Response},
    serve::{IncomingStream, Listener},
};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use scheduler::Timestamp;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Sleep,
};

use super::answer::AdminError;
use crate::{
    auth::network,
    clock,
    listener::{Connection as Counted, Connections, Oversize},
};

/// What connections of a listener may take.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Connections at once; more wait in the system's queue.
    all: usize,
    /// Of these from one address, an IPv6 one counts as its /64; more are closed unheard.
    per_address: usize,
    /// From the beginning of a connection, or from the first byte of a later head, to the whole head, whatever comes meanwhile.
    head: Duration,
    /// Between two calls.
    idle: Duration,
    /// Within a call, from anything read or written to the next.
    quiet: Duration,
    /// From its beginning to its end, whatever happens on it; `None`: without end.
    whole: Option<Duration>,
}

/// 256: every reader of events and then as many scrapers, consoles and scripts as an address may have connections on the public
/// side. Three quarters from one address, which may be a proxy's or a tunnel's with everybody behind it: the rest is for others.
/// Heads as on the public side. 75 s between calls: a script that calls once a minute finds its connection open, which with 60 s closes
/// just as it calls. 5 minutes of quiet: longer than importing the largest pool takes on a slow disk,
/// and many times the event feed's comments.
const OPERATORS: Limits = Limits {
    all: 256,
    per_address: 192,
    head: Duration::from_secs(10),
    idle: Duration::from_secs(75),
    quiet: Duration::from_secs(300),
    whole: None,
};
/// 30 s: a phone sends one small body, and opens another connection for the next.
const PHONES: Limits = Limits { whole: Some(Duration::from_secs(30)), ..OPERATORS };

/// A listener with bounds.
pub(super) struct Bounded {
    listener: TcpListener,
    places: Arc<Semaphore>,
    connections: Arc<Connections>,
    limits: Limits,
}

impl Bounded {
    /// For operators.
    pub(super) fn new(listener: TcpListener) -> Self {
        Self::within(listener, OPERATORS)
    }

    /// For peers that nobody knows: who sends a byte now and then keeps no place by that.
    pub(super) fn brief(listener: TcpListener) -> Self {
        Self::within(listener, PHONES)
    }

    fn within(listener: TcpListener, limits: Limits) -> Self {
        Self { listener, places: Arc::new(Semaphore::new(limits.all)), connections: Arc::default(), limits }
    }
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            // Never closed, so there always is one in the end.
            let place = Arc::clone(&self.places).acquire_owned().await.ok();
            let (stream, peer) = Listener::accept(&mut self.listener).await;
            let counted = self.connections.enter(network(peer.ip()), self.limits.all, self.limits.per_address);
            // Refused without an answer: writing one is work that a flood would make us do.
            if let Some(counted) = counted {
                return (Connection::new(stream, self.limits, place, counted), peer);
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// What a connection is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Phase {
    /// A head is awaited, or has begun.
    Head,
    /// A call is answered.
    Call,
    /// Nothing, until the next head begins.
    Idle,
}

/// Where a connection's phase is told from its socket to its calls and back.
#[derive(Debug)]
struct Told(AtomicU8);

impl Told {
    fn phase(&self) -> Phase {
        [Phase::Head, Phase::Call, Phase::Idle]
            .into_iter()
            .find(|phase| *phase as u8 == self.0.load(Ordering::Relaxed))
            .unwrap_or(Phase::Head)
    }

    fn tell(&self, phase: Phase) {
        self.0.store(phase as u8, Ordering::Relaxed);
    }
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    /// From where.
    pub(super) address: SocketAddr,
    told: Arc<Told>,
}

impl Connected<IncomingStream<'_, Bounded>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Bounded>) -> Self {
        Self { address: *stream.remote_addr(), told: Arc::clone(&stream.io().told) }
    }
}

/// Stands around every call: from its head to the end of its answer's body its connection has a call's time. A head larger than on
/// the public side is refused here.
pub(super) async fn serving(ConnectInfo(peer): ConnectInfo<Peer>, request: Request, next: Next) -> Response {
    peer.told.tell(Phase::Call);
    let call = Call(peer.told);
    let answer = match Oversize::check(request.headers(), request.uri()) {
        Ok(()) => next.run(request).await,
        Err(oversize) => AdminError::from(oversize).into_response(),
    };
    answer.map(|body| Body::new(Answer { body, _call: call }))
}

/// A call that is being answered.
struct Call(Arc<Told>);

impl Drop for Call {
    fn drop(&mut self) {
        self.0.tell(Phase::Idle);
    }
}

/// An answer's body, which holds its call.
struct Answer {
    body: Body,
    _call: Call,
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// One of its connections.
pub(super) struct Connection {
    stream: TcpStream,
    limits: Limits,
    told: Arc<Told>,
    /// The phase that `end` was set for.
    phase: Phase,
    end: Pin<Box<Sleep>>,
    /// No end is set later than this.
    last: Option<Timestamp>,
    _counted: Counted,
    _place: Option<OwnedSemaphorePermit>,
}

impl Connection {
    fn new(stream: TcpStream, limits: Limits, place: Option<OwnedSemaphorePermit>, counted: Counted) -> Self {
        let last = limits.whole.map(|whole| clock::now() + whole);
        let (phase, told) = (Phase::Head, Arc::new(Told(AtomicU8::new(Phase::Head as u8))));
        let end = Box::pin(tokio::time::sleep_until(clock::instant(clock::now() + limits.head)));
        Self { stream, limits, told, phase, end, last, _counted: counted, _place: place }
    }

    /// Begins the time of a phase.
    fn begin(&mut self, phase: Phase) {
        let length = match phase {
            Phase::Head => self.limits.head,
            Phase::Call => self.limits.quiet,
            Phase::Idle => self.limits.idle,
        };
        let end = clock::now() + length;
        self.phase = phase;
        self.end.as_mut().reset(clock::instant(self.last.map_or(end, |last| last.min(end))));
    }

    /// Passes on what the socket says, but not beyond the end of a phase's time. `heard`: it said it of reading.
    fn watched<T>(
        &mut self,
        polled: Poll<io::Result<T>>,
        heard: bool,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        let told = self.told.phase();
        let moves = polled.is_ready();
        if told == Phase::Idle && moves && heard {
            self.told.tell(Phase::Head);
            self.begin(Phase::Head);
        } else if told != self.phase || moves && told != Phase::Head {
            self.begin(told);
        }
        match self.end.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => polled,
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(context, into);
        self.watched(polled, true, context)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watched(polled, false, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.watched(polled, false, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    // Nothing waits in a socket's flush or shutdown.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(50);
    const PATIENT: Limits = Limits { all: 8, per_address: 8, head: LONG, idle: LONG, quiet: LONG, whole: None };

    async fn bounded(limits: Limits) -> (Bounded, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (Bounded::within(listener, limits), address)
    }

    async fn connected(limits: Limits) -> (TcpStream, Connection) {
        let (mut listener, address) = bounded(limits).await;
        let peer = TcpStream::connect(address).await.unwrap();
        (peer, listener.accept().await.0)
    }

    /// Reads on while its peer sends a byte whenever it can.
    async fn trickled(mut peer: TcpStream, mut connection: Connection) -> io::ErrorKind {
        let trickle = async {
            while peer.write_all(b"x").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let read = async {
            loop {
                if let Err(error) = connection.read_u8().await {
                    return error.kind();
                }
            }
        };
        tokio::select! {
            end = tokio::time::timeout(LONG, read) => end.expect("an end"),
            () = trickle => panic!("its end was not closed"),
        }
    }

    #[tokio::test]
    async fn a_head_has_its_time_whether_its_peer_stops_or_sends_a_byte_now_and_then() {
        let limits = Limits { head: SHORT, ..PATIENT };
        let (peer, connection) = connected(limits).await;
        assert_eq!(trickled(peer, connection).await, io::ErrorKind::TimedOut);
        let (mut peer, mut connection) = connected(limits).await;
        peer.write_all(b"GET /admin").await.unwrap();
        let mut head = [0; 10];
        connection.read_exact(&mut head).await.unwrap();
        let end = tokio::time::timeout(LONG, connection.read_u8()).await.expect("an end");
        assert_eq!(end.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn the_next_head_has_its_time_from_its_first_byte_and_nothing_but_idleness_before() {
        let (mut peer, mut connection) = connected(Limits { head: SHORT, ..PATIENT }).await;
        connection.told.tell(Phase::Call);
        peer.write_all(b"x").await.unwrap();
        connection.read_u8().await.unwrap();
        drop(Call(Arc::clone(&connection.told)));
        let waited = tokio::time::timeout(3 * SHORT, connection.read_u8()).await;
        assert!(waited.is_err(), "it may be idle for longer: {waited:?}");
        assert_eq!(trickled(peer, connection).await, io::ErrorKind::TimedOut);
        let (_peer, mut connection) = connected(Limits { idle: SHORT, ..PATIENT }).await;
        connection.told.tell(Phase::Idle);
        let end = tokio::time::timeout(LONG, connection.read_u8()).await.expect("an end");
        assert_eq!(end.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_script_that_calls_once_a_minute_finds_its_connection_open() {
        assert!(OPERATORS.idle >= Duration::from_secs(70), "60 s and what its own clock and the network add");
    }

    #[tokio::test]
    async fn a_stranger_has_its_time_whatever_it_does() {
        let (peer, connection) = connected(Limits { whole: Some(SHORT), ..PATIENT }).await;
        connection.told.tell(Phase::Call);
        assert_eq!(trickled(peer, connection).await, io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_peer_that_stops_reading_is_cut_off() {
        let (_peer, mut connection) = connected(Limits { quiet: SHORT, ..PATIENT }).await;
        connection.told.tell(Phase::Call);
        let endless = async {
            loop {
                if let Err(error) = connection.write_all(&[b':'; 65_536]).await {
                    return error;
                }
            }
        };
        let end = tokio::time::timeout(LONG, endless).await.expect("an end");
        assert_eq!(end.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn beyond_the_bound_nothing_is_accepted_until_one_has_gone() {
        let (mut listener, address) = bounded(Limits { all: 1, ..PATIENT }).await;
        let _peers = (TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap());
        let (first, _) = listener.accept().await;
        assert_eq!(listener.places.available_permits(), 0);
        tokio::select! {
            biased;
            _ = listener.accept() => panic!("one too many"),
            () = tokio::task::yield_now() => {}
        }
        drop(first);
        tokio::time::timeout(LONG, listener.accept()).await.expect("the place of the first");
    }

    #[tokio::test]
    async fn beyond_the_bound_of_an_address_it_is_closed_and_another_comes_in() {
        let (mut listener, address) = bounded(Limits { per_address: 1, ..PATIENT }).await;
        let _first = TcpStream::connect(address).await.unwrap();
        let mut second = TcpStream::connect(address).await.unwrap();
        let other = tokio::net::TcpSocket::new_v4().unwrap();
        other.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        let other = other.connect(address).await.unwrap();
        let (_held, _) = listener.accept().await;
        let (_accepted, peer) = tokio::time::timeout(LONG, listener.accept()).await.expect("the other address");
        assert_eq!(peer, other.local_addr().unwrap());
        let end = tokio::time::timeout(LONG, second.read(&mut [0])).await.expect("an end");
        assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
    }
}
