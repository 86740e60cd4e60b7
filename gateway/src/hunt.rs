//! From a place in the queue to the end of the answer: which copies of a request run, which of them is its answer, and what
//! happens when a replica goes away.
//!
//! An answer that breaks off is kept, and the loop goes on: the core grants another slot, and that attempt carries the answer
//! on where the last one stopped. To the core it is an attempt like others, to the client one stream; between the two, comments
//! keep the connection alive as they do in the queue. What a client was promised holds here too: an answer that nobody carries
//! on ends in an error event and an aborted connection, never in a clean end.

use std::{ops::ControlFlow, pin::pin, sync::Arc, time::Duration};

use openai_wire::AnswerStream;
use pingora::http::ResponseHeader;
use scheduler::{CancelReason, Carry, Left, Outcome, RequestSpec, Timings};

use crate::{
    continued::{Continued, Origin},
    dispatch::{Grant, Place, Shed},
    error::ApiError,
    fleet::{Dialect, Replica},
    gateway::{Gateway, Held},
    listener::Exchange,
    live::Entry,
    race::{Race, Turn},
    ratelimit::Queued,
    refusal::{Stop, cancelled, lost, refused},
    relay::{
        self, Attempt, Broken, Client, Decided, Failed, Finished, Partial, Shape, Stream, Unfinished, head::Facts,
    },
    telemetry::{
        AttemptRecord, AttemptTold, RequestRecord,
        names::{
            CONTINUATION_FAILED, CONTINUED_OTHER_GROUP, CONTINUED_SAME_GROUP, OUTCOME_CANCELLED, OUTCOME_CLIENT_GONE,
            OUTCOME_GIVEN_BACK, OUTCOME_HEDGE_LOST, OUTCOME_OK,
        },
    },
};

/// A copy that was sent.
pub struct Runner {
    /// Its slot.
    grant: Grant,
    /// Where it runs.
    replica: Arc<Replica>,
    /// Accounts for it.
    record: AttemptRecord,
    /// Where the part comes from that it carries on; `None` if it begins anew.
    origin: Option<Origin>,
}

/// A request that waits for a slot or runs on one, or on several.
pub struct Hunt<'a> {
    /// Settings, the pool, the core.
    pub gateway: &'a Gateway,
    /// The client.
    pub exchange: &'a mut Exchange,
    /// Accounts for the request.
    pub record: &'a mut RequestRecord,
    /// What the core was told.
    pub spec: &'a RequestSpec,
    /// Its place in the queue.
    pub place: &'a Place,
    /// What every head says.
    pub facts: &'a Facts<'a>,
    /// Its line in the operator's list.
    pub entry: &'a Entry,
    /// Room for what is buffered.
    pub held: &'a Held,
    /// How the answer has to look.
    pub shape: &'a Shape<'a>,
    /// The copies of which the client has seen nothing.
    pub race: Race<'a, Runner, Result<Decided<'a>, Unfinished>>,
    /// What there is of an answer that broke off, and who has written it.
    pub continued: Continued,
    /// Its place in the tenant's queue, until the first slot is its.
    pub queued: Option<Queued>,
    /// How the last attempt failed.
    pub last: Option<Failed>,
}

/// Tokens used, if known; or the request goes on.
type Next = ControlFlow<Option<u64>>;

