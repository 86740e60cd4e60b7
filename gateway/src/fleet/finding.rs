//! What a probe found, for the scheduler and for people.

use scheduler::{HardFailure, Report};

use super::naming::NotServed;
use crate::upstream::{Breach, Failure, is_no_tls};

/// The result of one probe. Its text is shown to operators and says what to do: the phone's own words are not in it,
/// except names of models, printable and short.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Finding {
    /// It can serve.
    #[error("ready")]
    Ready,
    /// The engine is up, its model is not.
    #[error("loading its model{}", progress(*.percent))]
    Loading {
        /// How far, if it says.
        percent: Option<u8>,
    },
    /// Our key is wrong, or one is needed.
    #[error("it refuses the key ({status}); set the right one: huntgroup replicas patch NAME --api-key env:VARIABLE")]
    WrongKey {
        /// 401 or 403.
        status: u16,
    },
    /// It serves another model than stated.
    #[error(transparent)]
    NotServed(#[from] NotServed),
    /// It does not say what it serves, and neither does the operator.
    #[error("it does not say which models it serves; state them: huntgroup replicas patch NAME --model MODEL")]
    NoModels,
    /// The address policy forbids the connection.
    #[error("{0}")]
    Forbidden(String),
    /// There is no way to it.
    #[error("{0}")]
    Unreachable(String),
    /// What stands in front of it answers, and does not let us through.
    #[error("{0}")]
    NotThere(String),
    /// Somebody was reached whose certificate, or TLS, is refused.
    #[error("{0}")]
    Certificate(String),
    /// The way to it is open, and nobody answers at its end.
    #[error("{0}")]
    Closed(String),
    /// A tunnel or web server answered in its place.
    #[error(
        "a web page instead of the engine (status {status}): the tunnel answers, the phone does not; is its app open?"
    )]
    WebPage {
        /// The page's status.
        status: u16,
    },
    /// An engine that is not well.
    #[error("the engine answers its health check with status {status}; restart the phone's app")]
    Status {
        /// What it answered.
        status: u16,
    },
    /// An engine that says that it is not well.
    #[error("the engine says that it is in error; restart the phone's app")]
    SaysError,
    /// Not what this engine answers.
    #[error("an answer that is not this engine's (status {status}); is it the right address, and the right dialect?")]
    Strange {
        /// Its status.
        status: u16,
    },
    /// The answer broke off, or is too large.
    #[error("{0}")]
    Broken(String),
    /// No answer in time.
    #[error("no answer in health.timeout: busy with a long prompt, or hung; restart the phone's app if it stays so")]
    TimedOut,
    /// We could not ask.
    #[error("not asked: {0}")]
    NotAsked(String),
}

fn progress(percent: Option<u8>) -> String {
    percent.map(|percent| format!(" ({percent} %)")).unwrap_or_default()
}

/// What a failed exchange says about the replica, and where to look.
impl From<Failure> for Finding {
    fn from(failure: Failure) -> Self {
        let text = match &failure {
            Failure::Resolve(error) => {
                format!("its name is not found ({error}); is the URL right, and does this machine's DNS work?")
            }
            Failure::Connect(error) => {
                format!("nobody accepts the connection ({error}): its relay is down, or the address is wrong")
            }
            Failure::ConnectTimeout => {
                "no connection in pool.connect_timeout: its relay, or the network on the way, is down".into()
            }
            Failure::Tls(error) if is_no_tls(error) => {
                format!("its TLS is not accepted ({error}); is it the right address?")
            }
            Failure::Certificate(breach) => format!("its certificate is refused, {breach}: {}", rule(*breach)),
            Failure::Tls(_) => {
                "the TLS handshake breaks off: the relay has no phone of this name; is it on, and its app open?".into()
            }
            Failure::OtherKey => {
                "its certificate carries another key than the chain says: somebody else answers under its \
                 name, or it was given the deployment anew and the chain has not said so yet"
                    .into()
            }
            Failure::TlsTimeout => {
                "silence in the TLS handshake: the phone has lost its network, or two phones share this name".into()
            }
            Failure::BeforeHead(_) | Failure::Stale(_) => {
                "the connection closes without an answer: the tunnel is up, the engine is not; is its app open?".into()
            }
            Failure::InBody(_) => "its answer breaks off; restart the phone's app if it stays so".into(),
            Failure::TooLarge(limit) => {
                format!("its answer is larger than {limit} bytes, which is no engine's; is it the right address?")
            }
            Failure::Forbidden(_) | Failure::Local(_) | Failure::Timeout | Failure::Request(_) => failure.to_string(),
        };
        let hard = failure.hard();
        match failure {
            Failure::Timeout => Self::TimedOut,
            Failure::Forbidden(_) => Self::Forbidden(text),
            Failure::Local(_) => Self::NotAsked(text),
            // The only part of a probe that an operator writes is the key.
            Failure::Request(_) => Self::WrongKey { status: 401 },
            _ => match hard {
                Some(HardFailure::Connect) => Self::Unreachable(text),
                Some(HardFailure::Tls) => Self::NotThere(text),
                Some(HardFailure::Certificate) => Self::Certificate(text),
                Some(HardFailure::Reset) => Self::Closed(text),
                None => Self::Broken(text),
            },
        }
    }
}

