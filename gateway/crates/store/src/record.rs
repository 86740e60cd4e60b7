//! The facts that are kept, as types.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use serde::{Deserialize, Serialize};

/// A moment of the wall clock: milliseconds since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct UnixMillis(pub u64);

impl UnixMillis {
    /// So much later.
    pub fn after(self, length: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(length.as_millis()).unwrap_or(u64::MAX)))
    }
}

/// Who makes a change, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct By {
    /// The moment, by the caller's clock.
    pub at: UnixMillis,
    /// Such as `admin@127.0.0.1`, `config`, `flag`.
    pub who: String,
}

/// What a change did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Put<T> {
    /// It was not there.
    Created(T),
    /// It was there, and is different now.
    Updated(T),
    /// It was there, just so.
    Unchanged(T),
}

impl<T> Put<T> {
    /// The record as it is now.
    pub fn into_inner(self) -> T {
        match self {
            Self::Created(record) | Self::Updated(record) | Self::Unchanged(record) => record,
        }
    }

    /// The record as it is now.
    pub fn record(&self) -> &T {
        match self {
            Self::Created(record) | Self::Updated(record) | Self::Unchanged(record) => record,
        }
    }

    /// Whether anything is different now.
    pub fn changed(&self) -> bool {
        !matches!(self, Self::Unchanged(_))
    }
}

/// A replica's own credential. It has to be sent, so it is kept as it is; it never shows in `Debug`, in the audit trail
/// or in exports, and the database file is readable by its owner only.
#[derive(Clone, PartialEq, Eq)]
pub struct ReplicaSecret(pub String);

impl fmt::Debug for ReplicaSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Where a replica came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReplicaSource {
    /// The configuration file.
    Config,
    /// `--replica`.
    Flag,
    /// The admin API.
    Admin,
    /// An imported list.
    Import,
    /// The phone itself.
    Registration,
    /// The chain that deployments are written on.
    Chain,
}

impl ReplicaSource {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Config, Self::Flag, Self::Admin, Self::Import, Self::Registration, Self::Chain];

    /// The name in the database and the admin API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Config => "config",
            Self::Flag => "flag",
            Self::Admin => "admin",
            Self::Import => "import",
            Self::Registration => "registration",
            Self::Chain => "chain",
        }
    }
}

/// How well it is known who a replica is. Ordered: the least first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verification {
    /// Nobody but the operator has said anything.
    #[default]
    None,
    /// It knew the registration token.
    Token,
    /// It signed what it said with the key that is its name.
    Signed,
    /// The same, with the key that the chain lists for its deployment and processor.
    Assigned,
}

impl Verification {
    /// All of them, the least first.
    pub const ALL: [Self; 4] = [Self::None, Self::Token, Self::Signed, Self::Assigned];

    /// The name in the database, the configuration and the admin API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Token => "token",
            Self::Signed => "signed",
            Self::Assigned => "assigned",
        }
    }
}

/// Who a replica is, whatever its address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The job that it runs, such as `Acurast:5Grw…:4711`.
    pub deployment: Option<String>,
    /// The phone's address on the chain.
    pub processor: Option<String>,
    /// Its Ed25519 key: 64 hex digits, in lower case. No two replicas have the same.
    pub public_key: Option<String>,
    /// What its certificate must carry: SHA-256 of the SubjectPublicKeyInfo, 64 hex digits, in lower case.
    pub pin: Option<String>,
    /// How well that is known.
    pub verification: Verification,
    /// When it last announced itself; of what it signed, the signed moment.
    pub announced: Option<UnixMillis>,
}

/// What was stated about a replica. What was not is found by probing, and not kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StatedFields {
    /// Models by the name that clients use, with the name on the replica if it is another; empty: probed.
    pub models: BTreeMap<String, Option<String>>,
    /// Concurrent requests it takes.
    pub slots: Option<u16>,
    /// Tokens that prompt and answer of one slot must fit.
    pub context_tokens: Option<u32>,
    /// The engine's dialect.
    pub dialect: Option<String>,
    /// Free words for operators.
    pub labels: BTreeMap<String, String>,
    /// The end of its deployment, in Unix seconds.
    pub expires_at: Option<u64>,
    /// What it costs.
    pub cost_acu_per_day: Option<f64>,
    /// Prompt tokens a second that it reads.
    pub prefill_rate: Option<f64>,
    /// Answer tokens a second that it writes.
    pub decode_rate: Option<f64>,
    /// What it says that it costs, where nobody vouches for that.
    pub claimed_cost_acu_per_day: Option<f64>,
    /// Which of these an operator states of a replica that came by itself, by name: what it says of them changes nothing.
    pub held: BTreeSet<String>,
}

/// A replica to add, or to state anew. Its address tells it from others.
#[derive(Clone, Debug, PartialEq)]
pub struct NewReplica {
    /// As checked and normalised by the caller.
    pub url: String,
    /// For people.
    pub name: String,
    /// What is stated.
    pub stated: StatedFields,
    /// Its credential.
    pub api_key: Option<ReplicaSecret>,
    /// Where it comes from.
    pub source: ReplicaSource,
    /// Who it is; `None` leaves what is known of that.
    pub origin: Option<Origin>,
}

