//! `[quarantine]` and `[reports]`: what phones have to show, and what they say about themselves.

use std::time::Duration;

use super::{
    value::named,
    visit::{Section, Visitor, live},
};

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Who has to show what it can do, before it gets work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Quarantined {
    /// Nobody.
    None,
    /// Replicas that came by themselves or from the chain.
    #[default]
    Registered,
    /// Everybody.
    All,
}

named!(Quarantined, "\"none\", \"registered\" or \"all\"", "none" => Quarantined::None,
    "registered" => Quarantined::Registered, "all" => Quarantined::All);

/// What replicas that nobody vouches for have to show.
#[derive(Clone, Debug, PartialEq)]
pub struct Quarantine {
    /// Who. "registered": an operator who adds a replica vouches for it.
    pub of: Quarantined,
    /// Tokens of the prompt that warms it up, about. 256: enough to measure how fast it reads, 3 s of a fast phone with
    /// 9 billion parameters, and half a minute of a slow one.
    pub warm_up_tokens: u32,
    /// For both answers together, at most; at first it is five times what the phone's speed promises. 3 minutes: a phone that reads ten
    /// tokens a second is done.
    pub timeout: Duration,
    /// For both answers together, of a replica that is asked for the first time, while others wait to be asked. 30 s: twice what a phone with
    /// 9 billion parameters takes that is half as fast as the fastest, and one that comes among many that trickle serves within two minutes.
    pub turn: Duration,
}

impl Default for Quarantine {
    fn default() -> Self {
        Self { of: Quarantined::Registered, warm_up_tokens: 256, timeout: seconds(180), turn: seconds(30) }
    }
}

impl Section for Quarantine {
    fn visit<V: Visitor>(&mut self, v: &mut V) {
        v.value(live("of"), &mut self.of);
        v.ranged(live("warm_up_tokens"), &mut self.warm_up_tokens, 32..=8_192);
        v.ranged(live("timeout"), &mut self.timeout, seconds(1)..=seconds(3_600));
        v.ranged(live("turn"), &mut self.turn, seconds(1)..=seconds(600));
    }
}

/// What is asked of a phone that says something about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Use {
    /// All that it has slots for.
    #[default]
    Use,
    /// Half of its slots, and only when others are not free soon.
    Fewer,
    /// Nothing new.
    Pause,
}

named!(Use, "\"use\", \"fewer\" or \"pause\"", "use" => Use::Use, "fewer" => Use::Fewer, "pause" => Use::Pause);

/// What follows from what phones say about themselves.
#[derive(Clone, Debug, PartialEq)]
pub struct Reports {
    /// Percent of charge below which one that is not charged gets no new work. 15: an empty phone is lost for hours.
    pub min_battery: f64,
    /// And below which it gets less. 30: at full load a phone draws some 20 % an hour.
    pub low_battery: f64,
    /// Degrees Celsius of the battery above which a phone gets no new work. 45: phones stop charging there, and age.
    pub max_temperature: f64,
    /// And above which it gets less. 41: it runs at reduced clocks by then.
    pub warm_temperature: f64,
    /// On a network that is paid for by volume.
    pub metered: Use,
    /// While somebody looks at it.
    pub screen_on: Use,
    /// Older reports don't count. 10 minutes: twice what phones send by default.
    pub stale_after: Duration,
}

impl Default for Reports {
    fn default() -> Self {
        Self {
            min_battery: 15.0,
            low_battery: 30.0,
            max_temperature: 45.0,
            warm_temperature: 41.0,
            metered: Use::Fewer,
            screen_on: Use::Use,
            stale_after: seconds(600),
        }
    }
}

impl Section for Reports {
    fn visit<V: Visitor>(&mut self, v: &mut V) {
        v.ranged(live("min_battery"), &mut self.min_battery, 0.0..=100.0);
        v.ranged(live("low_battery"), &mut self.low_battery, 0.0..=100.0);
        v.ranged(live("max_temperature"), &mut self.max_temperature, 20.0..=120.0);
        v.ranged(live("warm_temperature"), &mut self.warm_temperature, 20.0..=120.0);
        v.value(live("metered"), &mut self.metered);
        v.value(live("screen_on"), &mut self.screen_on);
        v.ranged(live("stale_after"), &mut self.stale_after, seconds(10)..=seconds(86_400));
    }
}
