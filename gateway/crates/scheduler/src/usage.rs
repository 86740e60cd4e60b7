//! What was asked of a model lately, what became of it, and what the replicas of the model are: the measurements that advice on
//! capacity is made of.
//!
//! Counts alone would say how much work there was. Whether more replicas would have answered in time depends on when it came
//! and on what prompts share, so the requests themselves are kept, the newest of each model: sizes as replicas counted them,
//! and the fingerprints of prompts, which are shared with whoever else holds them. Older peaks are kept as counts.

use std::collections::{BTreeMap, VecDeque};

use crate::{
    event::{Class, Timings},
    id::{AttemptId, ModelId, ReplicaId, RequestId, TenantId},
    prefix::Prefix,
    replica::Standing,
    request::Request,
    scheduler::Scheduler,
    speed::Pace,
    time::Timestamp,
};

/// Requests kept of each model. 4,096: an hour of one a second, in at most 6 MB of fingerprints where all prompts are long.
const MOST_REQUESTS: usize = 4096;
/// Counts are kept by so many nanoseconds: five minutes, so that a peak is one.
const SPAN: u64 = 300 * 1_000_000_000;
/// And for so many of these: a day.
const MOST_SPANS: usize = 288;

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It waits, or runs.
    Open,
    /// It has its whole answer.
    Answered,
    /// Its answer broke off, or it was at fault itself.
    Failed,
    /// It was refused, on its arrival or later.
    Refused,
    /// Its client left.
    Abandoned,
}

/// One request.
#[derive(Clone, Debug)]
pub struct Asked {
    /// How urgent.
    pub class: Class,
    /// Whose.
    pub tenant: TenantId,
    /// When it came.
    pub arrived: Timestamp,
    /// When the first token of its answer came from a replica.
    pub first_token: Option<Timestamp>,
    /// When it was over; `None` while it is open.
    pub ended: Option<Timestamp>,
    /// What became of it.
    pub fate: Fate,
    /// Tokens of the prompt: as a replica counted them, else as estimated.
    pub prompt_tokens: f64,
    /// Tokens of the whole answer: as counted where it is whole, else as expected.
    pub output_tokens: f64,
    /// Prompt tokens that its last attempt found cached.
    pub cached_tokens: f64,
    /// Slot time of all its attempts, those that came to nothing too, in seconds.
    pub slot_seconds: f64,
    /// Fingerprints of its prompt.
    pub prefix: Prefix,
}

/// What came in five minutes, by class as in [`Class::ALL`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// When they begin.
    pub start: Timestamp,
    /// Requests that came.
    pub arrivals: [u64; Class::ALL.len()],
    /// Slot time of requests that ended, in seconds.
    pub slot_seconds: [f64; Class::ALL.len()],
}

impl Span {
    /// How long one is, in seconds.
    pub const SECONDS: f64 = (SPAN / 1_000_000_000) as f64;
}

/// How long the replicas of a model lasted, and were away.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lives {
    /// Seconds in which they served, those of all replicas together.
    pub up_s: f64,
    /// Seconds in which they were away, between two times of serving or still.
    pub down_s: f64,
    /// How often one went away without having been told to.
    pub deaths: f64,
    /// How often one that had gone away served again.
    pub returns: f64,
}

impl Lives {
    /// The newest two hundred deaths say enough, and those of last month nothing.
    pub(crate) fn forget(&mut self) {
        if self.deaths >= 200.0 {
            for value in [&mut self.up_s, &mut self.down_s, &mut self.deaths, &mut self.returns] {
                *value /= 2.0;
            }
        }
    }
}

/// A replica, as far as capacity goes.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Which.
    pub replica: ReplicaId,
    /// It takes work, now or when a slot frees.
    pub serves: bool,
    /// It took work before, and went away by itself.
    pub away: bool,
    /// Slots it has.
    pub slots: u16,
    /// Tokens per second of one request alone on an empty context: reading, writing. The mean of the last two hours where it was
    /// measured, else stated or typical.
    pub rates: Option<(f64, f64)>,
    /// The rates are measured.
    pub measured: bool,
    /// When it was faster and slower than that, where it was measured.
    pub pace: Option<Pace>,
    /// What it really finds of what its cache should hold, from 0 to 1.
    pub cache: f64,
    /// Models it serves.
    pub models: u16,
}

impl Measured {
    /// It serves, or did and is away for now.
    pub const fn is_there(&self) -> bool {
        self.serves || self.away
    }
}

/// How a model slows down with context and with company, as learned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slowdown {
    /// Reading a token costs this much more, as a share, for every token before it.
    pub reading: f64,
    /// The same of writing.
    pub writing: f64,
    /// What each further stream costs all of a replica's streams, as a share.
    pub sharing: f64,
    /// Seconds before reading starts.
    pub overhead: f64,
}

