//! Who makes room for a phone that announces itself where there is none.

use scheduler::Timestamp;
use store::{ReplicaSource, Verification};

use super::{
    announce::{AnnounceError, Announcement},
    pool::{Settings, View},
    replica::Replica,
};

/// Whose place a phone takes that is new at an address: whoever is there (`at`); where there is no room another one that has shown
/// nothing yet and has had its time for it, the oldest first; nobody's. For one that somebody vouches for any makes room that has shown nothing.
///
/// # Errors
/// There is no room, by `registration.max_unproven` or `pool.max_replicas`.
pub(super) fn place<'v>(
    view: &'v View,
    at: Option<&'v Replica>,
    said: &Announcement,
    settings: &Settings,
    now: Timestamp,
) -> Result<Option<&'v Replica>, AnnounceError> {
    let is_vouched_for = said.source == ReplicaSource::Chain || said.verification == Verification::Assigned;
    let most = settings.registration.max_unproven;
    let is_one_more = !is_vouched_for && !at.is_some_and(Replica::is_newcomer);
    let is_one_too_many = is_one_more && view.newcomers().count() >= most;
    let is_full = at.is_none() && view.replicas.len() >= settings.max_replicas;
    let makes_room = |replica: &&Replica| is_vouched_for || replica.has_had_its_time(now);
    let at = at.or_else(|| view.newcomers().find(makes_room).filter(|_| is_full || is_one_too_many));
    if is_one_too_many && !at.is_some_and(Replica::is_newcomer) {
        return Err(AnnounceError::TooManyUnproven(most));
    }
    if is_full && at.is_none() {
        return Err(AnnounceError::Full(settings.max_replicas));
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use store::{Origin, Proof, ReplicaRecord, UnixMillis};

    use super::*;
    use crate::{
        clock,
        config::Config,
        fleet::samples::{known, said, view},
    };

    fn with(verification: Verification) -> Origin {
        Origin { verification, ..Origin::default() }
    }

    /// A phone that came by itself, with no more than the token.
    fn record(id: u32) -> ReplicaRecord {
        known(id, with(Verification::Token))
    }

    fn settings(max_unproven: usize, max_replicas: usize) -> Settings {
        let mut config = Config::default();
        (config.registration.max_unproven, config.pool.max_replicas) = (max_unproven, max_replicas);
        Settings::new(&config)
    }

    /// Who makes room for a phone with no more than the token: a number, or `None` for "nobody has to".
    fn chosen(view: &View, settings: &Settings, now: Timestamp) -> Result<Option<u32>, &'static str> {
        told(place(view, None, &said(with(Verification::Token)), settings, now))
    }

    fn told(place: Result<Option<&Replica>, AnnounceError>) -> Result<Option<u32>, &'static str> {
        place.map(|replica| replica.map(|replica| replica.record)).map_err(|error| match error {
            AnnounceError::TooManyUnproven(_) => "unproven",
            AnnounceError::Full(_) => "full",
            _ => "else",
        })
    }

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn one_that_has_shown_nothing_in_five_minutes_makes_room_and_none_does_before() {
        let view = view(&[1, 2, 3].map(record));
        let came = view.replicas.values().map(|replica| replica.past().there_since).max().unwrap();
        for (settings, refused) in
            [(settings(3, 100), "unproven"), (settings(100, 3), "full"), (settings(3, 3), "unproven")]
        {
            assert_eq!(chosen(&view, &settings, came + 4 * MINUTE), Err(refused));
            assert_eq!(chosen(&view, &settings, came + 5 * MINUTE), Ok(Some(1)), "the oldest");
            // One that came again, at another address, has its time anew.
            view.replicas.values().next().unwrap().past().there_since = came + 4 * MINUTE;
            assert_eq!(chosen(&view, &settings, came + 5 * MINUTE), Ok(Some(2)));
            view.replicas.values().next().unwrap().past().there_since = came;
        }
        assert_eq!(chosen(&view, &settings(4, 4), came + 5 * MINUTE), Ok(None), "there is room");
    }

    #[test]
    fn one_that_has_shown_what_it_is_makes_room_for_nobody_and_no_newcomer_is_spared_for_one_that_is_vouched_for() {
        let proven = || ReplicaRecord { proven: Some(Proof { at: UnixMillis(1), models: None }), ..record(1) };
        let now = clock::now() + 60 * MINUTE;
        assert_eq!(chosen(&view(&[proven()]), &settings(1, 1), now), Err("full"));
        assert_eq!(chosen(&view(&[proven()]), &settings(1, 2), now), Ok(None));
        let view = view(&[proven(), record(2)]);
        let assigned = said(with(Verification::Assigned));
        assert_eq!(told(place(&view, None, &assigned, &settings(1, 2), clock::now())), Ok(Some(2)));
        assert_eq!(told(place(&view, None, &assigned, &settings(1, 3), clock::now())), Ok(None));
    }
}
