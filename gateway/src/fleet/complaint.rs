//! Why a replica gets no work, in words that say what to do.
//!
//! Probes know why a phone can't be reached. They do not know why one whose health is fine fails the requests that it is
//! given: that only its attempts tell. Rejected: the scheduler's reason alone, which is one of ten words.

use scheduler::{Limit, ReplicaState};

use super::{finding::Finding, pool::Fleet, replica::Replica};
use crate::clock;

/// For how long a replica that works all the same is shown with what its phone complained of. An hour: whoever looks at all sees it, and
/// what has been well for that long is. `replicas show` tells it for good.
const COMPLAINS_FOR_MS: u64 = 3_600_000;

impl Fleet {
    /// What is wrong with a replica: its last probe's finding, or else how its last failed attempt ended.
    pub fn complaint(&self, replica: &Replica) -> Option<String> {
        let found = self.found(replica);
        let said = replica.past().said.as_ref().and_then(|said| said.problem.clone());
        match (found, said) {
            (Some(found), Some(said)) => Some(format!("{found} (the phone says: {said})")),
            (None, Some(said)) => Some(format!("the phone says: {said}")),
            (found, None) => found,
        }
    }

    /// What is to be known of a replica that is well: why it is spared, what its phone lately said is wrong, or others who use it.
    pub fn hindrance(&self, replica: &Replica, foreign: u16) -> Option<String> {
        let past = replica.past();
        let paused = (past.limited.level() == Limit::Paused).then(|| past.limited.reason.clone());
        let now_ms = clock::unix_ms();
        let said = past.said.as_ref().filter(|said| now_ms.saturating_sub(said.at_ms) < COMPLAINS_FOR_MS);
        let said = said.and_then(|said| said.problem.as_ref()).map(|problem| format!("the phone says: {problem}"));
        paused.or(said).or_else(|| crowded(foreign))
    }

    fn found(&self, replica: &Replica) -> Option<String> {
        let (finding, state) = {
            let past = replica.past();
            (past.probe.as_ref().map(|probe| probe.finding.clone()), past.state)
        };
        // One that was never reached is asked nothing yet.
        let is_asked = |finding: &Finding| *finding == Finding::Ready || state == ReplicaState::Quarantine;
        match finding {
            Some(finding @ (Finding::Ready | Finding::TimedOut)) if is_asked(&finding) && self.is_unproven(replica) => {
                self.quarantine_reason(replica)
            }
            // Silence may mean that it is busy. How its requests fail says more.
            None | Some(Finding::Ready | Finding::TimedOut) => {
                let outcome = self.telemetry.last_failure(&replica.label);
                outcome
                    .and_then(words)
                    .map(str::to_owned)
                    .or(finding.filter(|finding| *finding != Finding::Ready).map(|finding| finding.to_string()))
            }
            Some(finding) => Some(finding.to_string()),
        }
    }
}

/// What is to be said of a replica that is well, where slots of it work for others.
fn crowded(foreign: u16) -> Option<String> {
    (foreign > 0).then(|| {
        let slots = if foreign == 1 { "a slot is" } else { "slots are" };
        format!("{foreign} {slots} busy with work that is not ours: who else uses this phone?")
    })
}

/// What an attempt's outcome says about its replica; `None` for those that say nothing.
fn words(outcome: &str) -> Option<&'static str> {
    Some(match outcome {
        "resolve" => "requests don't reach it: its name is not found",
        "connect" => "requests don't reach it: nobody accepts the connection",
        "certificate" => "requests don't reach it: its certificate is refused",
        "tls" => "requests don't reach it: the TLS handshake fails",
        "reset" => "the connection closes before an answer, though its health is fine; restart the phone's app",
        "forbidden" => "its address is private, and pool.allow_private is off",
        "request" => "its api_key can't be sent: it holds a character that no header may have",
        "loading" => "it says to requests that its model is loading",
        "misconfigured" => "it refuses the key or does not know the model, though its health is fine",
        "busy" => "it says that it is full: somebody else uses it, or it has fewer slots than stated",
        "status" => {
            "the engine fails requests with a status of 5xx, though its health is fine; restart the phone's app"
        }
        "not_engine" | "not_a_stream" => "requests are answered with something that is no engine's; is its app open?",
        "malformed" => "its answers are not in the shape of its API; is it the right dialect?",
        "too_large" => "its answers are larger than streams.max_event or streams.max_answer allow",
        "timeout" | "no_first_token" => {
            "requests get no first token in time, though its health is fine: too slow for them, or hung; restart the phone's app"
        }
        "stalled" => "its answers stop in the middle; it is too hot, or its network is bad",
        "broken" | "cut" => "its answers break off in the middle: its network, or its app, fails under way",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::names::BLAMELESS;

    #[test]
    fn what_is_no_fault_of_the_replica_is_no_complaint() {
        for outcome in BLAMELESS {
            assert_eq!(words(outcome), None, "{outcome}");
        }
        assert!(words("status").unwrap().contains("5xx"));
    }

    #[test]
    fn every_outcome_of_an_attempt_that_the_documents_name_is_known_here() {
        let documents = include_str!("../../docs/metrics.md");
        let (_, rest) = documents.split_once("### `huntgroup_attempts_total`").unwrap();
        let (section, _) = rest.split_once("### ").unwrap();
        let rows = section.lines().filter(|line| line.starts_with("| `"));
        let named: Vec<&str> =
            rows.flat_map(|row| row.split('|').nth(1).unwrap().split('`').skip(1).step_by(2)).collect();
        assert!(named.len() > 20, "{named:?}");
        for outcome in named {
            assert!((outcome == "ok" || BLAMELESS.contains(&outcome)) != words(outcome).is_some(), "{outcome}");
        }
    }
}
