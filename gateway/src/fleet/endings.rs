//! The known end of a deployment: what is started before it, and who has to renew it.
//!
//! A deployment's end is stated, imported, announced or on the chain, and nothing replaces a phone that goes with it. Some time
//! before, the scheduler is told when: it then starts nothing there that would not be done, and at the end nothing at all. Operators
//! are told in time which deployments to renew, and what goes with them.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use scheduler::{Event, Timestamp};
use store::{By, UnixMillis};

use super::{change::is_stated_by_operator, feed::PoolChange, pool::Fleet, replica::Replica};
use crate::clock;

/// How often the ends of all replicas are looked at.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(10);
/// An end that is this near what the scheduler was told is the same: the two clocks drift.
const SAME: Duration = Duration::from_secs(2);
/// When it is said how soon a deployment ends, in seconds before: a day to notice, a shift to act, the last moment.
const TOLD: [u64; 3] = [24 * 3600, 6 * 3600, 3600];

/// Replicas that end together.
#[derive(Clone, Debug, PartialEq)]
pub struct Deployment {
    /// Its job, or what the label `deployment_id` or `deployment` says.
    pub name: String,
    /// Its replicas by name.
    pub replicas: Vec<String>,
    /// Slots of all of them.
    pub slots: u32,
    /// Of those that take work.
    pub ready_slots: u32,
    /// When the first of them ends, in seconds since 1970.
    pub ends_at: Option<u64>,
    /// What those cost together whose price is stated.
    pub cost_acu_per_day: Option<f64>,
}

/// What was said of deployments: when they end, and for how many of [`TOLD`].
#[derive(Default)]
pub(super) struct Told(HashMap<String, (u64, usize)>);

impl Fleet {
    /// Every deployment, the one that ends next first; those without a known end last.
    pub fn deployments(&self) -> Vec<Deployment> {
        let mut found: BTreeMap<String, Deployment> = BTreeMap::new();
        for replica in self.replicas() {
            let Some(name) = replica.deployment() else { continue };
            let view = self.dispatcher.replica(replica.id);
            let slots = view.as_ref().map_or(replica.facts().slots, |view| view.slots);
            let ready = view.as_ref().filter(|view| view.takes_work()).map_or(0, |view| view.slots);
            let entry = found.entry(name.to_owned()).or_insert_with(|| Deployment {
                name: name.to_owned(),
                replicas: Vec::new(),
                slots: 0,
                ready_slots: 0,
                ends_at: None,
                cost_acu_per_day: None,
            });
            entry.replicas.push(replica.label.to_string());
            entry.slots += u32::from(slots);
            entry.ready_slots += u32::from(ready);
            let end = replica.stated.expires_at;
            entry.ends_at = entry.ends_at.map_or(end, |at| Some(end.map_or(at, |end| end.min(at))));
            if let Some(cost) = replica.stated.cost_acu_per_day {
                *entry.cost_acu_per_day.get_or_insert(0.0) += cost;
            }
        }
        let mut deployments: Vec<Deployment> = found.into_values().collect();
        deployments
            .sort_by(|a, b| (a.ends_at.unwrap_or(u64::MAX), &a.name).cmp(&(b.ends_at.unwrap_or(u64::MAX), &b.name)));
        deployments
    }

    /// Looks at the ends of all replicas: tells the scheduler, operators, and forgets those that have long been over.
    pub(super) async fn look_at_ends(&self, told: &mut Told) {
        let after = self.settings.load().forget_ended_after.as_secs();
        let now = clock::unix().as_secs();
        for replica in self.replicas() {
            self.tell_end(&replica);
            let over = replica.stated.expires_at.is_some_and(|end| end.saturating_add(after) <= now);
            if over && !is_stated_by_operator(replica.source) && !replica.past().leaving {
                let by = By { at: UnixMillis(clock::unix_ms()), who: "ending".into() };
                match self.remove(replica.id, false, by).await {
                    Ok(_) => tracing::info!(replica = &*replica.label, "forgotten: its deployment has long ended"),
                    Err(error) => tracing::warn!(replica = &*replica.label, %error, "not forgotten"),
                }
            }
        }
        self.say_what_ends(told);
    }

    /// Tells the scheduler when a replica goes away, once that is near, and when it is not any more.
    pub(super) fn tell_end(&self, replica: &Replica) {
        let before = self.settings.load().drain_before_end;
        let left = replica.stated.expires_at.map(|end| {
            let end = Duration::from_secs(end);
            end.saturating_sub(clock::unix())
        });
        let at = left.filter(|left| *left <= before).map(|left| clock::now() + left);
        let is_news = {
            let mut past = replica.past();
            let same = |told: Timestamp, at: Timestamp| told.since(at).max(at.since(told)) <= SAME;
            // The end that has come stays where it is.
            let over = |told: Timestamp| told <= clock::now() && left.is_some_and(|left| left.is_zero());
            let unchanged = match (past.ends, at) {
                (None, None) => true,
                (Some(told), Some(at)) => over(told) || same(told, at),
                _ => false,
            };
            if !unchanged {
                past.ends = at;
            }
            !unchanged
        };
        if is_news {
            self.dispatcher.handle(Event::ReplicaEnding { replica: replica.id, at });
        }
    }

    fn say_what_ends(&self, told: &mut Told) {
        let now = clock::unix().as_secs();
        let deployments = self.deployments();
        told.0.retain(|name, _| deployments.iter().any(|deployment| deployment.name == *name));
        let ready: u32 = deployments.iter().map(|deployment| deployment.ready_slots).sum();
        for deployment in &deployments {
            let Some(end) = deployment.ends_at.filter(|end| *end > now) else { continue };
            let level = TOLD.iter().filter(|before| end - now <= **before).count();
            let said = told.0.entry(deployment.name.clone()).or_insert((end, 0));
            if said.0 != end {
                *said = (end, 0);
            }
            if level <= said.1 {
                continue;
            }
            said.1 = level;
            tracing::warn!(
                deployment = deployment.name,
                replicas = deployment.replicas.len(),
                ready_slots = deployment.ready_slots,
                of_ready_slots = ready,
                ends_in_s = end - now,
                "a deployment ends; renew it, nothing replaces its phones"
            );
            for label in &deployment.replicas {
                let Some(replica) = self.find(label) else { continue };
                let ends_in_s = end - now;
                let what = PoolChange::Ending { deployment: deployment.name.clone(), ends_in_s };
                self.feed.send(replica.id, &replica.label, what);
            }
        }
    }
}
