//! A look at the slots of a llama-server: how many of them work, for anybody.
//!
//! The list is asked for beside the probe, never in its place: it is answered only between two batches of a prompt, so a busy
//! phone is late with it, and that would look like a phone that is not well.

use std::time::Duration;

use scheduler::Timestamp;
use serde_json::Value;

use super::{answer::Answer, replica::Replica};
use crate::{clock, upstream::Upstream};

/// Longest wait for the list. 9 s: the scheduler gives a look up after 10.
const LONGEST: Duration = Duration::from_secs(9);

/// What a look showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Slots that work.
    pub busy: u16,
    /// When the question was sent.
    pub asked: Timestamp,
}

/// Asks a replica for its slots, within `limit`. `None` where it does not say: then nothing was learned.
pub(super) async fn look(upstream: &Upstream, replica: &Replica, limit: Duration) -> Option<Seen> {
    let asked = clock::now();
    let answer = upstream.get(&replica.endpoint, "/slots", replica.bearer(), limit.min(LONGEST)).await.ok()?;
    Some(Seen { busy: busy(&Answer::read(&answer))?, asked })
}

/// How many slots of a list work; `None` if it does not tell (it may be switched off: 501).
pub(super) fn busy(answer: &Answer) -> Option<u16> {
    let slots = answer.ok()?.as_array().filter(|slots| !slots.is_empty())?;
    let working = |slot: &Value| slot.get("is_processing").and_then(Value::as_bool);
    let busy = slots.iter().try_fold(0_usize, |busy, slot| Some(busy + usize::from(working(slot)?)))?;
    Some(u16::try_from(busy).unwrap_or(u16::MAX))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn slots_that_work_are_counted() {
        let list = json!([{"id": 0, "is_processing": true}, {"id": 1, "is_processing": false, "n_ctx": 2048}]);
        assert_eq!(busy(&Answer::Json(200, list)), Some(1));
    }

    #[test]
    fn what_is_no_list_of_slots_tells_nothing() {
        let off = json!({"error": {"code": 501, "message": "This server does not support slots endpoint."}});
        assert_eq!(busy(&Answer::Json(501, off)), None);
        for odd in [json!([]), json!({}), json!([{"id": 0}]), json!([{"is_processing": true}, 7])] {
            assert_eq!(busy(&Answer::Json(200, odd)), None);
        }
        assert_eq!(busy(&Answer::Html(200)), None);
    }
}
