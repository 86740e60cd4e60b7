//! Whose announcement is whose, and what may become of it: decided here, without touching anything.
//!
//! A phone is its key; one that has none is its place in a deployment. Its address is where it is now. So an announcement
//! meets up to two replicas: the one that is this phone, and the one at this address. What is known less well never changes
//! what is known better: a token is shared by all phones, so it can neither move a phone that signs nor take its place. And what an
//! operator states is the operator's: a phone that comes by itself is heard at such an address, and changes nothing there, for
//! with a replica goes the key that the operator has given for it, and his word that it may have prompts.

use store::{Origin, ReplicaSource, Verification};

use super::{
    announce::{AnnounceError, Announcement},
    change::is_stated_by_operator,
    pool::View,
    replica::Replica,
    url::ReplicaUrl,
};

/// What an announcement does.
pub(super) enum Plan<'v> {
    /// Nothing: all of it is known, or known better.
    Hear(&'v Replica),
    /// It says something new about a replica, which stays where it is.
    State(&'v Replica),
    /// A phone is at another address now; what was there goes.
    Move(&'v Replica, Option<&'v Replica>),
    /// A new phone; what was at its address goes.
    Enter(Option<&'v Replica>),
}

/// What else must be known to decide.
pub(super) struct Moment {
    pub(super) now_ms: u64,
    /// A phone that was heard of within so long is alive.
    pub(super) silence_ms: u64,
}

/// The replica that an announcement is about, by key or place; its rights are checked.
///
/// # Errors
/// It is another phone's place, or known better than the announcement is.
fn phone<'v>(view: &'v View, said: &Announcement) -> Result<Option<&'v Replica>, AnnounceError> {
    let open = |replica: &&Replica| !replica.past().leaving && may_change(replica, said);
    let staying = || view.replicas.values().map(AsRef::as_ref).filter(open);
    if let Some(key) = &said.public_key
        && let Some(own) = staying().find(|replica| replica.origin.public_key.as_ref() == Some(key))
    {
        return Ok(Some(own));
    }
    let place = said.deployment.as_ref().zip(said.processor.as_ref());
    let Some(at_place) = place.and_then(|place| staying().find(|replica| is_at(&replica.origin, place))) else {
        return Ok(None);
    };
    let is_another = said.public_key.is_some() && at_place.origin.public_key.is_some();
    if is_another && said.verification <= at_place.origin.verification {
        return Err(AnnounceError::Taken(at_place.label.to_string()));
    }
    Ok(Some(at_place))
}

/// Whether an announcement may change anything about a replica: not of one that an operator states, unless the chain speaks, or
/// vouches for a key that it has named for this replica before.
pub(super) fn may_change(replica: &Replica, said: &Announcement) -> bool {
    let vouched = said.verification == Verification::Assigned && replica.origin.verification == Verification::Assigned;
    !is_stated_by_operator(replica.source) || said.source == ReplicaSource::Chain || vouched
}

fn is_at(origin: &Origin, (deployment, processor): (&String, &String)) -> bool {
    (origin.deployment.as_ref(), origin.processor.as_ref()) == (Some(deployment), Some(processor))
}

fn has_identity(origin: &Origin) -> bool {
    origin.public_key.is_some() || origin.deployment.is_some() && origin.processor.is_some()
}

/// Whether the replica's phone may still be there: it serves, or was heard of lately.
fn is_alive(replica: &Replica, moment: &Moment) -> bool {
    let heard = replica.past().heard_ms;
    replica.takes_work() || heard.is_some_and(|at| moment.now_ms < at.saturating_add(moment.silence_ms))
}

/// Whether what is at an address has to give way to a phone that it is not.
///
/// # Errors
/// It does not: it has a name of its own, is known as well, and lives.
fn give_way(at: &Replica, said: &Announcement, moment: &Moment) -> Result<(), AnnounceError> {
    if !may_change(at, said) {
        return Err(AnnounceError::Taken(at.label.to_string()));
    }
    let stays = has_identity(&at.origin)
        && !at.past().leaving
        && said.verification <= at.origin.verification
        && (said.verification < at.origin.verification || is_alive(at, moment));
    if stays { Err(AnnounceError::Taken(at.label.to_string())) } else { Ok(()) }
}

