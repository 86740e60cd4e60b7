//! Load balancers that choose a phone the moment a request comes, as they are found in proxies and inference routers.

use std::collections::BTreeMap;

use super::player::Early;
use crate::{rng::Rng, workload::Prompt};

/// How long a measured answer time is remembered, seconds. What is usual for servers that answer in milliseconds, 10 s, is
/// shorter than one answer here.
const PEAK_MEMORY_S: f64 = 600.0;
/// The cost of a phone that has work and was never measured: more than any that was.
const UNMEASURED: f64 = 1e12;
/// A prefix counts if it is more than this share of the prompt.
const LEAST_MATCH: f64 = 0.3;

/// What is known of a phone without asking it.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) up: bool,
    /// Requests there, running and queued.
    pub(super) in_flight: usize,
    /// Measured reading speed as a share of the reference phone's.
    pub(super) speed: f64,
    /// Peak of the recent answer times, seconds, and when it was taken.
    peak: (f64, f64),
    /// Tokens of each content that were sent there.
    sent: BTreeMap<u64, u32>,
    sent_tokens: u64,
}

impl Seen {
    pub(super) const fn new(speed: f64) -> Self {
        Self { up: true, in_flight: 0, speed, peak: (0.0, 0.0), sent: BTreeMap::new(), sent_tokens: 0 }
    }

    /// An answer came, or its loss was noticed, after that long.
    pub(super) fn answered_after(&mut self, length: f64, now: f64) {
        let (peak, at) = self.peak;
        let kept = (-(now - at) / PEAK_MEMORY_S).exp();
        let mean = peak * kept + length * (1.0 - kept);
        self.peak = (if length > peak { length } else { mean }, now);
    }

    /// It failed, or came back: its caches are empty.
    pub(super) fn turned(&mut self, up: bool) {
        self.up = up;
        self.sent.clear();
        self.sent_tokens = 0;
    }

    fn peak_cost(&self, now: f64) -> f64 {
        let (peak, at) = self.peak;
        let cost = peak * (-(now - at) / PEAK_MEMORY_S).exp();
        let load = self.in_flight as f64;
        if cost == 0.0 && load > 0.0 { UNMEASURED + load } else { cost * (load + 1.0) }
    }

    fn send(&mut self, prompt: &Prompt) {
        for segment in [prompt.template, prompt.own] {
            let before = self.sent.insert(segment.content, segment.tokens).unwrap_or(0);
            self.sent_tokens += u64::from(segment.tokens.saturating_sub(before));
        }
    }

    fn matching(&self, prompt: &Prompt) -> u32 {
        let sent = |content| self.sent.get(&content).copied().unwrap_or(0);
        let template = sent(prompt.template.content).min(prompt.template.tokens);
        let whole = template == prompt.template.tokens;
        template + if whole { sent(prompt.own.content).min(prompt.own.tokens) } else { 0 }
    }
}

#[derive(Debug)]
pub(super) struct Balancer {
    choice: Early,
    rng: Rng,
    /// Whose turn it was last.
    turn: usize,
}

impl Balancer {
    pub(super) const fn new(choice: Early, rng: Rng) -> Self {
        Self { choice, rng, turn: 0 }
    }

    /// Number of the phone; `None` if none is up.
    pub(super) fn choose(&mut self, seen: &mut [Seen], prompt: &Prompt, now: f64) -> Option<usize> {
        let up: Vec<usize> = seen.iter().enumerate().filter(|(_, phone)| phone.up).map(|(number, _)| number).collect();
        // Drawn for every choice, used or not: all players' streams stay in step.
        let any = *self.rng.pick(&up)?;
        let load = |number: usize| seen.get(number).map_or(usize::MAX, |phone| phone.in_flight);
        let count = seen.len();
        match self.choice {
            Early::Random => Some(any),
            Early::RoundRobin => {
                let turn = self.turn;
                self.turn = up.iter().copied().min_by_key(|number| (number + count - turn - 1) % count)?;
                Some(self.turn)
            }
            Early::LeastConnections => {
                self.turn = (self.turn + 1) % count;
                let turn = self.turn;
                up.into_iter().min_by_key(|number| (load(*number), (number + count - turn) % count))
            }
            Early::WeightedLeastConnections => {
                let weighted = |number: &usize| {
                    seen.get(*number).map_or(f64::MAX, |phone| (phone.in_flight + 1) as f64 / phone.speed)
                };
                up.into_iter().min_by(|a, b| weighted(a).total_cmp(&weighted(b)))
            }
            Early::PowerOfTwo => {
                let other = *self.rng.pick(&up)?;
                Some(if load(other) < load(any) { other } else { any })
            }
            Early::PeakEwma => {
                let other = *self.rng.pick(&up)?;
                let cost = |number: usize| seen.get(number).map_or(f64::MAX, |phone| phone.peak_cost(now));
                Some(if cost(other) < cost(any) { other } else { any })
            }
            Early::JoinIdleQueue => {
                let idle: Vec<usize> = up.into_iter().filter(|number| load(*number) == 0).collect();
                Some(self.rng.pick(&idle).copied().unwrap_or(any))
            }
            Early::CacheAware => cache_aware(&up, seen, prompt),
        }
    }
}

/// As SGLang's router: by load while loads are uneven, else the longest matching prefix, else where the least was sent.
fn cache_aware(up: &[usize], seen: &mut [Seen], prompt: &Prompt) -> Option<usize> {
    let loads = seen.iter().map(|phone| phone.in_flight);
    let uneven = loads.clone().max()? > loads.min()? + 1;
    let of = |number: &usize| seen.get(*number);
    let phone = if uneven {
        up.iter().min_by_key(|number| of(number).map(|phone| phone.in_flight))
    } else {
        let matching = |number: &usize| of(number).map_or(0, |phone| phone.matching(prompt));
        // The first of several that match alike.
        let longest = up.iter().rev().max_by_key(|number| matching(number));
        let enough = |number: &&usize| f64::from(matching(number)) > LEAST_MATCH * f64::from(prompt.tokens());
        longest.filter(enough).or_else(|| up.iter().min_by_key(|number| of(number).map(|phone| phone.sent_tokens)))
    };
    let phone = *phone?;
    seen.get_mut(phone)?.send(prompt);
    Some(phone)
}
