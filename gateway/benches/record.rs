//! What the accounting of one request costs, without its log line.
//!
//! `cargo bench -p huntgroup --bench record`

use std::sync::Arc;

use huntgroup::{
    clock,
    telemetry::{Price, RequestOutcome, RequestRecord, Telemetry, TelemetryOptions},
};
use openai_wire::Route;
use scheduler::Class;

const ROUNDS: u32 = 200_000;

fn main() {
    let telemetry = Telemetry::new(TelemetryOptions { access_log: false, version: "bench" });
    let (tenant, model, id): (Arc<str>, Arc<str>, Arc<str>) = (Arc::from("t"), Arc::from("small"), Arc::from("r"));
    let replica: Arc<str> = Arc::from("a");
    let price = Price { acu_per_day: Some(0.5), slots: 2, deployment: None };
    let start = clock::now();
    for _ in 0..ROUNDS {
        let mut record = RequestRecord::new(Arc::clone(&telemetry), Arc::clone(&id), Route::ChatCompletions);
        record.identify(Arc::clone(&tenant), Arc::clone(&model), Class::Standard);
        record.queued();
        let attempt = record.dispatched(&replica, false, &price);
        record.first_token();
        record.usage(100, 20, 0, false);
        record.attempt_ended(attempt, "ok");
        record.status(200);
        record.outcome(RequestOutcome::Ok);
    }
    println!("one request's record: {:?}", clock::now().since(start) / ROUNDS);
}
