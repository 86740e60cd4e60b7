//! What a probe learned becomes what is known, and the scheduler hears of it.

use std::{collections::HashSet, sync::Arc};

use scheduler::{Event, GroupId, ModelId, ReplicaId};

use super::{
    dialect::Dialect,
    finding::Finding,
    naming::{Naming, NotServed},
    pool::{Fleet, View},
    probe::{Learned, Probed},
    replica::{DEFAULT_SLOTS, Facts, Replica, ServedModel},
};
use crate::{clock, telemetry::Upkeep};

impl Fleet {
    /// Takes in a probe's outcome. What the phone says may contradict what the operator stated: the finding returned is
    /// the one that counts.
    pub(super) async fn take_in(&self, replica: &Arc<Replica>, probed: Probed) -> Finding {
        let Probed { finding, dialect, learned, .. } = probed;
        let _changing = self.change.lock().await;
        // It may have been restated, or be gone, since the question was sent.
        let Some(replica) = self.replica(replica.id) else { return finding };
        match learned {
            Some(mut learned) => {
                {
                    let mut past = replica.past();
                    match past.learned.as_ref().filter(|before| before.is_same_engine(&learned)) {
                        Some(before) => learned.carries_on = before.carries_on,
                        None => past.tried = false,
                    }
                    past.learned = Some(learned.clone());
                }
                self.know(&replica, dialect, &learned).unwrap_or(finding)
            }
            None => {
                let facts = replica.facts();
                if facts.dialect != dialect {
                    replica.set_facts(Facts { dialect, ..Facts::clone(&facts) });
                }
                // A light probe sees that the phone is well, not whether its model is the right one.
                match (&finding, &replica.past().mismatch) {
                    (Finding::Ready, Some(mismatch)) => mismatch.clone(),
                    _ => finding,
                }
            }
        }
    }

    /// Takes in what a trial has shown of the engine that was `learned` then; `None`: it did not say.
    pub(super) async fn take_in_trial(&self, id: ReplicaId, learned: &Learned, carries_on: Option<bool>) {
        let _changing = self.change.lock().await;
        let Some(replica) = self.replica(id) else { return };
        {
            let mut past = replica.past();
            match &mut past.learned {
                Some(now) if now.is_same_engine(learned) => now.carries_on = carries_on,
                // Another engine has moved in meanwhile.
                _ => return,
            }
            past.tried = true;
        }
        self.rethink(&replica);
        // What it has shown stands for those of its group that have had no time for a trial.
        let group = learned.group.filter(|_| carries_on.is_some());
        for other in self.replicas().iter().filter(|other| group.is_some() && other.facts().group == group) {
            let is_open = other.past().learned.as_ref().is_some_and(|learned| learned.carries_on.is_none());
            if is_open {
                self.rethink(other);
            }
        }
    }

    /// Whether those of a group carry answers on; `None` until one of them was tried.
    fn group_carries_on(&self, group: GroupId) -> Option<bool> {
        let view = self.view.load();
        let alike = view.replicas.values().filter(|other| other.facts().group == Some(group));
        let shown = alike.filter_map(|other| other.past().learned.as_ref()?.carries_on);
        shown.reduce(|all, one| all && one)
    }

    /// Works out the facts anew from what the last full probe learned; for a change of names or statements.
    pub(super) fn rethink(&self, replica: &Replica) {
        let learned = replica.past().learned.clone();
        match learned {
            Some(learned) => {
                self.know(replica, replica.dialect(), &learned);
            }
            None => self.tell(replica),
        }
    }

