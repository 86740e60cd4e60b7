//! What a fake phone is: its engine, its model, its speed.

use crate::voice::USUAL_BUILD;
use serde::{Deserialize, Serialize};
use simulation::phone::{ModelSpeed, PhoneSpeed};
use std::str::FromStr;
use std::time::Duration;

/// Which server a phone runs, and so how it speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dialect {
    /// llama.cpp's `llama-server`.
    Llama,
    /// The QVAC app: streams unless `stream` is exactly false, no limit on parallel work.
    Qvac,
    /// `mnncli serve`: one request at a time, constants for usage.
    Mnn,
    /// The MNN Chat app for Android: CRLF, keep-alive comments, errors as text.
    MnnApp,
    /// The Laya app: decisions only, refuses instead of queueing.
    Laya,
}

impl Dialect {
    /// All dialects, in the order a mixed fleet uses them.
    pub const ALL: [Self; 5] = [Self::Llama, Self::Qvac, Self::Mnn, Self::MnnApp, Self::Laya];

    /// The name used on the command line and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qvac => "qvac",
            Self::Mnn => "mnn",
            Self::MnnApp => "mnn-app",
            Self::Laya => "laya",
        }
    }
}

/// A dialect's name that is none of [`Dialect::ALL`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown dialect {0:?}: expected llama, qvac, mnn, mnn-app or laya")]
pub struct UnknownDialect(pub String);

impl FromStr for Dialect {
    type Err = UnknownDialect;

    fn from_str(text: &str) -> Result<Self, UnknownDialect> {
        Self::ALL.into_iter().find(|one| one.name() == text).ok_or_else(|| UnknownDialect(text.to_owned()))
    }
}

/// What an engine does with a partial assistant message at the end of a chat. Where nothing but a prompt is sent, as to
/// `/v1/completions`, there is nothing to differ about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Continuation {
    /// Carries on and sends only new text, with and without the flags that ask for it (llama-server b11549).
    Exact,
    /// Carries on, but without the flags its first delta repeats the partial text (llama-server b11434).
    Echo,
    /// Knows no continuation and none of the flags: answers anew, as if the partial message were history.
    Restart,
    /// Refuses with 400, whatever the flags (llama-server with a thinking template, until May 2026).
    Refuse,
}

impl FromStr for Continuation {
    type Err = UnknownContinuation;

    fn from_str(text: &str) -> Result<Self, UnknownContinuation> {
        match text {
            "exact" => Ok(Self::Exact),
            "echo" => Ok(Self::Echo),
            "restart" => Ok(Self::Restart),
            "refuse" => Ok(Self::Refuse),
            _ => Err(UnknownContinuation(text.to_owned())),
        }
    }
}

/// A name that is none of [`Continuation`]'s.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown continuation {0:?}: expected exact, echo, restart or refuse")]
pub struct UnknownContinuation(pub String);

/// What llama-server tells of the model's file, in `/props` and in `meta` of `/v1/models`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFile {
    /// Bytes of its tensors.
    pub size: u64,
    /// Weights.
    pub parameters: u64,
    /// How they are stored, as in `Q4_0`.
    pub quantization: String,
    /// Tokens the model was trained to read at once.
    pub trained_context: u32,
}

impl Default for ModelFile {
    fn default() -> Self {
        Self { size: 526_000_000, parameters: 752_393_024, quantization: "Q4_0".to_owned(), trained_context: 262_144 }
    }
}

/// When the head of a streamed answer leaves the phone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeadTiming {
    /// With the first event: the first token, or the first progress report if those were asked for.
    WithFirstEvent,
    /// When a slot takes the request, before the prompt is read.
    WhenSlotTaken,
    /// At once, before the request has a slot (MNN).
    AtOnce,
}

/// Routes that an engine serves only when they were switched on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// `/v1/embeddings`.
    pub embeddings: bool,
    /// `/v1/rerank`.
    pub rerank: bool,
    /// `/v1/systemone`, on a llama-server with a decision model.
    pub decisions: bool,
    /// `/metrics`.
    pub metrics: bool,
    /// `/slots`.
    pub slots: bool,
}

