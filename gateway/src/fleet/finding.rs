//! What a probe found, for the scheduler and for people.

use std::io;

use scheduler::Report;

use super::naming::NotServed;
use crate::upstream::Failure;

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
    /// Nobody is there.
    #[error("{0}")]
    Unreachable(String),
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
            Failure::Tls(error) if error.kind() == io::ErrorKind::InvalidData => format!(
                "its certificate or TLS is not accepted ({}); is it the right address? own authorities go into pool.ca_file",
                without_clock(&error.to_string())
            ),
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
        match failure {
            Failure::Timeout => Self::TimedOut,
            Failure::Forbidden(_) => Self::Forbidden(text),
            Failure::Local(_) => Self::NotAsked(text),
            // The only part of a probe that an operator writes is the key.
            Failure::Request(_) => Self::WrongKey { status: 401 },
            _ if failure.hard().is_some() => Self::Unreachable(text),
            _ => Self::Broken(text),
        }
    }
}

/// rustls' words about an expired certificate, without the seconds since 1970 that follow them.
fn without_clock(text: &str) -> &str {
    text.split(": verification time").next().unwrap_or(text)
}

impl Finding {
    /// What the scheduler is told; `None`: nothing was learned.
    pub fn report(&self) -> Option<Report> {
        Some(match self {
            Self::Ready => Report::Ready,
            Self::Loading { .. } => Report::Loading,
            Self::WrongKey { .. } | Self::NotServed(_) | Self::NoModels | Self::Forbidden(_) => Report::Misconfigured,
            Self::Unreachable(_) | Self::WebPage { .. } => Report::Unreachable,
            Self::Status { .. } | Self::SaysError | Self::Strange { .. } | Self::Broken(_) => Report::Failing,
            Self::TimedOut => Report::TimedOut,
            Self::NotAsked(_) => return None,
        })
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
    use super::*;

    #[test]
    fn busy_is_no_evidence_dead_is_and_wrong_needs_an_operator() {
        assert_eq!(Finding::TimedOut.report(), Some(Report::TimedOut));
        assert_eq!(Finding::WebPage { status: 200 }.report(), Some(Report::Unreachable));
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
        let expired = "certificate expired: verification time 7 (UNIX), but certificate is not valid after 5";
        let wrong = text(Failure::Tls(io::Error::new(io::ErrorKind::InvalidData, expired)));
        assert!(wrong.contains("(certificate expired)") && wrong.contains("pool.ca_file"), "{wrong}");
    }
}
