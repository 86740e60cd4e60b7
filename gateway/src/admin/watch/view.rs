//! What the live feed shows. Fields of text that others wrote are cut to a length, here and nowhere else.

use std::sync::Arc;

use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use super::super::{
    events::EventView,
    register::{RefusedView, refused_now},
};
use crate::{registration::Registrar, telemetry::Point};

/// Longest text of a name, in letters.
const MAX_TEXT: usize = 200;
/// Models of one replica that are shown.
pub(super) const MAX_MODELS: usize = 16;

/// A text that phones, clients or operators chose.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Text(Arc<str>);

impl From<&Arc<str>> for Text {
    fn from(text: &Arc<str>) -> Self {
        match text.char_indices().nth(MAX_TEXT) {
            None => Self(Arc::clone(text)),
            Some((end, _)) => Self(format!("{}…", &text[..end]).into()),
        }
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self::from(&Arc::from(text))
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

/// Three digits: what differs by less is noise.
pub(super) fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    let scale = 10f64.powi(2 - value.abs().log10().floor() as i32);
    (value * scale).round() / scale
}

/// `hello`: the process behind the feed.
#[derive(Serialize, ToSchema)]
pub(crate) struct Hello {
    /// Of huntgroup.
    pub(super) version: &'static str,
    /// When the process began, in seconds since 1970.
    pub(super) started_at: f64,
    /// The time of day there.
    pub(super) now: f64,
    /// This process: another one after a restart.
    #[schema(value_type = String)]
    pub(super) instance: Arc<str>,
    /// At most so many requests are shown of one replica.
    pub(super) max_slots_shown: usize,
    /// Calls need the admin token.
    pub(super) admin_token_needed: bool,
}

/// `pool`: all replicas.
#[derive(Serialize, ToSchema)]
pub(crate) struct PoolNow {
    /// By number.
    replicas: Vec<ReplicaNow>,
}

/// `delta`: what is different since the event before.
#[derive(Serialize, ToSchema)]
pub(crate) struct Delta {
    /// New, or changed.
    replicas: Vec<ReplicaNow>,
    /// Numbers of those that are no more.
    gone: Vec<u32>,
}

/// A replica at a glance.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct ReplicaNow {
    /// Its number.
    pub(super) id: u32,
    /// Unique.
    #[schema(value_type = String)]
    pub(super) name: Text,
    /// Its address.
    #[schema(value_type = String)]
    pub(super) url: Text,
    /// As in the list of replicas.
    pub(super) state: &'static str,
    /// Since when, in seconds since 1970.
    pub(super) since_s: f64,
    /// Why.
    pub(super) reason: &'static str,
    /// Whether it gets new work, now or when a slot frees.
    pub(super) takes_work: bool,
    /// It was in the pool before the gateway was started, and has not answered since.
    pub(super) missing: bool,
    /// What keeps it from working, and what to do about it.
    #[schema(value_type = Option<String>)]
    pub(super) problem: Option<Text>,
    /// While there is a problem: what the last probe found, in one word.
    pub(super) finding: Option<&'static str>,
    /// What happens next by itself.
    #[schema(value_type = Option<String>)]
    pub(super) problem_next: Option<Text>,
    /// Slots it has.
    pub(super) slots: u16,
    /// Of those, usable now.
    pub(super) usable: u16,
    /// Requests that run there.
    pub(super) busy: usize,
    /// Slots of broken-off requests that may still work.
    pub(super) lingering: u16,
    /// Slots that work for others.
    pub(super) foreign: u16,
    /// Names of its models, at most 16.
    #[schema(value_type = Vec<String>)]
    pub(super) models: Vec<Text>,
    /// Prompt tokens a second, measured.
    pub(super) prefill: Option<f64>,
    /// Answer tokens a second, measured.
    pub(super) decode: Option<f64>,
    /// What is assumed until it is measured: stated, measured in quarantine or before a restart, or typical of its model's size.
    pub(super) prefill_assumed: Option<f64>,
    /// The same of answer tokens.
    pub(super) decode_assumed: Option<f64>,
    /// Whole answers since it came up.
    pub(super) answers: u64,
    /// Failed attempts since it came up.
    pub(super) failures: u64,
    /// Who stated it.
    pub(super) source: &'static str,
    /// What brings it back once it is removed: `configuration`, `chain`, `heartbeat`, `announcement`. Empty: nothing does.
    pub(super) comes_back: Vec<&'static str>,
    /// How well it is known who it is.
    pub(super) verification: &'static str,
    /// The job that it runs, or what its label `deployment_id` or `deployment` says.
    #[schema(value_type = Option<String>)]
    pub(super) deployment: Option<Text>,
    /// How much less is asked of it, by what its phone says about itself.
    pub(super) limit: Option<LimitNow>,
    /// When its deployment ends.
    pub(super) expires_at: Option<u64>,
    /// ACU a day.
    pub(super) cost: Option<f64>,
    /// An operator drains it.
    pub(super) draining: bool,
    /// It is drained and empty.
    pub(super) drained: bool,
    /// It goes away once it is empty.
    pub(super) removing: bool,
    /// Its engine, once known.
    pub(super) dialect: Option<&'static str>,
    /// When it may be tried again, in seconds since 1970.
    pub(super) penalty_until: Option<f64>,
    /// What runs there, the oldest first.
    pub(super) doing: Vec<Doing>,
}