/// The replica that an announcement without an address is about, or one that need not change anything.
///
/// # Errors
/// There is none, it is known better, or it has said something newer.
pub(super) fn recognise<'v>(
    view: &'v View,
    said: &Announcement,
    url: Option<&ReplicaUrl>,
) -> Result<&'v Replica, AnnounceError> {
    let phone = phone(view, said)?;
    let at = url.and_then(|url| view.of_url(url)).map(AsRef::as_ref).filter(|at| !at.past().leaving);
    let replica = match (phone, at) {
        (Some(phone), _) => phone,
        // What has a name of its own is spoken of by that name only: all phones know the token.
        (None, Some(at)) if has_identity(&at.origin) && may_change(at, said) => {
            return Err(AnnounceError::Taken(at.label.to_string()));
        }
        (None, Some(at)) => at,
        (None, None) => return Err(AnnounceError::Unknown),
    };
    if said.verification < replica.origin.verification {
        return Err(AnnounceError::KnownBetter(replica.label.to_string()));
    }
    if is_older(replica, said) == Some(std::cmp::Ordering::Less) {
        return Err(AnnounceError::Older);
    }
    Ok(replica)
}

fn has_own_name(said: &Announcement) -> bool {
    said.public_key.is_some() || said.deployment.is_some() && said.processor.is_some()
}

/// How a signed moment stands to the newest that was accepted of this key.
fn is_older(replica: &Replica, said: &Announcement) -> Option<std::cmp::Ordering> {
    let known = &replica.origin;
    let same_key = known.verification >= Verification::Signed && known.public_key == said.public_key;
    Some(said.signed_at?.cmp(&known.announced.filter(|_| same_key)?))
}

/// Decides what becomes of an announcement.
///
/// # Errors
/// Nothing may.
pub(super) fn decide<'v>(
    view: &'v View,
    said: &Announcement,
    url: Option<&ReplicaUrl>,
    moment: &Moment,
) -> Result<Plan<'v>, AnnounceError> {
    let at = url.and_then(|url| view.of_url(url)).map(AsRef::as_ref);
    let Some(phone) = phone(view, said)? else {
        return match at {
            None if url.is_none() => Err(AnnounceError::Unknown),
            None => Ok(Plan::Enter(None)),
            // What is on its way out may be anybody's address now.
            Some(at) if at.past().leaving => Ok(Plan::State(at)),
            Some(at) if !may_change(at, said) => Ok(Plan::Hear(at)),
            Some(at) if has_identity(&at.origin) && has_own_name(said) => {
                give_way(at, said, moment).map(|()| Plan::Enter(Some(at)))
            }
            Some(at) if said.verification < at.origin.verification || has_identity(&at.origin) => Ok(Plan::Hear(at)),
            Some(at) => Ok(Plan::State(at)),
        };
    };
    let moves = url.is_some_and(|url| *url != phone.url);
    if said.verification < phone.origin.verification {
        return if moves { Err(AnnounceError::KnownBetter(phone.label.to_string())) } else { Ok(Plan::Hear(phone)) };
    }
    if is_older(phone, said).is_some_and(|order| order != std::cmp::Ordering::Greater) {
        return if moves { Err(AnnounceError::Older) } else { Ok(Plan::Hear(phone)) };
    }
    // Where a phone can be reached it knows best; the chain only tells of an address that it has besides.
    if !moves || said.source == ReplicaSource::Chain && phone.source != ReplicaSource::Chain {
        return Ok(Plan::State(phone));
    }
    if let Some(at) = at {
        give_way(at, said, moment)?;
    }
    Ok(Plan::Move(phone, at))
}

/// Who the replica is, once this is believed. `moved`: the pin belongs to the address that it left.
pub(super) fn merged(known: Option<&Origin>, said: &Announcement, moved: bool) -> Origin {
    let known = known.cloned().unwrap_or_default();
    let heard = match said.source {
        ReplicaSource::Chain => None,
        _ => Some(said.signed_at.unwrap_or(said.by.at)),
    };
    Origin {
        deployment: said.deployment.clone().or(known.deployment),
        processor: said.processor.clone().or(known.processor),
        public_key: said.public_key.clone().or(known.public_key),
        pin: said.pin.clone().or(known.pin.filter(|_| !moved)),
        verification: said.verification.max(known.verification),
        announced: heard.max(known.announced),
    }
}

#[cfg(test)]
mod tests {
    use store::{ReplicaRecord, UnixMillis};

