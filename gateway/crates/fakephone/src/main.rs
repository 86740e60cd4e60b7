//! `fakephone`: phones that are not there.

mod cli;

use anyhow::{Context, Result};
use clap::Parser;
use cli::Cli;
use fakephone::{Control, Fleet, PhoneHandle, Place, RegisterError, Relay};
use rustix::process::{Resource, getrlimit, setrlimit};
use serde_json::json;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

fn main() -> Result<()> {
    let cli = Cli::parse();
    raise_descriptor_limit();
    let runtime = if cli.threads == 1 {
        tokio::runtime::Builder::new_current_thread().enable_all().build()
    } else {
        tokio::runtime::Builder::new_multi_thread().worker_threads(usize::from(cli.threads)).enable_all().build()
    };
    runtime.context("cannot start the runtime")?.block_on(run(cli))
}

/// A thousand phones need some thousand descriptors; the soft limit is often 1,024.
fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // With the old limit everything works, for fewer phones.
    setrlimit(Resource::Nofile, limit).ok();
}

async fn run(cli: Cli) -> Result<()> {
    let template = cli.template()?;
    let place = match cli.relay {
        Some(address) => Place::Relay(Relay::start(address).await?),
        None => Place::Ports(cli.listen, cli.base_port),
    };
    let fleet = Arc::new(Fleet::new(place));
    for _ in 0..cli.phones {
        fleet.add(cli.phone(&template, fleet.take_place())).await?;
    }
    let control = match cli.control {
        Some(address) => Some(Control::start(address, fleet.clone(), template).await?),
        None => None,
    };
    write_files(&cli, &fleet)?;
    announce_ready(&fleet, control.as_ref())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let phones = fleet.phones();
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        () = register(cli.register.as_deref(), &phones) => {}
    }
    Ok(())
}

fn write_files(cli: &Cli, fleet: &Fleet) -> Result<()> {
    if let (Some(path), Some(relay)) = (&cli.ca_out, fleet.relay()) {
        std::fs::write(path, relay.ca_pem()).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = &cli.urls_out {
        let urls: String = fleet.phones().iter().map(|phone| format!("{}\n", phone.url())).collect();
        std::fs::write(path, urls).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Prints where everything is, in one line.
fn announce_ready(fleet: &Fleet, control: Option<&Control>) -> Result<()> {
    let phone = |phone: &PhoneHandle| {
        let config = phone.config();
        json!({"id": phone.id(), "url": phone.url(), "dialect": config.dialect.name(), "model": config.model,
            "slots": config.slots})
    };
    let line = json!({"ready": true, "control": control.map(|control| format!("http://{}", control.address())),
        "relay": fleet.relay().map(|relay| relay.address().to_string()),
        "phones": fleet.phones().iter().map(phone).collect::<Vec<_>>()});
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()?;
    Ok(())
}

/// How often, and at what pause, a phone tries to announce itself: the gateway may start later than the phones.
const TRIES: u32 = 120;
const PAUSE: Duration = Duration::from_secs(1);

/// Announces all phones; then, or without a URL, waits for ever.
async fn register(url: Option<&str>, phones: &[PhoneHandle]) {
    let Some(url) = url else { return std::future::pending().await };
    let mut was_refused = false;
    for (turn, phone) in phones.iter().enumerate() {
        for attempt in 1..=TRIES {
            match fakephone::announce(url, phone.url(), turn).await {
                Ok(()) => break,
                Err(error) if attempt == TRIES => eprintln!("{}: {error}", phone.url()),
                // The first refusal is told at once: it mostly holds for all that follow.
                Err(error @ RegisterError::Refused { .. }) if !was_refused => {
                    was_refused = true;
                    eprintln!("{}: {error}; trying again", phone.url());
                    tokio::time::sleep(PAUSE).await;
                }
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }
    std::future::pending().await
}
