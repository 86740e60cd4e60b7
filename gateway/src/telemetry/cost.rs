//! What the pool costs, and what for.
//!
//! A replica costs its price for as long as it is in the pool, used or not. Of that, slots of attempts took a part; what they
//! did not take is idle cost. So there are two kinds of time here, replicas' and attempts', and each moment of each is written
//! down once: with every change, every end and every look, from where it was written down last to now. What a look shows
//! does not depend on how often anybody looks, and nothing drifts: used, wasted and idle cost are what the pool costs.
//!
//! A replica without a price has no cost, which is not 0: its time is counted beside, so that whoever reads the sums
//! knows what is not in them.
//!
//! Written down is what has been since the process began, and, in slices of five minutes, what has been in the last day: time that
//! reaches over several slices is split among them, also afterwards, when it shows that a long attempt was for nothing.
//! Names are bounded, and only replicas that have shown what they can do open lines. When all are taken, a new name gets the line of the one
//! that was written to longest ago and that nothing in the pool has any more: what it had goes to `other`, so the sums stay what they are.
//! Rejected: a tick that samples the pool (what comes and goes in between is never seen), and floats that go up and down with
//! what runs (their errors stay).

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use prometheus::{CounterVec, Gauge, GaugeVec, Registry};
use scheduler::{ReplicaId, Timestamp};

use super::{
    OTHER,
    account::{Account, Answer, Price, Sheet, Upkeep, Whose},
    metrics::{MODELS_MAX, float_counters, gauge, gauges},
    names,
    tenants::TENANTS_MAX,
};

/// Length of a slice. 5 minutes: "the last hour" is then 60 to 65 minutes.
const SLICE: Duration = Duration::from_mins(5);
/// Slices that are kept besides the one that runs: those of a day.
const SLICES: u64 = 288;
/// Deployments with numbers of their own; those past it are counted together. As many as tenants.
const DEPLOYMENTS_MAX: usize = 100;

/// A running attempt; it is to be ended once.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Meter(u64);

struct Running {
    whose: Whose,
    acu_per_second: Option<f64>,
    started: Timestamp,
    /// It is written down up to here.
    written: Timestamp,
}

struct Kept {
    upkeep: Upkeep,
    /// It is written down up to here.
    written: Timestamp,
}

/// What a time is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// The last hour, 5 minutes more at most.
    Hour,
    /// The last day, 5 minutes more at most.
    Day,
    /// All since the process began.
    All,
}

/// What the books say about a time.
#[derive(Clone, Debug, PartialEq)]
pub struct Statement {
    /// Its length: shorter than the window until the process has run that long.
    pub length: Duration,
    /// Since counting began.
    pub counted: Duration,
    /// What has been in it.
    pub sheet: Sheet,
    /// What the pool costs now.
    pub now: PoolPrice,
    /// What `other` has of models whose lines were given to others since counting began.
    pub dropped: Account,
}

/// What the pool costs at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PoolPrice {
    /// Replicas with a price.
    pub priced: u32,
    /// Replicas without one.
    pub unpriced: u32,
    /// All prices together, in ACU a day.
    pub acu_per_day: f64,
    /// The same by model, of models that have a replica with a price.
    pub by_model: BTreeMap<Arc<str>, f64>,
}

/// Keeps the books. Shared; a call holds a lock for a handful of additions, a look for one for each replica and attempt.
pub(super) struct Ledger(Mutex<Books>);

struct Books {
    began: Timestamp,
    pool: BTreeMap<ReplicaId, Kept>,
    running: BTreeMap<u64, Running>,
    next: u64,
    total: Sheet,
    /// What `other` has in `total` of models whose lines were given to others.
    dropped: Account,
    /// What has been lately, by number of the slice, in order; slices in which nothing was are left out.
    slices: VecDeque<(u64, Sheet)>,
}

impl Ledger {
    /// Of a gateway that begins now.
    pub(super) fn new(now: Timestamp) -> Self {
        Self(Mutex::new(Books {
            began: now,
            pool: BTreeMap::new(),
            running: BTreeMap::new(),
            next: 0,
            total: Sheet::default(),
            dropped: Account::default(),
            slices: VecDeque::new(),
        }))
    }

    /// A replica is in the pool, like this from now on.
    pub(super) fn keep(&self, replica: ReplicaId, mut upkeep: Upkeep, now: Timestamp) {
        let mut books = self.books();
        books.label(&mut upkeep);
        books.settle_replica(replica, now);
        books.pool.insert(replica, Kept { upkeep, written: now });
    }

