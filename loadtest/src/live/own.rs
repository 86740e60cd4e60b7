//! `--self`: phones in this process, a gateway as its child.
//!
//! The phones stand behind a fake relay, as real ones do behind the real one: the gateway reaches them by TLS and name.

use super::{
    fleet::{Fleet, OwnPhone},
    process::{OwnError, Process, Site, write},
};
use crate::scenario::{PhoneGroup, Scenario};
use fakephone::{Dialect, PhoneConfig, Relay};
use simulation::rng::Rng;
use std::{fmt::Write as _, path::Path, time::Duration};

/// Key of the only tenant. The gateway listens on this machine's loopback only, for as long as the play lasts.
pub(crate) const KEY: &str = "hg-loadtest-own-gateway";
/// File with the certificate of the relay's authority.
const AUTHORITY: &str = "relay-ca.pem";

/// A gateway that ends with this value.
pub(crate) struct Own {
    /// The gateway.
    pub(crate) gateway: Process,
    _relay: Relay,
}

impl Own {
    /// Starts phones and gateway, and waits until every phone is ready.
    pub(crate) async fn start(scenario: &Scenario, program: &Path) -> Result<(Self, Fleet), OwnError> {
        let relay = Relay::start_local().await?;
        let phones = spawn_phones(scenario, &relay)?;
        let variables = [("LOADTEST_KEY".to_owned(), KEY.to_owned())];
        let mut gateway = Process::start(program, &[], &variables, |site| {
            write(&site.directory.join(AUTHORITY), relay.ca_pem())?;
            Ok(config(scenario, &phones, site))
        })?;
        let expected = phones.iter().filter(|phone| !phone.spare).count();
        gateway.wait_until_ready(expected).await?;
        Ok((Self { gateway, _relay: relay }, Fleet::Own(phones)))
    }
}

fn spawn_phones(scenario: &Scenario, relay: &Relay) -> Result<Vec<OwnPhone>, OwnError> {
    let mut phones = Vec::with_capacity(scenario.fleet.len());
    for (number, (group, kind)) in scenario.fleet.phones().enumerate() {
        let mut chance = Rng::new(scenario.seed, &format!("phone:{number}:speed"));
        let factor = (kind.jitter * chance.normal()).exp();
        let mut config = phone_config(kind, factor, scenario.fleet.time_scale);
        config.seed = scenario.seed.wrapping_mul(1_000_003).wrapping_add(number as u64);
        config.stall = Duration::from_secs_f64(scenario.fleet.stall_s);
        phones.push(OwnPhone {
            name: format!("{}-{number}", kind.name),
            group,
            spare: kind.spare,
            handle: relay.spawn(config)?,
        });
    }
    Ok(phones)
}

fn phone_config(kind: &PhoneGroup, factor: f64, time_scale: f64) -> PhoneConfig {
    PhoneConfig::default()
        .with_model(kind.model.clone())
        .with_slots(kind.slots)
        .with_context(kind.context)
        .with_speed(kind.speed.scaled(factor), time_scale)
        .with_dialect(kind.dialect)
}

/// The configuration of a gateway that has nothing but these phones.
fn config(scenario: &Scenario, phones: &[OwnPhone], site: &Site<'_>) -> String {
    let mut text = site.sections("");
    write!(
        text,
        "[pool]\nca_file = {:?}\nallow_private = true\n\n[tenants.loadtest]\nkeys = [\"env:LOADTEST_KEY\"]\n",
        site.directory.join(AUTHORITY)
    )
    .ok();
    for phone in phones.iter().filter(|phone| !phone.spare) {
        write!(text, "\n[[replicas]]\nurl = {:?}\nname = {:?}\n", phone.handle.url(), phone.name).ok();
        let kind = &scenario.fleet.groups[phone.group];
        if kind.dialect != Dialect::Llama {
            // These engines say neither which model they run nor how many requests they take.
            write!(text, "models = [{:?}]\nslots = {}\n", kind.model, kind.slots).ok();
        }
    }
    text
}
