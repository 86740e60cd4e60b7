//! The copies of one request that run now, and what happens next to any of them.
//!
//! Problem: a request may run on several replicas at once, and its client must see the answer of one. Choice: attempts are
//! futures in a small set, polled by the request's own task along with the core's words. A copy that is no longer wanted is
//! dropped, and its connection with it. Rejected: a task per copy (someone must end it, and it outlives its request), and a
//! place for the usual only copy inside the request's own state (every waiting request would carry it).

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::{Context, Poll},
};

use scheduler::{AttemptId, CancelReason};

use crate::dispatch::{Grant, Place, Shed, Word};

/// The copies under way. Each is known to the caller as an `R` and ends with a `T`.
pub struct Race<'a, R, T> {
    copies: Vec<Entrant<'a, R, T>>,
}

struct Entrant<'a, R, T> {
    attempt: AttemptId,
    runner: R,
    running: Pin<Box<dyn Future<Output = T> + Send + 'a>>,
}

/// What happened.
pub enum Turn<R, T> {
    /// A slot for another copy.
    Granted(Grant),
    /// The core ended this one.
    Cancelled(R, CancelReason),
    /// This one has come to its end.
    Ended(R, T),
    /// The core refuses the request.
    Shed(Shed),
}

impl<R, T> Default for Race<'_, R, T> {
    /// Nothing runs.
    fn default() -> Self {
        Self { copies: Vec::new() }
    }
}

impl<'a, R, T> Race<'a, R, T> {
    /// Another copy.
    pub fn start(&mut self, attempt: AttemptId, runner: R, running: impl Future<Output = T> + Send + 'a) {
        // Hardly ever are there two: no room for more than there are.
        self.copies.reserve_exact(1);
        self.copies.push(Entrant { attempt, runner, running: Box::pin(running) });
    }

    /// Whether no copy runs.
    pub fn is_empty(&self) -> bool {
        self.copies.is_empty()
    }

    /// Waits for what happens next. Cancel-safe.
    pub async fn next(&mut self, place: &Place) -> Turn<R, T> {
        loop {
            // The core comes first: what it has ended must not be found to have answered afterwards.
            let word = tokio::select! {
                biased;
                word = place.next() => word,
                (runner, end) = self.ended() => return Turn::Ended(runner, end),
            };
            match word {
                Word::Granted(grant) => return Turn::Granted(grant),
                Word::Shed(shed) => return Turn::Shed(shed),
                Word::Cancelled { attempt, why } => {
                    // Not there: an attempt that had ended by itself in the same moment.
                    if let Some(runner) = self.stop(attempt) {
                        return Turn::Cancelled(runner, why);
                    }
                }
            }
        }
    }

    /// Stops all copies, which closes their connections.
    pub fn stop_all(&mut self) -> impl Iterator<Item = R> + use<'_, 'a, R, T> {
        self.copies.drain(..).map(|copy| copy.runner)
    }

    fn stop(&mut self, attempt: AttemptId) -> Option<R> {
        let at = self.copies.iter().position(|copy| copy.attempt == attempt)?;
        Some(self.copies.remove(at).runner)
    }

    /// The first copy that comes to its end; never if there is none.
    async fn ended(&mut self) -> (R, T) {
        let (at, end) = poll_fn(|cx| self.poll(cx)).await;
        (self.copies.remove(at).runner, end)
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(usize, T)> {
        for (at, copy) in self.copies.iter_mut().enumerate() {
            if let Poll::Ready(end) = copy.running.as_mut().poll(cx) {
                return Poll::Ready((at, end));
            }
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use scheduler::{Effect, ShedReason};
    use tokio::sync::oneshot;

    use super::*;
    use crate::dispatch::testing::{Script, dispatched};

    /// A copy that ends when it is told to, and whose receiver knows whether it still runs.
    fn copy() -> (oneshot::Sender<&'static str>, impl Future<Output = &'static str>) {
        let (tell, told) = oneshot::channel();
        (tell, async { told.await.expect("the test tells every copy that runs") })
    }

    #[tokio::test]
    async fn copies_run_side_by_side_and_the_first_to_end_is_told_with_its_own_name() {
        let script = Script::new();
        let mut race = Race::default();
        let ((slow, slow_copy), (fast, fast_copy)) = (copy(), copy());
        race.start(AttemptId(1), "slow", slow_copy);
        race.start(AttemptId(2), "fast", fast_copy);
        fast.send("answer").expect("it runs");
        assert!(matches!(race.next(script.place()).await, Turn::Ended("fast", "answer")));
        assert!(!race.is_empty() && !slow.is_closed(), "the other runs on until it is stopped");
        assert_eq!(race.stop_all().collect::<Vec<_>>(), ["slow"]);
        assert!(race.is_empty() && slow.is_closed(), "and is dropped then");
    }

    #[tokio::test]
    async fn a_word_of_the_core_comes_before_an_answer_of_the_same_moment() {
        let script = Script::new();
        let mut race = Race::default();
        let (tell, running) = copy();
        race.start(AttemptId(1), "only", running);
        tell.send("answer").expect("it runs");
        script.cancel(AttemptId(1), CancelReason::GivenBack);
        assert!(matches!(race.next(script.place()).await, Turn::Cancelled("only", CancelReason::GivenBack)));
        assert!(race.is_empty());
    }

    #[tokio::test]
    async fn a_slot_is_told_while_a_copy_runs_and_the_end_of_a_copy_that_is_gone_is_not() {
        let script = Script::new();
        let mut race = Race::default();
        let (tell, running) = copy();
        race.start(AttemptId(1), "first", running);
        script.cancel(AttemptId(7), CancelReason::HedgeLost);
        script.say(dispatched(script.place(), 2, true));
        let Turn::Granted(grant) = race.next(script.place()).await else { panic!("a slot") };
        assert!(grant.is_hedge() && grant.attempt() == AttemptId(2));
        grant.cancelled();
        tell.send("answer").expect("the first still runs");
        assert!(matches!(race.next(script.place()).await, Turn::Ended("first", "answer")));
    }

    #[tokio::test]
    async fn what_waits_for_the_next_turn_can_be_dropped_and_loses_nothing() {
        let script = Script::new();
        let mut race: Race<'_, &str, &str> = Race::default();
        let (tell, running) = copy();
        race.start(AttemptId(1), "only", running);
        for _ in 0..3 {
            let soon = std::time::Duration::from_millis(1);
            assert!(tokio::time::timeout(soon, race.next(script.place())).await.is_err());
        }
        script.say(Effect::Reject {
            request: script.place().request(),
            reason: ShedReason::Deadline,
            retry_after: std::time::Duration::ZERO,
        });
        assert!(matches!(race.next(script.place()).await, Turn::Shed(shed) if shed.reason == ShedReason::Deadline));
        tell.send("answer").expect("it runs: what becomes of it is the caller's business");
        assert!(matches!(race.next(script.place()).await, Turn::Ended("only", "answer")));
    }

    #[tokio::test]
    async fn dropping_the_race_drops_its_copies() {
        let alive = Arc::new(());
        let mut race: Race<'_, (), ()> = Race::default();
        for number in 1..=3 {
            let held = Arc::clone(&alive);
            race.start(AttemptId(number), (), async move {
                std::future::pending::<()>().await;
                drop(held);
            });
        }
        assert_eq!(Arc::strong_count(&alive), 4);
        drop(race);
        assert_eq!(Arc::strong_count(&alive), 1);
    }
}
