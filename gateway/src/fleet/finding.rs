//! What a probe found, for the scheduler and for people.

use scheduler::Report;

use super::naming::NotServed;

/// The result of one probe. Its text is shown to operators: the phone's own words are not in it, except names of
/// models, printable and short.
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
    #[error("it refuses the key ({status}); set the right api_key")]
    WrongKey {
        /// 401 or 403.
        status: u16,
    },
    /// It serves another model than stated.
    #[error(transparent)]
    NotServed(#[from] NotServed),
    /// It does not say what it serves, and neither does the operator.
    #[error("it does not say which models it serves; state them")]
    NoModels,
    /// The address policy forbids the connection.
    #[error("{0}")]
    Forbidden(String),
    /// Nobody is there.
    #[error("{0}")]
    Unreachable(String),
    /// A tunnel or web server answered in its place.
    #[error("a web page instead of the engine (status {status}): the tunnel answers, the phone does not")]
    WebPage {
        /// The page's status.
        status: u16,
    },
    /// An engine that is not well.
    #[error("its health is status {status}")]
    Status {
        /// What it answered.
        status: u16,
    },
    /// An engine that says that it is not well.
    #[error("it reports an error")]
    SaysError,
    /// Not what this engine answers.
    #[error("an answer that is not this engine's (status {status})")]
    Strange {
        /// Its status.
        status: u16,
    },
    /// The answer broke off, or is too large.
    #[error("{0}")]
    Broken(String),
    /// No answer in time.
    #[error("no answer in time")]
    TimedOut,
    /// We could not ask.
    #[error("not asked: {0}")]
    NotAsked(String),
}

fn progress(percent: Option<u8>) -> String {
    percent.map(|percent| format!(" ({percent} %)")).unwrap_or_default()
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
}
