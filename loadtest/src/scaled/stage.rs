//! The scenario's phones behind sockets, and a gateway that is set up as the simulated one.
//!
//! Phones have ports of their own and speak plain HTTP: a handshake through a relay takes this machine milliseconds that do
//! not shrink with the scenario's time, and twenty times as much would be in the figures. What a phone is (speed, slots,
//! caches, what requests do to each other) is the simulator's own model.
//!
//! The gateway's clock runs as fast as the scenario. So every number in its configuration is in the scenario's seconds, but
//! for the time-outs of sockets.

use super::clients::{MODEL, key_of};
use crate::live::{OwnError, Process, Site};
use fakephone::{PhoneConfig, PhoneHandle, spawn};
use simulation::{phone::PhoneSpeed, play::Run, scenario::Scenario, workload::PhoneSpec};
use std::{fmt::Write as _, path::Path, time::Duration};

/// Tokens of an answer come in pieces this far apart, in the world's time: each costs three processes a wake-up.
const WRITE_INTERVAL: Duration = Duration::from_millis(50);
/// More than any prompt: the simulated gateway does not know contexts.
const CONTEXT: u32 = 1 << 20;

/// Phones and gateway; both end with this value.
pub(super) struct Stage {
    pub(super) phones: Vec<PhoneHandle>,
    pub(super) gateway: Process,
}

impl Stage {
    /// Starts everything, and waits until every phone is ready. Phones remember the last `kept_requests`.
    pub(super) async fn start(
        run: &Run<'_>,
        speedup: f64,
        policy: &str,
        program: &Path,
        kept_requests: usize,
    ) -> Result<Self, OwnError> {
        let mut phones = Vec::with_capacity(run.workload.phones.len());
        for (number, spec) in run.workload.phones.iter().enumerate() {
            let config = PhoneConfig { kept_requests, ..phone(run.scenario, spec, number, speedup) };
            phones.push(spawn(config).await?);
        }
        let arguments = ["--clock-pace".to_owned(), speedup.to_string()];
        let config = |site: &Site<'_>| Ok(config(run, &phones, policy, site));
        let mut gateway = Process::start(program, &arguments, &variables(run.scenario), config)?;
        gateway.wait_until_ready(phones.len()).await?;
        Ok(Self { phones, gateway })
    }
}

fn phone(scenario: &Scenario, spec: &PhoneSpec, number: usize, speedup: f64) -> PhoneConfig {
    let reference =
        PhoneSpeed { overhead_seconds: scenario.overhead_s, ..PhoneSpeed::reference(scenario.model.speed()) };
    let config = PhoneConfig {
        told_lengths: true,
        remembers_prompts: spec.remembers,
        write_interval: WRITE_INTERVAL,
        stall: Duration::try_from_secs_f64(scenario.detect_s / speedup).unwrap_or_default(),
        keep_alive: Duration::from_secs(60),
        requests_per_connection: u32::MAX,
        kept_requests: 0,
        ..PhoneConfig::default()
    };
    config
        .with_model(MODEL)
        .with_seed(number as u64)
        .with_slots(u16::try_from(spec.slots).unwrap_or(u16::MAX))
        .with_context(CONTEXT)
        .with_speed(reference.scaled_by(spec.prefill_factor, spec.decode_factor), speedup)
}

/// The keys of all tenants: a class's key is one.
fn keys(scenario: &Scenario) -> impl Iterator<Item = (usize, usize)> + '_ {
    let of_class =
        |(index, class): (usize, &simulation::scenario::Class)| (0..class.keys.len()).map(move |key| (index, key));
    scenario.classes.iter().enumerate().flat_map(of_class)
}

fn variables(scenario: &Scenario) -> Vec<(String, String)> {
    keys(scenario).map(|(class, key)| (format!("LOADTEST_KEY_{class}_{key}"), key_of(class, key))).collect()
}

/// Nothing is refused and nothing times out, as in the simulator: a refused request would make the figures of the others
/// better.
fn config(run: &Run<'_>, phones: &[PhoneHandle], policy: &str, site: &Site<'_>) -> String {
    let mut text = site.sections(
        "body_deadline = \"1h\"\nheader_deadline = \"5m\"\nwrite_timeout = \"1h\"\n\
         max_connections = 1000000\nexpose_replica = false",
    );
    let looks = Duration::try_from_secs_f64(run.scenario.detect_s).unwrap_or_default().as_secs().clamp(5, 600);
    write!(
        text,
        "[limits]\nmax_buffered_bytes = \"16GiB\"\nmax_memory = \"64GiB\"\n\n\
         [pool]\nallow_private = true\nallow_http = true\nidle = \"10m\"\ntls_timeout = \"60s\"\nconnect_timeout = \"5s\"\n\n\
         [health]\ninterval = \"{looks}s\"\ntimeout = \"5s\"\n\n\
         [scheduler]\npolicy = {policy:?}\nmax_queued = 1000000\nmax_queued_per_slot = 100000\n\
         max_queued_bytes = \"16GiB\"\nmax_age_interactive = \"none\"\nmax_age_standard = \"none\"\n\
         max_age_batch = \"none\"\nno_replica_wait = \"1d\"\nmax_attempts = 10\nretry_share = 1.0\n\n\
         [streams]\nhead_after = \"5m\"\nfirst_token_min = \"1d\"\nfirst_token_cap = \"1d\"\ngap_min = \"1d\"\n\
         gap_cap = \"1d\"\nplain_total = \"1d\"\n\n\
         [batches]\nmax_file = \"4GiB\"\nmax_lines = 1000000\n\n"
    )
    .ok();
    for (class, key) in keys(run.scenario) {
        write!(text, "[tenants.class-{class}-key-{key}]\nkeys = [\"env:LOADTEST_KEY_{class}_{key}\"]\n\n").ok();
    }
    for ((number, phone), prior) in phones.iter().enumerate().zip(run.priors()) {
        write!(
            text,
            "[[replicas]]\nurl = {:?}\nname = \"phone-{number}\"\nprefill_rate = {:?}\ndecode_rate = {:?}\n\n",
            phone.url(),
            prior.prefill,
            prior.decode
        )
        .ok();
    }
    text
}
