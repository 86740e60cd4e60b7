//! The admin listener's connections: bounded in number, and closed when nothing happens on them.
//!
//! `axum::serve` accepts without bound and waits for a request's head for ever, and descriptors are one budget for the
//! whole process: anybody who reaches the port could take them all from clients and replicas, without a token. Both bounds
//! are the socket's, so that they hold before and below HTTP. Rejected: a server of our own on hyper, for two numbers.

use std::{
    future::Future as _,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::serve::Listener;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Sleep,
};

use crate::clock;

/// Connections at once; more wait in the system's queue. 256: every reader of events and then as many scrapers, consoles
/// and scripts as an address may have connections on the public side.
const MAX_CONNECTIONS: usize = 256;
/// Nothing read or written for so long ends a connection. 5 minutes: longer than importing the largest pool takes on a
/// slow disk, and many times the event feed's comments.
const MAX_QUIET: Duration = Duration::from_secs(300);

/// A connection of a phone, whatever happens on it. 30 s: it sends one small body, and opens another connection for the next.
const MAX_CALL: Duration = Duration::from_secs(30);

/// A listener with bounds.
pub(super) struct Bounded {
    listener: TcpListener,
    places: Arc<Semaphore>,
    quiet: Duration,
    /// The bound starts anew whenever something happens.
    renewed: bool,
}

impl Bounded {
    pub(super) fn new(listener: TcpListener) -> Self {
        Self { listener, places: Arc::new(Semaphore::new(MAX_CONNECTIONS)), quiet: MAX_QUIET, renewed: true }
    }

    /// For peers that nobody knows: who sends a byte now and then keeps no place by that.
    pub(super) fn brief(listener: TcpListener) -> Self {
        Self { quiet: MAX_CALL, renewed: false, ..Self::new(listener) }
    }
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        // Never closed, so there always is one in the end.
        let place = Arc::clone(&self.places).acquire_owned().await.ok();
        let (stream, peer) = Listener::accept(&mut self.listener).await;
        (Connection::new(stream, self.quiet, self.renewed, place), peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// One of its connections.
pub(super) struct Connection {
    stream: TcpStream,
    quiet: Duration,
    renewed: bool,
    end: Pin<Box<Sleep>>,
    _place: Option<OwnedSemaphorePermit>,
}

impl Connection {
    fn new(stream: TcpStream, quiet: Duration, renewed: bool, place: Option<OwnedSemaphorePermit>) -> Self {
        let end = Box::pin(tokio::time::sleep_until(clock::instant(clock::now() + quiet)));
        Self { stream, quiet, renewed, end, _place: place }
    }

    /// Passes on what the socket says; if that is "wait", only until the end.
    fn watched<T>(&mut self, polled: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if polled.is_ready() && self.renewed {
            self.end.as_mut().reset(clock::instant(clock::now() + self.quiet));
            return polled;
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
        self.watched(polled, context)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watched(polled, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.watched(polled, context)
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

    async fn bounded(places: usize, quiet: Duration) -> (Bounded, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (Bounded { listener, places: Arc::new(Semaphore::new(places)), quiet, renewed: true }, address)
    }

    #[tokio::test]
    async fn a_peer_that_stops_talking_is_cut_off() {
        let (mut listener, address) = bounded(1, Duration::from_millis(20)).await;
        let mut peer = TcpStream::connect(address).await.unwrap();
        peer.write_all(b"GET /admin").await.unwrap();
        let (mut connection, _) = listener.accept().await;
        let mut head = [0; 10];
        connection.read_exact(&mut head).await.unwrap();
        let end = tokio::time::timeout(LONG, connection.read_u8()).await.expect("an end");
        assert_eq!(end.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_stranger_that_sends_a_byte_now_and_then_is_cut_off_all_the_same() {
        let (mut listener, address) = bounded(1, Duration::from_millis(50)).await;
        listener.renewed = false;
        let mut peer = TcpStream::connect(address).await.unwrap();
        let (mut connection, _) = listener.accept().await;
        let trickle = async {
            while peer.write_all(b"x").await.is_ok() {
                tokio::task::yield_now().await;
            }
        };
        let read = async {
            loop {
                if let Err(error) = connection.read_u8().await {
                    return error;
                }
            }
        };
        let end = tokio::select! {
            end = tokio::time::timeout(LONG, read) => end.expect("an end"),
            () = trickle => panic!("its end was not closed"),
        };
        assert_eq!(end.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_peer_that_stops_reading_is_cut_off() {
        let (mut listener, address) = bounded(1, Duration::from_millis(20)).await;
        let _peer = TcpStream::connect(address).await.unwrap();
        let (mut connection, _) = listener.accept().await;
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
        let (mut listener, address) = bounded(1, LONG).await;
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
}
