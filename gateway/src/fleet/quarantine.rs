//! Quarantine: a replica that nobody vouches for gets no work before it has shown what it can do.
//!
//! Beside the probes, like the trials: a replica whose full probe is good and that has not proved itself at its address is asked
//! the questions of `exam`. Passed, that is kept with what was measured, and it comes into service. An answer that is wrong keeps
//! it where it is, with words that say what was wrong; it is asked again, less and less often. What silence means is for its
//! probes to find out. See decision 0014.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use scheduler::{Event, ReplicaId, ReplicaState, Report, Timestamp};
use store::{By, Proof, Speed, StoreError, UnixMillis};
use tokio::task::JoinSet;

use super::{
    agenda::Agenda,
    change::{ChangeError, Changed, is_stated_by_operator},
    exam::{Exam, Measured, Unpassed, examine, patience},
    feed::PoolChange,
    finding::Finding,
    places::{self, Places, Try},
    pool::Fleet,
    prior::names,
    replica::{Replica, own_names},
    url::ReplicaUrl,
};
use crate::{auth::key::random_name, clock, config::Quarantined};

/// After the first answer that was wrong, or none; twice as long after each more, up to the longest. A phone that has another app
/// in the foreground is soon itself again; one that is none costs two questions an hour.
const AGAIN: Duration = Duration::from_secs(30);
const LONGEST_AGAIN: Duration = Duration::from_secs(3600);
/// Letters of the words that no canned answer can know.
const SECRET: usize = 12;

/// Which replicas are to be asked, and which are.
#[derive(Default)]
pub(super) struct Exams {
    /// For the first time.
    first: Agenda,
    /// That have failed before.
    again: Agenda,
    running: JoinSet<Examined>,
    places: Places,
}

/// An exam that has ended.
pub(super) struct Examined {
    id: ReplicaId,
    /// Where it was asked.
    url: ReplicaUrl,
    /// The models that it served then, by its own names.
    models: Option<Vec<String>>,
    outcome: Result<Measured, Unpassed>,
}

/// Why a replica has not proved itself yet.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Doubt {
    /// What was wrong, and what to do.
    reason: String,
    /// How often in a row.
    row: u32,
    /// When it is asked again.
    again: Timestamp,
}

impl Exams {
    /// Whether one is under way there.
    pub(super) fn is_asked(&self, id: ReplicaId) -> bool {
        self.places.has(id)
    }

    /// The next that ends; `None` while there are none.
    pub(super) async fn ended(&mut self) -> Option<Result<Examined, tokio::task::JoinError>> {
        self.running.join_next().await
    }

    fn agenda(&mut self, which: Try) -> &mut Agenda {
        match which {
            Try::First => &mut self.first,
            Try::Again => &mut self.again,
        }
    }

    /// It is due by `at`.
    fn want(&mut self, replica: &Replica, at: Timestamp) {
        let which = if replica.past().doubt.is_some() { Try::Again } else { Try::First };
        self.agenda(which).by(replica.id, at);
    }
}

impl Fleet {
    /// Whether a replica gets no work before it has proved itself.
    pub fn is_unproven(&self, replica: &Replica) -> bool {
        self.distrust(replica).is_some() || self.is_to_be_asked(replica)
    }

    fn is_to_be_asked(&self, replica: &Replica) -> bool {
        let concerned = match self.settings.load().quarantine.of {
            Quarantined::None => false,
            Quarantined::Registered => !is_stated_by_operator(replica.source),
            Quarantined::All => true,
        };
        concerned && !replica.is_proven()
    }

