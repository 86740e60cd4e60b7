//! What a probe learned becomes what is known, and the scheduler hears of it.

use std::{collections::HashSet, sync::Arc};

use scheduler::{Event, ModelId};

use super::{
    dialect::Dialect,
    finding::Finding,
    naming::{Naming, NotServed},
    pool::{Fleet, View},
    probe::{Learned, Probed},
    replica::{DEFAULT_SLOTS, Facts, Replica, ServedModel},
};
use crate::clock;

impl Fleet {
    /// Takes in a probe's outcome. What the phone says may contradict what the operator stated: the finding returned is
    /// the one that counts.
    pub(super) async fn take_in(&self, replica: &Arc<Replica>, probed: Probed) -> Finding {
        let Probed { finding, dialect, learned } = probed;
        let _changing = self.change.lock().await;
        // It may have been restated, or be gone, since the question was sent.
        let Some(replica) = self.replica(replica.id) else { return finding };
        match learned {
            Some(learned) => {
                let known = self.know(&replica, dialect, &learned);
                replica.past().learned = Some(learned);
                known.unwrap_or(finding)
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
        let facts = Facts {
            dialect,
            build: learned.build.clone(),
            models,
            routes: learned.routes,
            slots: learned.slots.unwrap_or(DEFAULT_SLOTS),
            context_tokens: learned.context_tokens,
            parameters: learned.parameters,
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

    /// Tells the scheduler what the replica is like now, if that is news.
    pub(super) fn tell(&self, replica: &Replica) {
        let spec = replica.spec(self.kept_speeds.load().get(&replica.record));
        let news = replica.past().told.replace(spec.clone()).is_none_or(|told| told != spec);
        if news {
            self.dispatcher.handle(Event::ReplicaUp { replica: replica.id, spec });
        }
    }
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
