//! Accounts: what was paid, and what for, by whom it is to be known.

use std::{collections::BTreeMap, sync::Arc};

/// Seconds of a day: prices are per day.
const DAY: f64 = 86_400.0;

/// The price of a replica.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Price {
    /// What it costs, if that is stated.
    pub acu_per_day: Option<f64>,
    /// Slots that this pays for.
    pub slots: u16,
    /// What it is paid under.
    pub deployment: Option<Arc<str>>,
}

impl Price {
    /// Of one slot.
    pub(super) fn acu_per_slot_second(&self) -> Option<f64> {
        self.acu_per_day.map(|price| price / DAY / f64::from(self.slots.max(1)))
    }
}

/// A replica as a matter of cost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Upkeep {
    /// Its price.
    pub price: Price,
    /// Its models, which share its cost in equal parts; empty while they are unknown.
    pub models: Vec<Arc<str>>,
    /// Whether it is given work.
    pub takes_work: bool,
    /// Whether names that only it has get lines of their own: it has shown what it can do, or an operator vouches for it.
    pub opens_lines: bool,
}

/// What was paid, and what for: of all, of a model, a tenant or a deployment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Account {
    /// Cost of replicas in the pool, in ACU.
    pub pool: f64,
    /// The part of it in which they took no work, in ACU.
    pub away: f64,
    /// Seconds of replicas in the pool whose price is known; 0: there is no cost to speak of.
    pub priced_s: f64,
    /// Seconds of replicas in the pool whose price is not known.
    pub unpriced_s: f64,
    /// Cost of the slot time of attempts, in ACU.
    pub slots: f64,
    /// The part of it that brought no whole answer, in ACU.
    pub wasted: f64,
    /// Slot time of attempts on replicas whose price is known, in seconds.
    pub priced_slot_s: f64,
    /// The same of those whose price is not.
    pub unpriced_slot_s: f64,
    /// Whole answers.
    pub answers: u64,
    /// Their prompt tokens.
    pub prompt_tokens: u64,
    /// Their tokens.
    pub completion_tokens: u64,
    /// Answers of which it is known what reading and what writing cost.
    pub split: Split,
}

/// Answers of one attempt each, on a replica with a price, whose reading and writing were timed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Split {
    /// Cost of reading prompts, in ACU.
    pub reading: f64,
    /// What was read.
    pub prompt_tokens: u64,
    /// Cost of writing, in ACU.
    pub writing: f64,
    /// What was written.
    pub completion_tokens: u64,
}

impl Account {
    /// Whether anything in it has a price; else its cost is not known, which is not 0.
    pub fn has_price(&self) -> bool {
        self.priced_s > 0.0 || self.priced_slot_s > 0.0
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.pool += other.pool;
        self.away += other.away;
        self.priced_s += other.priced_s;
        self.unpriced_s += other.unpriced_s;
        self.slots += other.slots;
        self.wasted += other.wasted;
        self.priced_slot_s += other.priced_slot_s;
        self.unpriced_slot_s += other.unpriced_slot_s;
        self.answers += other.answers;
        self.prompt_tokens += other.prompt_tokens;
        self.completion_tokens += other.completion_tokens;
        self.split.reading += other.split.reading;
        self.split.prompt_tokens += other.split.prompt_tokens;
        self.split.writing += other.split.writing;
        self.split.completion_tokens += other.split.completion_tokens;
    }

    /// So many seconds of a replica, or of its part of one.
    fn keep(&mut self, upkeep: &Upkeep, seconds: f64) {
        let Some(price) = upkeep.price.acu_per_day else {
            self.unpriced_s += seconds;
            return;
        };
        let cost = price / DAY * seconds;
        self.priced_s += seconds;
        self.pool += cost;
        if !upkeep.takes_work {
            self.away += cost;
        }
    }

    /// So many seconds of a slot.
    pub(super) fn work(&mut self, acu_per_second: Option<f64>, seconds: f64) {
        match acu_per_second {
            Some(price) => {
                self.slots += price * seconds;
                self.priced_slot_s += seconds;
            }
            None => self.unpriced_slot_s += seconds,
        }
    }

    pub(super) fn answer(&mut self, answer: &Answer) {
        self.answers += 1;
        self.prompt_tokens += answer.prompt_tokens;
        self.completion_tokens += answer.completion_tokens;
        if let Some((reading, writing)) = answer.split {
            self.split.reading += reading;
            self.split.prompt_tokens += answer.prompt_tokens;
            self.split.writing += writing;
            self.split.completion_tokens += answer.completion_tokens;
        }
    }
}

/// A whole answer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Answer {
    pub(super) prompt_tokens: u64,
    pub(super) completion_tokens: u64,
    /// What reading and writing cost, in ACU, if that can be told apart.
    pub(super) split: Option<(f64, f64)>,
}

/// What has been in some time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sheet {
    /// All together.
    pub all: Account,
    /// By model.
    pub models: BTreeMap<Arc<str>, Account>,
    /// By tenant; tenants keep no replicas.
    pub tenants: BTreeMap<Arc<str>, Account>,
    /// By deployment, of replicas that are said to belong to one.
    pub deployments: BTreeMap<Arc<str>, Account>,
    /// Wasted cost by how it was, in ACU.
    pub wasted: BTreeMap<&'static str, f64>,
}

impl Sheet {
    pub(super) fn add(&mut self, other: &Self) {
        self.all.add(&other.all);
        let pairs = [
            (&mut self.models, &other.models),
            (&mut self.tenants, &other.tenants),
            (&mut self.deployments, &other.deployments),
        ];
        for (sums, accounts) in pairs {
            for (name, account) in accounts {
                sums.entry(Arc::clone(name)).or_default().add(account);
            }
        }
        for (reason, cost) in &other.wasted {
            *self.wasted.entry(reason).or_default() += cost;
        }
    }

    /// Writes to all accounts that something concerns.
    pub(super) fn write(&mut self, whose: &Whose, write: impl Fn(&mut Account)) {
        write(&mut self.all);
        write(self.models.entry(Arc::clone(&whose.model)).or_default());
        write(self.tenants.entry(Arc::clone(&whose.tenant)).or_default());
        if let Some(deployment) = &whose.deployment {
            write(self.deployments.entry(Arc::clone(deployment)).or_default());
        }
    }

    pub(super) fn keep(&mut self, upkeep: &Upkeep, seconds: f64) {
        self.all.keep(upkeep, seconds);
        for model in &upkeep.models {
            let part = seconds / upkeep.models.len() as f64;
            self.models.entry(Arc::clone(model)).or_default().keep(upkeep, part);
        }
        if let Some(deployment) = &upkeep.price.deployment {
            self.deployments.entry(Arc::clone(deployment)).or_default().keep(upkeep, seconds);
        }
    }

    pub(super) fn waste(&mut self, whose: &Whose, reason: &'static str, acu: f64) {
        self.write(whose, |account| account.wasted += acu);
        *self.wasted.entry(reason).or_default() += acu;
    }
}

/// Whom cost is for, under the names by which it is written down.
#[derive(Clone, Debug)]
pub(super) struct Whose {
    pub(super) model: Arc<str>,
    pub(super) tenant: Arc<str>,
    pub(super) deployment: Option<Arc<str>>,
}