    /// What keeps a replica in quarantine, and what to do about it.
    pub(super) fn quarantine_reason(&self, replica: &Replica) -> Option<String> {
        if let Some(wanted) = self.distrust(replica) {
            return Some(format!(
                "it is known by \"{}\" only, and registration.min_verification is \"{}\": have it announce itself so, or vouch for it: \
                 huntgroup replicas add URL",
                replica.origin.verification.name(),
                wanted.name()
            ));
        }
        if !self.is_to_be_asked(replica) {
            return None;
        }
        Some(match &replica.past().doubt {
            Some(doubt) => {
                format!("{} (it is asked again by itself; or let it in: huntgroup replicas release NAME)", doubt.reason)
            }
            None => "it is being asked the test questions that it has to answer first".into(),
        })
    }

    /// Keeps that replicas have shown what they can do by serving clients, of those that did not have to show it otherwise: whoever
    /// serves when more replicas come to need a proof, or by a restart with other settings, is not taken out of service for
    /// it. The caller holds `change`.
    ///
    /// # Errors
    /// The store failed; then none is kept.
    pub(super) async fn prove_by_service(&self, serves: impl Fn(&Replica) -> bool) -> Result<(), StoreError> {
        let by = By { at: UnixMillis(clock::unix_ms()), who: "service".into() };
        let owes = |replica: &Replica| replica.past().leaving || replica.is_proven() || self.is_unproven(replica);
        let all = self.replicas();
        let new: Vec<_> = all.into_iter().filter(|replica| serves(replica) && !owes(replica)).collect();
        if new.is_empty() {
            return Ok(());
        }
        let proofs = new.iter().map(|replica| (replica.record, replica.proof(by.at))).collect();
        let records = self.keep(move |store| store.prove_replicas(by, proofs)).await?;
        for (replica, record) in new.iter().zip(&records) {
            self.take_over(record, replica.url.clone());
        }
        Ok(())
    }

    /// Keeps which replicas have given clients whole answers. A failure is no reason to stop anything: the next time may do.
    pub(super) async fn keep_service(&self) {
        let snapshot = self.dispatcher.snapshot();
        let serves = snapshot.replicas.iter().filter(|view| view.outcomes.0 > 0 && view.takes_work());
        let serves: HashSet<ReplicaId> = serves.map(|view| view.replica).collect();
        let _changing = self.change.lock().await;
        if let Err(error) = self.prove_by_service(|replica| serves.contains(&replica.id)).await {
            tracing::warn!(%error, "which replicas have served is not kept");
        }
    }

    /// A replica is to be asked as soon as may be, but not before its pause is over.
    pub(super) fn want_exam(&self, replica: &Replica, exams: &mut Exams) {
        let again = replica.past().doubt.as_ref().map(|doubt| doubt.again);
        exams.want(replica, clock::now().max(again.unwrap_or(Timestamp::ZERO)));
    }

    /// When the next exam is due, if there is a place for it, or a turn may be over that it waits for.
    pub(super) fn next_exam(&self, exams: &Exams) -> Timestamp {
        let (places, turn) = self.places();
        let first =
            if exams.places.have_room(Try::First, places) { Timestamp::ZERO } else { exams.places.turn_ends(turn) };
        let again = if exams.places.have_room(Try::Again, places) { Timestamp::ZERO } else { Timestamp::NEVER };
        exams.first.next().max(first).min(exams.again.next().max(again))
    }

    /// Places for those that are asked for the first time, and how long a turn is.
    fn places(&self) -> (usize, Duration) {
        let settings = self.settings.load();
        let turn = settings.quarantine.turn;
        (places::first(turn, settings.registration.max_new_per_minute), turn)
    }

    /// Starts the exams that are due, and ends those whose turn is over for those that wait.
    pub(super) fn start_exams(&self, exams: &mut Exams) {
        let now = clock::now();
        let (places, turn) = self.places();
        for which in [Try::First, Try::Again] {
            while exams.places.have_room(which, places)
                && let Some(id) = exams.agenda(which).take_due(now)
            {
                self.start_exam(id, which, exams);
            }
        }
        exams.places.end_turns(exams.first.count_due(now), turn, now);
    }

