//! The simulated phones: which models, engines and speeds.

use std::{collections::BTreeMap, time::Duration};

use fakephone::{Dialect, PhoneConfig, PhoneHandle, Relay, SpawnError};

use crate::config::{ModelSection, StatedModels, StatedReplica};

/// How much faster than life. 4: a small model writes as fast as one reads, a large one as fast as one listens.
const TIME_SCALE: f64 = 4.0;
/// How long a model loads after a start, in the phones' time.
const LOAD_TIME: Duration = Duration::from_secs(12);

/// A kind of phone.
struct Kind {
    dialect: Dialect,
    model: &'static str,
    speed: &'static str,
    slots: u16,
}

/// What clients call the models, and what the phones call them.
const SMALL: (&str, &str) = ("qwen3.5-0.8b", "/data/models/Qwen3.5-0.8B-Q4_0.gguf");
const MEDIUM: (&str, &str) = ("qwen3.5-4b", "/data/models/Qwen3.5-4B-Q4_K_M.gguf");
const LARGE: (&str, &str) = ("qwen3.5-9b", "/data/models/Qwen3.5-9B-Q4_K_M.gguf");
const DECISIONS: (&str, &str) = ("laya", "laya");

/// In turn. The first ones matter most: a demonstration may have only a few.
const KINDS: [Kind; 8] = [
    Kind { dialect: Dialect::Llama, model: SMALL.1, speed: "0.8b", slots: 4 },
    Kind { dialect: Dialect::Llama, model: SMALL.1, speed: "0.8b*0.6", slots: 2 },
    Kind { dialect: Dialect::Llama, model: MEDIUM.1, speed: "4b", slots: 1 },
    Kind { dialect: Dialect::Llama, model: MEDIUM.1, speed: "4b*0.7", slots: 1 },
    Kind { dialect: Dialect::Llama, model: LARGE.1, speed: "9b", slots: 1 },
    Kind { dialect: Dialect::Mnn, model: LARGE.1, speed: "9b*0.8", slots: 1 },
    Kind { dialect: Dialect::Qvac, model: SMALL.1, speed: "0.8b*0.5", slots: 1 },
    Kind { dialect: Dialect::Laya, model: DECISIONS.1, speed: "0.8b", slots: 1 },
];

/// The running phones.
pub(super) struct Phones {
    relay: Relay,
    pub(super) handles: Vec<PhoneHandle>,
}

impl Phones {
    pub(super) async fn start(count: u16) -> Result<Self, SpawnError> {
        let relay = Relay::start_local().await?;
        let start = |(number, kind): (u16, &Kind)| relay.spawn(kind.config(number));
        let handles = (1..=count).zip(KINDS.iter().cycle()).map(start).collect::<Result<_, _>>()?;
        Ok(Self { relay, handles })
    }

    pub(super) fn count(&self) -> usize {
        self.handles.len()
    }

    pub(super) fn ca_pem(&self) -> &str {
        self.relay.ca_pem()
    }

    /// The phones as a configuration states them: what a probe finds is left to it.
    pub(super) fn stated(&self) -> Vec<StatedReplica> {
        self.handles.iter().map(stated).collect()
    }

    /// Names of the models that there are, for clients.
    pub(super) fn models(&self) -> Vec<&'static str> {
        let served = |(_, own): &&(&str, &str)| self.handles.iter().any(|phone| phone.config().model == *own);
        [SMALL, MEDIUM, LARGE, DECISIONS].iter().filter(served).map(|(name, _)| *name).collect()
    }
}

impl Kind {
    fn config(&self, number: u16) -> PhoneConfig {
        let mut config = PhoneConfig::default()
            .with_dialect(self.dialect)
            .with_model(self.model)
            .with_slots(self.slots)
            .with_seed(u64::from(number))
            .with_load_time(LOAD_TIME)
            .with_id(format!("phone-{number:02}"));
        config.time_scale = TIME_SCALE;
        if let Ok(speed) = self.speed.parse() {
            config.speed = speed;
        }
        config
    }
}

fn stated(phone: &PhoneHandle) -> StatedReplica {
    let config = phone.config();
    let mut replica = StatedReplica { url: phone.url().to_owned(), ..StatedReplica::default() };
    // This engine has one name for every model, so its model has to be stated.
    if config.dialect == Dialect::Mnn {
        let name = [SMALL, MEDIUM, LARGE].iter().find(|(_, own)| config.model == *own).map(|(name, _)| *name);
        replica.models = StatedModels(name.into_iter().map(|name| (name.to_owned(), None)).collect());
    }
    replica
}

/// The names for clients, found by the phones' own names.
pub(super) fn models() -> BTreeMap<String, ModelSection> {
    let section = |own: &str| {
        let file = own.rsplit('/').next().unwrap_or(own);
        ModelSection { replica_names: vec![format!("*{file}")], ..ModelSection::default() }
    };
    [SMALL, MEDIUM, LARGE].iter().map(|(name, own)| ((*name).to_owned(), section(own))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_speed_is_one_that_the_phone_model_knows() {
        for kind in &KINDS {
            let config = PhoneConfig { speed: kind.speed.parse().expect(kind.speed), ..PhoneConfig::default() };
            assert_ne!(config.speed, PhoneConfig::default().speed, "{}", kind.speed);
        }
    }

    #[tokio::test]
    async fn the_smallest_demonstration_serves_the_model_of_the_examples() {
        assert_eq!(Phones::start(1).await.unwrap().models()[0], SMALL.0);
        assert_eq!(Phones::start(8).await.unwrap().models().len(), 4);
    }
}