    /// A replica of the pool takes work from now on, or does not.
    pub(super) fn takes_work(&self, replica: ReplicaId, takes_work: bool, now: Timestamp) {
        let mut books = self.books();
        books.settle_replica(replica, now);
        if let Some(kept) = books.pool.get_mut(&replica) {
            kept.upkeep.takes_work = takes_work;
        }
    }

    /// A replica has left the pool.
    pub(super) fn left(&self, replica: ReplicaId, now: Timestamp) {
        let mut books = self.books();
        books.settle_replica(replica, now);
        books.pool.remove(&replica);
    }

    /// An attempt takes a slot. The price of that moment holds until its end.
    pub(super) fn begin(&self, model: &Arc<str>, tenant: &Arc<str>, price: &Price, now: Timestamp) -> Meter {
        let mut books = self.books();
        let whose = books.whose(model, tenant, price.deployment.as_ref());
        let number = books.next;
        books.next += 1;
        let acu_per_second = price.acu_per_slot_second();
        books.running.insert(number, Running { whose, acu_per_second, started: now, written: now });
        Meter(number)
    }

    /// It gives the slot back; so much of its time was wasted, and how. What it cost, if that is known.
    pub(super) fn end(&self, meter: Meter, wasted: Option<(&'static str, Duration)>, now: Timestamp) -> Option<f64> {
        let mut books = self.books();
        let Running { whose, acu_per_second, started, written } = books.running.remove(&meter.0)?;
        books.over(written, now, |sheet, seconds| sheet.write(&whose, |account| account.work(acu_per_second, seconds)));
        let price = acu_per_second?;
        let ran = now.since(started).as_secs_f64();
        if let Some((reason, wasted)) = wasted.filter(|_| ran > 0.0) {
            // Which of its time it was is not known: all of it in the same measure.
            let price = price * (wasted.as_secs_f64() / ran).min(1.0);
            books.over(started, now, |sheet, seconds| sheet.waste(&whose, reason, price * seconds));
        }
        Some(price * ran)
    }

    /// Time that was not wasted when its attempt ended turns out to have been.
    pub(super) fn waste(&self, model: &Arc<str>, tenant: &Arc<str>, reason: &'static str, acu: f64, now: Timestamp) {
        let mut books = self.books();
        let whose = books.whose(model, tenant, None);
        books.at(now, |sheet| sheet.waste(&whose, reason, acu));
    }

    /// A request was given a whole answer.
    pub(super) fn answered(&self, model: &Arc<str>, tenant: &Arc<str>, answer: &Answer, now: Timestamp) {
        let mut books = self.books();
        let whose = books.whose(model, tenant, None);
        books.at(now, |sheet| sheet.write(&whose, |account| account.answer(answer)));
    }

    /// What has been in a window up to now.
    pub(super) fn statement(&self, window: Window, now: Timestamp) -> Statement {
        let mut books = self.books();
        books.settle(now);
        let slices = match window {
            Window::Hour => 12,
            Window::Day => SLICES,
            Window::All => u64::MAX,
        };
        let counted = now.since(books.began);
        let first = slice_of(now).saturating_sub(slices);
        let dropped = books.dropped;
        if start_of(first) <= books.began {
            return Statement { length: counted, counted, sheet: books.total.clone(), now: books.price(), dropped };
        }
        let mut sheet = Sheet::default();
        books.slices.iter().filter(|(number, _)| *number >= first).for_each(|(_, part)| sheet.add(part));
        Statement { length: now.since(start_of(first)), counted, sheet, now: books.price(), dropped }
    }

    /// How many slices are kept.
    #[cfg(test)]
    pub(super) fn slices(&self) -> usize {
        self.books().slices.len()
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        // Sums, valid after every addition.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Books {
    /// Writes all down up to now.
    fn settle(&mut self, now: Timestamp) {
        let replicas: Vec<_> = self.pool.keys().copied().collect();
        replicas.into_iter().for_each(|replica| self.settle_replica(replica, now));
        let mut running = std::mem::take(&mut self.running);
        for attempt in running.values_mut() {
            let (whose, price) = (&attempt.whose, attempt.acu_per_second);
            self.over(attempt.written, now, |sheet, seconds| {
                sheet.write(whose, |account| account.work(price, seconds));
            });
            attempt.written = attempt.written.max(now);
        }
        self.running = running;
    }

    fn settle_replica(&mut self, replica: ReplicaId, now: Timestamp) {
        let Some(mut kept) = self.pool.remove(&replica) else { return };
        self.over(kept.written, now, |sheet, seconds| sheet.keep(&kept.upkeep, seconds));
        kept.written = kept.written.max(now);
        self.pool.insert(replica, kept);
    }

    /// Writes down what took a time: to the whole, and to each slice its part.
    fn over(&mut self, from: Timestamp, to: Timestamp, write: impl Fn(&mut Sheet, f64)) {
        write(&mut self.total, to.since(from).as_secs_f64());
        let mut at = from.max(start_of(slice_of(to).saturating_sub(SLICES)));
        while at < to {
            let end = to.min(start_of(slice_of(at) + 1));
            write(self.slice(slice_of(at)), end.since(at).as_secs_f64());
            at = end;
        }
    }

    /// Writes down what has no length.
    fn at(&mut self, now: Timestamp, write: impl Fn(&mut Sheet)) {
        write(&mut self.total);
        write(self.slice(slice_of(now)));
    }

    /// The sheet of a slice. What is older than a day before it is forgotten.
    fn slice(&mut self, number: u64) -> &mut Sheet {
        let at = self.slices.partition_point(|(known, _)| *known < number);
        if self.slices.get(at).is_none_or(|(known, _)| *known != number) {
            self.slices.insert(at, (number, Sheet::default()));
        }
        let newest = self.slices.back().map_or(number, |(newest, _)| *newest);
        let old = self.slices.iter().take_while(|(known, _)| known.saturating_add(SLICES) < newest).count();
        self.slices.drain(..old.min(at));
        &mut self.slices[at - old.min(at)].1
    }

    fn whose(&mut self, model: &Arc<str>, tenant: &Arc<str>, deployment: Option<&Arc<str>>) -> Whose {
        Whose {
            model: self.own(Line::Model, model, true, &[]),
            tenant: self.own(Line::Tenant, tenant, true, &[]),
            deployment: deployment.map(|name| self.own(Line::Deployment, name, true, &[])),
        }
    }

    /// Gives it the names under which it is written down.
    fn label(&mut self, upkeep: &mut Upkeep) {
        let opens = upkeep.opens_lines;
        if upkeep.models.is_empty() {
            upkeep.models.push(Arc::from(OTHER));
        }
        let mut models = Vec::with_capacity(upkeep.models.len());
        for model in &upkeep.models {
            // Those that it has opened just now are nobody's yet, and must not make room for the next.
            let own = self.own(Line::Model, model, opens, &models);
            models.push(own);
        }
        upkeep.models = models;
        if let Some(deployment) = &mut upkeep.price.deployment {
            *deployment = self.own(Line::Deployment, deployment, opens, &[]);
        }
    }

    /// The name under which something is written down: [`OTHER`] for one that is new and may not open a line, or when none can be had.
    /// Lines of `spared` are not given back for it.
    fn own(&mut self, line: Line, name: &Arc<str>, opens: bool, spared: &[Arc<str>]) -> Arc<str> {
        let known = line.of(&mut self.total);
        if let Some((known, _)) = known.get_key_value(name) {
            return Arc::clone(known);
        }
        let taken = known.len() - usize::from(known.contains_key(OTHER));
        let has_own = opens && (taken < line.max() || self.give_back(line, spared));
        let name = if has_own { Arc::clone(name) } else { Arc::from(OTHER) };
        line.of(&mut self.total).entry(Arc::clone(&name)).or_default();
        name
    }

    /// Frees the line that was written to longest ago, of those that nothing has any more. Whether there was one.
    fn give_back(&mut self, line: Line, spared: &[Arc<str>]) -> bool {
        let mut used = self.used(line);
        used.extend(spared.iter().cloned());
        let free = line.of(&mut self.total).keys().filter(|name| !used.contains(*name) && &***name != OTHER);
        let mut free: BTreeSet<Arc<str>> = free.cloned().collect();
        for (_, sheet) in self.slices.iter_mut().rev() {
            let lately = line.of(sheet);
            if free.iter().all(|name| lately.contains_key(name)) {
                break;
            }
            free.retain(|name| !lately.contains_key(name));
        }
        let Some(oldest) = free.first() else { return false };
        let dropped = fold(line.of(&mut self.total), oldest);
        if line == Line::Model {
            self.dropped.add(&dropped);
        }
        for (_, sheet) in &mut self.slices {
            fold(line.of(sheet), oldest);
        }
        true
    }

    /// Names that replicas or attempts have now. Tenants are made by operators, and keep what they have.
    fn used(&self, line: Line) -> BTreeSet<Arc<str>> {
        let (pool, running) =
            (self.pool.values().map(|kept| &kept.upkeep), self.running.values().map(|one| &one.whose));
        match line {
            Line::Model => {
                let kept = pool.flat_map(|upkeep| &upkeep.models);
                kept.chain(running.map(|whose| &whose.model)).cloned().collect()
            }
            Line::Deployment => {
                let kept = pool.filter_map(|upkeep| upkeep.price.deployment.as_ref());
                kept.chain(running.filter_map(|whose| whose.deployment.as_ref())).cloned().collect()
            }
            Line::Tenant => self.total.tenants.keys().cloned().collect(),
        }
    }

    fn price(&self) -> PoolPrice {
        let mut price = PoolPrice::default();
        for Kept { upkeep, .. } in self.pool.values() {
            let Some(acu) = upkeep.price.acu_per_day else {
                price.unpriced += 1;
                continue;
            };
            price.priced += 1;
            price.acu_per_day += acu;
            for model in &upkeep.models {
                *price.by_model.entry(Arc::clone(model)).or_default() += acu / upkeep.models.len() as f64;
            }
        }
        price
    }
}

/// What has lines of its own, up to a number of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Model,
    Tenant,
    Deployment,
}

impl Line {
    fn max(self) -> usize {
        match self {
            Self::Model => MODELS_MAX,
            Self::Tenant => TENANTS_MAX,
            Self::Deployment => DEPLOYMENTS_MAX,
        }
    }