/// How much less is asked of a replica.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct LimitNow {
    /// `fewer` or `paused`.
    pub(super) level: &'static str,
    /// Why.
    #[schema(value_type = String)]
    pub(super) reason: Text,
}

/// One attempt that runs on a replica.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct Doing {
    /// Of this request.
    #[schema(value_type = String)]
    pub(super) request: Text,
    /// `prefill` or `decode`.
    pub(super) phase: &'static str,
    /// How urgent.
    pub(super) class: &'static str,
    /// Whose.
    #[schema(value_type = String)]
    pub(super) tenant: Text,
    /// What for.
    #[schema(value_type = String)]
    pub(super) model: Text,
    /// Since when it runs there, in seconds since 1970.
    pub(super) since: f64,
}

/// `totals`: the pool in numbers.
#[derive(Serialize, ToSchema)]
pub(crate) struct Totals {
    /// Replicas by state, but for those that are `paused`: they would take work, and are spared for what their phones say. Every state
    /// is there.
    #[schema(value_type = std::collections::BTreeMap<String, usize>)]
    pub(super) replicas: States,
    /// Usable slots of replicas that take work.
    pub(super) slots: usize,
    /// Attempts that run.
    pub(super) busy: usize,
    /// Of the slots, free.
    pub(super) free: usize,
    /// Requests between their head and their end.
    pub(super) in_flight: usize,
    /// Requests that wait for a slot.
    pub(super) queued: usize,
    /// Relays that are held to be down.
    pub(super) relays_down: Vec<String>,
    /// What is wrong with reading the chain; null while it is read, and where none is.
    pub(super) chain: Option<ChainTrouble>,
    /// Whether the databases did their part in the last call.
    pub(super) store_ok: bool,
    /// The process is leaving.
    pub(super) draining: bool,
    /// Of this process; null where the system does not say.
    pub(super) memory: Option<Memory>,
}

/// Why the chain cannot be read, or only in part.
#[derive(Serialize, ToSchema)]
pub(crate) struct ChainTrouble {
    /// In words.
    #[schema(value_type = String)]
    pub(super) why: Text,
    /// It is read, but not all of it.
    pub(super) partial: bool,
    /// When it was last read, in seconds since 1970; null if it never was.
    pub(super) seen_at: Option<f64>,
}

/// Replicas by state.
#[derive(Default)]
pub(super) struct States(pub(super) Vec<(&'static str, usize)>);

impl Serialize for States {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().copied())
    }
}

/// Bytes, in whole MiB.
#[derive(Serialize, ToSchema)]
pub(crate) struct Memory {
    /// In use.
    pub(super) used: u64,
    /// May be in use.
    pub(super) limit: u64,
}

