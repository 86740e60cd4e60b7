//! Who sends what when.
//!
//! Work that comes by the clock is started by one task that walks the plan; each client of a closed loop is a task. All of
//! them stop starting things at the end, or when told to; what runs then is waited for.

use super::{Admin, Fleet, progress, sample, steps};
use crate::{
    client::{Ask, Check, Pool, exchange},
    clock,
    ledger::{Book, Ledger, Sent},
    observed::Observed,
    scenario::{Arrivals, Scenario},
    words::{Message, Words, chat_body},
    workload::{Client, Session, Turn, open_sessions},
};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep_until, timeout_at},
};

/// Most requests under way at once; what would be beyond is started when another has ended, and timed from when it was
/// due. Each takes a connection: more than this and the load test measures its own descriptors.
const MOST_IN_FLIGHT: usize = 20_000;
/// How long a client of a closed loop waits after a failure: one that is refused at once must not spin.
const AFTER_FAILURE: Duration = Duration::from_millis(250);

/// Where and how a scenario is played.
pub(crate) struct Setting {
    /// The gateway.
    pub(crate) pool: Pool,
    /// `Authorization` of every request.
    pub(crate) authorization: Option<String>,
    /// The gateway's admin API, if it is known.
    pub(crate) admin: Option<Admin>,
    /// The phones, as far as they can be seen.
    pub(crate) fleet: Fleet,
    /// How closely answers are looked at.
    pub(crate) check: Check,
    /// Whether a progress line is drawn.
    pub(crate) progress: bool,
}

/// A scenario being played.
pub(crate) struct Play {
    pub(super) scenario: Scenario,
    pub(super) setting: Setting,
    pub(super) ledger: Ledger,
    pub(super) started: Instant,
    pub(super) notes: sample::Notes,
    stop: watch::Sender<bool>,
    words: Words,
    templates: Vec<Vec<String>>,
}

/// What came of it.
pub(crate) struct Played {
    /// Every request.
    pub(crate) book: Book,
    /// From the start to the last answer, seconds.
    pub(crate) elapsed_s: f64,
    /// The fleet by time, and what was done to it.
    pub(crate) observed: Observed,
}

impl Play {
    /// Prepares a play; the clock starts now.
    pub(crate) fn new(scenario: Scenario, setting: Setting) -> Arc<Self> {
        let words = Words::new(scenario.seed);
        let texts = scenario.classes.iter().enumerate().map(|(index, class)| {
            let text = |(number, template): (usize, &crate::scenario::Template)| {
                let salt = (index as u64) << 16 | number as u64;
                words.text(&format!("template-{}-{number}", class.name), salt, template.tokens as usize)
            };
            class.templates.iter().enumerate().map(text).collect()
        });
        let templates = texts.collect();
        Arc::new(Self {
            templates,
            words,
            scenario,
            setting,
            ledger: Ledger::default(),
            started: clock::now(),
            notes: sample::Notes::default(),
            stop: watch::Sender::new(false),
        })
    }

    /// Seconds since the start.
    pub(super) fn seconds(&self) -> f64 {
        (clock::now() - self.started).as_secs_f64()
    }

    pub(super) fn instant(&self, at_s: f64) -> Instant {
        self.started + Duration::from_secs_f64(at_s)
    }

    /// When nothing more is started.
    fn end(&self) -> Instant {
        self.instant(self.scenario.duration_s)
    }

    /// Waits until `at`; false if the play was stopped before.
    pub(super) async fn wait_until(&self, at: Instant) -> bool {
        let mut stop = self.stop.subscribe();
        tokio::select! {
            () = sleep_until(at) => true,
            _ = stop.wait_for(|stopped| *stopped) => false,
        }
    }

    /// Plays everything and waits for the last answer. Ctrl-C ends the arrivals, a second one the waiting.
    pub(crate) async fn run(self: &Arc<Self>) -> Played {
        sample::begin(self).await;
        let mut background = JoinSet::new();
        background.spawn(sample::run(self.clone()));
        if self.setting.progress {
            background.spawn(progress::run(self.clone()));
        }
        let mut clients = JoinSet::new();
        clients.spawn(steps::run(self.clone()));
        clients.spawn(start_by_the_clock(self.clone()));
        for (index, class) in self.scenario.classes.iter().enumerate() {
            if let Arrivals::Clients { count } = class.arrivals {
                for client in 0..count as usize {
                    clients.spawn(run_client(self.clone(), index, client));
                }
            }
        }
        let mut interrupts = 0;
        loop {
            tokio::select! {
                ended = clients.join_next() => if ended.is_none() { break },
                () = interrupted() => {
                    interrupts += 1;
                    self.stop.send_replace(true);
                    if interrupts > 1 { break }
                }
            }
        }
        clients.shutdown().await;
        let elapsed_s = self.seconds();
        background.shutdown().await;
        progress::clear(self.setting.progress);
        let left = match &self.setting.admin {
            Some(admin) => admin.left_over().await,
            None => None,
        };
        let observed = Observed { left, ..sample::finish(self).await };
        Played { book: self.ledger.take(), elapsed_s, observed }
    }
}