impl<'a> Hunt<'a> {
    /// Waits for slots, sends a copy to each, and gives the client the first answer; and again, as long as it is not whole.
    /// Tokens used, if known.
    pub async fn run(&mut self) -> Result<Option<u64>, Stop> {
        loop {
            let turn = self.exchange.drive(pin!(self.race.next(self.place))).await;
            let next = match turn.inspect_err(|_| self.stop_all(OUTCOME_CLIENT_GONE))? {
                Turn::Granted(grant) => self.send(grant),
                Turn::Shed(shed) => return Err(self.shed(shed)),
                Turn::Cancelled(runner, why) => self.cancelled(runner, why),
                Turn::Ended(runner, Err(Unfinished::Failed(failed))) => self.fail_over(runner, failed)?,
                Turn::Ended(runner, Err(Unfinished::Lost(lost))) => self.keep(runner, *lost)?,
                Turn::Ended(runner, Err(Unfinished::Refused(error))) => return Err(self.give_up(runner, error)),
                // It was on its way when the head of a stream went out.
                Turn::Ended(runner, Ok(Decided::Whole(_))) if self.shape.is_stream() && self.exchange.head_sent() => {
                    self.fail_over(runner, Failed::not_a_stream())?
                }
                Turn::Ended(runner, Ok(Decided::Whole(answer))) => self.deliver(runner, answer).await?,
                Turn::Ended(runner, Ok(Decided::Begun(stream))) => match runner.grant.first_token() {
                    Ok(()) => self.copy(runner, stream).await?,
                    Err(why) => self.cancelled(runner, why),
                },
            };
            if let ControlFlow::Break(used) = next {
                return Ok(used);
            }
        }
    }

    /// What the client has seen of the answer, for the event that ends it.
    pub fn seen(&self) -> Option<&AnswerStream> {
        self.continued.codec()
    }

    /// Sends a copy on its way: with what is to be carried on, or from the beginning.
    fn send(&mut self, grant: Grant) -> Next {
        self.queued = None;
        let replica = self.gateway.fleet.replica(grant.replica());
        let named = replica.as_ref().and_then(|replica| replica.model_name(self.spec.model));
        let (Some(replica), Some(model)) = (replica, named) else {
            // Removed, or its model changed, in this very moment.
            grant.end(Outcome::Misconfigured, self.continued.left(), None);
            return Next::Continue(());
        };
        if grant.is_hedge() {
            tracing::info!(request = %self.exchange.id(), replica = %replica.label, "second copy");
        }
        let (seam, origin) = self.continued.seam(grant.carries_on(), &replica).unzip();
        let behind = origin.as_ref().map_or(0, |origin| origin.tokens);
        let attempt = Attempt {
            gateway: self.gateway,
            shape: self.shape,
            replica: Arc::clone(&replica),
            model,
            number: grant.attempt(),
            expected: self.gateway.expected(&replica, self.spec.prompt_tokens.saturating_add(behind)),
            held: self.held,
            entry: self.entry,
            head_sent: self.exchange.head_sent(),
            seam,
        };
        self.gateway.log_placement(self.exchange.id(), self.place.request());
        if self.race.is_empty() {
            self.shape.begin();
        }
        let mut record = self.record.dispatched(&replica.label, grant.is_hedge(), &replica.price());
        record.tell(|| AttemptTold {
            host: replica.url.host(),
            port: replica.url.port(),
            engine: replica.dialect().map(Dialect::name),
            carries_on: origin.is_some(),
        });
        self.race.start(grant.attempt(), Runner { grant, replica, record, origin }, attempt.run());
        Next::Continue(())
    }

    /// The core ended an attempt of which the client has seen nothing: the request waits, unless another copy runs.
    fn cancelled(&mut self, runner: Runner, why: CancelReason) -> Next {
        let outcome = outcome(why);
        tracing::info!(request = %self.exchange.id(), replica = %runner.replica.label, outcome, ?why, "stopped");
        self.record.attempt_ended(runner.record, outcome);
        runner.grant.cancelled();
        Next::Continue(())
    }

    /// What a failed attempt means for its request: another one, unless it would be the same.
    fn fail_over(&mut self, runner: Runner, failed: Failed) -> Result<Next, Stop> {
        // The record first: what the core does about the replica is logged with its reason.
        self.record.attempt_ended(runner.record, failed.name);
        runner.grant.end(failed.outcome, self.continued.left(), None);
        self.go_on(&runner.replica, failed)
    }

