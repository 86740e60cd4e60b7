//! A fresh connection to a replica: TCP, then TLS where the URL says so.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::client::TlsStream;

use super::{Upstream, endpoint::Endpoint, failure::Failure, tls};

/// Keep-alive probes start after this and follow in the same interval: a phone that fell asleep without a FIN is
/// found in about a minute, and no address translator on the way forgets the connection.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// Unanswered probes before the connection counts as dead.
const KEEPALIVE_RETRIES: u32 = 4;
/// Sent data may stay unacknowledged this long.
const USER_TIMEOUT: Duration = Duration::from_secs(60);

/// A connection of either kind.
pub enum Stream {
    /// Plain TCP, for replicas on this host.
    Plain(TcpStream),
    /// TLS.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Upstream {
    /// Connects, within `pool.connect_timeout` and `pool.tls_timeout`.
    pub(super) async fn connect(&self, endpoint: &Endpoint) -> Result<Stream, Failure> {
        let settings = self.settings.load_full();
        let address = endpoint.addresses.resolve(&endpoint.host, endpoint.port, settings.dns_ttl, settings.policy);
        let address = timeout(settings.connect_timeout, address).await.map_err(|_| Failure::ConnectTimeout)??;
        let connected = timeout(settings.connect_timeout, TcpStream::connect(address)).await;
        let tcp = match connected {
            Ok(Ok(tcp)) => tcp,
            Ok(Err(error)) => {
                endpoint.addresses.forget();
                return Err(Failure::connecting(error));
            }
            Err(_) => {
                endpoint.addresses.forget();
                return Err(Failure::ConnectTimeout);
            }
        };
        tune(&tcp).map_err(Failure::Local)?;
        if !endpoint.tls {
            // Without TLS nobody shows a key.
            return if endpoint.pinned.is_some() { Err(Failure::OtherKey) } else { Ok(Stream::Plain(tcp)) };
        }
        let name = tls::server_name(&endpoint.host).map_err(Failure::Tls)?;
        let connector = match &endpoint.pinned {
            Some(pinned) => pinned.connector()?,
            None => &settings.tls,
        };
        let handshake = timeout(settings.tls_timeout, connector.connect(name, tcp)).await;
        let tls = handshake.map_err(|_| Failure::TlsTimeout)?.map_err(Failure::handshake)?;
        Ok(Stream::Tls(Box::new(tls)))
    }
}

fn tune(tcp: &TcpStream) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    let socket = SockRef::from(tcp);
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE).with_retries(KEEPALIVE_RETRIES);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_read(cx, buf),
            Self::Tls(tls) => Pin::new(tls).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_write(cx, buf),
            Self::Tls(tls) => Pin::new(tls).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_write_vectored(cx, bufs),
            Self::Tls(tls) => Pin::new(tls).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(tcp) => tcp.is_write_vectored(),
            Self::Tls(tls) => tls.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            Self::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Self::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}
