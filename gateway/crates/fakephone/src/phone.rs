//! One phone's state: its engine, its wire, its orders to fail, its book.

use crate::authority::Certificates;
use crate::clock;
use crate::config::{Dialect, PhoneConfig};
use crate::engine::{Engine, Stranger};
use crate::fault::{Fault, FaultOrder, WrongCertificate};
use crate::link::{Ending, Entrance, Link};
use crate::stats::Book;
use crate::streams::Streams;
use simulation::rng::Rng;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// How a phone receives a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    Serve,
    ServeWith(WrongCertificate),
    Reset,
    CloseAfterHandshake,
    /// Hangs, then ends; never ends without a time.
    Hang(Option<Duration>),
}

#[derive(Debug)]
struct State {
    alive: bool,
    loading_until: Option<Instant>,
    /// When it comes back, if it is dead for a time.
    back_at: Option<Instant>,
    /// Somebody else's work, and until when it is there.
    strangers: Vec<(Stranger, Instant)>,
    order: FaultOrder,
    arrivals: u64,
    chance: Rng,
    /// What the last prompt was about, for answers that are swapped.
    last_subject: String,
}

#[derive(Debug)]
pub(crate) struct Phone {
    pub(crate) id: String,
    pub(crate) config: PhoneConfig,
    pub(crate) engine: Arc<Engine>,
    pub(crate) book: Arc<Book>,
    pub(crate) link: watch::Sender<Link>,
    /// The streams it keeps for clients that may come back.
    pub(crate) streams: Streams,
    /// How it terminates TLS; plain HTTP without.
    pub(crate) certificates: Option<Certificates>,
    state: Mutex<State>,
    connections: AtomicU64,
}

