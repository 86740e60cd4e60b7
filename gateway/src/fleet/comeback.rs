//! What brings a replica back after an operator has removed it. Removing forgets it; it does not forbid it.

use store::{ReplicaSource, Verification};

use super::{pool::Fleet, replica::Replica};

/// What brings a replica back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comeback {
    /// The configuration states its address: with the next reload or start.
    Configuration,
    /// The chain assigns it to one of our jobs: with the next look.
    Chain,
    /// Its phone sends signs of life, with its address: with the next one.
    Heartbeat,
    /// Its phone announces itself: when its app starts anew.
    Announcement,
}

impl Comeback {
    /// The name in the admin API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Configuration => "configuration",
            Self::Chain => "chain",
            Self::Heartbeat => "heartbeat",
            Self::Announcement => "announcement",
        }
    }

    /// For operators.
    pub fn note(self) -> &'static str {
        match self {
            Self::Configuration => {
                "the configuration states it: it comes back with the next reload or start, as stated there"
            }
            Self::Chain => {
                "the chain assigns it: it comes back with the next look while its deployment lasts; to keep it out, drain it"
            }
            Self::Heartbeat => {
                "its phone sends signs of life: it comes back with the next one, as a new phone; to keep it out, drain it"
            }
            Self::Announcement => "its phone announces itself: it comes back, as a new phone, when its app starts anew",
        }
    }
}

impl Fleet {
    /// What brings this replica back once it is removed, the surest first. `chain_is_read`: somebody looks at the chain.
    pub fn comes_back(&self, replica: &Replica, chain_is_read: bool) -> Vec<Comeback> {
        let settings = self.settings.load();
        let is_assigned =
            replica.source == ReplicaSource::Chain || replica.origin.verification == Verification::Assigned;
        let (announced, beats) = {
            let past = replica.past();
            (past.heard_ms.is_some() || replica.source == ReplicaSource::Registration, past.beats)
        };
        let may_announce = announced && settings.registration.token.is_some();
        [
            (settings.configured.contains(&replica.url), Comeback::Configuration),
            (is_assigned && chain_is_read, Comeback::Chain),
            (may_announce && beats, Comeback::Heartbeat),
            (may_announce && !beats, Comeback::Announcement),
        ]
        .into_iter()
        .filter_map(|(is_so, what)| is_so.then_some(what))
        .collect()
    }
}
