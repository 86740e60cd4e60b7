//! One probe of one replica: which questions to ask, and what the answers mean.
//!
//! The engine is found out once ([`detect`](Prober::detect)) and asked in its own way from then on; an answer that it
//! never gives makes the next probe find out anew. A *light* probe asks one question that costs the phone nothing and
//! never waits for a slot; only a phone without work of ours is asked for more. None of it takes a slot: what does is left to
//! `trial`, so that a phone takes work before.

use std::time::Duration;

use openai_wire::Route;
use scheduler::{GroupId, RouteSet, Timestamp};

use super::{
    answer::Answer,
    dialect::{Dialect, routes},
    finding::Finding,
    group::group,
    listing::{Listing, llama_context, read_listing},
    naming::Reported,
    resumable,
    slots::{Seen, busy},
};
use crate::{
    clock,
    upstream::{Endpoint, Upstream},
};

/// Slots that a replica is believed to have. Phones have 1 to 4, and work goes where most is free: one that claims tens of
/// thousands would draw the whole pool's. A server that really has more has them stated.
const MAX_SLOTS: u16 = 64;

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The replica's connections.
    pub endpoint: &'a Endpoint,
    /// Its bearer token.
    pub key: Option<&'a str>,
    /// Its engine, if that is known.
    pub dialect: Option<Dialect>,
    /// Whether the operator has stated its engine: it is then not found out anew.
    pub dialect_stated: bool,
    /// Whether the operator has stated its models, so that a missing list is no fault.
    pub models_stated: bool,
    /// Ask for models, slots and routes as well, not only whether it is well.
    pub full: bool,
    /// Its slots are not looked at before this.
    pub slots_from: Timestamp,
    /// For each answer.
    pub limit: Duration,
}

/// What a full probe learned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Learned {
    /// Its models, as it names them.
    pub models: Vec<Reported>,
    /// Its routes.
    pub routes: RouteSet,
    /// Concurrent requests it takes.
    pub slots: Option<u16>,
    /// Tokens that prompt and answer of one slot must fit.
    pub context_tokens: Option<u32>,
    /// What the engine calls its build.
    pub build: Option<String>,
    /// Parameters of its largest model, if the engine counts them.
    pub parameters: Option<u64>,
    /// Its list of slots says which of them work.
    pub lists_slots: bool,
    /// The replicas that write the same answers.
    pub group: Option<GroupId>,
    /// Whether it can carry on an answer that another has begun. No probe asks that: `None` until a trial has shown it.
    pub carries_on: Option<bool>,
    /// It keeps what it streams.
    pub keeps_streams: bool,
}

impl Learned {
    /// Whether both are of one build with the same models: what one can do, the other can.
    pub fn is_same_engine(&self, other: &Self) -> bool {
        self.build == other.build && self.models == other.models
    }
}

/// The outcome of one probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probed {
    /// How the replica is.
    pub finding: Finding,
    /// Its engine, if this is known now. `None` makes the next probe find out.
    pub dialect: Option<Dialect>,
    /// What a full probe learned.
    pub learned: Option<Learned>,
    /// How many of its slots worked, if it was asked for that.
    pub seen: Option<Seen>,
}

impl Probed {
    fn of(dialect: Option<Dialect>, finding: Finding) -> Self {
        Self { finding, dialect, learned: None, seen: None }
    }

    fn learned(dialect: Dialect, learned: Learned) -> Self {
        Self { finding: Finding::Ready, dialect: Some(dialect), learned: Some(learned), seen: None }
    }
}

/// A probe that ends early with what it has found.
type Step<T> = Result<T, Finding>;

/// Asks a replica how it is.
pub async fn probe(upstream: &Upstream, question: Question<'_>) -> Probed {
    let prober = Prober { upstream, question };
    let Some(dialect) = question.dialect else { return prober.detect().await };
    let probed = prober.ask(dialect).await;
    match probed.finding {
        _ if question.dialect_stated => probed,
        // Another engine may have moved in under this address.
        Finding::Strange { .. } if question.full => prober.detect().await,
        Finding::Strange { .. } => Probed { dialect: None, ..probed },
        _ => probed,
    }
}

