//! One HTTP/1.1 connection, seen from the phone.
//!
//! Written by hand over a strict header parser, because the point of a fake phone is to do what a well-made server
//! refuses to do: lie about lengths, flood interim answers, cut between two bytes, reset in the middle. Rejected: a
//! server library with a side door for the odd cases; the side door would have been most of the code.

mod read;
mod write;

pub(crate) use read::{NoRequest, Request};
pub(crate) use write::{Manners, Reply, Splitting};

use crate::link::Tunnel;
use crate::wire::Wire;
use bytes::BytesMut;
use std::future::Future;
use tokio::io::AsyncReadExt;

/// Bytes a client may send ahead while it waits for an answer.
const LARGEST_READ_AHEAD: usize = 64 * 1024;

/// The client has closed its side or the socket failed. A half-closed client counts as gone, as with llama-server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gone;

/// A connection and what is known about it.
#[derive(Debug)]
pub(crate) struct Conn {
    wire: Wire,
    tunnel: Option<Tunnel>,
    inbox: BytesMut,
    outbox: Vec<u8>,
    /// Number of this connection on its phone.
    pub(crate) number: u64,
    /// Requests read so far.
    pub(crate) served: u32,
    /// How the present answer is to be written.
    pub(crate) manners: Manners,
    /// The present answer says that it is the last.
    pub(crate) says_close: bool,
    /// Headers that every answer carries.
    greeting: &'static str,
}

impl Conn {
    pub(crate) fn new(wire: Wire, number: u64, greeting: &'static str) -> Self {
        Self {
            wire,
            tunnel: None,
            inbox: BytesMut::new(),
            outbox: Vec::new(),
            number,
            served: 0,
            manners: Manners::default(),
            says_close: false,
            greeting,
        }
    }

    /// The same connection through a tunnel that may lose it.
    pub(crate) fn through(mut self, tunnel: Tunnel) -> Self {
        self.tunnel = Some(tunnel);
        self
    }

    /// Loses the connection: both sides see the other leave.
    pub(crate) fn sever(&self) {
        self.wire.sever();
    }

    /// Reads more; true when nothing will come any more.
    async fn read_more(&mut self) -> bool {
        let read = self.wire.read_buf(&mut self.inbox);
        let read = match &mut self.tunnel {
            None => Some(read.await),
            Some(tunnel) => tokio::select! {
                read = read => Some(read),
                () = tunnel.lost() => None,
            },
        };
        match read {
            Some(read) => !read.is_ok_and(|count| count > 0),
            None => {
                self.sever();
                true
            }
        }
    }

    /// Gives up the connection for what is under it.
    pub(crate) fn into_wire(self) -> Wire {
        self.wire
    }

    /// Resolves when the client has gone. Bytes it sends meanwhile are kept for the next request.
    pub(crate) async fn gone(&mut self) {
        loop {
            if self.inbox.len() >= LARGEST_READ_AHEAD {
                std::future::pending::<()>().await;
            }
            if self.read_more().await {
                return;
            }
        }
    }

    /// Waits for `work` or until the client has gone, whichever comes first.
    pub(crate) async fn or_gone<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Gone> {
        tokio::select! {
            biased;
            () = self.gone() => Err(Gone),
            value = work => Ok(value),
        }
    }
}
