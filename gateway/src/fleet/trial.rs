//! The questions that cost a phone something, asked beside the probes.
//!
//! Whether an engine carries answers on is found out by having it do so ([`carry`]): a prompt to read and a token to write,
//! seconds of a slow phone. A phone takes work before that is known. It is tried once it has nothing to do, and the trial ends
//! as soon as work is sent to it: the engine then gives the slot back with its next token, at worst when it has read a prompt
//! of some 40 tokens. It is tried again a little later. Until then what others of its group have shown stands for it, so a
//! pool of equal phones knows after one trial, however busy it is.
//!
//! Rejected: in the probe (a slow phone never answers within its limit, and a new one comes into service later by it); a slot
//! taken in the scheduler for it (a client's request would wait for the end of the trial instead of ending it).

use std::{collections::HashSet, pin::pin, sync::Arc, time::Duration};

use scheduler::{ReplicaId, ReplicaState, Timestamp};
use tokio::task::JoinSet;

use super::{agenda::Agenda, carry, pool::Fleet, probe::Learned, replica::Replica};
use crate::{clock, dispatch::Dispatcher, upstream::Upstream};

/// Trials under way at once. 16: each is on a phone of its own, so this bounds only what goes through the relay at one time;
/// a pool of 1,000 slow phones, 10 s each, is through in 10 minutes.
const MAX_TRIALS: usize = 16;
/// After a trial that could not be, or was broken off. 10 s: the pauses of a busy phone are shorter than that, so more often
/// would not help, and for an idle one it does not matter.
const AGAIN: Duration = Duration::from_secs(10);

/// Which replicas are to be tried, and which are.
#[derive(Default)]
pub(super) struct Trials {
    wanted: Agenda,
    running: JoinSet<Tried>,
    tried: HashSet<ReplicaId>,
}

/// A trial that has ended.
pub(super) struct Tried {
    id: ReplicaId,
    learned: Learned,
    outcome: Outcome,
}

enum Outcome {
    /// Work came, or was there.
    BrokenOff,
    /// Whether it carries on; `None`: it did not say.
    Shown(Option<bool>),
}

impl Trials {
    /// A replica is to be tried, if that is not known of it; a little later if it was just seen to work.
    pub fn want(&mut self, id: ReplicaId, works: bool) {
        self.wanted.by(id, clock::now() + if works { AGAIN } else { Duration::ZERO });
    }

    /// Whether one is under way there.
    pub fn is_tried(&self, id: ReplicaId) -> bool {
        self.tried.contains(&id)
    }

    /// When the next one is due, if there may be one more.
    pub fn next(&self) -> Timestamp {
        if self.running.len() < MAX_TRIALS { self.wanted.next() } else { Timestamp::NEVER }
    }

    /// The next that ends; `None` while there are none.
    pub async fn ended(&mut self) -> Option<Result<Tried, tokio::task::JoinError>> {
        self.running.join_next().await
    }
}

impl Fleet {
    /// Starts the trials that are due.
    pub(super) fn start_trials(&self, trials: &mut Trials) {
        let now = clock::now();
        while trials.running.len() < MAX_TRIALS
            && let Some(id) = trials.wanted.take_due(now)
        {
            let Some(replica) = self.replica(id).filter(|_| !trials.is_tried(id)) else { continue };
            let Some(learned) = open_question(&replica) else { continue };
            if !is_idle(&self.dispatcher, id) {
                trials.wanted.by(id, now + AGAIN);
                continue;
            }
            trials.tried.insert(id);
            let (upstream, dispatcher) = (Arc::clone(&self.upstream), Arc::clone(&self.dispatcher));
            let limit = self.settings.load().health.timeout;
            trials.running.spawn(async move {
                let outcome = try_it(&upstream, &dispatcher, &replica, &learned, limit).await;
                Tried { id, learned, outcome }
            });
        }
    }

    /// Takes in what a trial has shown.
    pub(super) async fn tried(&self, tried: Result<Tried, tokio::task::JoinError>, trials: &mut Trials) {
        match tried {
            Ok(Tried { id, learned, outcome }) => {
                trials.tried.remove(&id);
                match outcome {
                    Outcome::BrokenOff => trials.wanted.by(id, clock::now() + AGAIN),
                    Outcome::Shown(carries_on) => self.take_in_trial(id, &learned, carries_on).await,
                }
            }
            Err(error) => {
                // A bug, not the phone: its number is lost with the task. The next full probes want them again.
                tracing::error!(%error, "a trial panicked");
                trials.running.abort_all();
                trials.tried.clear();
            }
        }
    }
}

/// What was learned of its engine, if a trial would tell more.
fn open_question(replica: &Replica) -> Option<Learned> {
    let able = replica.dialect().is_some_and(|dialect| dialect == super::Dialect::LlamaServer);
    let learned = replica.past().learned.clone().filter(|_| able)?;
    (learned.carries_on.is_none() && !learned.models.is_empty()).then_some(learned)
}

/// Whether it takes work and has none, of ours or anybody's.
fn is_idle(dispatcher: &Dispatcher, id: ReplicaId) -> bool {
    dispatcher.replica(id).is_some_and(|view| {
        let well = matches!(view.state, ReplicaState::Ready | ReplicaState::Probation);
        well && view.takes_work() && view.running.is_empty() && view.lingering + view.foreign == 0
    })
}

async fn try_it(
    upstream: &Upstream,
    dispatcher: &Dispatcher,
    replica: &Replica,
    learned: &Learned,
    limit: Duration,
) -> Outcome {
    let mut work = pin!(replica.work.notified());
    // Heard from now on: the scheduler knows of work before it is announced, so none can come unnoticed.
    work.as_mut().enable();
    let Some(model) = learned.models.first().filter(|_| is_idle(dispatcher, replica.id)) else {
        return Outcome::BrokenOff;
    };
    tokio::select! {
        biased;
        () = work => Outcome::BrokenOff,
        shown = carry::ask(upstream, &replica.endpoint, replica.bearer(), &model.id, limit) => Outcome::Shown(shown),
    }
}