struct Prober<'a> {
    upstream: &'a Upstream,
    question: Question<'a>,
}

impl Prober<'_> {
    async fn get(&self, path: &str) -> Step<Answer> {
        let Question { endpoint, key, limit, .. } = self.question;
        self.upstream.get(endpoint, path, key, limit).await.map(|fetched| Answer::read(&fetched)).map_err(Finding::from)
    }

    async fn post_nothing(&self, path: &str) -> Step<Answer> {
        let Question { endpoint, key, limit, .. } = self.question;
        let body = bytes::Bytes::from_static(b"{}");
        let answer = self.upstream.post_json(endpoint, path, key, body, limit).await;
        answer.map(|fetched| Answer::read(&fetched)).map_err(Finding::from)
    }

    /// Asks an engine in its own way.
    async fn ask(&self, dialect: Dialect) -> Probed {
        let mut seen = None;
        let result = match dialect {
            Dialect::LlamaServer => self.ask_llama(&mut seen).await,
            Dialect::Qvac => self.ask_qvac().await,
            Dialect::Laya => self.ask_laya().await,
            Dialect::Mnn | Dialect::MnnApp | Dialect::OpenAi => self.ask_list(dialect).await,
        };
        match result {
            Ok(Some(learned)) => Probed { seen, ..Probed::learned(dialect, learned) },
            Ok(None) => Probed::of(Some(dialect), Finding::Ready),
            Err(finding) => Probed::of(Some(dialect), finding),
        }
    }

    /// Finds out which engine answers.
    async fn detect(&self) -> Probed {
        match self.recognise().await {
            Ok(dialect) if self.question.full => self.ask(dialect).await,
            Ok(dialect) => Probed::of(Some(dialect), Finding::Ready),
            Err((dialect, finding)) => Probed::of(dialect, finding),
        }
    }

    async fn recognise(&self) -> Result<Dialect, (Option<Dialect>, Finding)> {
        let unknown = |finding| (None, finding);
        let health = self.get("/health").await.map_err(unknown)?;
        if health.says_loading() {
            return Err((Some(Dialect::LlamaServer), Finding::Loading { percent: None }));
        }
        if let Some(dialect) = by_health(&health) {
            return Ok(dialect);
        }
        let list = self.get("/v1/models").await.map_err(unknown)?;
        let status = list.status();
        if list.says_loading() {
            return Err((Some(Dialect::LlamaServer), Finding::Loading { percent: None }));
        }
        if let Some(listing) = list.ok().and_then(read_listing) {
            return Ok(listing.dialect);
        }
        if is_mnn_app_without_model(&list) {
            return Ok(Dialect::MnnApp);
        }
        match list {
            Answer::Html(status) => Err(unknown(Finding::WebPage { status })),
            _ if list.refuses_key() => Err(unknown(Finding::WrongKey { status })),
            // Healthy, and no list of models: the Laya app has none.
            _ if status == 404 && health.ok().is_some_and(|body| body.get("status").is_some()) => Ok(Dialect::Laya),
            _ if status >= 500 => Err(unknown(Finding::Status { status })),
            _ => Ok(Dialect::OpenAi),
        }
    }

    async fn ask_llama(&self, seen: &mut Option<Seen>) -> Step<Option<Learned>> {
        let health = self.get("/health").await?;
        check_llama(&health)?;
        if !self.question.full {
            return Ok(None);
        }
        let list = self.get("/v1/models").await?;
        check_llama(&list)?;
        let status = list.status();
        let listing = list.ok().and_then(read_listing).ok_or(Finding::Strange { status })?;
        if listing.dialect != Dialect::LlamaServer && !self.question.dialect_stated {
            return Err(Finding::Strange { status });
        }
        let props = self.get("/props").await?;
        let props = props.ok();
        tokio::time::sleep_until(clock::instant(self.question.slots_from)).await;
        let asked = clock::now();
        let slots = self.get("/slots").await?;
        *seen = busy(&slots).map(|busy| Seen { busy, asked });
        let group = props.zip(list.ok()).and_then(|(props, list)| group(props, list));
        // `/props` is switched off in some builds; the list of slots then says how many there are.
        let total = props.and_then(|props| props.get("total_slots")?.as_u64());
        let slots = total.or_else(|| Some(slots.ok()?.as_array()?.len() as u64));
        Ok(Some(Learned {
            routes: self.llama_routes().await?,
            slots: slots
                .map(|slots| u16::try_from(slots).map_or(MAX_SLOTS, |slots| slots.min(MAX_SLOTS)))
                .filter(|slots| *slots > 0),
            context_tokens: props.and_then(llama_context).or(listing.context_tokens),
            build: props
                .and_then(|props| props.get("build_info")?.as_str())
                .map(|text| super::answer::printable(text, 64)),
            models: listing.models,
            parameters: listing.parameters,
            lists_slots: seen.is_some(),
            group,
            carries_on: None,
            keeps_streams: self.keeps_streams().await,
        }))
    }

    async fn keeps_streams(&self) -> bool {
        let Question { endpoint, key, limit, .. } = self.question;
        resumable::ask(self.upstream, endpoint, key, limit).await
    }

    /// Which of the routes that depend on the build and the model there are. An empty request is refused by a route
    /// before it takes a slot, and how it is refused tells whether the route is on.
    async fn llama_routes(&self) -> Step<RouteSet> {
        let mut found = vec![Route::ChatCompletions, Route::Completions];
        for route in [Route::Embeddings, Route::Responses, Route::Messages, Route::Rerank, Route::SystemOne] {
            let answer = self.post_nothing(route.path()).await?;
            let off = match answer.status() {
                404 | 405 | 501 => true,
                // Embeddings without pooling have no OpenAI form.
                400 => answer.error().is_some_and(|text| text.contains("Pooling type")),
                _ => matches!(answer, Answer::Html(_)),
            };
            if !off {
                found.push(route);
            }
        }
        Ok(routes(&found))
    }

    async fn ask_qvac(&self) -> Step<Option<Learned>> {
        let health = self.get("/health").await?;
        let status = health.status();
        if let Answer::Html(status) = health {
            return Err(Finding::WebPage { status });
        }
        let body = health.ok().filter(|body| body.get("status").is_some()).ok_or(Finding::Strange { status })?;
        if body.get("switching").is_some_and(|switching| switching.as_bool().unwrap_or(!switching.is_null())) {
            return Err(Finding::Loading { percent: None });
        }
        match body.get("status").and_then(serde_json::Value::as_str) {
            Some("ok") => {}
            Some("loading") => return Err(Finding::Loading { percent: percent(body) }),
            _ => return Err(Finding::SaysError),
        }
        if !self.question.full {
            return Ok(None);
        }
        let current = body.get("model").and_then(serde_json::Value::as_str);
        let listed = self.get("/v1/models").await?.ok().and_then(read_listing).map(|listing| listing.models);
        let models = match listed {
            Some(models) if !models.is_empty() => models,
            _ => super::listing::reported(current).into_iter().collect(),
        };
        Ok(Some(Learned { models, routes: Dialect::Qvac.routes(), ..Learned::default() }))
    }

    async fn ask_laya(&self) -> Step<Option<Learned>> {
        let health = self.get("/health").await?;
        let status = health.status();
        if let Answer::Html(status) = health {
            return Err(Finding::WebPage { status });
        }
        // Its forerunner has the same route under another name.
        let health = if status == 404 { self.get("/healthz").await? } else { health };
        if health.refuses_key() {
            return Err(Finding::WrongKey { status });
        }
        let body = health.ok().ok_or(Finding::Strange { status })?;
        match body.get("status").and_then(serde_json::Value::as_str) {
            Some("ok" | "ready" | "healthy") => {}
            Some("loading") => return Err(Finding::Loading { percent: percent(body) }),
            Some("error") => return Err(Finding::SaysError),
            _ => return Err(Finding::Strange { status }),
        }
        if !self.question.full {
            return Ok(None);
        }
        // Health is open to everybody; the key is needed only here. Nothing is decided: the request has no questions.
        let decision = self.post_nothing(Route::SystemOne.path()).await?;
        let status = decision.status();
        match decision {
            Answer::Html(status) => return Err(Finding::WebPage { status }),
            _ if decision.refuses_key() => return Err(Finding::WrongKey { status }),
            _ if matches!(status, 404 | 405 | 501) => return Err(Finding::Strange { status }),
            _ => {}
        }
        let named = body.get("model").and_then(serde_json::Value::as_str).or(Some(Dialect::Laya.name()));
        let models = super::listing::reported(named).into_iter().collect();
        Ok(Some(Learned { models, routes: Dialect::Laya.routes(), ..Learned::default() }))
    }

    /// Engines whose list of models is also their sign of life.
    async fn ask_list(&self, dialect: Dialect) -> Step<Option<Learned>> {
        let list = self.get("/v1/models").await?;
        let status = list.status();
        if let Answer::Html(status) = list {
            return Err(Finding::WebPage { status });
        }
        if list.refuses_key() {
            return Err(Finding::WrongKey { status });
        }
        if list.says_loading() || is_mnn_app_without_model(&list) {
            return Err(Finding::Loading { percent: None });
        }
        if status >= 500 {
            return Err(Finding::Status { status });
        }
        let listing = match list.ok().and_then(read_listing) {
            Some(listing) if self.question.dialect_stated || listing.dialect == dialect => listing,
            Some(_) => return Err(Finding::Strange { status }),
            None if dialect != Dialect::OpenAi => return Err(Finding::Strange { status }),
            None if self.question.models_stated => Listing::default(),
            None => return Err(Finding::NoModels),
        };
        if !self.question.full {
            return Ok(None);
        }
        if listing.models.is_empty() && !self.question.models_stated {
            return Err(Finding::NoModels);
        }
        let Listing { models, context_tokens, parameters, .. } = listing;
        Ok(Some(Learned { models, context_tokens, parameters, routes: dialect.routes(), ..Learned::default() }))
    }
}

