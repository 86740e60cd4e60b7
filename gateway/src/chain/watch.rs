//! The background task: looks at the chain now and then, and brings what it sees into the pool.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{BuildHasher as _, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use store::{By, ReplicaSource, UnixMillis};
use tokio::sync::Notify;

use super::{
    job::JobId,
    look::{Doubt, Look, Wanted, look},
    plan::{Known, Phone, Saying, Stage, phones, saying},
    rpc::{Rpc, Runtime},
    shape::Registration,
};
use crate::{
    clock,
    config::{self, RpcUrl},
    fleet::{Amendment, Announced, Announcement, Assignment, Fleet, Replica},
    shutdown::Stop,
    telemetry::Telemetry,
};

/// For a whole look: some hundred calls.
const TIMEOUT: Duration = Duration::from_secs(120);
/// While the node does not answer, looks come at least this often.
const RAREST: Duration = Duration::from_secs(600);
/// Doubts that are kept to be shown.
const MAX_DOUBTS: usize = 100;
/// Looks in a row that see nothing before it is said: a node that misses one is no news.
const MISSES: u32 = 3;

/// What is known of the chain. For the admin API and the metrics.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// The node, as it may be shown; `None`: nothing is looked up.
    pub node: Option<String>,
    /// When it was asked last, in milliseconds since 1970.
    pub polled_ms: Option<u64>,
    /// When it last answered well.
    pub seen_ms: Option<u64>,
    /// Why the last look saw nothing.
    pub failure: Option<String>,
    /// Looks that saw nothing, since one did.
    pub failures: u32,
    /// The newest final block then.
    pub head: Option<u64>,
    /// What made it.
    pub runtime: Option<Runtime>,
    /// The last look saw all there is.
    pub whole: bool,
    /// What was not as expected, at most a hundred.
    pub doubts: Vec<Doubt>,
    /// The jobs.
    pub jobs: BTreeMap<JobId, Option<Registration>>,
    /// The phones, with the replica that each is.
    pub phones: Vec<(Phone, Option<scheduler::ReplicaId>)>,
}

impl Status {
    /// Whether the last look saw all there is; `None`: nothing is looked up, or was yet.
    pub fn is_readable(&self) -> Option<bool> {
        (self.node.is_some() && self.polled_ms.is_some()).then_some(self.failures == 0 && self.whole)
    }

    /// Why the chain cannot be read, where that is to be told: the last looks saw nothing, or not all.
    pub fn trouble(&self) -> Option<String> {
        if self.is_readable()? {
            return None;
        }
        match &self.failure {
            Some(_) if self.failures < MISSES && self.seen_ms.is_some() => None,
            Some(why) if self.failures > 0 => Some(why.clone()),
            _ => Some(match self.doubts.first() {
                Some(doubt) => format!("{} of {} is not understood: {}", doubt.item, named(&doubt.of), doubt.why),
                None => "the last look did not see all there is".into(),
            }),
        }
    }

    /// Phones by stage.
    pub fn stages(&self) -> BTreeMap<&'static str, usize> {
        let mut stages: BTreeMap<&'static str, usize> = Stage::ALL.map(|stage| (stage.name(), 0)).into();
        for (phone, _) in &self.phones {
            *stages.entry(phone.stage.name()).or_default() += 1;
        }
        stages
    }
}

/// Whom a doubt is about.
fn named(of: &str) -> &str {
    if of.is_empty() { "the whole chain" } else { of }
}

/// Watches the chain.
pub struct ChainWatch {
    fleet: Arc<Fleet>,
    telemetry: Arc<Telemetry>,
    status: Mutex<Arc<Status>>,
    settings: Mutex<config::Chain>,
    /// The settings changed.
    changed: Notify,
}

/// A node, and where it was.
struct Node {
    url: RpcUrl,
    rpc: Rpc,
}

impl ChainWatch {
    /// Nothing is asked before [`ChainWatch::run`].
    pub fn new(settings: config::Chain, fleet: Arc<Fleet>, telemetry: Arc<Telemetry>) -> Arc<Self> {
        let status = Mutex::new(Arc::new(blank(&settings)));
        Arc::new(Self { fleet, telemetry, status, settings: Mutex::new(settings), changed: Notify::new() })
    }