    fn of(self, sheet: &mut Sheet) -> &mut BTreeMap<Arc<str>, Account> {
        match self {
            Self::Model => &mut sheet.models,
            Self::Tenant => &mut sheet.tenants,
            Self::Deployment => &mut sheet.deployments,
        }
    }
}

/// Moves what a name has to [`OTHER`]. What that was.
fn fold(accounts: &mut BTreeMap<Arc<str>, Account>, name: &Arc<str>) -> Account {
    let Some(account) = accounts.remove(name) else { return Account::default() };
    accounts.entry(Arc::from(OTHER)).or_default().add(&account);
    account
}

fn slice_of(at: Timestamp) -> u64 {
    at.0 / SLICE.as_nanos() as u64
}

fn start_of(slice: u64) -> Timestamp {
    Timestamp(slice.saturating_mul(SLICE.as_nanos() as u64))
}

/// The series of cost, taken from the books at each scrape. Nothing of a model without a price is shown: its cost is not 0.
pub(super) struct CostSeries {
    slots: CounterVec,
    wasted: CounterVec,
    pool: CounterVec,
    tenants: CounterVec,
    per_day: GaugeVec,
    unpriced: Gauge,
    /// Models that have series.
    models: Mutex<BTreeSet<Arc<str>>>,
}

impl CostSeries {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            slots: float_counters(registry, &names::COST),
            wasted: float_counters(registry, &names::WASTED_COST),
            pool: float_counters(registry, &names::POOL_COST),
            tenants: float_counters(registry, &names::TENANT_COST),
            per_day: gauges(registry, &names::POOL_COST_PER_DAY),
            unpriced: gauge(registry, &names::REPLICAS_UNPRICED),
            models: Mutex::default(),
        }
    }

    /// Takes everything from a statement about all time.
    pub(super) fn refresh(&self, statement: &Statement) {
        let Statement { sheet, now, dropped, .. } = statement;
        self.forget_models(sheet);
        for (model, account) in sheet.models.iter().filter(|(_, account)| account.has_price()) {
            // What went to it from another's line was counted there.
            let counted = if &**model == OTHER { *dropped } else { Account::default() };
            raise(&self.slots, model, account.slots - counted.slots);
            raise(&self.pool, model, account.pool - counted.pool);
        }
        for (tenant, account) in sheet.tenants.iter().filter(|(_, account)| account.has_price()) {
            raise(&self.tenants, tenant, account.slots);
        }
        for (reason, cost) in &sheet.wasted {
            raise(&self.wasted, reason, *cost);
        }
        self.per_day.reset();
        for (model, price) in &now.by_model {
            self.per_day.with_label_values(&[&**model]).set(*price);
        }
        self.unpriced.set(f64::from(now.unpriced));
    }
}

impl CostSeries {
    /// Ends the series of models that have no line any more.
    fn forget_models(&self, sheet: &Sheet) {
        let mut shown = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        for model in shown.iter().filter(|model| !sheet.models.contains_key(*model)) {
            for family in [&self.slots, &self.pool] {
                // It is not there if the model never had a price.
                drop(family.remove_label_values(&[&**model]));
            }
        }
        shown.clone_from(&sheet.models.keys().cloned().collect());
    }
}

/// Lets a counter be what the books say. They only grow; a sum of floats that does not is left alone.
fn raise(family: &CounterVec, label: &str, to: f64) {
    let counter = family.with_label_values(&[label]);
    counter.inc_by((to - counter.get()).max(0.0));
}
