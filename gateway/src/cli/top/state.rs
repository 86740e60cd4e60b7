//! What the feed has told so far: the gateway as it is now, as far as this process knows.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

/// Changes of the pool that are kept.
const MAX_EVENTS: usize = 200;
/// Points of the history that are kept: an hour.
const MAX_POINTS: usize = 360;

/// The gateway at a glance.
#[derive(Default)]
pub struct Glance {
    pub hello: Hello,
    pub replicas: BTreeMap<u32, Replica>,
    pub totals: Totals,
    pub queue: Queue,
    pub requests: Requests,
    pub batches: Vec<Batch>,
    pub points: VecDeque<Point>,
    pub events: VecDeque<Change>,
    pub cost: Cost,
    pub advice: Vec<Advice>,
    pub refused: Vec<Refused>,
    /// Another process answers than the one before.
    pub restarted: bool,
}

impl Glance {
    /// Takes in one event of the feed; those of later versions are passed over. False if its data is not what it should be.
    pub fn take_in(&mut self, name: &str, data: Value) -> bool {
        match name {
            "hello" => read(data).map(|hello: Hello| {
                self.restarted = !self.hello.instance.is_empty() && self.hello.instance != hello.instance;
                self.hello = hello;
            }),
            "pool" => read(data).map(|Pool { replicas, .. }| {
                self.replicas = replicas.into_iter().map(|replica| (replica.id, replica)).collect();
            }),
            "delta" => read(data).map(|Pool { replicas, gone }| {
                self.replicas.extend(replicas.into_iter().map(|replica| (replica.id, replica)));
                for id in gone {
                    self.replicas.remove(&id);
                }
            }),
            "totals" => read(data).map(|totals| self.totals = totals),
            "queue" => read(data).map(|queue| self.queue = queue),
            "requests" => read(data).map(|requests| self.requests = requests),
            "batches" => read(data).map(|List { data }| self.batches = data),
            "history" => read(data).map(|History { points }| self.points = points.into()),
            "point" => read(data).map(|point| kept(&mut self.points, point, MAX_POINTS)),
            "cost" => read(data).map(|cost| self.cost = cost),
            "advice" => read(data).map(|List { data }| self.advice = data),
            "registration" => read(data).map(|Registration { refused }| self.refused = refused),
            "events" => read(data).map(|List { data }| self.events = data.into()),
            "event" => read(data).map(|change| kept(&mut self.events, change, MAX_EVENTS)),
            _ => Some(()),
        }
        .is_some()
    }
}

fn read<T: DeserializeOwned>(data: Value) -> Option<T> {
    serde_json::from_value(data).ok()
}