/// That a replica answers as it should.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Proof {
    /// When that was seen.
    pub at: UnixMillis,
    /// The models that it served then, by its own names; `None`: it is not known which.
    pub models: Option<Vec<String>>,
}

/// A replica.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaRecord {
    /// Never given twice.
    pub id: u32,
    /// Unique.
    pub url: String,
    /// For people.
    pub name: String,
    /// What was stated.
    pub stated: StatedFields,
    /// Its credential.
    pub api_key: Option<ReplicaSecret>,
    /// An operator took it out of use.
    pub drained: bool,
    /// Where it came from, last.
    pub source: ReplicaSource,
    /// Who it is.
    pub origin: Origin,
    /// How it proved that it answers as it should; `None`: not yet.
    pub proven: Option<Proof>,
    /// When it was added.
    pub created: UnixMillis,
    /// When it was last changed.
    pub updated: UnixMillis,
}

/// Changes to a replica: the outer `None` leaves a field, an inner `None` takes the statement back.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplicaPatch {
    /// For people.
    pub name: Option<String>,
    /// Models; empty: probed.
    pub models: Option<BTreeMap<String, Option<String>>>,
    /// Concurrent requests it takes.
    pub slots: Option<Option<u16>>,
    /// Tokens that prompt and answer of one slot must fit.
    pub context_tokens: Option<Option<u32>>,
    /// The engine's dialect.
    pub dialect: Option<Option<String>>,
    /// Free words for operators; replaces all of them.
    pub labels: Option<BTreeMap<String, String>>,
    /// The end of its deployment, in Unix seconds.
    pub expires_at: Option<Option<u64>>,
    /// What it costs.
    pub cost_acu_per_day: Option<Option<f64>>,
    /// Prompt tokens a second that it reads.
    pub prefill_rate: Option<Option<f64>>,
    /// Answer tokens a second that it writes.
    pub decode_rate: Option<Option<f64>>,
    /// Its credential.
    pub api_key: Option<Option<ReplicaSecret>>,
    /// Which of all these are an operator's.
    pub held: Option<BTreeSet<String>>,
}

/// How fast a replica was measured to be.
#[derive(Clone, Debug, PartialEq)]
pub struct Speed {
    /// Which.
    pub replica: u32,
    /// The models that it served then, by the name that clients use: another model has another speed.
    pub models: Vec<String>,
    /// Prompt tokens a second that it read.
    pub prefill_rate: Option<f64>,
    /// Answer tokens a second that it wrote.
    pub decode_rate: Option<f64>,
    /// When.
    pub measured: UnixMillis,
}

/// Limits that a key states for itself. All `None`: its tenant's hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KeyLimits {
    /// Requests a minute.
    pub requests_per_minute: Option<u32>,
    /// Tokens a minute, prompt and answer together.
    pub tokens_per_minute: Option<u32>,
    /// Requests running or waiting at once.
    pub max_in_flight: Option<u32>,
    /// Requests waiting at once.
    pub max_queued: Option<u32>,
}

/// A key to add. The key itself is not here: it was shown once and is not kept.
#[derive(Clone, PartialEq, Eq)]
pub struct NewKey {
    /// Whose.
    pub tenant: String,
    /// Its first letters, to tell keys apart.
    pub prefix: String,
    /// HMAC-SHA-256 of the key under the installation's pepper.
    pub digest: [u8; 32],
    /// Its own limits.
    pub limits: KeyLimits,
    /// Models it may use; empty: as its tenant.
    pub models: Vec<String>,
    /// How urgent its requests are that do not say.
    pub class: Option<String>,
    /// The most urgent class it may ask for.
    pub max_class: Option<String>,
}

/// A key.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyRecord {
    /// Never given twice.
    pub id: u32,
    /// Whose, how, and how much.
    pub key: NewKey,
    /// When it was made.
    pub created: UnixMillis,
    /// When it stopped working.
    pub revoked: Option<UnixMillis>,
}

impl fmt::Debug for NewKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("NewKey");
        fields.field("tenant", &self.tenant).field("prefix", &self.prefix).field("limits", &self.limits);
        fields.field("models", &self.models).field("class", &self.class).field("max_class", &self.max_class);
        fields.finish_non_exhaustive()
    }
}

impl fmt::Debug for KeyRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("KeyRecord");
        fields.field("id", &self.id).field("key", &self.key).field("created", &self.created);
        fields.field("revoked", &self.revoked).finish()
    }
}

/// One change that was made.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AuditRecord {
    /// Grows; the order in which changes were made.
    pub id: u64,
    /// When, by the clock of who made it.
    pub at: UnixMillis,
    /// Who.
    pub who: String,
    /// What, such as `replica.add`.
    pub action: String,
    /// To what, such as `replica:17`.
    pub target: String,
    /// What is different. Never a secret.
    pub detail: serde_json::Value,
}