    /// What is known now.
    pub fn status(&self) -> Arc<Status> {
        Arc::clone(&self.status.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Phones by stage, for the metrics; empty while nothing is looked up.
    pub fn sample(&self) -> BTreeMap<&'static str, usize> {
        let status = self.status();
        if status.node.is_some() { status.stages() } else { BTreeMap::new() }
    }

    /// What is looked for.
    pub fn settings(&self) -> config::Chain {
        self.locked_settings().clone()
    }

    /// Takes other settings; if they differ, it looks at once.
    pub fn reconfigure(&self, settings: config::Chain) {
        let mut current = self.locked_settings();
        if *current == settings {
            return;
        }
        if current.rpc != settings.rpc {
            *self.status.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(blank(&settings));
        }
        *current = settings;
        self.changed.notify_one();
    }

    fn locked_settings(&self) -> MutexGuard<'_, config::Chain> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn show(&self, change: impl FnOnce(&mut Status)) {
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        change(Arc::make_mut(&mut status));
    }

    /// Looks until `stop`.
    pub async fn run(self: Arc<Self>, mut stop: Stop) {
        let mut node: Option<Node> = None;
        loop {
            let settings = self.settings();
            let wait = match &settings.rpc {
                None => None,
                Some(url) => Some(tokio::select! {
                    wait = self.once(&settings, url, &mut node) => wait,
                    () = stop.wait() => return,
                }),
            };
            let pause = async {
                match wait {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = pause => {}
                () = self.changed.notified() => {}
                () = stop.wait() => return,
            }
        }
    }

    /// Looks once; how long to wait for the next time.
    async fn once(&self, settings: &config::Chain, url: &RpcUrl, node: &mut Option<Node>) -> Duration {
        let now = clock::unix_ms();
        let wanted = Wanted {
            jobs: settings.jobs.iter().copied().collect(),
            deployers: settings.deployers.iter().copied().collect(),
        };
        if node.as_ref().is_none_or(|node| node.url != *url) {
            *node = match Rpc::new(url) {
                Ok(rpc) => Some(Node { url: url.clone(), rpc }),
                Err(error) => return self.saw_nothing(settings, now, "local", error.to_string()),
            };
        }
        let Some(Node { rpc, .. }) = node else { return settings.every };
        let seen = match tokio::time::timeout(TIMEOUT, look(rpc, &wanted, now)).await {
            Ok(seen) => seen,
            Err(_) => {
                let why = format!("the node's answers did not all come in {} s", TIMEOUT.as_secs());
                return self.saw_nothing(settings, now, "timeout", why);
            }
        };
        match seen {
            Ok(look) => {
                self.saw(settings, &look, now).await;
                spread(settings.every)
            }
            Err(error) => self.saw_nothing(settings, now, error.name(), error.to_string()),
        }
    }

    /// The pool stays as it is; the next look is the later the longer this lasts.
    fn saw_nothing(&self, settings: &config::Chain, now: u64, outcome: &'static str, why: String) -> Duration {
        self.telemetry.chain_polled(outcome);
        let mut failures = 0;
        self.show(|status| {
            status.polled_ms = Some(now);
            status.failures = status.failures.saturating_add(1);
            status.failure = Some(why.clone());
            failures = status.failures;
        });
        if failures == 1 {
            tracing::warn!(outcome, "the chain can't be looked at, and what is known of it stays: {why}");
        }
        let longer = settings.every.saturating_mul(1 << failures.min(16).saturating_sub(1));
        spread(longer.min(RAREST.max(settings.every)))
    }

    async fn saw(&self, settings: &config::Chain, look: &Look, now: u64) {
        let outcome = if look.whole && look.doubts.is_empty() { "ok" } else { "partial" };
        self.telemetry.chain_polled(outcome);
        let phones = phones(look, &settings.suffix, now);
        let mut shown = Vec::with_capacity(phones.len());
        // First, so that a phone that announces itself meanwhile is known by its key.
        self.fleet.set_assignments(assignments(&phones));
        for mut phone in phones {
            let replica = match self.bring(&phone, now).await {
                Ok(replica) => replica,
                Err(why) => {
                    phone.problem = Some(why);
                    None
                }
            };
            shown.push((phone, replica.map(|replica| replica.id)));
        }
        if look.whole {
            self.dismiss(look, now).await;
        }
        let before = self.status();
        if before.failures > 0 {
            tracing::info!(after = before.failures, "the chain can be looked at again");
        }
        for doubt in look.doubts.iter().filter(|doubt| !before.doubts.contains(doubt)) {
            tracing::warn!(item = doubt.item, of = doubt.of, "the chain says what is not understood: {}", doubt.why);
        }
        self.show(|status| {
            status.polled_ms = Some(now);
            status.seen_ms = Some(now);
            status.failure = None;
            status.failures = 0;
            status.head = Some(look.number);
            status.runtime = Some(look.runtime.clone());
            status.whole = look.whole;
            status.doubts = look.doubts.iter().take(MAX_DOUBTS).cloned().collect();
            status.jobs = look.jobs.iter().map(|(id, job)| (*id, job.registration)).collect();
            status.phones = shown;
        });
    }

    /// Says of a phone what the chain says, if its time is now. The replica that it is.
    async fn bring(&self, phone: &Phone, now: u64) -> Result<Option<Arc<Replica>>, String> {
        let known = self.known(phone);
        if phone.stage != Stage::Running {
            return Ok(known);
        }
        let url = known.as_ref().map(|known| known.url.to_string());
        let Some(Saying { at, verification }) =
            saying(phone, url.as_deref().zip(known.as_deref()).map(|(url, known)| known_as(url, known)))
        else {
            return Ok(known);
        };
        let (url, pin) = at.unzip();
        let stated = Amendment {
            expires_at: Some(phone.span_ms.map(|(_, end)| end / 1_000)),
            cost_acu_per_day: Some(phone.cost_per_day),
            ..Amendment::default()
        };
        let said = Announcement {
            url,
            deployment: Some(phone.job.to_string()),
            processor: Some(phone.processor.to_string()),
            public_key: phone.signing_key.clone(),
            pin,
            verification,
            signed_at: None,
            source: ReplicaSource::Chain,
            stated,
            by: By { at: UnixMillis(now), who: "chain".into() },
        };
        match self.fleet.announce(said).await {
            Ok(announced) => {
                if let Announced::New(replica) | Announced::Moved(replica) = &announced {
                    tracing::info!(replica = &*replica.label, job = %phone.job, processor = %phone.processor, "found on the chain");
                }
                Ok(Some(Arc::clone(announced.replica())))
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// The replica that a phone is.
    fn known(&self, phone: &Phone) -> Option<Arc<Replica>> {
        let (job, processor) = (phone.job.to_string(), phone.processor.to_string());
        let replicas = self.fleet.replicas();
        let staying = || replicas.iter().filter(|replica| !replica.past().leaving);
        let key = phone.signing_key.as_ref();
        let own = key.and_then(|key| staying().find(|replica| replica.origin.public_key.as_ref() == Some(key)));
        let at_place = || {
            staying().find(|replica| {
                replica.origin.deployment.as_ref() == Some(&job)
                    && replica.origin.processor.as_ref() == Some(&processor)
            })
        };
        own.or_else(at_place).cloned()
    }

    /// Lets go of those that came from the chain and are not in it any more: nothing new starts there, and once nothing runs
    /// they are gone. `look` saw all there is.
    async fn dismiss(&self, look: &Look, now: u64) {
        let assigned: BTreeSet<(String, String)> = look
            .jobs
            .iter()
            .flat_map(|(id, job)| job.phones.keys().map(|processor| (id.to_string(), processor.to_string())))
            .collect();
        for replica in self.fleet.replicas() {
            let origin = &replica.origin;
            let Some(place) = origin.deployment.clone().zip(origin.processor.clone()) else { continue };
            if replica.source != ReplicaSource::Chain || replica.past().leaving || assigned.contains(&place) {
                continue;
            }
            let by = By { at: UnixMillis(now), who: "chain".into() };
            match self.fleet.remove(replica.id, false, by).await {
                Ok(_) => tracing::info!(replica = &*replica.label, job = place.0, "its assignment has ended"),
                Err(error) => {
                    tracing::warn!(replica = &*replica.label, %error, "its assignment has ended, and it stays")
                }
            }
        }
    }
}

fn known_as<'a>(url: &'a str, replica: &'a Replica) -> Known<'a> {
    Known { source: replica.source, url, origin: &replica.origin }
}

fn blank(settings: &config::Chain) -> Status {
    Status { node: settings.rpc.as_ref().map(ToString::to_string), ..Status::default() }
}

/// Keys of phones that have accepted and whose time is not over.
fn assignments(phones: &[Phone]) -> BTreeMap<String, Assignment> {
    let of = |phone: &Phone| {
        let place = Assignment { deployment: phone.job.to_string(), processor: phone.processor.to_string() };
        let counts = phone.stage != Stage::Matched && phone.stage != Stage::Ended;
        Some((phone.signing_key.clone().filter(|_| counts)?, place))
    };
    phones.iter().filter_map(of).collect()
}

/// A length of time, up to a tenth shorter or longer: gateways that were started together don't ask together.
fn spread(length: Duration) -> Duration {
    let share = RandomState::new().hash_one(0_u8) as f64 / u64::MAX as f64;
    length.mul_f64(0.9 + share / 5.0)
}