/// What a certificate has to be, and what to do where it is not.
fn rule(breach: Breach) -> &'static str {
    match breach {
        Breach::Expired => "it must be valid at this machine's time; renew it, and check this machine's clock",
        Breach::NotYetValid => "it must be valid at this machine's time; check this machine's clock, and the phone's",
        Breach::OtherName => "it must name the host of the address; is it the right address?",
        Breach::UnknownIssuer => {
            "one of this system or of pool.ca_file must have; add its authority to pool.ca_file, or check the address"
        }
        Breach::Form => {
            "it must be whole, and signed by the authority that it names; make it anew, or, if that authority was, put the new one into pool.ca_file"
        }
    }
}

impl Finding {
    /// What the scheduler is told; `None`: nothing was learned.
    pub fn report(&self) -> Option<Report> {
        Some(match self {
            Self::Ready => Report::Ready,
            Self::Loading { .. } => Report::Loading,
            Self::WrongKey { .. } | Self::NotServed(_) | Self::NoModels | Self::Forbidden(_) => Report::Misconfigured,
            Self::Unreachable(_) => Report::Unreachable,
            Self::NotThere(_) => Report::NotThere,
            Self::Certificate(_) | Self::Closed(_) | Self::WebPage { .. } => Report::Closed,
            Self::Status { .. } | Self::SaysError | Self::Strange { .. } | Self::Broken(_) => Report::Failing,
            Self::TimedOut => Report::TimedOut,
            Self::NotAsked(_) => return None,
        })
    }

