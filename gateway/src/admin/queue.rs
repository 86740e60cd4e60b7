//! The queue: how many wait, and how long one more would.

use std::collections::BTreeSet;

use axum::{Json, extract::State};
use scheduler::Class;
use serde::Serialize;
use utoipa::ToSchema;

use super::{Shared, explain::seconds};

/// The queue, by model and class.
#[derive(Serialize, ToSchema)]
pub(super) struct QueueList {
    /// Always `list`.
    object: &'static str,
    /// By model, the most urgent class first. Every class of every model that a replica serves or requests wait for.
    data: Vec<QueueView>,
    /// Requests that wait, all together.
    waiting: usize,
    /// Bytes of their bodies.
    waiting_bytes: u64,
}

/// Requests of one model and class.
#[derive(Serialize, ToSchema)]
pub(super) struct QueueView {
    /// The model.
    model: String,
    /// `interactive`, `standard` or `batch`.
    class: &'static str,
    /// How many wait.
    waiting: usize,
    /// How long a request that arrived now would wait for a slot, in seconds, estimated; null while no replica of the model takes work.
    wait_s: Option<f64>,
    /// No replica of the model takes work: a request that arrived now would be refused after so many seconds, unless one comes back.
    /// Null otherwise.
    refused_after_s: Option<f64>,
}

/// How many wait, and how long one more would.
#[utoipa::path(get, path = "/admin/queue", tag = "requests",
    responses((status = 200, description = "By model and class", body = QueueList)))]
pub(super) async fn list(State(shared): State<Shared>) -> Json<QueueList> {
    let snapshot = shared.app.dispatcher.snapshot();
    let waited_for = snapshot.queued.keys().map(|(model, _)| *model);
    let served = shared.app.fleet.replicas();
    let served =
        served.iter().flat_map(|replica| replica.facts().models.iter().map(|model| model.id).collect::<Vec<_>>());
    let known: BTreeSet<_> = served.chain(waited_for).collect();
    let refused_after = snapshot.no_replica_wait.as_secs_f64();
    let mut data: Vec<_> = known
        .into_iter()
        .filter_map(|model| Some((shared.app.fleet.model_name(model)?, model)))
        .flat_map(|(name, model)| Class::ALL.map(|class| (name.to_string(), (model, class))))
        .map(|(model, key)| QueueView {
            model,
            class: key.1.name(),
            waiting: snapshot.queued.get(&key).copied().unwrap_or(0),
            wait_s: snapshot.waits.get(&key).and_then(|wait| seconds(wait.as_secs_f64())),
            refused_after_s: (!snapshot.waits.contains_key(&key)).then_some(refused_after),
        })
        .collect();
    // Stable: classes stay in their order.
    data.sort_by(|a, b| a.model.cmp(&b.model));
    Json(QueueList {
        object: "list",
        data,
        waiting: snapshot.queued.values().sum(),
        waiting_bytes: snapshot.queued_bytes,
    })
}