/// One fake phone.
///
/// Durations of the *phone model* (reading, writing, loading) pass `time_scale` times faster than life. Durations of
/// the *network* and of faults (keep-alive, stalls, `seconds` in a fault) are real, because the gateway's own clocks
/// that meet them are real.
#[derive(Debug, Clone)]
pub struct PhoneConfig {
    /// The 16 hex digits of its address; from `seed` when absent.
    pub id: Option<String>,
    /// The server it runs.
    pub dialect: Dialect,
    /// The model it reports: a path, an alias, or a name; some dialects report a constant instead.
    pub model: String,
    /// Parallel requests it serves; MNN and Laya serve one whatever is said here, and QVAC has no limit.
    pub slots: u16,
    /// How fast it reads and writes.
    pub speed: PhoneSpeed,
    /// How many seconds of the phone model pass in one real second.
    pub time_scale: f64,
    /// Context of one slot, tokens.
    pub context_tokens: u32,
    /// The key it demands, if any.
    pub api_key: Option<String>,
    /// How long the model loads after start, in the phone model's time.
    pub load_time: Duration,
    /// What `/props` and `system_fingerprint` say. Phones of one build answer word for word alike, others do not.
    pub build: String,
    /// What it tells of the model's file.
    pub file: ModelFile,
    /// Source of everything random about it.
    pub seed: u64,
    /// Length of an answer that ends by itself, tokens; `None`: as long as `max_tokens` allows, or 32.
    pub answer_tokens: Option<u32>,
    /// An answer has as many tokens as the message says that it is about, if its first word ends in `=` and a number:
    /// for load tests that know lengths which a gateway must not be told.
    pub told_lengths: bool,
    /// Tokens of thinking before each chat answer.
    pub thinking_tokens: u32,
    /// Tokens read between two looks at the connection (`-b`).
    pub batch_tokens: u32,
    /// Tokens are held back for so long and come together, instead of one by one; the first comes at once. Real time.
    pub write_interval: Duration,
    /// False for an engine that forgets every prompt.
    pub remembers_prompts: bool,
    /// What is switched on.
    pub features: Features,
    /// What it does with a partial answer.
    pub continuation: Continuation,
    /// Whether it keeps the streams of requests with an `X-Conversation-Id`, and goes on with them when the connection is
    /// lost.
    pub keeps_streams: bool,
    /// When streamed heads leave.
    pub head: HeadTiming,
    /// Length of an embedding.
    pub embedding_dimensions: usize,
    /// How long it keeps an idle connection. Real time.
    pub keep_alive: Duration,
    /// Answers on one connection before it is closed.
    pub requests_per_connection: u32,
    /// Silence of a stream after which the engine sends a comment. Real time.
    pub ping_interval: Duration,
    /// How long a connection to a phone without network hangs before the tunnel ends it. Real time.
    pub stall: Duration,
    /// How many requests it remembers for tests.
    pub kept_requests: usize,
    /// How much of each remembered body it keeps, bytes.
    pub kept_body_bytes: usize,
}

impl Default for PhoneConfig {
    /// An instant llama-server with one slot of 8,192 tokens and no key.
    fn default() -> Self {
        Self {
            id: None,
            dialect: Dialect::Llama,
            model: "/data/models/Qwen3.5-0.8B-Q4_0.gguf".to_owned(),
            slots: 1,
            speed: PhoneSpeed::instant(),
            time_scale: 1.0,
            context_tokens: 8192,
            api_key: None,
            load_time: Duration::ZERO,
            build: USUAL_BUILD.to_owned(),
            file: ModelFile::default(),
            seed: 1,
            answer_tokens: None,
            told_lengths: false,
            thinking_tokens: 0,
            batch_tokens: 128,
            write_interval: Duration::ZERO,
            remembers_prompts: true,
            features: Features { embeddings: true, rerank: true, decisions: false, metrics: true, slots: true },
            continuation: Continuation::Exact,
            keeps_streams: false,
            head: HeadTiming::WithFirstEvent,
            embedding_dimensions: 32,
            keep_alive: Duration::from_secs(5),
            requests_per_connection: 100,
            ping_interval: Duration::from_secs(30),
            stall: Duration::from_secs(30),
            kept_requests: 16,
            kept_body_bytes: 64 * 1024,
        }
    }
}

