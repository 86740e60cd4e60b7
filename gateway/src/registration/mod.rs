//! Phones that announce themselves: what a call has to show, what it says, and what is done about it.
//!
//! | file | holds |
//! |---|---|
//! | `parse` | [`Message`]: what a phone says, in any of the shapes in use |
//! | `signature` | [`signature::Signed`]: that it was said by the holder of a key, lately |
//! | `replay` | [`replay::Book`]: that it was not said before |
//! | `refusal` | [`Refusal`]: every way to say no |
//! | `quiet` | refusals in the log, few however many there are |
//! | `refused` | [`Refused`]: the last kinds of refusals, for operators |
//!
//! A call is cheap until it has shown the token: before that its body is not read. What a phone says is believed as far as it is
//! verified, and what it may change is decided in `fleet` (`identity`). How many changes phones make in a minute is bounded there as
//! well (`Arrivals`), because only there it is known what is one. See decision 0013.

mod parse;
mod quiet;
mod refusal;
mod refused;
mod replay;
mod signature;

use std::{
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};

use http::HeaderMap;
use scheduler::ReplicaId;
use store::{By, ReplicaSource, UnixMillis, Verification};

pub use self::{
    parse::{FormError, Message, Word},
    refusal::Refusal,
    refused::Refused,
    replay::ReplayError,
    signature::SignatureError,
};
use self::{quiet::Quiet, refused::Ring, replay::Book, signature::Signed};
use crate::{
    auth::FailedLogins,
    clock,
    config::{self, Secret},
    fleet::{Amendment, AnnounceError, Announced, Announcement, Fleet, Replica},
    telemetry::Telemetry,
};

/// What became of a call that was taken.
pub struct Taken {
    /// Who said it; `None`: it named nobody that is known, which some events may.
    pub replica: Option<Arc<Replica>>,
    /// As [`names::REGISTRATIONS_BY_OUTCOME`](crate::telemetry::names::REGISTRATIONS_BY_OUTCOME) has it.
    pub outcome: &'static str,
}

/// A call whose token was right.
#[must_use]
pub struct Admitted {
    settings: config::Registration,
    peer: IpAddr,
}

/// Takes what phones say.
pub struct Registrar {
    fleet: Arc<Fleet>,
    telemetry: Arc<Telemetry>,
    settings: Box<dyn Fn() -> config::Registration + Send + Sync>,
    /// Wrong tokens, apart from those of operators: phones behind one address must not lock operators out.
    failed: FailedLogins,
    book: Mutex<Book>,
    quiet: Quiet,
    refused: Ring,
}

impl Registrar {
    /// With the settings that are in force whenever they are asked for.
    pub fn new(
        fleet: Arc<Fleet>,
        telemetry: Arc<Telemetry>,
        settings: impl Fn() -> config::Registration + Send + Sync + 'static,
    ) -> Self {
        Self {
            fleet,
            telemetry,
            settings: Box::new(settings),
            failed: FailedLogins::default(),
            book: Mutex::default(),
            quiet: Quiet::default(),
            refused: Ring::default(),
        }
    }

    /// Looks at the token, before anything else of a call is read.
    ///
    /// # Errors
    /// Registration is off, the token is wrong, or was too often.
    pub fn admit(&self, peer: IpAddr, query: Option<&str>) -> Result<Admitted, Refusal> {
        let settings = (self.settings)();
        let Some(token) = &settings.token else { return Err(Refusal::Off) };
        // A right one passes also where others have guessed: behind one proxy they all have one address.
        if carries(query, token) {
            return Ok(Admitted { settings, peer });
        }
        let now = clock::now();
        if self.failed.is_blocked(peer, now) {
            return Err(Refusal::TooManyTries);
        }
        self.failed.note(peer, now);
        Err(Refusal::Token)
    }

    /// Takes what a phone says. `stated` is what its message states about its replica, checked.
    ///
    /// # Errors
    /// Its signature does not hold, or it may not say that. Then nothing has changed.
    pub async fn take(
        &self,
        admitted: &Admitted,
        headers: &HeaderMap,
        body: &[u8],
        message: &Message,
        stated: Amendment,
    ) -> Result<Taken, Refusal> {
        let now = UnixMillis(clock::unix_ms());
        let window = admitted.settings.window;
        let signed = signature::verify(headers, body, now, window)?;
        if let Some(Signed { key, nonce, .. }) = &signed {
            let mut book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
            book.spend(key, nonce, window, clock::now())?;
        }
        let announcement = Announcement {
            url: message.url.clone(),
            deployment: message.deployment.clone(),
            processor: message.processor.clone(),
            verification: if signed.is_some() { Verification::Signed } else { Verification::Token },
            signed_at: signed.as_ref().map(|signed| signed.at),
            public_key: signed.map(|signed| signed.key),
            pin: None,
            source: ReplicaSource::Registration,
            stated,
            by: By { at: now, who: format!("phone@{}", admitted.peer) },
        };
        self.follow(message, announcement).await
    }

