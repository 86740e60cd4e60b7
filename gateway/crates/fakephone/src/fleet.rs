//! Many phones in one process, behind one relay or on ports of their own.

use crate::config::{Continuation, Dialect, PhoneConfig, UnknownDialect};
use crate::handle::{PhoneHandle, SpawnError, spawn_at};
use crate::relay::Relay;
use crate::stats::PhoneStats;
use serde::{Deserialize, Serialize};
use simulation::phone::{PhoneSpeed, UnknownSpeed};
use simulation::rng::Rng;
use std::net::{IpAddr, SocketAddr};
use std::sync::{
    PoisonError, RwLock,
    atomic::{AtomicUsize, Ordering},
};
use std::time::Duration;

/// A class of phones in the mix of the published market: share, reading and writing speed relative to the fastest,
/// slots.
struct Class {
    share: f64,
    prefill: f64,
    decode: f64,
    slots: u16,
}

const CLASSES: [Class; 4] = [
    Class { share: 0.2, prefill: 1.0, decode: 1.0, slots: 1 },
    Class { share: 0.3, prefill: 0.5, decode: 0.7, slots: 2 },
    Class { share: 0.4, prefill: 0.22, decode: 0.37, slots: 4 },
    Class { share: 0.1, prefill: 0.1, decode: 0.25, slots: 2 },
];

/// How much phones of one class differ: standard deviation of the logarithm of their speed.
const JITTER: f64 = 0.15;

/// The same phone as one of the market's classes, drawn by its seed: 20 % flagships with one slot, 30 % high, 40 %
/// middle, 10 % low, each a little faster or slower than its class.
#[must_use]
pub fn as_in_the_market(config: PhoneConfig) -> PhoneConfig {
    let mut chance = Rng::from_seed(config.seed ^ 0x6d61_726b_6574);
    let mut draw = chance.unit();
    let class = CLASSES.iter().find(|class| {
        draw -= class.share;
        draw < 0.0
    });
    let class = class.unwrap_or(&CLASSES[CLASSES.len() - 1]);
    // A normal variate from two uniform ones (Box and Muller).
    let radius = (-2.0 * (1.0 - chance.unit()).ln()).sqrt();
    let factor = (JITTER * radius * (std::f64::consts::TAU * chance.unit()).cos()).exp();
    let speed = config.speed.scaled_by(class.prefill * factor, class.decode * factor);
    let time_scale = config.time_scale;
    config.with_slots(class.slots).with_speed(speed, time_scale)
}

/// A phone as the control port and the command line describe it; what is absent is taken from a template.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PhoneSpec {
    /// The 16 hex digits of its address.
    pub id: Option<String>,
    /// `llama`, `qvac`, `mnn`, `mnn-app` or `laya`.
    pub dialect: Option<String>,
    /// The model it reports.
    pub model: Option<String>,
    /// Parallel requests.
    pub slots: Option<u16>,
    /// `9b`, `4b`, `0.8b` or `instant`, with an optional factor as in `4b*0.5`.
    pub speed: Option<String>,
    /// Times faster than life.
    pub time_scale: Option<f64>,
    /// Context of one slot, tokens.
    pub context_tokens: Option<u32>,
    /// The key it demands.
    pub api_key: Option<String>,
    /// Seconds the model loads, in the phone model's time.
    pub load_time_s: Option<f64>,
    /// Source of its randomness, and of its id.
    pub seed: Option<u64>,
    /// Length of an answer that ends by itself.
    pub answer_tokens: Option<u32>,
    /// Tokens of thinking before each answer.
    pub thinking_tokens: Option<u32>,
    /// What `/props` calls the engine's build. Phones of one build answer word for word alike, others do not.
    pub build: Option<String>,
    /// `exact`, `echo`, `restart` or `refuse`: what it does with a partial answer; by default as its dialect.
    pub continuation: Option<Continuation>,
    /// Whether it keeps streams for clients that lost their connection.
    pub keeps_streams: Option<bool>,
    /// Tokens read between two reports of progress.
    pub batch_tokens: Option<u32>,
    /// What it tells of the model's file: bytes, weights, and how they are stored.
    pub model_size: Option<u64>,
    /// See `model_size`.
    pub model_params: Option<u64>,
    /// See `model_size`.
    pub quantization: Option<String>,
}

