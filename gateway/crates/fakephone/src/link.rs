//! The wire between a phone and the world, as its running connections experience it.
//!
//! Connections subscribe to one watch channel: it says whether new ones are let in, whether the running ones are
//! silent, and counts the moments at which all running ones were cut.

use std::time::Duration;
use tokio::sync::watch;

/// What happens to a new connection on the phone's own port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entrance {
    Open,
    Refused,
    Unanswered,
}

/// How running connections end when they are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    EndOfFile,
    Reset,
}

/// The state of the wire.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Link {
    pub(crate) entrance: Entrance,
    /// Running connections are silent; they end after the inner time, if there is one.
    pub(crate) silent: Option<Option<Duration>>,
    /// How often the tunnel lost all running connections while the phone lived.
    pub(crate) severed: u64,
    /// How often all running connections were cut, and how they ended the last time.
    pub(crate) cuts: u64,
    pub(crate) ending: Ending,
    /// Alive and dead seconds, and whether they are means, while the phone flaps.
    pub(crate) flap: Option<(f64, f64, bool)>,
}

impl Link {
    /// A wire in order.
    pub(crate) fn channel() -> watch::Sender<Self> {
        watch::Sender::new(Self {
            entrance: Entrance::Open,
            silent: None,
            severed: 0,
            cuts: 0,
            ending: Ending::EndOfFile,
            flap: None,
        })
    }

    /// Ends all running connections.
    pub(crate) fn cut(&mut self, ending: Ending) {
        self.cuts += 1;
        self.ending = ending;
    }
}

/// A running connection's view of the tunnel it came through.
#[derive(Debug)]
pub(crate) struct Tunnel {
    link: watch::Receiver<Link>,
    /// How often the tunnel had lost its connections when this one came.
    severed: u64,
}

impl Tunnel {
    pub(crate) fn new(link: &watch::Sender<Link>) -> Self {
        let link = link.subscribe();
        let severed = link.borrow().severed;
        Self { link, severed }
    }

    /// Resolves when the tunnel has lost the connection.
    pub(crate) async fn lost(&mut self) {
        let severed = self.severed;
        if self.link.wait_for(|link| link.severed > severed).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
