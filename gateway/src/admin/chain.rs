//! What is known of the chain: how the last look went, the jobs, the phones, and what was not understood.

use axum::{Json, extract::State};
use serde::Serialize;
use utoipa::ToSchema;

use super::Shared;
use crate::chain::{JobId, Phone, Registration, Status};

/// The chain, as far as it concerns this pool.
#[derive(Serialize, ToSchema)]
pub(super) struct ChainView {
    /// The node that is asked, without what may be a key in its address; null: nothing is looked up.
    rpc: Option<String>,
    /// Seconds between two looks, while all is well.
    every_s: u64,
    /// When the node was asked last, in seconds since 1970.
    polled_at: Option<u64>,
    /// When a look last saw something.
    seen_at: Option<u64>,
    /// Why the last look saw nothing; what was known stays.
    failure: Option<String>,
    /// Looks in a row that saw nothing.
    failures: u32,
    /// The newest final block then.
    head: Option<u64>,
    /// The runtime that made it.
    runtime: Option<RuntimeView>,
    /// Whether the last look saw all there is. If not, a phone that it does not have stays.
    whole: bool,
    /// What the chain says and is not understood, at most a hundred.
    not_understood: Vec<DoubtView>,
    /// The jobs that are looked at.
    jobs: Vec<JobView>,
}

/// A runtime.
#[derive(Serialize, ToSchema)]
struct RuntimeView {
    /// Its name.
    name: String,
    /// Raised with every upgrade.
    version: u32,
}

/// Something that was not as expected.
#[derive(Serialize, ToSchema)]
struct DoubtView {
    /// What was read, as the runtime calls it.
    item: &'static str,
    /// Whose: a job, and a phone behind `/`; empty: of the whole chain.
    of: String,
    /// What is wrong with it.
    why: String,
}

/// A job.
#[derive(Serialize, ToSchema)]
struct JobView {
    /// `Acurast:ADDRESS:NUMBER`.
    deployment: String,
    /// Phones that it asks for; null: the chain has no registration of it that can be read.
    slots: Option<u8>,
    /// When the first execution may start, in seconds since 1970.
    starts_at: Option<u64>,
    /// How long an execution takes, in seconds.
    duration_s: Option<u64>,
    /// Its phones.
    phones: Vec<PhoneView>,
}

/// A phone of a job.
#[derive(Serialize, ToSchema)]
struct PhoneView {
    /// The phone's address on the chain.
    processor: String,
    /// From 0.
    slot: Option<u8>,
    /// `matched` (has not accepted yet), `waiting` (for its time), `running`, `ended`, `unclear`.
    state: &'static str,
    /// Why it is not in the pool, where the state does not say it.
    problem: Option<String>,
    /// Where it answers, as its published key says.
    url: Option<String>,
    /// The replica that it is.
    replica: Option<u32>,
    /// When its work begins, in seconds since 1970.
    starts_at: Option<u64>,
    /// When its work ends.
    ends_at: Option<u64>,
    /// What it costs.
    cost_acu_per_day: Option<f64>,
}

/// What is known of the chain.
#[utoipa::path(get, path = "/admin/chain", tag = "replicas",
    responses((status = 200, description = "The last look, the jobs and their phones", body = ChainView)))]
pub(super) async fn get(State(shared): State<Shared>) -> Json<ChainView> {
    let status = shared.app.chain.status();
    let every_s = shared.app.chain.settings().every.as_secs();
    Json(ChainView {
        rpc: status.node.clone(),
        every_s,
        polled_at: status.polled_ms.map(seconds),
        seen_at: status.seen_ms.map(seconds),
        failure: status.failure.clone(),
        failures: status.failures,
        head: status.head,
        runtime: status
            .runtime
            .as_ref()
            .map(|runtime| RuntimeView { name: runtime.spec_name.clone(), version: runtime.spec_version }),
        whole: status.whole,
        not_understood: status
            .doubts
            .iter()
            .map(|doubt| DoubtView { item: doubt.item, of: doubt.of.clone(), why: doubt.why.clone() })
            .collect(),
        jobs: status.jobs.iter().map(|(id, registration)| job(&status, *id, registration.as_ref())).collect(),
    })
}

fn job(status: &Status, id: JobId, registration: Option<&Registration>) -> JobView {
    let schedule = registration.map(|registration| registration.schedule);
    let phones = status.phones.iter().filter(|(phone, _)| phone.job == id);
    JobView {
        deployment: id.to_string(),
        slots: registration.map(|registration| registration.slots),
        starts_at: schedule.map(|schedule| seconds(schedule.start)),
        duration_s: schedule.map(|schedule| seconds(schedule.duration)),
        phones: phones.map(|(phone, replica)| view(phone, replica.map(|replica| replica.0))).collect(),
    }
}

fn view(phone: &Phone, replica: Option<u32>) -> PhoneView {
    PhoneView {
        processor: phone.processor.to_string(),
        slot: phone.slot,
        state: phone.stage.name(),
        problem: phone.problem.clone(),
        url: phone.at.as_ref().map(|(url, _)| url.clone()),
        replica,
        starts_at: phone.span_ms.map(|(start, _)| seconds(start)),
        ends_at: phone.span_ms.map(|(_, end)| seconds(end)),
        cost_acu_per_day: phone.cost_per_day,
    }
}

fn seconds(ms: u64) -> u64 {
    ms / 1_000
}
