//! Who asks what when.
//!
//! Each arrival of the scenario is a task; a conversation goes on in it. Answers are asked for as a stream where the
//! scenario's objective is on the first token, plainly elsewhere: what is lost with a phone after its first words went to a
//! client can't be asked again by the gateway, and the simulated gateway always asks again. A client that gets no answer
//! asks again itself, and its time goes on counting.

use super::{batch, texts, time::Time};
use crate::{
    client::{Ask, Check, Pool, Reply, exchange},
    words::{Message, chat_body},
};
use simulation::{
    play::{Progress, Run},
    workload::{Request, Start},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::task::JoinSet;

/// The model that all phones serve.
pub(super) const MODEL: &str = "sim";
/// How long a client that got no answer waits before it asks again, seconds of the scenario.
const AFTER_FAILURE_S: f64 = 1.0;

/// What clients share.
pub(super) struct Clients {
    pub(super) run: Arc<Prepared>,
    pub(super) pool: Pool,
    pub(super) time: Time,
    pub(super) book: Book,
}

/// A run as clients need it.
pub(super) struct Prepared {
    pub(super) requests: Vec<Request>,
    pub(super) classes: Vec<Class>,
    pub(super) horizon_s: f64,
    pub(super) until_s: f64,
}

/// A class as clients need it.
pub(super) struct Class {
    urgency: &'static str,
    /// No client asks for it: it is sent as a file.
    as_file: bool,
    stream: bool,
    /// `Authorization` by key.
    authorizations: Vec<String>,
}

impl Prepared {
    /// With `batch_api` some classes are sent as files.
    pub(super) fn new(run: &Run<'_>, batch_api: bool) -> Self {
        let class = |(index, class): (usize, &simulation::scenario::Class)| Class {
            urgency: class.urgency.name(),
            as_file: batch_api && batch::goes_as_file(class),
            stream: class.objective_on_first_token,
            authorizations: (0..class.keys.len()).map(|key| format!("Bearer {}", key_of(index, key))).collect(),
        };
        Self {
            requests: run.workload.requests.clone(),
            classes: run.scenario.classes.iter().enumerate().map(class).collect(),
            horizon_s: run.scenario.horizon_s,
            until_s: run.scenario.until_s(),
        }
    }

    /// Whether a class is sent as a file.
    pub(super) fn goes_as_file(&self, class: usize) -> bool {
        self.classes.get(class).is_some_and(|class| class.as_file)
    }

    /// `Authorization` of a key of a class.
    pub(super) fn authorization(&self, class: usize, key: usize) -> Option<&str> {
        self.classes.get(class)?.authorizations.get(key).map(String::as_str)
    }
}

/// The API key of a key of a class: its own tenant's.
pub(super) fn key_of(class: usize, key: usize) -> String {
    format!("hg-loadtest-class-{class}-key-{key}")
}

/// What became of the requests.
#[derive(Default)]
pub(super) struct Book {
    pages: Mutex<Pages>,
}

#[derive(Default)]
pub(super) struct Pages {
    pub(super) requests: Vec<Progress>,
    /// Attempts of clients that got no answer, by what they saw.
    pub(super) failures: BTreeMap<String, u64>,
    pub(super) answered: usize,
    pub(super) waiting: usize,
}

impl Book {
    pub(super) fn new(requests: usize) -> Self {
        let pages = Pages { requests: vec![Progress::default(); requests], ..Pages::default() };
        Self { pages: Mutex::new(pages) }
    }

    pub(super) fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, request: usize, note: impl FnOnce(&mut Progress)) {
        if let Some(progress) = self.pages().requests.get_mut(request) {
            note(progress);
        }
    }
}

/// Starts all that comes by itself, and waits for the last answer, or until the play is broken off.
pub(super) async fn run(clients: &Arc<Clients>) {
    let numbered = clients.run.requests.iter().enumerate();
    let asked = numbered.filter(|(_, request)| !clients.run.goes_as_file(request.class));
    let mut arriving: Vec<(f64, usize)> = asked.filter_map(arrival).collect();
    arriving.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut running = JoinSet::new();
    let all = async {
        for (time, number) in arriving {
            clients.time.sleep_until(time).await;
            while running.try_join_next().is_some() {}
            running.spawn(converse(Arc::clone(clients), number, time));
        }
        while running.join_next().await.is_some() {}
    };
    tokio::time::timeout_at(clients.time.instant(clients.run.until_s), all).await.ok();
}

fn arrival((number, request): (usize, &Request)) -> Option<(f64, usize)> {
    Some((request.arrival()?, number))
}

/// One request, and those that follow it in its conversation.
async fn converse(clients: Arc<Clients>, first: usize, due: f64) {
    let Some(request) = clients.run.requests.get(first) else { return };
    let mut messages = texts::first(request.prompt.template, request.prompt.own.tokens, first, request.output);
    let (mut number, mut request, mut due) = (first, request, due);
    loop {
        let Some(answer) = ask(&clients, number, request, &messages, due).await else { return };
        let said = request.prompt.own.tokens + request.output;
        number += 1;
        let Some((next, think_s)) = clients.run.requests.get(number).and_then(follows) else { return };
        due = clients.time.now() + think_s;
        if due >= clients.run.horizon_s {
            return;
        }
        request = next;
        messages.push(Message { role: "assistant", text: answer });
        messages.push(texts::next(next.prompt.own.tokens.saturating_sub(said), number, next.output));
        clients.time.sleep_until(due).await;
    }
}

fn follows(request: &Request) -> Option<(&Request, f64)> {
    match request.start {
        Start::After(think_s) => Some((request, think_s)),
        Start::At(_) => None,
    }
}

/// Asks until there is an answer; `None` if the request can't be made at all.
async fn ask(clients: &Clients, number: usize, request: &Request, messages: &[Message], due: f64) -> Option<String> {
    let (book, time) = (&clients.book, &clients.time);
    let class = clients.run.classes.get(request.class)?;
    let message = messages.last().map_or("", |message| message.text.as_str());
    let body = bytes::Bytes::from(chat_body(MODEL, messages, None, class.stream));
    book.note(number, |progress| progress.arrived = Some(due));
    book.pages().waiting += 1;
    let mut began = due;
    let reply = loop {
        let ask = Ask {
            pool: &clients.pool,
            authorization: class.authorizations.get(request.key).map(String::as_str),
            urgency: class.urgency,
            body: body.clone(),
            stream: class.stream,
            message,
            tokens: request.output,
            check: Check::EveryWord,
        };
        let (reply, result) = exchange(&ask, time.instant(began), time.instant(clients.run.until_s)).await;
        if let Some(ttft_s) = reply.ttft_s {
            let at = began + time.scaled(ttft_s);
            book.note(number, |progress| progress.first_token = progress.first_token.or(Some(at)));
        }
        match result {
            Ok(()) => break reply,
            Err(failure) => *book.pages().failures.entry(failure.kind().into_owned()).or_default() += 1,
        }
        began = time.now() + AFTER_FAILURE_S;
        time.sleep_until(began).await;
    };
    let Reply { text, total_s, cached_tokens, .. } = reply;
    let answered = began + time.scaled(total_s);
    book.note(number, |progress| {
        progress.answered = Some(answered);
        // Of a plain answer the first token is seen with the last.
        progress.first_token = progress.first_token.or(Some(answered));
        progress.cached = cached_tokens.unwrap_or(0);
    });
    let mut pages = book.pages();
    pages.waiting -= 1;
    pages.answered += 1;
    drop(pages);
    Some(text)
}