    /// Whether nobody was there: no connection to it is worth keeping.
    pub(super) fn is_away(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::NotThere(_) | Self::Certificate(_) | Self::Closed(_))
    }

    /// One word, for logs and the admin API.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Loading { .. } => "loading",
            Self::WrongKey { .. } => "wrong_key",
            Self::NotServed(_) => "wrong_model",
            Self::NoModels => "no_models",
            Self::Forbidden(_) => "forbidden_address",
            Self::Unreachable(_) => "unreachable",
            Self::NotThere(_) => "not_there",
            Self::Certificate(_) => "certificate",
            Self::Closed(_) => "closed",
            Self::WebPage { .. } => "web_page",
            Self::Status { .. } => "bad_status",
            Self::SaysError => "engine_error",
            Self::Strange { .. } => "strange_answer",
            Self::Broken(_) => "broken_answer",
            Self::TimedOut => "timed_out",
            Self::NotAsked(_) => "not_asked",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use rustls::CertificateError;
    use scheduler::Outcome;

    use super::*;
    use crate::relay::Failed;

    #[test]
    fn busy_is_no_evidence_dead_is_and_wrong_needs_an_operator() {
        assert_eq!(Finding::TimedOut.report(), Some(Report::TimedOut));
        assert_eq!(Finding::WebPage { status: 200 }.report(), Some(Report::Closed));
        assert_eq!(Finding::WrongKey { status: 401 }.report(), Some(Report::Misconfigured));
        assert_eq!(Finding::NotAsked("no descriptors".into()).report(), None);
    }

    #[test]
    fn a_finding_says_what_to_do() {
        let finding = Finding::NotServed(NotServed { stated: "a".into(), reported: vec!["b".into()] });
        let text = finding.to_string();
        assert!(text.contains("\"a\"") && text.contains("\"b\"") && text.contains("replica_names"), "{text}");
        assert_eq!(Finding::Loading { percent: Some(40) }.to_string(), "loading its model (40 %)");
    }

    #[test]
    fn each_way_not_to_reach_a_phone_has_words_of_its_own() {
        let io = |kind| io::Error::new(kind, "system");
        let text = |failure: Failure| Finding::from(failure).to_string();
        assert!(text(Failure::Resolve(io(io::ErrorKind::Other))).contains("DNS"));
        assert!(text(Failure::Connect(io(io::ErrorKind::ConnectionRefused))).contains("relay is down"));
        assert!(text(Failure::Tls(io(io::ErrorKind::ConnectionReset))).contains("no phone of this name"));
        assert!(text(Failure::TlsTimeout).contains("two phones"));
    }

    #[test]
    fn a_refused_certificate_says_by_what_rule_and_blames_no_relay() {
        let refused = |error| {
            let error = rustls::Error::InvalidCertificate(error);
            Finding::from(Failure::handshake(io::Error::new(io::ErrorKind::InvalidData, error)))
        };
        let rules = [
            (CertificateError::Expired, "expired: it must be valid at this machine's time"),
            (CertificateError::NotValidYet, "not valid yet: it must be valid"),
            (CertificateError::NotValidForName, "another host's: it must name the host"),
            (CertificateError::UnknownIssuer, "pool.ca_file"),
            (CertificateError::BadSignature, "if that authority was, put the new one into pool.ca_file"),
        ];
        for (error, rule) in rules {
            let finding = refused(error);
            assert!(finding.to_string().contains(rule), "{finding}");
            assert_eq!((finding.report(), finding.name()), (Some(Report::Closed), "certificate"));
        }
    }

    #[test]
    fn only_what_stands_on_the_way_is_blamed_for_what_happens_on_the_way() {
        let io = |kind| io::Error::new(kind, "system");
        let report = |failure: Failure| Finding::from(failure).report();
        let lost = [
            Failure::Resolve(io(io::ErrorKind::Other)),
            Failure::Connect(io(io::ErrorKind::ConnectionRefused)),
            Failure::ConnectTimeout,
            Failure::TlsTimeout,
        ];
        assert!(lost.into_iter().all(|failure| report(failure) == Some(Report::Unreachable)));
        assert_eq!(report(Failure::Tls(io(io::ErrorKind::ConnectionReset))), Some(Report::NotThere));
        assert_eq!(report(Failure::OtherKey), Some(Report::Closed));
        assert_eq!(report(Failure::Tls(io(io::ErrorKind::InvalidData))), Some(Report::Closed));
    }

    #[test]
    fn an_attempt_and_a_probe_that_meet_the_same_blame_the_same() {
        let io = |kind| io::Error::new(kind, "system");
        let met = [
            Failure::Resolve(io(io::ErrorKind::Other)),
            Failure::Forbidden([10, 0, 0, 1].into()),
            Failure::Connect(io(io::ErrorKind::ConnectionRefused)),
            Failure::ConnectTimeout,
            Failure::TlsTimeout,
            Failure::handshake(io(io::ErrorKind::TimedOut)),
            Failure::handshake(io(io::ErrorKind::NetworkUnreachable)),
            Failure::handshake(io(io::ErrorKind::ConnectionReset)),
            Failure::handshake(io(io::ErrorKind::UnexpectedEof)),
            Failure::handshake(io(io::ErrorKind::InvalidData)),
            Failure::Tls(io(io::ErrorKind::InvalidInput)),
            Failure::Certificate(Breach::Expired),
            Failure::OtherKey,
        ];
        for failure in met {
            let (shown, attempt) = (failure.to_string(), Failed::transport(&failure).outcome);
            let told = match Finding::from(failure).report() {
                Some(Report::Unreachable) => Outcome::Hard(HardFailure::Connect),
                Some(Report::NotThere) => Outcome::Hard(HardFailure::Tls),
                Some(Report::Closed) => Outcome::Hard(HardFailure::Certificate),
                Some(Report::Misconfigured) => Outcome::Misconfigured,
                report => panic!("{shown}: {report:?}"),
            };
            assert_eq!(attempt, told, "{shown}");
        }
    }
}