/// A specification that describes no phone.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BadSpec {
    /// See [`UnknownDialect`].
    #[error(transparent)]
    Dialect(#[from] UnknownDialect),
    /// See [`UnknownSpeed`].
    #[error(transparent)]
    Speed(#[from] UnknownSpeed),
    /// The time scale is not above zero, or a time not a time.
    #[error("{0} must be a positive number")]
    Number(&'static str),
    /// The id cannot be the first label of a host name.
    #[error("id must be 16 hex digits, not {0:?}")]
    Id(String),
}

impl PhoneSpec {
    /// The phone described, on top of `template`.
    pub fn apply(self, template: &PhoneConfig) -> Result<PhoneConfig, BadSpec> {
        let mut config = template.clone();
        if let Some(id) = self.id {
            if id.len() != 16 || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return Err(BadSpec::Id(id));
            }
            config.id = Some(id.to_ascii_lowercase());
        }
        if let Some(dialect) = self.dialect {
            config = config.with_dialect(dialect.parse::<Dialect>()?);
        }
        if let Some(speed) = self.speed {
            config.speed = speed.parse::<PhoneSpeed>()?;
        }
        if let Some(scale) = self.time_scale {
            if !(scale.is_finite() && scale > 0.0) {
                return Err(BadSpec::Number("time_scale"));
            }
            config.time_scale = scale;
        }
        if let Some(seconds) = self.load_time_s {
            config.load_time = Duration::try_from_secs_f64(seconds).map_err(|_| BadSpec::Number("load_time_s"))?;
        }
        config.model = self.model.unwrap_or(config.model);
        config.slots = self.slots.unwrap_or(config.slots).max(1);
        config.context_tokens = self.context_tokens.unwrap_or(config.context_tokens);
        config.api_key = self.api_key.or(config.api_key);
        config.seed = self.seed.unwrap_or(config.seed);
        config.answer_tokens = self.answer_tokens.or(config.answer_tokens);
        config.thinking_tokens = self.thinking_tokens.unwrap_or(config.thinking_tokens);
        config.build = self.build.unwrap_or(config.build);
        config.continuation = self.continuation.unwrap_or(config.continuation);
        config.keeps_streams = self.keeps_streams.unwrap_or(config.keeps_streams);
        config.batch_tokens = self.batch_tokens.unwrap_or(config.batch_tokens);
        config.file.size = self.model_size.unwrap_or(config.file.size);
        config.file.parameters = self.model_params.unwrap_or(config.file.parameters);
        config.file.quantization = self.quantization.unwrap_or(config.file.quantization);
        Ok(config)
    }
}

/// Where a fleet's phones are found.
#[derive(Debug)]
pub enum Place {
    /// Behind a relay.
    Relay(Relay),
    /// On ports of their own on one address: counted up from the second field, or any free ones if it is 0.
    Ports(IpAddr, u16),
}

/// Many phones.
#[derive(Debug)]
pub struct Fleet {
    place: Place,
    phones: RwLock<Vec<PhoneHandle>>,
    /// Places that were taken.
    places: AtomicUsize,
}

impl Fleet {
    /// A fleet without phones.
    pub fn new(place: Place) -> Self {
        Self { place, phones: RwLock::default(), places: AtomicUsize::new(0) }
    }

    /// The relay, if the phones are behind one.
    pub fn relay(&self) -> Option<&Relay> {
        match &self.place {
            Place::Relay(relay) => Some(relay),
            Place::Ports(..) => None,
        }
    }

    /// A place in the order in which phones come: from 0, and none twice, whoever has left.
    pub fn take_place(&self) -> usize {
        self.places.fetch_add(1, Ordering::Relaxed)
    }

    /// Starts one more phone.
    pub async fn add(&self, config: PhoneConfig) -> Result<PhoneHandle, SpawnError> {
        let phone = match &self.place {
            Place::Relay(relay) => relay.spawn(config)?,
            Place::Ports(address, base) => {
                let port = if *base == 0 { 0 } else { base.saturating_add(self.len() as u16) };
                spawn_at(config, SocketAddr::new(*address, port)).await?
            }
        };
        self.phones.write().unwrap_or_else(PoisonError::into_inner).push(phone.clone());
        Ok(phone)
    }

    /// Stops a phone and forgets it; false if there is none of this name.
    pub fn remove(&self, name: &str) -> bool {
        let Some(gone) = self.get(name) else { return false };
        let mut phones = self.phones.write().unwrap_or_else(PoisonError::into_inner);
        phones.retain(|phone| phone.id() != gone.id());
        true
    }

    /// All phones, in the order they were added.
    pub fn phones(&self) -> Vec<PhoneHandle> {
        self.phones.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.phones.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A phone by its id, or by its place in the order.
    pub fn get(&self, name: &str) -> Option<PhoneHandle> {
        let phones = self.phones.read().unwrap_or_else(PoisonError::into_inner);
        match phones.iter().find(|phone| phone.id() == name) {
            Some(phone) => Some(phone.clone()),
            // Ids have 16 digits, so a short number can only be a place.
            None if name.len() < 16 => name.parse::<usize>().ok().and_then(|place| phones.get(place).cloned()),
            None => None,
        }
    }

    /// Sums over all phones.
    pub fn stats(&self) -> PhoneStats {
        let mut total = PhoneStats::default();
        for phone in self.phones() {
            total.add(&phone.stats());
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_market_has_its_classes_in_about_their_shares() {
        let phones: Vec<_> = (0..1000)
            .map(|seed| {
                as_in_the_market(PhoneConfig::default().with_seed(seed).with_speed("4b".parse().expect("a speed"), 1.0))
            })
            .collect();
        let share = |slots: u16| phones.iter().filter(|phone| phone.slots == slots).count();
        assert!((150..250).contains(&share(1)), "{} flagships", share(1));
        assert!((350..450).contains(&share(4)), "{} of the middle", share(4));
        assert!(phones.iter().any(|phone| phone.speed.prefill_factor > 1.0));
        assert!(phones.iter().any(|phone| phone.speed.prefill_factor < 0.15));
    }

    #[test]
    fn no_two_seeds_have_a_phone_in_common() {
        let id = |(seed, place)| PhoneConfig::default().at_place(seed, place).resolved_id();
        let all = (0..300).flat_map(|seed| (0..200).map(move |place| (seed, place)));
        let ids: std::collections::BTreeSet<_> = all.map(id).collect();
        assert_eq!(ids.len(), 300 * 200);
        assert_eq!(id((7, 3)), id((7, 3)), "and one seed makes the same ones each time");
    }

    #[test]
    fn no_place_is_given_twice_whoever_has_left() {
        let fleet = Fleet::new(Place::Ports(IpAddr::from([127, 0, 0, 1]), 0));
        assert_eq!([fleet.take_place(), fleet.take_place(), fleet.take_place()], [0, 1, 2]);
    }

    #[test]
    fn a_specification_changes_what_it_names_and_nothing_else() {
        let template = PhoneConfig::default().with_slots(3);
        let spec: PhoneSpec =
            serde_json::from_str(r#"{"dialect":"mnn","speed":"4b*0.5","seed":9}"#).expect("a specification");
        let config = spec.apply(&template).expect("a phone");
        assert_eq!((config.dialect, config.slots, config.seed), (Dialect::Mnn, 3, 9));
        assert!(serde_json::from_str::<PhoneSpec>(r#"{"slot":1}"#).is_err());
        let bad = PhoneSpec { id: Some("x".to_owned()), ..PhoneSpec::default() };
        assert_eq!(bad.apply(&template).err(), Some(BadSpec::Id("x".to_owned())));
        let bad = PhoneSpec { time_scale: Some(0.0), ..PhoneSpec::default() };
        assert_eq!(bad.apply(&template).err(), Some(BadSpec::Number("time_scale")));
    }
}