/// Everything measured of one model.
#[derive(Clone, Debug)]
pub struct Usage {
    /// Which.
    pub model: ModelId,
    /// The moment of this copy.
    pub now: Timestamp,
    /// All requests that came since then are in `requests`; of class batch all that are open or ended since then.
    pub since: Timestamp,
    /// The requests, in the order of their arrival.
    pub requests: Vec<Asked>,
    /// Counts of what came in the window, the oldest first; those without a request are left out.
    pub spans: Vec<Span>,
    /// Its replicas.
    pub replicas: Vec<Measured>,
    /// How its replicas come and go.
    pub lives: Lives,
    /// How it slows down.
    pub slowdown: Slowdown,
    /// Counted prompt tokens over those estimated from bytes, in which the fingerprints' cuts are measured.
    pub token_ratio: f64,
}

/// What a live request adds up until it ends.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Account {
    pub(crate) first_token: Option<Timestamp>,
    slot_seconds: f64,
    prompt_tokens: f64,
    cached_tokens: f64,
    output_tokens: f64,
    pub(crate) fate: Option<Fate>,
}

/// What is kept of one model.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    ended: VecDeque<Asked>,
    /// Of what came until then, some are no longer kept.
    until: Timestamp,
    spans: VecDeque<Span>,
    pub(crate) lives: Lives,
}

impl Ledger {
    fn push(&mut self, asked: Asked) {
        if self.ended.len() >= MOST_REQUESTS
            && let Some(oldest) = self.ended.pop_front()
        {
            self.until = self.until.max(oldest.arrived);
        }
        if let Some(ended) = asked.ended {
            let class = asked.class as usize;
            if let Some(sum) = self.span(ended).slot_seconds.get_mut(class) {
                *sum += asked.slot_seconds;
            }
        }
        self.ended.push_back(asked);
    }

    pub(crate) fn arrived(&mut self, class: Class, now: Timestamp) {
        if let Some(count) = self.span(now).arrivals.get_mut(class as usize) {
            *count += 1;
        }
    }

    fn span(&mut self, now: Timestamp) -> &mut Span {
        let start = Timestamp(now.0 - now.0 % SPAN);
        let empty = Span { start, arrivals: Default::default(), slot_seconds: Default::default() };
        if self.spans.back().is_none_or(|last| last.start < start) {
            if self.spans.len() >= MOST_SPANS {
                self.spans.pop_front();
            }
            self.spans.push_back(empty);
        }
        let last = self.spans.len() - 1;
        &mut self.spans[last]
    }
}

impl Scheduler {
    /// What is measured of every model that requests came for or replicas serve, over the last `window_s` seconds, in the
    /// order of their numbers. A copy of some hundred kilobytes a model at most.
    pub fn usage(&self, window_s: f64, now: Timestamp) -> Vec<Usage> {
        let mut models: Vec<ModelId> = self.learned.keys().chain(self.pool.models.keys()).copied().collect();
        models.sort_unstable();
        models.dedup();
        models.into_iter().map(|model| self.usage_of(model, window_s, now)).collect()
    }

    /// Replicas of each model that are there now, as in [`Measured::is_there`], and their slots.
    pub fn there(&self) -> BTreeMap<ModelId, (usize, usize)> {
        let count = |pool: &crate::model_pool::ModelPool| {
            let members = pool.members.iter().filter_map(|id| self.pool.replicas.get(id));
            let there =
                members.filter(|replica| replica.standing() == Standing::Serving || replica.down_since.is_some());
            there.fold((0, 0), |(count, slots), replica| (count + 1, slots + usize::from(replica.spec.slots)))
        };
        self.pool.models.iter().map(|(model, pool)| (*model, count(pool))).collect()
    }

    fn usage_of(&self, model: ModelId, window_s: f64, now: Timestamp) -> Usage {
        let window = (window_s.max(0.0) * 1e9) as u64;
        let start = Timestamp(now.0.saturating_sub(window));
        let learned = self.learned.get(&model);
        let ledger = learned.map(|learned| &learned.ledger);
        let since = ledger.map_or(start, |ledger| start.max(ledger.until));
        let ended = ledger.into_iter().flat_map(|ledger| &ledger.ended).cloned();
        let open = self.requests.values().filter(|request| request.spec.model == model);
        let mut requests: Vec<Asked> = ended.chain(open.map(|request| self.asked(request, None, now))).collect();
        // Lines of batches may have waited for hours: those count by their end.
        let lately = |asked: &Asked| asked.class == Class::Batch && asked.ended.is_none_or(|ended| ended > since);
        let whole = since == start;
        requests.retain(|asked| asked.arrived > since || (whole && asked.arrived == since) || lately(asked));
        requests.sort_by_key(|asked| asked.arrived);
        let spans = ledger.into_iter().flat_map(|ledger| ledger.spans.iter().copied());
        let members = self.pool.models.get(&model).into_iter().flat_map(|pool| &pool.members);
        let typical = self.pool.models.get(&model).map(crate::model_pool::ModelPool::typical_rates);
        let replicas = members.filter_map(|id| {
            let replica = self.pool.replicas.get(id)?;
            let standing = replica.standing();
            let known = replica.speeds.prefill.known() && replica.speeds.decode.known();
            Some(Measured {
                replica: *id,
                serves: standing == Standing::Serving,
                away: replica.down_since.is_some(),
                slots: replica.spec.slots,
                rates: typical.map(|typical| replica.speeds.mean(now, typical)),
                measured: known,
                pace: replica.speeds.pace(now),
                cache: replica.slots.yield_(),
                models: u16::try_from(replica.spec.models.len()).unwrap_or(u16::MAX),
            })
        });
        Usage {
            model,
            now,
            since,
            requests,
            spans: spans.filter(|span| span.start.0 + SPAN > start.0).collect(),
            replicas: replicas.collect(),
            lives: self.lives(model, now),
            slowdown: learned.map(|learned| &learned.shape).cloned().unwrap_or_default().slowdown(),
            token_ratio: learned.map_or(1.0, |learned| learned.tokens.get()),
        }
    }