impl PhoneConfig {
    /// The same phone speaking another dialect, with that dialect's own habits.
    #[must_use]
    pub fn with_dialect(mut self, dialect: Dialect) -> Self {
        self.dialect = dialect;
        match dialect {
            Dialect::Mnn | Dialect::MnnApp => {
                self.head = HeadTiming::AtOnce;
                self.continuation = Continuation::Restart;
            }
            Dialect::Qvac => self.continuation = Continuation::Restart,
            Dialect::Llama | Dialect::Laya => {}
        }
        if dialect == Dialect::MnnApp {
            self.ping_interval = Duration::from_secs(3);
        }
        self
    }

    /// The same phone with this id.
    #[must_use]
    pub fn with_id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// The same phone serving this model.
    #[must_use]
    pub fn with_model(mut self, model: impl Into<String>) -> Self {
        self.model = model.into();
        self
    }

    /// The same phone with this many slots.
    #[must_use]
    pub fn with_slots(mut self, slots: u16) -> Self {
        self.slots = slots;
        self
    }

    /// The same phone at this speed, `time_scale` times faster than life.
    #[must_use]
    pub fn with_speed(mut self, speed: PhoneSpeed, time_scale: f64) -> Self {
        self.speed = speed;
        self.time_scale = time_scale;
        self
    }

    /// The same phone as the reference phone for `model`.
    #[must_use]
    pub fn with_model_speed(self, model: ModelSpeed, time_scale: f64) -> Self {
        self.with_speed(PhoneSpeed::reference(model), time_scale)
    }

    /// The same phone with this much context in each slot, tokens.
    #[must_use]
    pub fn with_context(mut self, tokens: u32) -> Self {
        self.context_tokens = tokens;
        self
    }

    /// The same phone demanding this key.
    #[must_use]
    pub fn with_api_key(mut self, key: impl Into<String>) -> Self {
        self.api_key = Some(key.into());
        self
    }

    /// The same phone loading its model for this long after every start.
    #[must_use]
    pub fn with_load_time(mut self, load_time: Duration) -> Self {
        self.load_time = load_time;
        self
    }

    /// The same phone running another build of the engine.
    #[must_use]
    pub fn with_build(mut self, build: impl Into<String>) -> Self {
        self.build = build.into();
        self
    }

    /// The same phone with another seed, and so another id.
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// One of the many phones of a seed: no two seeds have one in common.
    #[must_use]
    pub fn at_place(self, seed: u64, place: u64) -> Self {
        let own = crate::digest::sha256_u64(format!("fakephone:{seed}:{place}").as_bytes());
        self.with_seed(own)
    }

    /// The id, given or derived: 16 hex digits, as the tunnel derives them from a phone's key.
    pub fn resolved_id(&self) -> String {
        match &self.id {
            Some(id) => id.clone(),
            None => crate::digest::sha256_hex(format!("fakephone:{}", self.seed).as_bytes(), 8),
        }
    }

    /// Whether the engine notices that a client has left; MNN's do not.
    pub(crate) fn notices_hang_ups(&self) -> bool {
        !matches!(self.dialect, Dialect::Mnn | Dialect::MnnApp)
    }

    /// How many requests the engine really runs at once.
    pub(crate) fn engine_places(&self) -> usize {
        match self.dialect {
            Dialect::Llama => usize::from(self.slots.max(1)),
            Dialect::Qvac => 1024,
            Dialect::Mnn | Dialect::MnnApp | Dialect::Laya => 1,
        }
    }

    /// How many requests may be sent at once without one of them waiting or slowing down beyond the promise.
    pub(crate) fn promised_places(&self) -> usize {
        match self.dialect {
            Dialect::Llama | Dialect::Qvac => usize::from(self.slots.max(1)),
            Dialect::Mnn | Dialect::MnnApp | Dialect::Laya => 1,
        }
    }
}