    /// The same, but it has left a part that nobody has seen. The longest is kept.
    fn keep(&mut self, runner: Runner, lost: relay::Lost) -> Result<Next, Stop> {
        let relay::Lost { failed, timings, partial } = lost;
        let (left, _) = self.continued.judge(&partial, self.shape);
        if left != Left::Nothing && partial.length() > self.continued.length() {
            self.wrote(&runner);
            self.continued.keep(partial, left);
            self.record.attempt_broke_off(runner.record, failed.name, writing(timings));
        } else {
            self.record.attempt_ended(runner.record, failed.name);
        }
        runner.grant.end(failed.outcome, self.continued.left(), timings);
        self.go_on(&runner.replica, failed)
    }

    fn go_on(&mut self, replica: &Replica, failed: Failed) -> Result<Next, Stop> {
        if failed.is_final() {
            self.stop_all(OUTCOME_HEDGE_LOST);
            return Err(failed.answer.map_or(ApiError::Internal, ApiError::Upstream).into());
        }
        let others = !self.race.is_empty();
        if !others {
            self.gateway.telemetry.failover(failed.phase, failed.name);
        }
        let what = if others { "a copy failed" } else { "failover" };
        tracing::info!(request = %self.exchange.id(), replica = %replica.label, why = failed.name, "{what}");
        self.last = Some(failed);
        Ok(Next::Continue(()))
    }

    /// The answer is there, and can't be taken.
    fn give_up(&mut self, runner: Runner, error: ApiError) -> Stop {
        self.record.attempt_ended(runner.record, relay::OURS);
        self.stop_all(relay::OURS);
        error.into()
    }

    /// The core refuses the request.
    fn shed(&mut self, shed: Shed) -> Stop {
        self.stop_all(OUTCOME_CANCELLED);
        if self.continued.is_seen() {
            self.gateway.telemetry.continuation(CONTINUATION_FAILED);
            return lost(&shed, self.last.as_ref()).into();
        }
        self.gateway.with_numbers(refused(shed, self.last.take()), self.spec).into()
    }

    /// Ends all copies that run.
    fn stop_all(&mut self, outcome: &'static str) {
        for runner in self.race.stop_all() {
            self.record.attempt_ended(runner.record, outcome);
            runner.grant.cancelled();
        }
    }

    /// This answer is the client's: copies it, to its end or to where it breaks off.
    async fn copy(&mut self, runner: Runner, mut stream: Box<Stream<'a>>) -> Result<Next, Stop> {
        self.stop_all(OUTCOME_HEDGE_LOST);
        if stream.has_begun() {
            self.record.first_token();
        }
        self.wrote(&runner);
        let stopped = pin!(self.place.stopped(runner.grant.attempt()));
        let head = Some(self.head(true, &runner.replica));
        let mut client = Client { exchange: self.exchange, head, entry: self.entry, stopped };
        let Err(broken) = stream.copy(&mut client).await else {
            let (mut finished, partial) = stream.finish();
            self.continued.keep(partial, Left::Closed);
            if let Some(comment) = self.continued.comment(self.gateway.config().server.expose_replica) {
                finished.comment(&comment);
            }
            return self.deliver(runner, finished).await;
        };
        let (timings, partial) = stream.broken();
        self.broke_off(runner, broken, timings, partial)
    }

