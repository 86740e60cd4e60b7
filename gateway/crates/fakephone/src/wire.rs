//! The socket under a connection: plain or TLS, closed politely, by end of file, or by reset.

use socket2::SockRef;
use std::io::{self, Read};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// Decides how a socket is closed when it is dropped; shared with whoever may drop it.
#[derive(Debug, Clone, Default)]
pub(crate) struct ResetOnDrop(Arc<AtomicBool>);

impl ResetOnDrop {
    /// The socket will be reset, not closed.
    pub(crate) fn arm(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Makes the peer see a reset instead of an end of file.
pub(crate) fn reset(socket: &TcpStream) {
    // A socket that cannot linger is closed the ordinary way, which is the next best thing.
    SockRef::from(socket).set_linger(Some(Duration::ZERO)).ok();
}

/// A TCP socket that can be told to end with a reset.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: TcpStream,
    reset: ResetOnDrop,
}

impl Socket {
    pub(crate) fn new(stream: TcpStream, reset: ResetOnDrop) -> Self {
        Self { stream, reset }
    }
}

/// Most reads that empty a socket before it is closed.
const LAST_READS: usize = 64;

impl Drop for Socket {
    fn drop(&mut self) {
        if self.reset.0.load(Ordering::Relaxed) {
            return reset(&self.stream);
        }
        // A socket closed with unread bytes sends a reset; its peer is to see an end of file.
        let socket = SockRef::from(&self.stream);
        let mut sink = [0; 16 * 1024];
        for _ in 0..LAST_READS {
            if !(&*socket).read(&mut sink).is_ok_and(|count| count > 0) {
                return;
            }
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// What a connection reads and writes.
#[derive(Debug)]
pub(crate) enum Wire {
    Plain(Socket),
    Tls(Box<TlsStream<Socket>>),
}

impl Wire {
    /// The socket itself, without a goodbye from TLS.
    pub(crate) fn into_socket(self) -> Socket {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => stream.into_inner().0,
        }
    }
}

impl Wire {
    /// Ends both directions, without a goodbye from TLS.
    pub(crate) fn sever(&self) {
        let socket = match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => stream.get_ref().0,
        };
        // One that is down already cannot be shut.
        SockRef::from(&socket.stream).shutdown(std::net::Shutdown::Both).ok();
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, data),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, data),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