    /// With what is going on now.
    fn lives(&self, model: ModelId, now: Timestamp) -> Lives {
        let mut lives = self.learned.get(&model).map_or_else(Lives::default, |learned| learned.ledger.lives);
        let members = self.pool.models.get(&model).into_iter().flat_map(|pool| &pool.members);
        for replica in members.filter_map(|id| self.pool.replicas.get(id)) {
            lives.up_s += replica.up_since.map_or(0.0, |since| now.since(since).as_secs_f64());
            lives.down_s += replica.down_since.map_or(0.0, |since| now.since(since).as_secs_f64());
        }
        lives
    }

    /// A replica serves again, or does not any more: after so many seconds, of themselves.
    pub(crate) fn note_lives(&mut self, id: ReplicaId, change: impl Fn(&mut Lives)) {
        let Some(replica) = self.pool.replicas.get(&id) else { return };
        for model in &replica.spec.models {
            if let Some(learned) = self.learned.get_mut(model) {
                change(&mut learned.ledger.lives);
            }
        }
    }

    fn asked(&self, request: &Request, ended: Option<Timestamp>, now: Timestamp) -> Asked {
        let account = &request.account;
        let ratio = self.learned.get(&request.spec.model).map_or(1.0, |learned| learned.tokens.get());
        let counted = |counted: f64, else_: f64| if counted > 0.0 { counted } else { else_ };
        let running = request.copies();
        let running = running.iter().filter_map(|copy| self.attempts.get(&copy));
        let held: f64 = running.map(|attempt| now.since(attempt.started).as_secs_f64()).sum();
        Asked {
            class: request.spec.class,
            tenant: request.spec.tenant,
            arrived: request.arrived,
            first_token: account.first_token,
            ended,
            fate: if ended.is_some() { account.fate.unwrap_or(Fate::Failed) } else { Fate::Open },
            prompt_tokens: counted(account.prompt_tokens, f64::from(request.spec.prompt_tokens) * ratio),
            output_tokens: counted(account.output_tokens, request.plan.output),
            cached_tokens: account.cached_tokens,
            slot_seconds: account.slot_seconds + held,
            prefix: request.spec.prefix.clone(),
        }
    }

    /// The slot of an attempt is given back: its time is its request's.
    pub(crate) fn account_slot(&mut self, request: RequestId, seconds: f64) {
        if let Some(request) = self.requests.get_mut(&request) {
            request.account.slot_seconds += seconds;
        }
    }

    /// A first token came. One that nobody has seen counts for nothing once its attempt is replaced by another that begins anew.
    pub(crate) fn account_first_token(&mut self, id: AttemptId, now: Timestamp) {
        let Some(attempt) = self.attempts.get(&id) else { return };
        let anew = attempt.carried.is_none();
        let Some(request) = self.requests.get_mut(&attempt.request) else { return };
        let others = request.copies().count() > 1;
        if anew && !request.spec.stream && !others {
            request.account.first_token = Some(now);
        } else {
            request.account.first_token.get_or_insert(now);
        }
    }

    /// An attempt is over with a whole answer.
    pub(crate) fn account_answer(&mut self, request: RequestId, carried: Option<u32>, timings: Option<&Timings>) {
        let Some(request) = self.requests.get_mut(&request) else { return };
        let account = &mut request.account;
        account.fate = Some(Fate::Answered);
        let Some(timings) = timings else { return };
        let carried = f64::from(carried.unwrap_or(0));
        let cached = f64::from(timings.cached_tokens);
        account.prompt_tokens = (f64::from(timings.prefill_tokens) + cached - carried).max(0.0);
        account.cached_tokens = cached.min(account.prompt_tokens);
        account.output_tokens = f64::from(timings.decode_tokens) + carried;
    }

    /// It ends like that.
    pub(crate) fn account_fate(&mut self, request: RequestId, fate: Fate) {
        if let Some(request) = self.requests.get_mut(&request) {
            request.account.fate.get_or_insert(fate);
        }
    }

    /// A request is over, and gone from the live ones.
    pub(crate) fn account_end(&mut self, request: &Request, now: Timestamp) {
        let asked = self.asked(request, Some(now), now);
        if let Some(learned) = self.learned.get_mut(&request.spec.model) {
            learned.ledger.push(asked);
        }
    }
}