    async fn follow(&self, message: &Message, said: Announcement) -> Result<Taken, Refusal> {
        let by = said.by.clone();
        match message.word {
            Word::Started => {
                let taken = self.announce(said).await?;
                self.note(&taken, message);
                Ok(taken)
            }
            Word::Heartbeat => {
                let taken = match self.fleet.recognise(said.clone()) {
                    Ok(known) if is_there(&known, &said) => Taken { replica: Some(known), outcome: "heartbeat" },
                    // Nobody was told that it came, or moved: this says so as well.
                    Ok(_) | Err(AnnounceError::Unknown) => self.announce(said).await?,
                    Err(error) => return Err(error.into()),
                };
                self.note(&taken, message);
                let heeded = taken.replica.as_ref().filter(|replica| self.fleet.heeds(replica));
                if let (Some(replica), Some(report)) = (heeded, message.report) {
                    self.fleet.reported(replica.id, report);
                }
                Ok(taken)
            }
            Word::Leaving => {
                let Some(known) = self.known(said)? else { return Ok(Taken { replica: None, outcome: "leaving" }) };
                let taken = Taken { replica: Some(Arc::clone(&known)), outcome: "leaving" };
                self.note(&taken, message);
                if self.fleet.heeds(&known) {
                    self.leave(known.id, by).await?;
                }
                Ok(taken)
            }
            Word::Ready | Word::Error | Word::Other => {
                let outcome = if message.word == Word::Error { "error" } else { "known" };
                let taken = Taken { replica: self.known(said)?, outcome };
                self.note(&taken, message);
                if let Some(replica) = taken.replica.as_ref().filter(|_| message.word != Word::Other) {
                    self.fleet.probe_soon(replica.id);
                }
                Ok(taken)
            }
        }
    }

    async fn announce(&self, said: Announcement) -> Result<Taken, Refusal> {
        let announced = self.fleet.announce(said).await?;
        let outcome = match &announced {
            Announced::New(_) => "accepted",
            Announced::Moved(_) => "moved",
            Announced::Changed(_) | Announced::Known(_) => "known",
        };
        Ok(Taken { replica: Some(Arc::clone(announced.replica())), outcome })
    }

    /// The replica that a message is about; `None`: it names none, as later events of the example apps do.
    fn known(&self, said: Announcement) -> Result<Option<Arc<Replica>>, Refusal> {
        match self.fleet.recognise(said) {
            Ok(replica) => Ok(Some(replica)),
            Err(AnnounceError::Unknown) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn leave(&self, id: ReplicaId, by: By) -> Result<(), Refusal> {
        use crate::fleet::ChangeError;
        match self.fleet.remove(id, false, by).await {
            Ok(_) | Err(ChangeError::Unknown) => Ok(()),
            Err(ChangeError::Store(error)) => Err(AnnounceError::Store(error).into()),
            Err(_) => Err(AnnounceError::Unknown.into()),
        }
    }

    fn note(&self, taken: &Taken, message: &Message) {
        if let Some(replica) = &taken.replica {
            self.fleet.heard_of(replica, &message.event, message.problem.clone());
        }
    }

    /// The last kinds of refused calls, the latest first.
    pub fn refused(&self) -> Vec<Refused> {
        self.refused.latest()
    }

    /// Counts how a call ended, keeps a refusal for operators, and logs it unless many are.
    pub fn account(&self, peer: IpAddr, ended: &Result<Taken, Refusal>) {
        let outcome = match ended {
            Ok(taken) => taken.outcome,
            Err(refusal) => refusal.outcome(),
        };
        self.telemetry.registration(outcome);
        match ended {
            Err(refusal) => {
                self.refused.note(peer, refusal, clock::unix_ms());
                self.quiet.refused(peer, refusal);
            }
            Ok(Taken { replica, outcome }) => {
                let replica = replica.as_ref().map(|replica| &*replica.label);
                tracing::debug!(%peer, replica, outcome, "a phone called");
            }
        }
    }
}

/// Whether a phone is where it says that it is, if it says so.
fn is_there(known: &Replica, said: &Announcement) -> bool {
    said.url.as_deref().is_none_or(|url| crate::fleet::ReplicaUrl::read(url).is_ok_and(|url| url == known.url))
}

/// Whether the query has the token, once.
fn carries(query: Option<&str>, token: &Secret) -> bool {
    let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    let mut given = pairs.filter(|(name, _)| name == "token").map(|(_, value)| value);
    let (first, more) = (given.next(), given.next());
    more.is_none() && first.is_some_and(|given| token.is(&given))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_given_once_is_the_token() {
        let token = Secret::new("0123456789abcdef");
        for (query, right) in [
            (Some("token=0123456789abcdef"), true),
            (Some("x=1&token=0123456789abcdef&y"), true),
            (Some("token=%30123456789abcdef"), true),
            (Some("token=0123456789abcde"), false),
            (Some("token=0123456789abcdef0"), false),
            (Some("token="), false),
            (Some("Token=0123456789abcdef"), false),
            (Some("token=wrong&token=0123456789abcdef"), false),
            (Some("token=0123456789abcdef&token=wrong"), false),
            (Some("0123456789abcdef"), false),
            (Some(""), false),
            (None, false),
        ] {
            assert_eq!(carries(query, &token), right, "{query:?}");
        }
    }
}
