//! Who can serve a scenario: the core in several states of knowledge, and what others do.

use scheduler::Policy;

/// A way to serve a scenario.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Player {
    name: &'static str,
    about: &'static str,
    pub(crate) kind: Kind,
}

/// What plays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// The core itself.
    Core(CoreSetup),
    /// Requests go to a phone at once and queue there.
    Early(Early),
    /// One queue in order of arrival, for idle phones.
    Central,
}

/// How the core is set up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CoreSetup {
    pub(crate) policy: Policy,
    /// Told the truth instead of estimating it.
    pub(crate) oracle: bool,
    /// What prior speeds are multiplied by; `None` tells none.
    pub(crate) prior: Option<f64>,
    /// What prompt sizes are multiplied by.
    pub(crate) size: f64,
    /// Answers are carried on, as far as the scenario allows it; else what was lost with a phone begins anew.
    pub(crate) carries_on: bool,
}

impl CoreSetup {
    pub(crate) const DEFAULT: Self =
        Self { policy: Policy::LeastWork, oracle: false, prior: Some(1.0), size: 1.0, carries_on: true };
}

/// How a phone is chosen at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Early {
    Random,
    RoundRobin,
    LeastConnections,
    WeightedLeastConnections,
    PowerOfTwo,
    PeakEwma,
    JoinIdleQueue,
    CacheAware,
}

/// No player has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown player {0:?}: expected one of {names}", names = names())]
pub struct UnknownPlayer(pub String);

fn names() -> String {
    Player::all().iter().map(|player| player.name).collect::<Vec<_>>().join(", ")
}

const fn core(name: &'static str, about: &'static str, setup: CoreSetup) -> Player {
    Player { name, about, kind: Kind::Core(setup) }
}

const fn early(name: &'static str, about: &'static str, choice: Early) -> Player {
    Player { name, about, kind: Kind::Early(choice) }
}

const ALL: [Player; 19] = [
    core("default", "the gateway's own policy, least remaining work", CoreSetup::DEFAULT),
    core("oracle", "the same, told true speeds, sizes and failures", CoreSetup { oracle: true, ..CoreSetup::DEFAULT }),
    core(
        "least_busy",
        "the gateway, fewest busy slots in proportion",
        CoreSetup { policy: Policy::LeastBusy, ..CoreSetup::DEFAULT },
    ),
    core(
        "round_robin",
        "the gateway, free phones in turn",
        CoreSetup { policy: Policy::RoundRobin, ..CoreSetup::DEFAULT },
    ),
    core(
        "no_continuation",
        "default, answers lost with a phone begin anew",
        CoreSetup { carries_on: false, ..CoreSetup::DEFAULT },
    ),
    core("no_prior", "default, told no speeds to start from", CoreSetup { prior: None, ..CoreSetup::DEFAULT }),
    core(
        "prior_x3",
        "default, speeds to start from 3 times too high",
        CoreSetup { prior: Some(3.0), ..CoreSetup::DEFAULT },
    ),
    core(
        "prior_div3",
        "default, speeds to start from 3 times too low",
        CoreSetup { prior: Some(1.0 / 3.0), ..CoreSetup::DEFAULT },
    ),
    core("size_x3", "default, prompts thought 3 times too long", CoreSetup { size: 3.0, ..CoreSetup::DEFAULT }),
    core(
        "size_div3",
        "default, prompts thought 3 times too short",
        CoreSetup { size: 1.0 / 3.0, ..CoreSetup::DEFAULT },
    ),
    early("least_connections", "at once to the phone with the fewest requests", Early::LeastConnections),
    early("weighted_least_connections", "the same in proportion to measured speed", Early::WeightedLeastConnections),
    early("random", "at once to any phone", Early::Random),
    early("early_round_robin", "at once to the next phone in turn", Early::RoundRobin),
    early("power_of_two", "the less loaded of two random phones", Early::PowerOfTwo),
    early("peak_ewma", "of two random phones the lower recent answer time times load", Early::PeakEwma),
    early("join_idle_queue", "any idle phone, else any phone", Early::JoinIdleQueue),
    early(
        "cache_aware",
        "the longest matching prefix while loads are even, else the fewest requests",
        Early::CacheAware,
    ),
    Player {
        name: "fifo_fastest",
        about: "one queue, each to the fastest idle phone, one request a phone",
        kind: Kind::Central,
    },
];

impl Player {
    /// All of them, the gateway's own first.
    pub const fn all() -> &'static [Self] {
        &ALL
    }

    /// The player of that name.
    ///
    /// # Errors
    /// If there is none; lists those there are.
    pub fn named(name: &str) -> Result<Self, UnknownPlayer> {
        ALL.into_iter().find(|player| player.name == name).ok_or_else(|| UnknownPlayer(name.to_owned()))
    }

    /// Its name.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// What it does, in a line.
    pub const fn about(&self) -> &'static str {
        self.about
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn players_are_found_by_their_names_only() {
        for player in Player::all() {
            assert_eq!(Player::named(player.name()), Ok(*player));
            assert!(!player.about().is_empty());
        }
        let error = Player::named("leastconn").expect_err("no such player").to_string();
        assert!(error.contains("\"leastconn\"") && error.contains("least_connections, weighted"), "{error}");
    }
}