    /// An answer that its client was reading broke off: the request goes on if another replica can carry it on.
    fn broke_off(
        &mut self,
        runner: Runner,
        broken: Broken,
        timings: Option<Timings>,
        partial: Partial,
    ) -> Result<Next, Stop> {
        let (mut left, lost) = self.continued.judge(&partial, self.shape);
        let tokens = partial.length();
        let Runner { grant, replica, record, .. } = runner;
        let (name, by_core, error) = match broken {
            Broken::Interrupted(interrupted) => {
                self.continued.keep(partial, left);
                self.record.attempt_ended(record, OUTCOME_CLIENT_GONE);
                return Err(interrupted.into());
            }
            Broken::Cancelled(why) => {
                self.record.attempt_broke_off(record, outcome(why), writing(timings));
                grant.cancelled();
                (outcome(why), Some(why), cancelled(why))
            }
            Broken::Failed(failed) => {
                self.record.attempt_broke_off(record, failed.name, writing(timings));
                if failed.is_final() {
                    left = Left::Closed;
                }
                let before = grant.end(failed.outcome, left, timings);
                let words = failed.answer.clone();
                let error =
                    before.map_or_else(|| words.map_or(ApiError::Lost(failed.name), ApiError::Upstream), cancelled);
                let name = failed.name;
                self.last = Some(failed);
                (name, before, error)
            }
        };
        self.continued.keep(partial, left);
        let id = self.exchange.id();
        if left != Left::Closed && by_core.is_none_or(|why| self.is_queued_again(why)) {
            tracing::info!(request = %id, replica = %replica.label, why = name, tokens, "broke off, to be carried on");
            return Ok(Next::Continue(()));
        }
        let lost = lost.filter(|_| by_core != Some(CancelReason::Deadline));
        if let Some(outcome) = lost {
            self.gateway.telemetry.continuation(outcome);
        }
        tracing::info!(request = %id, replica = %replica.label, why = name, tokens, lost, "broke off for good");
        Err(error.into())
    }

    /// Whether the core goes on with a request of which it has ended the attempt that its client was reading.
    fn is_queued_again(&self, why: CancelReason) -> bool {
        self.spec.carry != Carry::Never && matches!(why, CancelReason::ReplicaRemoved | CancelReason::DrainDeadline)
    }

    /// A copy has written something of the answer, or ended it.
    fn wrote(&mut self, runner: &Runner) {
        if runner.origin.is_none() {
            self.record.begins_anew();
        }
        self.continued.wrote(&runner.replica, runner.origin.as_ref());
        if let Some(Origin { from, tokens, same_group, .. }) = &runner.origin {
            let (id, to) = (self.exchange.id(), &runner.replica.label);
            tracing::info!(request = %id, %from, %to, tokens, same_group, "carried on");
            self.gateway.telemetry.continuation(if *same_group { CONTINUED_SAME_GROUP } else { CONTINUED_OTHER_GROUP });
        }
    }

    /// Writes what is left of a whole answer, and frees its slot before that.
    async fn deliver(&mut self, runner: Runner, answer: Finished) -> Result<Next, Stop> {
        self.stop_all(OUTCOME_HEDGE_LOST);
        if !answer.streamed {
            self.wrote(&runner);
        }
        if let Some((usage, estimated)) = &answer.usage {
            self.record.usage(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, *estimated);
        }
        if let Some(timings) = &answer.timings {
            self.record.timed(timings.prefill, timings.decode);
        }
        self.record.attempt_ended(runner.record, OUTCOME_OK);
        let outcome = if answer.cut_short { Outcome::CutShort } else { Outcome::Success };
        runner.grant.end(outcome, Left::Closed, answer.timings);
        self.record.status(200);
        let used = answer.used();
        let head = self.head(answer.streamed, &runner.replica);
        relay::deliver(self.exchange, answer, head).await?;
        Ok(Next::Break(used))
    }

    /// The head of the answer, with how it came about.
    fn head(&self, streamed: bool, replica: &Replica) -> Box<ResponseHeader> {
        let mut head = if streamed { relay::head::stream(self.facts) } else { relay::head::plain(200, self.facts) };
        let shown = self.gateway.config().server.expose_replica.then_some(&replica.label);
        relay::head::trace(&mut head, self.record, shown);
        if !streamed {
            relay::head::continued(&mut head, self.continued.times());
        }
        head
    }
}

/// Slot time in which an attempt wrote.
fn writing(timings: Option<Timings>) -> Duration {
    timings.map_or(Duration::ZERO, |timings| timings.decode)
}

/// The outcome of an attempt that the core ended.
fn outcome(why: CancelReason) -> &'static str {
    match why {
        CancelReason::HedgeLost => OUTCOME_HEDGE_LOST,
        CancelReason::GivenBack => OUTCOME_GIVEN_BACK,
        CancelReason::ReplicaRemoved | CancelReason::DrainDeadline | CancelReason::Deadline => OUTCOME_CANCELLED,
    }
}