    fn start_exam(&self, id: ReplicaId, which: Try, exams: &mut Exams) {
        let Some(replica) = self.replica(id).filter(|_| !exams.is_asked(id)) else { return };
        // Of the others the next good probe tells.
        let waits = self.dispatcher.replica(id).is_some_and(|view| view.state == ReplicaState::Quarantine);
        if !waits || self.distrust(&replica).is_some() || !self.is_to_be_asked(&replica) {
            return;
        }
        let (facts, settings) = (replica.facts(), self.settings.load());
        let (Some(dialect), Some(model)) = (replica.dialect(), facts.models.first()) else { return };
        let (Ok(first), Ok(second)) = (random_name("", SECRET), random_name("", SECRET)) else {
            return exams.agenda(which).by(id, clock::now() + AGAIN);
        };
        let context = replica.stated.context_tokens.or(facts.context_tokens).unwrap_or(u32::MAX);
        let warm_up_tokens = settings.quarantine.warm_up_tokens.min(context / 4);
        // One that was too slow for what it should be is given all the time there is.
        let most = settings.quarantine.timeout;
        let limit = match which {
            Try::First => patience(replica.past().assumed(), warm_up_tokens).min(most),
            Try::Again => most,
        };
        let (model, routes) = (Arc::clone(&model.own), facts.routes);
        let upstream = Arc::clone(&self.upstream);
        let models = own_names(&facts);
        let end = exams.places.take(id, which, clock::now());
        exams.running.spawn(async move {
            let exam = Exam {
                upstream: &upstream,
                endpoint: &replica.endpoint,
                key: replica.bearer(),
                model: &model,
                dialect,
                routes,
                warm_up_tokens,
                limit,
                secrets: [first, second],
            };
            let outcome = tokio::select! {
                outcome = examine(&exam) => outcome,
                () = end.notified() => Err(Unpassed::Silent("its answers had not all come, and others wait to be asked".into())),
            };
            Examined { id, url: replica.url.clone(), models, outcome }
        });
    }

    /// Takes in what an exam has shown. The replica that came into service by it.
    pub(super) async fn examined(
        &self,
        examined: Result<Examined, tokio::task::JoinError>,
        exams: &mut Exams,
    ) -> Option<ReplicaId> {
        let Examined { id, url, models, outcome } = match examined {
            Ok(examined) => examined,
            Err(error) => {
                // A bug, not the phone: its number is lost with the task. The next full probes want them again.
                tracing::error!(%error, "a test question panicked");
                exams.running.abort_all();
                exams.places = Places::default();
                return None;
            }
        };
        exams.places.leave(id);
        let replica = self.replica(id)?;
        if replica.url != url {
            // It has moved: what it has shown it has shown there.
            self.want_exam(&replica, exams);
            return None;
        }
        match outcome {
            Ok(measured) => {
                let who = "quarantine";
                let by = By { at: UnixMillis(clock::unix_ms()), who: who.into() };
                let proof = Proof { at: by.at, models };
                if let Err(error) = self.prove(&replica, by, proof).await {
                    tracing::warn!(replica = &*replica.label, %error, "its proof is not kept; it is asked again");
                    exams.want(&replica, clock::now() + AGAIN);
                    return None;
                }
                self.telemetry.quarantine("passed");
                tracing::info!(
                    replica = &*replica.label,
                    prefill = measured.prefill,
                    decode = measured.decode,
                    "a replica has shown what it can do"
                );
                self.begin_with(&replica, measured).await;
                self.let_in(id);
                Some(id)
            }
            Err(unpassed) => {
                self.doubt(&replica, &unpassed, exams);
                None
            }
        }
    }