impl Phone {
    pub(crate) fn new(config: PhoneConfig, certificates: Option<Certificates>) -> Self {
        let book = Arc::new(Book::default());
        let phone = Self {
            id: config.resolved_id(),
            engine: Arc::new(Engine::new(&config, book.clone())),
            book,
            link: Link::channel(),
            streams: Streams::default(),
            certificates,
            state: Mutex::new(State {
                alive: true,
                loading_until: None,
                back_at: None,
                strangers: Vec::new(),
                order: Fault::None.into(),
                arrivals: 0,
                chance: Rng::from_seed(config.seed),
                last_subject: String::new(),
            }),
            connections: AtomicU64::new(0),
            config,
        };
        phone.start_loading();
        phone
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start_loading(&self) {
        let load = self.config.load_time.as_secs_f64() / self.config.time_scale;
        if load > 0.0 {
            self.state().loading_until = Some(clock::now() + Duration::from_secs_f64(load));
            self.update_link(|_| {});
        }
    }

    /// When the model will have loaded, if it has not.
    pub(crate) fn loading_until(&self) -> Option<Instant> {
        self.state().loading_until.filter(|until| *until > clock::now())
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.state().alive
    }

    pub(crate) fn order(&self) -> FaultOrder {
        self.state().order.clone()
    }

    /// The number of a new connection.
    pub(crate) fn next_connection(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// 32 characters, as llama-server puts behind `chatcmpl-`.
    pub(crate) fn next_id(&self) -> String {
        let mut state = self.state();
        format!("{:016x}{:016x}", state.chance.bits(), state.chance.bits())
    }

    /// Seconds: `mean`, or exponentially distributed around it.
    pub(crate) fn draw_seconds(&self, mean: f64, random: bool) -> Duration {
        let seconds = if random { self.state().chance.exponential(mean) } else { mean };
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(1)).max(Duration::from_millis(1))
    }

    /// Takes what the previous prompt was about and leaves the present one.
    pub(crate) fn swap_subject(&self, subject: &str) -> String {
        std::mem::replace(&mut self.state().last_subject, subject.to_owned())
    }

    /// Starts to fail as ordered, instead of as ordered before.
    pub(crate) fn obey(&self, order: FaultOrder) {
        let fault = order.fault.clone();
        let for_good = order.next.is_none();
        let mut state = self.state();
        if let Fault::Loading { for_s } = fault {
            let time = Duration::try_from_secs_f64(for_s).unwrap_or_default();
            state.loading_until = Some(clock::now() + time);
        }
        state.order = order;
        state.arrivals = 0;
        drop(state);
        self.update_link(|link| {
            if !for_good {
                return;
            }
            match fault {
                Fault::Refuse => link.cut(Ending::Reset),
                Fault::UnknownId | Fault::AppClosed => link.cut(Ending::EndOfFile),
                _ => {}
            }
        });
    }

    /// The engine's process dies: running connections end, and nothing listens, for good or for some seconds.
    pub(crate) fn kill(&self, down_s: Option<f64>) {
        let mut state = self.state();
        state.alive = false;
        state.back_at = down_s.map(|seconds| clock::now() + Duration::try_from_secs_f64(seconds).unwrap_or_default());
        let strangers = std::mem::take(&mut state.strangers);
        drop(state);
        drop(strangers);
        self.update_link(|link| link.cut(Ending::EndOfFile));
    }

    /// The engine starts again: with empty caches, and loading its model.
    pub(crate) fn revive(&self) {
        let mut state = self.state();
        state.back_at = None;
        let was_alive = std::mem::replace(&mut state.alive, true);
        drop(state);
        if !was_alive {
            self.engine.forget();
            self.streams.forget();
            self.start_loading();
        }
        self.update_link(|_| {});
    }

    /// The tunnel loses all connections; the phone lives and sees its clients leave.
    pub(crate) fn sever(&self) {
        self.update_link(|link| link.severed += 1);
    }

    /// Somebody else's work takes free slots for some time; says how many it got.
    pub(crate) fn occupy(&self, slots: usize, time: Duration) -> usize {
        let until = clock::now() + time;
        let strangers = self.engine.occupy(slots);
        let count = strangers.len();
        self.state().strangers.extend(strangers.into_iter().map(|stranger| (stranger, until)));
        self.update_link(|_| {});
        count
    }

    /// When something changes by itself next.
    pub(crate) fn next_change(&self) -> Option<Instant> {
        let state = self.state();
        let leaves = state.strangers.iter().map(|(_, until)| *until).min();
        let loaded = state.loading_until.filter(|until| *until > clock::now());
        [leaves, loaded, state.back_at].into_iter().flatten().min()
    }

    /// Lets happen what happens by itself: strangers leave, a phone that was dead for a time is back, and the port of one
    /// that opens it only with a loaded model opens.
    pub(crate) fn pass_time(&self) {
        let now = clock::now();
        let mut state = self.state();
        let (stay, leave) = std::mem::take(&mut state.strangers).into_iter().partition(|(_, until)| *until > now);
        state.strangers = stay;
        let is_back = state.back_at.is_some_and(|back| back <= now);
        drop(state);
        drop::<Vec<_>>(leave);
        if is_back {
            self.revive();
        } else {
            self.update_link(|_| {});
        }
    }

    /// Brings the wire in line with the state, and does `more` to it.
    fn update_link(&self, more: impl FnOnce(&mut Link)) {
        let state = self.state();
        let fault = if state.order.next.is_none() { state.order.fault.clone() } else { Fault::None };
        let loading = state.loading_until.is_some_and(|until| until > clock::now());
        // `mnncli serve` opens its port only when the model has been loaded.
        let alive = state.alive && !(loading && self.config.dialect == Dialect::Mnn);
        drop(state);
        self.link.send_modify(|link| {
            link.entrance = match fault {
                Fault::Refuse => Entrance::Refused,
                _ if !alive => Entrance::Refused,
                Fault::ConnectHang => Entrance::Unanswered,
                _ => Entrance::Open,
            };
            link.silent = match fault {
                Fault::BlackHole | Fault::ConnectHang => Some(None),
                Fault::TlsStall => Some(Some(self.config.stall)),
                _ => None,
            };
            link.flap = match fault {
                Fault::Flap { up_s, down_s, random } => Some((up_s, down_s, random)),
                _ => None,
            };
            more(link);
        });
    }

    /// How the next connection is received.
    pub(crate) fn arrival(&self) -> Arrival {
        let mut state = self.state();
        state.arrivals += 1;
        if !state.alive {
            return Arrival::CloseAfterHandshake;
        }
        match state.order.take(true, true) {
            Some(Fault::Refuse | Fault::UnknownId) => Arrival::Reset,
            Some(Fault::AppClosed) => Arrival::CloseAfterHandshake,
            Some(Fault::WrongCertificate { kind }) => Arrival::ServeWith(kind),
            Some(Fault::BlackHole | Fault::ConnectHang) => Arrival::Hang(None),
            Some(Fault::TlsStall) => Arrival::Hang(Some(self.config.stall)),
            Some(Fault::EverySecondStalls) if state.arrivals.is_multiple_of(2) => {
                Arrival::Hang(Some(self.config.stall))
            }
            _ => Arrival::Serve,
        }
    }

    /// The fault of the next request.
    pub(crate) fn take_fault(&self, is_work: bool) -> Fault {
        self.state().order.take(false, is_work).unwrap_or_default()
    }

    /// How long a connection may idle, and after how many answers it is closed.
    pub(crate) fn patience(&self) -> (Duration, u32) {
        let state = self.state();
        match &state.order.fault {
            Fault::StaleKeepAlive { idle_s, max_requests, .. } => (
                Duration::try_from_secs_f64(*idle_s).unwrap_or(self.config.keep_alive),
                max_requests.unwrap_or(self.config.requests_per_connection),
            ),
            _ => (self.config.keep_alive, self.config.requests_per_connection),
        }
    }
}
