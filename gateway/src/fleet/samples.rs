//! Phones that came by themselves, for tests.

use std::sync::Arc;

use store::{By, Origin, ReplicaRecord, ReplicaSource, StatedFields, UnixMillis, Verification};

use super::{announce::Announcement, change::Amendment, pool::View, relays::Relays, replica::Replica, url::ReplicaUrl};

/// When they say something.
pub(super) const NOW: u64 = 1_000_000_000;

/// A replica at `https://aN.acu.run`, last heard of long ago.
pub(super) fn known(id: u32, origin: Origin) -> ReplicaRecord {
    ReplicaRecord {
        id,
        url: format!("https://a{id}.acu.run"),
        name: format!("a{id}"),
        stated: StatedFields::default(),
        api_key: None,
        drained: false,
        source: ReplicaSource::Registration,
        origin,
        proven: None,
        created: UnixMillis(0),
        updated: UnixMillis(0),
    }
}

/// A pool of these.
pub(super) fn view(records: &[ReplicaRecord]) -> View {
    let mut view = View::default();
    for record in records {
        let url = ReplicaUrl::read(&record.url).expect("a record's address should be one");
        view.insert(Arc::new(Replica::new(record, url.clone(), Relays::default().of(&url))));
    }
    view
}

/// What is said: by whom, as well as `origin` is verified.
pub(super) fn said(origin: Origin) -> Announcement {
    let signed_at = (origin.verification >= Verification::Signed).then_some(UnixMillis(NOW));
    Announcement {
        url: None,
        deployment: origin.deployment,
        processor: origin.processor,
        public_key: origin.public_key,
        pin: None,
        verification: origin.verification,
        signed_at,
        source: ReplicaSource::Registration,
        stated: Amendment::default(),
        by: By { at: UnixMillis(NOW), who: "phone@192.0.2.1".into() },
    }
}