    use super::*;
    use crate::fleet::samples::{NOW, known, said, view};

    const MOMENT: Moment = Moment { now_ms: NOW, silence_ms: 900_000 };

    fn keyed(key: &str, verification: Verification) -> Origin {
        let public_key = Some(key.to_owned());
        Origin { public_key, verification, announced: Some(UnixMillis(1_000)), ..Origin::default() }
    }

    fn placed(processor: &str) -> Origin {
        let (deployment, processor) = (Some("job".to_owned()), Some(processor.to_owned()));
        Origin { deployment, processor, verification: Verification::Token, ..Origin::default() }
    }

    /// What becomes of it at `https://aN.acu.run` (0: no address).
    fn outcome(view: &View, said: &Announcement, at: u32) -> String {
        let url = (at > 0).then(|| ReplicaUrl::read(&format!("https://a{at}.acu.run")).unwrap());
        match decide(view, said, url.as_ref(), &MOMENT) {
            Ok(Plan::Hear(replica)) => format!("hear {}", replica.id.0),
            Ok(Plan::State(replica)) => format!("state {}", replica.id.0),
            Ok(Plan::Move(replica, None)) => format!("move {}", replica.id.0),
            Ok(Plan::Move(replica, Some(at))) => format!("move {} over {}", replica.id.0, at.id.0),
            Ok(Plan::Enter(None)) => "enter".into(),
            Ok(Plan::Enter(Some(at))) => format!("enter over {}", at.id.0),
            Err(AnnounceError::Unknown) => "unknown".into(),
            Err(AnnounceError::Older) => "older".into(),
            Err(AnnounceError::KnownBetter(_)) => "known better".into(),
            Err(AnnounceError::Taken(_)) => "taken".into(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn what_is_known_less_well_never_changes_what_is_known_better() {
        use Verification::{Assigned, Signed, Token};
        let token = Origin { verification: Token, ..Origin::default() };
        let both =
            |key: &str, level| Origin { verification: level, ..Origin { public_key: Some(key.into()), ..placed("p") } };
        let pool = view(&[known(1, Origin { announced: Some(UnixMillis(1_000)), ..both("k", Signed) })]);
        for (who, at, becomes) in [
            (token.clone(), 1, "hear 1"),
            (token.clone(), 2, "enter"),
            (token, 0, "unknown"),
            (placed("p"), 1, "hear 1"),
            (placed("p"), 0, "hear 1"),
            (placed("p"), 2, "known better"),
            (both("other", Signed), 1, "taken"),
            (both("other", Signed), 2, "taken"),
            (both("other", Assigned), 2, "move 1"),
            (keyed("other", Signed), 2, "enter"),
            (keyed("k", Signed), 2, "move 1"),
            (keyed("k", Assigned), 1, "state 1"),
            (keyed("k", Signed), 0, "state 1"),
        ] {
            let shown = format!("{who:?} at {at}");
            assert_eq!(outcome(&pool, &said(who), at), becomes, "{shown}");
        }
    }

    #[test]
    fn what_an_operator_states_is_heard_of_and_never_taken() {
        use Verification::{Assigned, Signed, Token};
        let token = Origin { verification: Token, ..Origin::default() };
        for source in [ReplicaSource::Admin, ReplicaSource::Config, ReplicaSource::Flag, ReplicaSource::Import] {
            let stated = |origin| view(&[ReplicaRecord { source, ..known(1, origin) }]);
            let nobody = stated(Origin::default());
            for (who, at, becomes) in [
                (token.clone(), 1, "hear 1"),
                (placed("p"), 1, "hear 1"),
                (keyed("k", Signed), 1, "hear 1"),
                (keyed("k", Assigned), 1, "hear 1"),
                (placed("p"), 2, "enter"),
            ] {
                let shown = format!("{who:?} at {at}");
                assert_eq!(outcome(&nobody, &said(who), at), becomes, "{shown}");
            }
            let placed_by_hand = stated(placed("p"));
            assert_eq!(outcome(&placed_by_hand, &said(placed("p")), 2), "enter", "a place can be said by anybody");
            let assigned = stated(keyed("k", Assigned));
            assert_eq!(outcome(&assigned, &said(keyed("k", Assigned)), 2), "move 1", "the chain has named that key");
            let pool = view(&[ReplicaRecord { source, ..known(1, Origin::default()) }, known(2, keyed("k", Signed))]);
            assert_eq!(outcome(&pool, &said(keyed("k", Signed)), 1), "taken", "nobody moves over it");
        }
    }

    #[test]
    fn what_has_a_name_is_spoken_of_by_that_name_only() {
        let pool = view(&[known(1, placed("p"))]);
        let url = ReplicaUrl::read("https://a1.acu.run").unwrap();
        let by = |origin| recognise(&pool, &said(origin), Some(&url)).map(|replica| replica.id.0);
        assert_eq!(by(placed("p")).unwrap(), 1);
        let nameless = Origin { verification: Verification::Token, ..Origin::default() };
        assert!(matches!(by(nameless.clone()), Err(AnnounceError::Taken(_))));
        assert_eq!(outcome(&pool, &said(nameless), 1), "hear 1", "it is there, and states nothing");
    }

    #[test]
    fn an_address_is_given_up_by_a_phone_that_is_silent_and_out_and_by_no_other() {
        let pool = view(&[known(1, keyed("k", Verification::Signed)), known(2, keyed("l", Verification::Signed))]);
        let stranger = said(keyed("stranger", Verification::Signed));
        assert_eq!(outcome(&pool, &stranger, 1), "enter over 1", "it was last heard of long ago, and does not serve");
        assert_eq!(outcome(&pool, &said(keyed("l", Verification::Signed)), 1), "move 2 over 1");
        pool.replicas.values().next().unwrap().past().hear(NOW - 899_000);
        assert_eq!(outcome(&pool, &stranger, 1), "taken");
        assert_eq!(outcome(&pool, &said(keyed("l", Verification::Signed)), 1), "taken");
        assert_eq!(
            outcome(&pool, &said(keyed("stranger", Verification::Assigned)), 1),
            "enter over 1",
            "the chain vouches"
        );
        pool.replicas.values().next().unwrap().past().leaving = true;
        assert_eq!(outcome(&pool, &stranger, 1), "state 1", "it has left");
        let alive = view(&[known(1, keyed("k", Verification::Signed))]);
        alive.replicas.values().next().unwrap().past().state = scheduler::ReplicaState::Ready;
        assert_eq!(outcome(&alive, &stranger, 1), "taken", "something serves there");
    }

    #[test]
    fn older_words_of_the_same_key_move_nothing() {
        let pool = view(&[known(1, keyed("k", Verification::Signed))]);
        let at = |ms| Announcement { signed_at: Some(UnixMillis(ms)), ..said(keyed("k", Verification::Signed)) };
        for (ms, here, elsewhere) in
            [(999, "hear 1", "older"), (1_000, "hear 1", "older"), (1_001, "state 1", "move 1")]
        {
            assert_eq!(
                (outcome(&pool, &at(ms), 1), outcome(&pool, &at(ms), 2)),
                (here.into(), elsewhere.into()),
                "{ms}"
            );
        }
        assert!(matches!(recognise(&pool, &at(999), None), Err(AnnounceError::Older)));
        assert!(recognise(&pool, &at(1_000), None).is_ok());
    }

    #[test]
    fn the_chain_tells_of_an_address_and_the_phone_itself_knows_better() {
        let chain = |origin| Announcement { source: ReplicaSource::Chain, signed_at: None, ..said(origin) };
        let assigned = || keyed("k", Verification::Assigned);
        let of_chain = ReplicaRecord { source: ReplicaSource::Chain, ..known(1, assigned()) };
        let itself = view(&[known(1, assigned())]);
        assert_eq!(outcome(&itself, &chain(assigned()), 2), "state 1");
        assert_eq!(outcome(&view(&[of_chain]), &chain(assigned()), 2), "move 1");
        let merged = merged(Some(&assigned()), &chain(assigned()), false);
        assert_eq!(merged.announced, Some(UnixMillis(1_000)), "the phone has not said it");
    }

    #[test]
    fn a_pin_belongs_to_its_address() {
        let origin = Origin { pin: Some("p".into()), ..keyed("k", Verification::Signed) };
        let word = said(keyed("k", Verification::Signed));
        assert_eq!(merged(Some(&origin), &word, false).pin.as_deref(), Some("p"));
        assert_eq!(merged(Some(&origin), &word, true).pin, None);
    }
}