    fn doubt(&self, replica: &Replica, unpassed: &Unpassed, exams: &mut Exams) {
        let reason = unpassed.to_string();
        let row = replica.past().doubt.as_ref().map_or(0, |doubt| doubt.row) + 1;
        let pause = AGAIN.saturating_mul(1 << (row - 1).min(16)).min(LONGEST_AGAIN);
        let again = clock::now() + pause;
        let is_wrong = matches!(unpassed, Unpassed::Wrong(_));
        self.telemetry.quarantine(if is_wrong { "wrong_answer" } else { "failed" });
        tracing::warn!(replica = &*replica.label, reason, again_s = pause.as_secs(), "a replica stays in quarantine");
        replica.past().doubt = Some(Doubt { reason: reason.clone(), row, again });
        self.feed.send(replica.id, &replica.label, PoolChange::Unproven { detail: reason });
        exams.want(replica, again);
    }

    /// Lets a replica out of quarantine that has not shown what it can do: an operator has looked.
    ///
    /// # Errors
    /// There is none, it announced itself less well than `registration.min_verification` asks for, or the store failed.
    pub async fn release(&self, id: ReplicaId, by: By) -> Result<Changed, ChangeError> {
        let replica = self.replica(id).filter(|replica| !replica.past().leaving).ok_or(ChangeError::Unknown)?;
        if self.distrust(&replica).is_some() {
            return Err(ChangeError::Distrusted(self.quarantine_reason(&replica).unwrap_or_default()));
        }
        let changed = self.is_to_be_asked(&replica);
        if changed {
            let proof = replica.proof(by.at);
            self.prove(&replica, by, proof).await?;
            tracing::info!(replica = &*replica.label, "a replica is let out of quarantine by hand");
            self.let_in(id);
        }
        let replica = self.replica(id).ok_or(ChangeError::Unknown)?;
        Ok(Changed { replica, changed })
    }

    /// Keeps that a replica has proved itself at its address.
    async fn prove(&self, replica: &Replica, by: By, proof: Proof) -> Result<(), ChangeError> {
        let _changing = self.change.lock().await;
        let record = replica.record;
        let now = self.replica(replica.id).filter(|now| now.url == replica.url && now.record == record);
        let now = now.ok_or(ChangeError::Unknown)?;
        let put = self.keep(move |store| store.set_proven(by, record, Some(proof))).await?;
        let proven = self.take_over(put.record(), now.url.clone());
        self.tell(&proven);
        Ok(())
    }

    /// What was measured is what is believed of it until its first answers tell.
    async fn begin_with(&self, replica: &Replica, measured: Measured) {
        let sound = |rate: Option<f64>| rate.filter(|rate| *rate > 0.0 && rate.is_finite());
        let speed = Speed {
            replica: replica.record,
            models: names(&replica.facts()),
            prefill_rate: sound(measured.prefill),
            decode_rate: sound(measured.decode),
            measured: UnixMillis(clock::unix_ms()),
        };
        if speed.prefill_rate.or(speed.decode_rate).is_none() {
            return;
        }
        let mut kept: BTreeMap<u32, Speed> = BTreeMap::clone(&self.kept_speeds.load());
        kept.insert(speed.replica, speed.clone());
        self.kept_speeds.store(Arc::new(kept));
        if let Err(error) = self.keep(move |store| store.put_speeds(vec![speed])).await {
            tracing::warn!(%error, "a first speed is not kept");
        }
        let _changing = self.change.lock().await;
        if let Some(replica) = self.replica(replica.id) {
            self.tell(&replica);
        }
    }

    /// It gets work, if it is as well as it was.
    fn let_in(&self, id: ReplicaId) {
        let Some(replica) = self.replica(id) else { return };
        let is_well = {
            let mut past = replica.past();
            past.doubt = None;
            past.probe.as_ref().is_some_and(|probe| matches!(probe.finding, Finding::Ready | Finding::TimedOut))
        };
        self.feed.send(id, &replica.label, PoolChange::Proven);
        if is_well {
            self.dispatcher.handle(Event::ReplicaReported { replica: id, report: Report::Ready });
        }
        self.heard.notify_waiters();
    }
}