/// `queue`: what waits.
#[derive(Serialize, ToSchema)]
pub(crate) struct QueueNow {
    /// The most urgent first; all classes.
    pub(super) by_class: Vec<ClassQueue>,
    /// Those of which most wait, at most 20.
    pub(super) by_tenant: Vec<TenantQueue>,
    /// Requests of all other tenants that wait.
    pub(super) others: usize,
    /// All models that are served or waited for, by name, at most 256.
    pub(super) by_model: Vec<ModelQueue>,
    /// A request for a model of which no replica takes work is refused after so many seconds.
    pub(super) refused_after_s: f64,
}

/// What waits of one class.
#[derive(Serialize, ToSchema)]
pub(crate) struct ClassQueue {
    /// Which.
    pub(super) class: &'static str,
    /// Requests.
    pub(super) waiting: usize,
    /// Seconds since the oldest of them arrived.
    pub(super) oldest_s: Option<f64>,
    /// How long a new one would wait, for the model of which that is longest; null if no model is served.
    pub(super) estimate_s: Option<f64>,
}

/// What waits of one tenant.
#[derive(Serialize, ToSchema)]
pub(crate) struct TenantQueue {
    /// Whose.
    #[schema(value_type = String)]
    pub(super) tenant: Text,
    /// Requests.
    pub(super) waiting: usize,
    /// Seconds since the oldest of them arrived.
    pub(super) oldest_s: f64,
}

/// What waits for one model.
#[derive(Serialize, ToSchema)]
pub(crate) struct ModelQueue {
    /// Which.
    #[schema(value_type = String)]
    pub(super) model: Text,
    /// Requests.
    pub(super) waiting: usize,
    /// How long a new one of class `standard` would wait; null while no replica of it takes work.
    pub(super) estimate_s: Option<f64>,
    /// Replicas of it that are ready.
    pub(super) ready: usize,
    /// Usable slots of replicas of it that take work.
    pub(super) slots: usize,
}

/// `requests`: what is being answered.
#[derive(Serialize, ToSchema)]
pub(crate) struct RequestsNow {
    /// All of them.
    pub(super) total: usize,
    /// The oldest first, at most 200.
    pub(super) data: Vec<RequestNow>,
}

/// A request at a glance.
#[derive(Serialize, ToSchema)]
pub(crate) struct RequestNow {
    /// As in `x-request-id`.
    #[schema(value_type = String)]
    pub(super) id: Text,
    /// Whose.
    #[schema(value_type = String)]
    pub(super) tenant: Text,
    /// What for.
    #[schema(value_type = String)]
    pub(super) model: Text,
    /// The route.
    pub(super) route: &'static str,
    /// How urgent.
    pub(super) class: &'static str,
    /// `queued`, `prefill` or `decode`.
    pub(super) phase: &'static str,
    /// Where it runs.
    #[schema(value_type = Option<String>)]
    pub(super) replica: Option<Text>,
    /// When it arrived, in seconds since 1970.
    pub(super) since: f64,
    /// Tries so far.
    pub(super) attempts: u32,
    /// Pieces of content so far.
    pub(super) content_events: u64,
}

/// `batches`: those that have not ended.
#[derive(Serialize, ToSchema)]
pub(crate) struct BatchesNow {
    /// The newest first, at most 100.
    pub(super) data: Vec<BatchNow>,
}

/// A batch at a glance.
#[derive(Serialize, ToSchema)]
pub(crate) struct BatchNow {
    /// `batch_…`.
    pub(super) id: String,
    /// Whose.
    #[schema(value_type = String)]
    pub(super) tenant: Text,
    /// The model of its lines, once they were looked at.
    #[schema(value_type = Option<String>)]
    pub(super) model: Option<Text>,
    /// How far it has come.
    pub(super) state: &'static str,
    /// Lines; 0 until they were looked at.
    pub(super) total: u32,
    /// Lines with an answer.
    pub(super) completed: u32,
    /// Lines with an error.
    pub(super) failed: u32,
    /// Lines on their way.
    pub(super) running: u32,
    /// Seconds until all lines have results; null if nobody can say.
    pub(super) eta_s: Option<u64>,
    /// Seconds until its time is over.
    pub(super) expires_in_s: u64,
    /// Why no line runs, though some could.
    pub(super) waits_for: Option<&'static str>,
}