    /// Sets the facts and tells the scheduler; the finding if something does not fit.
    fn know(&self, replica: &Replica, dialect: Option<Dialect>, learned: &Learned) -> Option<Finding> {
        let naming = &self.settings.load().naming;
        let reliable = dialect.is_none_or(Dialect::lists_what_it_serves) && !believed(replica);
        let (models, mismatch) = match self.served(naming, replica, learned, reliable) {
            Ok(models) if models.is_empty() => (models, Some(Finding::NoModels)),
            Ok(models) => (models, None),
            Err(not_served) => (Vec::new(), Some(Finding::NotServed(not_served))),
        };
        replica.past().mismatch = mismatch.clone();
        let own = has_carried_on(replica, dialect, learned);
        let facts = Facts {
            dialect,
            build: learned.build.clone(),
            models,
            routes: learned.routes,
            slots: learned.slots.unwrap_or(DEFAULT_SLOTS),
            context_tokens: learned.context_tokens,
            parameters: learned.parameters,
            lists_slots: learned.lists_slots,
            group: learned.group,
            carries_on: own.or_else(|| self.group_carries_on(learned.group?)).unwrap_or(false),
            has_carried_on: own,
            keeps_streams: learned.keeps_streams,
        };
        if *replica.facts() != facts {
            replica.set_facts(facts);
        }
        self.tell(replica);
        mismatch
    }

    fn served(
        &self,
        naming: &Naming,
        replica: &Replica,
        learned: &Learned,
        reliable: bool,
    ) -> Result<Vec<ServedModel>, NotServed> {
        let served = naming.served(&replica.stated.models, &learned.models, reliable)?;
        let view = self.view.load_full();
        let mut changed: Option<View> = None;
        let now = clock::unix().as_secs();
        let mut may_forget = true;
        let mut models: Vec<ServedModel> = Vec::with_capacity(served.len());
        for (name, own) in served {
            let known = view.models.resolve(&name);
            let known = known.or_else(|| {
                let known = &mut changed.get_or_insert_with(|| View::clone(&view)).models;
                known.report(&name, now).or_else(|| {
                    // Once: what this replica claims now is not known as claimed before it is all read.
                    if std::mem::take(&mut may_forget) {
                        known.forget_unclaimed(&claimed(&view, &models));
                    }
                    known.report(&name, now)
                })
            });
            match known {
                Some(model) => models.push(ServedModel { id: model.id, name: model.name, own }),
                None => tracing::warn!(
                    replica = &*replica.label,
                    model = &*name,
                    "too many models are known already; ignored"
                ),
            }
        }
        if let Some(view) = changed {
            self.view.store(Arc::new(view));
        }
        Ok(models)
    }

    /// Tells the scheduler what the replica is like now, if that is news, and the books what it costs.
    pub(super) fn tell(&self, replica: &Replica) {
        let upkeep = Upkeep {
            price: replica.price(),
            models: replica.facts().models.iter().map(|model| Arc::clone(&model.name)).collect(),
            takes_work: replica.takes_work(),
            opens_lines: !self.is_unproven(replica),
        };
        self.telemetry.replica_kept(replica.id, upkeep);
        let spec = replica.spec(self.kept_speeds.load().get(&replica.record));
        let news = replica.past().told.replace(spec.clone()).is_none_or(|told| told != spec);
        if news {
            self.dispatcher.handle(Event::ReplicaUp { replica: replica.id, spec });
        }
    }
}

/// Whether it carries answers on, as it has shown itself.
fn has_carried_on(replica: &Replica, dialect: Option<Dialect>, learned: &Learned) -> Option<bool> {
    // Others have no way of being asked to. Neither is one able that does not say; but it is asked again.
    let silent = dialect != Some(Dialect::LlamaServer) || replica.past().tried && learned.carries_on.is_none();
    learned.carries_on.or(silent.then_some(false))
}

/// The models of all replicas, up or not, and those of one that is being read.
fn claimed(view: &View, read: &[ServedModel]) -> HashSet<ModelId> {
    let mut claimed: HashSet<_> = read.iter().map(|model| model.id).collect();
    for replica in view.replicas.values() {
        claimed.extend(replica.facts().models.iter().map(|model| model.id));
    }
    claimed
}

/// Whether the operator's word about the models stands whatever the replica lists: it states them, and that this is some
/// OpenAI server, of which nothing more is known.
fn believed(replica: &Replica) -> bool {
    replica.stated.dialect == Some(Dialect::OpenAi) && !replica.stated.models.0.is_empty()
}