/// The engines that their health alone gives away.
fn by_health(health: &Answer) -> Option<Dialect> {
    let body = health.ok()?;
    let says = |text| body.get("status").and_then(serde_json::Value::as_str) == Some(text);
    if body.get("switching").is_some() {
        Some(Dialect::Qvac)
    } else if body.get("progress").is_some() || says("loading") {
        Some(Dialect::Laya)
    } else if body.get("model").is_some() && (says("ok") || says("error")) {
        Some(Dialect::Qvac)
    } else {
        None
    }
}

/// The app's answer while no model is chosen in it.
fn is_mnn_app_without_model(list: &Answer) -> bool {
    let says = |text: &str| text.contains("current model") || text.contains("session not available");
    list.status() == 500 && list.error().is_some_and(says)
}

fn check_llama(answer: &Answer) -> Step<()> {
    let status = answer.status();
    match answer {
        Answer::Html(status) => Err(Finding::WebPage { status: *status }),
        _ if answer.says_loading() => Err(Finding::Loading { percent: None }),
        _ if answer.refuses_key() => Err(Finding::WrongKey { status }),
        Answer::Json(200..=299, _) => Ok(()),
        _ if status >= 500 => Err(Finding::Status { status }),
        _ => Err(Finding::Strange { status }),
    }
}

fn percent(body: &serde_json::Value) -> Option<u8> {
    let progress = body.get("progress")?;
    let percent = progress.get("percent").unwrap_or(progress).as_f64()?;
    (0.0..=100.0).contains(&percent).then_some(percent as u8)
}

#[cfg(test)]
#[path = "probe_tests.rs"]
mod tests;
