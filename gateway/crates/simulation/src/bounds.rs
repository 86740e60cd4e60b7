//! What no policy can beat.
//!
//! A ratio to another policy says who is better, a ratio to a bound how much is left to gain. Four bounds are taken, and the
//! largest holds. Each gives something up that no real policy has to: the *service* bound all waiting, the *pooled* bound
//! (`pooled`) the borders between phones, the *fluid* bound (`fluid`) the unevenness of arrivals, the *makespan* bound
//! (`makespan`) the size of the pieces. An exact optimum is out of reach: the assignment alone is NP-hard.
//!
//! Each class is bounded as if it had all phones for itself.

mod fluid;
mod makespan;
mod pooled;
mod prices;

use scheduler::Class as Urgency;
use serde::Serialize;

use self::prices::Prices;
use crate::{
    phone::ModelSpeed,
    quantile::{mean, quantile},
    scenario::{Class, Scenario},
    workload::{PhoneSpec, Request, Timeline, Workload},
};

/// Lower bounds of one class, seconds. Absent where they make no sense for its kind of arrivals.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ClassBounds {
    /// The class.
    pub name: String,
    /// Mean of the shortest possible answers: on the best phone, alone, the shared prefix cached. Of the requests that a
    /// play measures.
    pub service_mean: f64,
    /// 99th percentile of the same.
    pub service_p99: f64,
    /// Mean if all phones were one that always serves the shortest remaining work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pooled_mean: Option<f64>,
    /// Mean if work flowed to the fastest phones first, none more than fully busy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fluid_mean: Option<f64>,
    /// 99th percentile of the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fluid_p99: Option<f64>,
    /// Load of this class alone as a share of what the phones can do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load: Option<f64>,
    /// The largest of the bounds on the mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean: Option<f64>,
    /// When the last answer of a batch can come at the earliest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub makespan: Option<f64>,
}

/// The bounds of each class, in the scenario's order.
pub fn bounds(scenario: &Scenario, workload: &Workload) -> Vec<ClassBounds> {
    let fleet = Fleet::new(scenario, workload);
    let classes = scenario.classes.iter().enumerate();
    classes.map(|(index, class)| of_class(scenario, workload, &fleet, index, class)).collect()
}

fn of_class(scenario: &Scenario, workload: &Workload, fleet: &Fleet<'_>, index: usize, class: &Class) -> ClassBounds {
    let all: Vec<&Request> = workload.of_class(index).map(|(_, request)| request).collect();
    let warm = |request: &Request| request.arrival().is_none_or(|time| time >= scenario.warmup_s);
    let measured = |request: &&&Request| class.urgency == Urgency::Batch || class.is_chat() || warm(request);
    let front = fleet.front();
    let shortest =
        |request: &Request| front.iter().map(|phone| fleet.alone(phone, request)).fold(f64::INFINITY, f64::min);
    let mut service: Vec<f64> = all.iter().filter(measured).map(|request| shortest(request)).collect();
    service.sort_by(f64::total_cmp);
    let mut found = ClassBounds {
        name: class.name.clone(),
        service_mean: mean(&service).unwrap_or_default(),
        service_p99: quantile(&service, 0.99).unwrap_or_default(),
        ..ClassBounds::default()
    };
    let Some(typical) = Typical::of(&all) else { return found };
    let prices = Prices::new(fleet, &typical);
    if class.is_closed() {
        let longest = all.iter().map(|request| shortest(request)).fold(0.0, f64::max);
        found.makespan = Some(makespan::bound(fleet, &prices, &all).max(longest));
        return found;
    }
    let rate = all.len() as f64 / scenario.horizon_s;
    let fluid = fluid::bound(fleet, &typical, rate);
    // When the turns of a conversation come depends on the answers before them.
    let pooled = (!class.is_chat()).then(|| pooled::bound(fleet, &prices, &all));
    found.pooled_mean = pooled;
    found.fluid_mean = Some(fluid.mean);
    found.fluid_p99 = Some(fluid.p99);
    found.load = Some(fluid.load);
    found.mean = Some(found.service_mean.max(fluid.mean).max(pooled.unwrap_or(0.0)));
    found
}

/// What a bound has to know of a request; also of one that does not exist, hence the fractions.
#[derive(Clone, Copy, Debug)]
struct Typical {
    /// Prompt tokens.
    prompt: f64,
    /// Of these, found in a perfect cache.
    cached: f64,
    /// Answer tokens.
    output: f64,
}

impl Typical {
    /// The mean of several; `None` of none.
    fn of(requests: &[&Request]) -> Option<Self> {
        let count = requests.len() as f64;
        let mean = |tokens: fn(&Request) -> u32| {
            requests.iter().map(|request| f64::from(tokens(request))).sum::<f64>() / count
        };
        let (prompt, shared, output) =
            (mean(|request| request.prompt.tokens()), mean(|request| request.shared), mean(|request| request.output));
        (count > 0.0).then_some(Self { prompt, cached: shared.min(prompt - 1.0), output })
    }
}

impl From<&Request> for Typical {
    fn from(request: &Request) -> Self {
        let (prompt, cached) = (request.prompt.tokens().into(), request.spared().into());
        Self { prompt, cached, output: request.output.into() }
    }
}

/// The phones and what befalls them.
struct Fleet<'a> {
    model: ModelSpeed,
    overhead_s: f64,
    phones: &'a [PhoneSpec],
    timelines: &'a [Timeline],
    /// Mean speed up to the horizon, by phone, as a share of its own.
    shares: Vec<f64>,
}

impl<'a> Fleet<'a> {
    fn new(scenario: &Scenario, workload: &'a Workload) -> Self {
        let share = |timeline: &Timeline| timeline.full_seconds(scenario.horizon_s) / scenario.horizon_s;
        Self {
            model: scenario.model.speed(),
            overhead_s: scenario.overhead_s,
            phones: &workload.phones,
            timelines: &workload.timelines,
            shares: workload.timelines.iter().map(share).collect(),
        }
    }

    /// The shortest answer a phone can give: the shared prefix cached, nothing beside it, full speed.
    fn alone(&self, phone: &PhoneSpec, request: &Request) -> f64 {
        let request = Typical::from(request);
        self.overhead_s + self.reading(phone, &request, true) + self.writing(&request) / phone.decode_factor
    }

    /// The least time of a phone that an answer can take: its writing shares the phone with as many others as there is room
    /// for.
    fn occupancy(&self, phone: &PhoneSpec, request: &Typical) -> f64 {
        let together = phone.decode_factor * self.model.parallel_gain(phone.slots as f64);
        self.reading(phone, request, phone.remembers) + self.writing(request) / together
    }

    fn reading(&self, phone: &PhoneSpec, request: &Typical, warm: bool) -> f64 {
        let cached = if warm { request.cached } else { 0.0 };
        self.model.prefill_seconds(cached, request.prompt) / phone.prefill_factor
    }

    /// On the reference phone.
    fn writing(&self, request: &Typical) -> f64 {
        self.model.decode_seconds(request.prompt, request.output)
    }

    /// Phones that are best for some mix of reading and writing: no other is faster at both.
    fn front(&self) -> Vec<&'a PhoneSpec> {
        let mut phones: Vec<&PhoneSpec> = self.phones.iter().collect();
        phones.sort_by(|a, b| b.prefill_factor.total_cmp(&a.prefill_factor));
        let mut best = 0.0;
        phones.retain(|phone| {
            let better = phone.decode_factor > best;
            best = phone.decode_factor.max(best);
            better
        });
        phones
    }
}

#[cfg(test)]
mod tests;