fn kept<T>(list: &mut VecDeque<T>, item: T, most: usize) {
    if list.len() >= most {
        list.pop_front();
    }
    list.push_back(item);
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Hello {
    pub version: String,
    pub started_at: f64,
    pub now: f64,
    pub instance: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Pool {
    replicas: Vec<Replica>,
    gone: Vec<u32>,
}

#[derive(Deserialize)]
struct List<T> {
    data: Vec<T>,
}

#[derive(Deserialize)]
struct History {
    points: Vec<Point>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Replica {
    pub id: u32,
    pub name: String,
    pub state: String,
    pub since_s: f64,
    pub reason: String,
    pub takes_work: bool,
    pub missing: bool,
    pub problem: Option<String>,
    pub slots: u32,
    pub usable: u32,
    pub busy: u32,
    pub lingering: u32,
    pub foreign: u32,
    pub models: Vec<String>,
    pub prefill: Option<f64>,
    pub decode: Option<f64>,
    pub prefill_assumed: Option<f64>,
    pub decode_assumed: Option<f64>,
    pub answers: u64,
    pub failures: u64,
    pub limit: Option<Limit>,
    pub draining: bool,
    pub drained: bool,
    pub removing: bool,
    pub penalty_until: Option<f64>,
    pub doing: Vec<Doing>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Limit {
    pub level: String,
    pub reason: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Doing {
    pub phase: String,
    pub class: String,
    pub tenant: String,
    pub since: f64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Totals {
    pub replicas: BTreeMap<String, u64>,
    pub slots: u64,
    pub busy: u64,
    pub in_flight: u64,
    pub queued: u64,
    pub relays_down: Vec<String>,
    pub chain: Option<ChainTrouble>,
    pub store_ok: Option<bool>,
    pub draining: bool,
    pub memory: Option<Memory>,
}

/// Why the chain is not read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ChainTrouble {
    pub why: String,
    pub partial: bool,
    pub seen_at: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Memory {
    pub used: u64,
    pub limit: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Queue {
    pub by_class: Vec<Waiting>,
    pub by_tenant: Vec<Waiting>,
    pub others: u64,
    pub by_model: Vec<Waiting>,
    pub refused_after_s: Option<f64>,
}

/// What waits, of one class, tenant or model.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Waiting {
    #[serde(alias = "class", alias = "tenant", alias = "model")]
    pub name: String,
    pub waiting: u64,
    pub oldest_s: Option<f64>,
    pub estimate_s: Option<f64>,
    pub ready: u64,
    pub slots: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Requests {
    pub total: u64,
    pub data: Vec<Request>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Request {
    pub id: String,
    pub tenant: String,
    pub model: String,
    pub class: String,
    pub phase: String,
    pub replica: Option<String>,
    pub since: f64,
    pub attempts: u64,
    pub content_events: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Batch {
    pub id: String,
    pub tenant: String,
    pub model: Option<String>,
    pub state: String,
    pub total: u64,
    pub completed: u64,
    pub failed: u64,
    pub running: u64,
    pub eta_s: Option<f64>,
    pub expires_in_s: f64,
    pub waits_for: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Cost {
    pub per_day: Option<f64>,
    pub total: Option<f64>,
    pub per_million_tokens: PerTokens,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PerTokens {
    pub total: Option<f64>,
}

/// What is advised for one model.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Advice {
    pub model: String,
    pub verdict: String,
    pub now: Phones,
    pub wanted: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Phones {
    pub phones: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Registration {
    refused: Vec<Refused>,
}

/// Announcements of phones that were refused for one reason.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Refused {
    pub message: String,
    pub peer: String,
    pub count: u64,
    pub last_at: f64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Point {
    pub requests: u64,
    pub failed: u64,
    pub completion_tokens: u64,
    pub ttft: BTreeMap<String, Option<[f64; 2]>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Change {
    pub event: String,
    pub at: f64,
    pub name: String,
    pub from: Option<String>,
    pub to: Option<String>,
    pub reason: Option<String>,
    pub detail: Option<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_delta_changes_what_it_names_and_a_pool_replaces_everything() {
        let mut glance = Glance::default();
        let names = |glance: &Glance| glance.replicas.values().map(|replica| replica.name.clone()).collect::<Vec<_>>();
        assert!(glance.take_in("pool", json!({"replicas": [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]})));
        assert!(
            glance.take_in("delta", json!({"replicas": [{"id": 3, "name": "c"}, {"id": 2, "name": "d"}], "gone": [1]}))
        );
        assert_eq!(names(&glance), ["d", "c"]);
        assert!(glance.take_in("pool", json!({"replicas": [{"id": 9, "name": "e", "unheard_of": {}}]})));
        assert_eq!(names(&glance), ["e"]);
        assert!(!glance.take_in("pool", json!(7)) && glance.take_in("of a later version", json!(1)));
        assert_eq!(names(&glance), ["e"]);
    }

    #[test]
    fn another_instance_is_another_process() {
        let mut glance = Glance::default();
        let mut hello = |instance| {
            assert!(glance.take_in("hello", json!({ "instance": instance })));
            glance.restarted
        };
        assert_eq!([hello("a"), hello("a"), hello("b")], [false, false, true]);
    }

    #[test]
    fn what_happens_is_kept_within_bounds() {
        let mut glance = Glance::default();
        for number in 0..1000 {
            assert!(glance.take_in("event", json!({"event": "added", "at": number, "name": "p"})));
            assert!(glance.take_in("point", json!({"at": number, "requests": number, "ttft": {"batch": null}})));
        }
        assert_eq!((glance.events.len(), glance.points.len()), (MAX_EVENTS, MAX_POINTS));
        assert_eq!(glance.points.back().map(|point| point.requests), Some(999));
    }
}