/// Resolves when the process is asked to end.
pub(crate) async fn interrupted() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else { return std::future::pending().await };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}

/// Starts the sessions that come by the clock.
async fn start_by_the_clock(play: Arc<Play>) {
    let mut running = JoinSet::new();
    for session in open_sessions(&play.scenario) {
        let due = play.instant(session.start_s);
        if due > clock::now() && !play.wait_until(due).await {
            break;
        }
        while running.len() >= MOST_IN_FLIGHT {
            running.join_next().await;
        }
        while running.try_join_next().is_some() {}
        let play = play.clone();
        running.spawn(async move { run_session(&play, session, due).await });
    }
    while running.join_next().await.is_some() {}
}

/// One client of a closed loop.
async fn run_client(play: Arc<Play>, class: usize, client: usize) {
    let think_s = play.scenario.classes[class].think_s;
    let mut pauses = simulation::rng::Rng::new(play.scenario.seed, &format!("client:{class}:{client}:pauses"));
    for session in Client::new(&play.scenario, class, client) {
        let whole = run_session(&play, session, clock::now()).await;
        let pause = if whole { Duration::ZERO } else { AFTER_FAILURE };
        let think = Duration::from_secs_f64(if think_s > 0.0 { pauses.exponential(think_s) } else { 0.0 });
        let next = clock::now() + pause.max(think);
        if next >= play.end() || !play.wait_until(next).await {
            break;
        }
    }
}

/// One conversation; false if it broke off.
async fn run_session(play: &Play, session: Session, due: Instant) -> bool {
    let mut messages = Vec::with_capacity(2);
    if let Some(text) = session.template.map(|template| &play.templates[session.class][template]) {
        messages.push(Message { role: "system", text: text.clone() });
    }
    let mut history = session.template.map_or(0, |one| play.scenario.classes[session.class].templates[one].tokens);
    let mut due = due;
    for (number, turn) in session.turns.iter().enumerate() {
        if number > 0 {
            due = clock::now() + Duration::from_secs_f64(turn.think_s);
            if due >= play.end() || !play.wait_until(due).await {
                return true;
            }
        }
        let first = format!("r{}-{number}", session.number);
        let message = play.words.text(&first, session.number * 31 + number as u64, turn.own_tokens as usize);
        messages.push(Message { role: "user", text: message });
        history += turn.own_tokens;
        let Some(answer) = ask(play, &session, turn, &messages, history, due).await else { return false };
        history += turn.answer_tokens;
        messages.push(Message { role: "assistant", text: answer });
    }
    true
}

/// One request; its answer, unless it failed.
async fn ask(
    play: &Play,
    session: &Session,
    turn: &Turn,
    messages: &[Message],
    prompt_tokens: u32,
    due: Instant,
) -> Option<String> {
    let class = &play.scenario.classes[session.class];
    let ask = Ask {
        pool: &play.setting.pool,
        authorization: play.setting.authorization.as_deref(),
        urgency: &class.urgency,
        body: chat_body(&class.model, messages, Some(turn.answer_tokens), turn.stream).into(),
        stream: turn.stream,
        message: messages.last().map_or("", |message| message.text.as_str()),
        tokens: turn.answer_tokens,
        check: play.setting.check,
    };
    let sent = Sent {
        class: session.class,
        start_s: (due - play.started).as_secs_f64(),
        // Every message is opened by a token for its role, and so is the answer.
        prompt_tokens: prompt_tokens + messages.len() as u32 + 1,
        answer_tokens: turn.answer_tokens,
    };
    let _running = play.ledger.start();
    let deadline = due + Duration::from_secs_f64(play.scenario.timeout_s);
    let (reply, result) = exchange(&ask, due, deadline).await;
    play.ledger.enter(sent, &reply, &result);
    result.is_ok().then_some(reply.text)
}

/// How long what a play leaves behind may take to come to rest: a phone looks at its connection after each batch.
pub(super) const REST_LIMIT: Duration = Duration::from_secs(10);
/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Looks until `look` is content, at most for `limit`; the last thing it saw.
pub(super) async fn settle<T>(limit: Duration, mut look: impl AsyncFnMut() -> (T, bool)) -> T {
    let limit = clock::now() + limit;
    loop {
        let (seen, content) = look().await;
        if content || clock::now() >= limit {
            return seen;
        }
        timeout_at(limit, tokio::time::sleep(LOOK_EVERY)).await.ok();
    }
}
