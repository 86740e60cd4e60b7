//! Deployments: what ends when, and what goes with it.

use axum::{Json, extract::State};
use serde::Serialize;
use utoipa::ToSchema;

use super::{AppState, Shared};
use crate::{clock, fleet::Deployment};

/// All deployments.
#[derive(Serialize, ToSchema)]
pub(crate) struct DeploymentList {
    /// Always `list`.
    object: &'static str,
    /// The one that ends next first; those without a known end last.
    data: Vec<DeploymentView>,
}

/// Replicas that end together.
#[derive(Serialize, ToSchema)]
pub(crate) struct DeploymentView {
    /// Its job, or what the label `deployment_id` or `deployment` of its replicas says.
    deployment: String,
    /// Names of its replicas.
    replicas: Vec<String>,
    /// Slots of all of them.
    slots: u32,
    /// Slots of those that take work.
    ready_slots: u32,
    /// What part of all slots that take work goes with it, from 0 to 1.
    share_of_ready_slots: f64,
    /// When the first of them ends, in seconds since 1970.
    ends_at: Option<u64>,
    /// The same from now; negative once it is past.
    ends_in_s: Option<i64>,
    /// What those cost together whose price is stated.
    cost_acu_per_day: Option<f64>,
}

impl DeploymentView {
    fn new(deployment: Deployment, ready_slots: u32, now: u64) -> Self {
        let from_now = |at: u64| i64::try_from(at).unwrap_or(i64::MAX).saturating_sub(i64::try_from(now).unwrap_or(0));
        let share = f64::from(deployment.ready_slots) / f64::from(ready_slots.max(1));
        Self {
            share_of_ready_slots: (share * 1e3).round() / 1e3,
            deployment: deployment.name,
            replicas: deployment.replicas,
            slots: deployment.slots,
            ready_slots: deployment.ready_slots,
            ends_at: deployment.ends_at,
            ends_in_s: deployment.ends_at.map(from_now),
            cost_acu_per_day: deployment.cost_acu_per_day,
        }
    }
}

impl DeploymentList {
    /// As they are now.
    pub(super) fn now(app: &AppState) -> Self {
        let snapshot = app.dispatcher.snapshot();
        let ready = snapshot.replicas.iter().filter(|view| view.takes_work()).map(|view| u32::from(view.slots)).sum();
        let now = clock::unix().as_secs();
        let deployments = app.fleet.deployments();
        let data = deployments.into_iter().map(|deployment| DeploymentView::new(deployment, ready, now)).collect();
        Self { object: "list", data }
    }
}

/// Which deployments end when, the next one first, and what part of the pool goes with each.
#[utoipa::path(get, path = "/admin/deployments", tag = "replicas",
    responses((status = 200, description = "All deployments", body = DeploymentList)))]
pub(super) async fn list(State(shared): State<Shared>) -> Json<DeploymentList> {
    Json(DeploymentList::now(&shared.app))
}
