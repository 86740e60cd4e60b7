//! A list of a deployment's instances, taken in again: which replica is whose, and where it is now.
//!
//! An instance is told by the deployment and its number there, which are kept as labels. After its app was started anew it may
//! have another address; then the replica moves, as one that announces itself does, and keeps its number, name and speeds.

use std::sync::Arc;

use scheduler::ReplicaId;
use store::{By, NewReplica, Origin, ReplicaSource};

use super::{change::ChangeError, pool::Fleet, replica::Replica, url::ReplicaUrl};

/// The label of an instance's deployment.
const DEPLOYMENT: &str = "deployment_id";
/// The label of its number there.
const INSTANCE: &str = "instance";

impl Fleet {
    /// The replica that an instance of a deployment was, when it was taken in.
    pub fn instance(&self, deployment: &str, instance: &str) -> Option<Arc<Replica>> {
        let is_it = |replica: &&Arc<Replica>| {
            let label = |name: &str| replica.stated.labels.get(name).map(String::as_str);
            (label(DEPLOYMENT), label(INSTANCE)) == (Some(deployment), Some(instance)) && !replica.past().leaving
        };
        self.replicas().iter().find(is_it).cloned()
    }

    /// Notes which deployment a replica belongs to, and where it is now. An address that another replica has is not taken from
    /// it. Tells whether something is news.
    ///
    /// # Errors
    /// There is no such replica, the address can't be used, or the store failed. Then nothing has changed.
    pub async fn set_deployed(&self, id: ReplicaId, deployment: &str, url: &str, by: By) -> Result<bool, ChangeError> {
        let url = ReplicaUrl::parse(url, &self.settings.load().rules)?;
        let _changing = self.change.lock().await;
        let known = self.staying(id)?;
        let moves = known.url != url && self.view.load().of_url(&url).is_none();
        if !moves && known.origin.deployment.as_deref() == Some(deployment) {
            return Ok(false);
        }
        // The pin belongs to the address that it leaves.
        let pin = known.origin.pin.clone().filter(|_| !moves);
        let origin = Origin { deployment: Some(deployment.to_owned()), pin, ..known.origin.clone() };
        let new = NewReplica {
            url: if moves { url.to_string() } else { known.url.to_string() },
            name: known.label.to_string(),
            stated: known.stated.fields(),
            api_key: known.stated.secret(),
            // The configuration would take back an address that it does not state.
            source: if moves { ReplicaSource::Import } else { known.source },
            origin: Some(origin),
        };
        let record = known.record;
        if moves {
            let put = self.keep(move |store| store.move_replica(by, record, new, false)).await?;
            self.settle(&known, put.record(), url);
        } else {
            let put = self.keep(move |store| store.put_replica(by, new)).await?;
            self.take_over(put.record(), known.url.clone());
        }
        Ok(true)
    }
}