/// `registration`: phones that announce themselves.
#[derive(Serialize, ToSchema)]
pub(crate) struct RegistrationNow {
    /// What was refused, as `GET /admin/registrations/refused` has it: the latest first.
    refused: Vec<RefusedView>,
}

impl RegistrationNow {
    pub(super) fn new(registrar: &Registrar) -> Self {
        Self { refused: refused_now(registrar) }
    }
}

/// `history`, and `GET /admin/history`: the last hour.
#[derive(Serialize, ToSchema)]
pub(crate) struct HistoryView {
    /// Seconds of one point.
    pub(super) every_s: u64,
    /// The oldest first, at most 360.
    pub(super) points: Vec<PointView>,
}

/// `point`: what happened in some seconds, and how things stood at their end.
#[derive(Serialize, ToSchema)]
pub(crate) struct PointView {
    /// Their end, in seconds since 1970.
    pub(super) at: u64,
    /// Requests that got their whole answer.
    pub(super) requests: u64,
    /// Requests that failed through no fault of their client.
    pub(super) failed: u64,
    /// Tokens read.
    pub(super) prompt_tokens: u64,
    /// Tokens written.
    pub(super) completion_tokens: u64,
    /// Time to the first token of requests that ended.
    pub(super) ttft: Firsts,
    /// Requests that wait.
    pub(super) queued: usize,
    /// Attempts that run.
    pub(super) busy: usize,
    /// Usable slots of replicas that take work.
    pub(super) slots: usize,
    /// Replicas that are ready.
    pub(super) ready: usize,
    /// 95th percentile of the waits for a slot, seconds, of requests that ended; null if none did.
    pub(super) waits_p95: Option<f64>,
}

/// Median and 95th percentile in seconds, by class; null if no request of it ended.
#[derive(Serialize, ToSchema)]
pub(crate) struct Firsts {
    interactive: Option<[f64; 2]>,
    standard: Option<[f64; 2]>,
    batch: Option<[f64; 2]>,
}

impl From<Point> for PointView {
    fn from(point: Point) -> Self {
        let [interactive, standard, batch] = point.ttft.map(|pair| pair.map(|pair| pair.map(rounded)));
        Self {
            at: point.at,
            requests: point.requests,
            failed: point.failed,
            prompt_tokens: point.prompt_tokens,
            completion_tokens: point.completion_tokens,
            ttft: Firsts { interactive, standard, batch },
            queued: point.level.queued,
            busy: point.level.busy,
            slots: point.level.slots,
            ready: point.level.ready,
            waits_p95: point.waits_p95.map(rounded),
        }
    }
}

/// `events`: the last pool changes.
#[derive(Serialize, ToSchema)]
pub(crate) struct EventsNow {
    /// The newest last, at most 200.
    pub(super) data: Vec<EventNow>,
}

/// `event`: a pool change.
#[derive(Serialize, ToSchema)]
pub(crate) struct EventNow {
    /// What happened, as the events of `GET /admin/events` are named.
    pub(super) event: &'static str,
    #[serde(flatten)]
    pub(super) what: EventView,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_keeps_three_digits() {
        for (value, shown) in
            [(0.0, 0.0), (12.345, 12.3), (0.012_345, 0.0123), (98_765.0, 98_800.0), (f64::NAN, 0.0), (1.0, 1.0)]
        {
            assert!((rounded(value) - shown).abs() < 1e-9, "{value}");
        }
    }

    #[test]
    fn a_text_of_any_length_is_cut_between_letters() {
        let text = |count| Text::from("ů".repeat(count)).0.chars().count();
        assert_eq!((text(MAX_TEXT), text(MAX_TEXT + 1), text(100_000)), (MAX_TEXT, MAX_TEXT + 1, MAX_TEXT + 1));
    }
}
