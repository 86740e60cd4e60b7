//! How many phones a model needs: capacity advice, from what its scheduler measured and nothing else.
//!
//! Problem: whether every class meets its objective depends on all that the scheduler does (classes, warm prefixes, room kept for
//! urgent work, second copies, phones that come and go) and on when work comes. Choice: no formula; the scheduler itself serves
//! what came, again, in virtual time, with more or fewer phones, until the smallest number is found that meets every objective.
//! `gateway/docs/decisions/0017-capacity.md` has what was rejected, and how far it is off.
//!
//! All of it is pure and bounded: at most [`Effort::requests`] requests are played, at most [`Effort::plays`] times.

mod rehearsal;
mod search;
mod steady;
mod trace;
mod trial;
mod words;

use crate::scenario::Churn;
use scheduler::{Asked, Class, Fate, Lives, Measured, Span, Usage};

use self::{rehearsal::Rehearsal, search::Search};
pub use self::{
    steady::Steady,
    trial::{Advised, Trial},
};

/// Requests below which nothing is advised.
pub const FEWEST_REQUESTS: usize = 20;
/// Requests from which on advice is trusted.
const MANY_REQUESTS: usize = 200;
/// Share of time that phones are away, known to this: advice is trusted.
const KNOWN_AWAY: f64 = 0.03;
/// Phones that have served so long, all together, without one going away, are trusted to stay: seconds.
const STAYED_S: f64 = 6.0 * 3600.0;
/// What few requests say is doubted by no more than this.
const MOST_DOUBT: f64 = 0.25;
/// Phones of one kind differ in speed by less than this factor.
const KIND_WIDTH: f64 = 1.5;
/// Requests that a phone must be asked for at least, for a play to say something about a pool.
const REQUESTS_PER_PHONE: usize = 40;

/// What the requests of a class are promised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Objective {
    /// Seconds from arrival to the first token.
    pub ttft_s: f64,
    /// Share of the requests that it holds for, from 0 to 1.
    pub share: f64,
}

/// What came of so many phones.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// By class as in [`Class::ALL`]: the share of requests that met their objective, where there are any; of lines of batches,
    /// those that were done in time over those that had to be.
    pub attained: [Option<f64>; Class::ALL.len()],
    /// Every objective was met.
    pub met: bool,
}

/// What is promised. Lines of batches are to be done by their batch's deadline, all of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Objectives {
    /// To interactive requests.
    pub interactive: Objective,
    /// To standard ones.
    pub standard: Objective,
}

impl Default for Objectives {
    fn default() -> Self {
        Self { interactive: Objective { ttft_s: 2.0, share: 0.95 }, standard: Objective { ttft_s: 60.0, share: 0.95 } }
    }
}

impl Objectives {
    /// That of a class; `None` for batch.
    pub const fn of(&self, class: Class) -> Option<Objective> {
        match class {
            Class::Interactive => Some(self.interactive),
            Class::Standard => Some(self.standard),
            Class::Batch => None,
        }
    }

    fn longest_s(&self) -> f64 {
        self.interactive.ttft_s.max(self.standard.ttft_s)
    }
}

/// A batch that is not done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backlog {
    /// Lines without a result.
    pub lines: u64,
    /// Seconds until its deadline.
    pub left_s: f64,
}

/// What a piece of advice may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Requests of one play, with those of its beginning, which do not count.
    pub requests: usize,
    /// Plays.
    pub plays: u32,
}

impl Default for Effort {
    fn default() -> Self {
        Self { requests: 6000, plays: 64 }
    }
}

/// What is to be advised on.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// What was measured of the model.
    pub usage: &'a Usage,
    /// What is promised.
    pub objectives: &'a Objectives,
    /// Its batches.
    pub backlog: &'a [Backlog],
    /// What it may cost.
    pub effort: Effort,
    /// What was advised last; the search begins there.
    pub last: Option<usize>,
}

/// How far advice is to be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confidence {
    /// There is none: too little traffic, or nothing measured.
    None,
    /// From few requests, on phones of which none is measured, while it is not known how often phones are away, or by a search that
    /// was cut short.
    Low,
    /// From enough of all that.
    Good,
}

impl Confidence {
    /// In words of the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Low => "low",
            Self::Good => "good",
        }
    }
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing can be said yet.
    Unknown,
    /// More phones are needed.
    More,
    /// As many as there are.
    Enough,
    /// Fewer would do.
    Fewer,
    /// No number of these phones meets every objective.
    Unattainable,
}

impl Verdict {
    /// In words of the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::More => "more",
            Self::Enough => "enough",
            Self::Fewer => "fewer",
            Self::Unattainable => "unattainable",
        }
    }
}

/// One way to get there: so many phones of a kind, beside those that are there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KindAdvice {
    /// `typical` or `fastest`.
    pub kind: &'static str,
    /// How many more.
    pub phones: usize,
    /// Slots of one.
    pub slots: u16,
    /// Tokens per second that one reads, and writes.
    pub rates: (f64, f64),
}

/// What was measured of a class, and what would be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClassAdvice {
    /// Which.
    pub class: Class,
    /// What is promised; `None`: deadlines of batches, or nothing.
    pub objective: Option<Objective>,
    /// Requests that came in the window.
    pub requests: usize,
    /// The share of them that met the objective, as it was.
    pub attained: Option<f64>,
    /// Those that did not, the refused ones included.
    pub late: usize,
    /// Those that were refused.
    pub refused: usize,
    /// Requests per second, over the window and in its busiest five minutes.
    pub arrivals_per_s: (f64, f64),
    /// Slot time per request that ended, what came to nothing included, in seconds.
    pub slot_s: Option<f64>,
    /// What the class takes of the pool: phones' time per second.
    pub load: f64,
    /// The objective can't be met by these phones, however many: this share of the requests could be in time on an idle phone.
    pub at_best: Option<f64>,
}

/// Advice on one model.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// Phones that serve, or served and are away, and their slots.
    pub now: (usize, usize),
    /// Phones that there should be, of the kinds that there are. `None`: nothing can be said.
    pub wanted: Option<usize>,
    /// Fewer than this do not meet the objectives when as much comes as well may.
    pub least: Option<usize>,
    /// What follows.
    pub verdict: Verdict,
    /// How sure that is.
    pub confidence: Confidence,
    /// Ways to get there, if more are wanted.
    pub kinds: Vec<KindAdvice>,
    /// How many times as much came in the busiest five minutes of the window as in those that were played; 1 where they were.
    pub peak: f64,
    /// By class as in [`Class::ALL`].
    pub classes: Vec<ClassAdvice>,
    /// Numbers of phones that were tried, and what came of it; in their order.
    pub tried: Vec<(usize, Outcome)>,
    /// Why, in sentences; [`Advice::conclusion`] is the last of them.
    pub reasons: Vec<String>,
}

impl Advice {
    /// The end of the reasons, in sentences: what follows from the number that stands, `stands` (of this and earlier pieces of advice:
    /// [`Steady`]), when `now` phones are there.
    pub fn conclusion(&self, stands: Option<usize>, now: usize) -> Vec<String> {
        words::conclusion(self, stands, now)
    }

    /// Ways to get to the number that stands from the phones that are there: those that were found, if they were found for these
    /// two numbers.
    pub fn kinds_for(&self, stands: Option<usize>, now: usize) -> &[KindAdvice] {
        if stands == self.wanted && now == self.now.0 { &self.kinds } else { &[] }
    }

    /// What would come of so many phones, if that was tried.
    pub fn outcome(&self, phones: usize) -> Option<&Outcome> {
        self.tried.iter().find(|(tried, _)| *tried == phones).map(|(_, outcome)| outcome)
    }
}

/// Advises on one model.
pub fn advise(question: &Question<'_>) -> Advice {
    let usage = question.usage;
    let phones: Vec<Measured> = there(usage);
    let mut advice = Advice {
        now: (phones.len(), phones.iter().map(|phone| usize::from(phone.slots)).sum()),
        wanted: None,
        least: None,
        verdict: Verdict::Unknown,
        confidence: Confidence::None,
        kinds: Vec::new(),
        peak: 1.0,
        classes: Class::ALL.map(|class| measured(question, class)).into(),
        tried: Vec::new(),
        reasons: Vec::new(),
    };
    let Some(reference) = reference(&phones) else {
        advice.reasons.push("No phone serves the model.".to_owned());
        return advice;
    };
    let backlog: Vec<Backlog> = question.backlog.iter().copied().filter(|b| b.lines > 0 && b.left_s > 0.0).collect();
    let most = question.effort.requests.max(REQUESTS_PER_PHONE * phones.len());
    let mut rehearsal = Rehearsal::new(usage, question.objectives, &backlog, reference, most);
    let seen = usage.requests.len();
    if seen < FEWEST_REQUESTS || rehearsal.counts == [false; 3] {
        advice.reasons.push(words::too_little(seen, &backlog, rehearsal.trace.has_lines()));
        return advice;
    }
    for class in &mut advice.classes {
        class.load = load(&rehearsal, class.class, reference);
    }
    let fastest = phones.iter().filter_map(|phone| phone.rates).fold(reference, |a, b| (a.0.max(b.0), a.1.max(b.1)));
    bound(&mut rehearsal, &mut advice, fastest);
    if rehearsal.counts == [false; 3] {
        advice.verdict = Verdict::Unattainable;
        advice.confidence = trust(usage);
        advice.reasons = words::reasons(question, &advice, &rehearsal, reference);
        return advice;
    }
    let load: f64 = advice.classes.iter().map(|class| class.load).sum();
    let mut search = Search::new(&rehearsal, question.objectives, &phones, load / up(usage), question.effort.plays);
    let found = search.fewest(question.last.unwrap_or(phones.len()));
    let hurry = hurry(usage, rehearsal.trace.length_s);
    let least = found.filter(|found| *found < phones.len()).and_then(|found| {
        search
            .fewest_in_a_hurry(found, hurry * (1.0 + doubt(usage, rehearsal.trace.requests.len())))
            .map(|least| least.max(found))
    });
    let unattainable = advice.classes.iter().any(|class| class.at_best.is_some());
    advice.least = least.map(|least| least.min(phones.len())).or(found);
    advice.wanted = match found {
        Some(found) if found >= phones.len() => Some(found),
        Some(_) => advice.least,
        None => None,
    };
    advice.verdict = match (advice.wanted, unattainable) {
        (_, true) | (None, _) => Verdict::Unattainable,
        (Some(wanted), _) if wanted > phones.len() => Verdict::More,
        (Some(wanted), _) if wanted < phones.len() => Verdict::Fewer,
        _ => Verdict::Enough,
    };
    let guessed = !phones.iter().any(|phone| phone.measured);
    advice.confidence = if search.cut_short || guessed { Confidence::Low } else { trust(usage) };
    if let Some(wanted) = advice.wanted {
        // What would be in time is shown.
        search.try_(wanted);
        if wanted > phones.len() {
            advice.kinds = kinds(&phones, wanted, &mut search);
        }
    }
    advice.peak = hurry;
    advice.tried = search.tried();
    advice.reasons = words::reasons(question, &advice, &rehearsal, reference);
    advice
}

fn trust(usage: &Usage) -> Confidence {
    if usage.requests.len() >= MANY_REQUESTS && is_absence_known(usage) { Confidence::Good } else { Confidence::Low }
}

/// The share of time that phones are away is known well enough: by its standard error, as far as so many absences say it.
fn is_absence_known(usage: &Usage) -> bool {
    let lives = &usage.lives;
    if lives.deaths > 0.0 { of_absence(usage) <= KNOWN_AWAY } else { lives.up_s >= STAYED_S }
}

/// The standard error of the share of time that phones are away.
fn of_absence(usage: &Usage) -> f64 {
    (1.0 - up(usage)) / usage.lives.deaths.max(1.0).sqrt()
}

/// Phones that are there; the slowest first.
fn there(usage: &Usage) -> Vec<Measured> {
    let mut phones: Vec<Measured> =
        usage.replicas.iter().filter(|phone| phone.is_there() && phone.rates.is_some()).cloned().collect();
    phones.sort_by(|a, b| speed(a).total_cmp(&speed(b)).then(a.replica.cmp(&b.replica)));
    phones
}

fn speed(phone: &Measured) -> f64 {
    phone.rates.map_or(0.0, |rates| rates.0)
}

/// Rates of the phone in the middle, if there is a phone.
fn reference(phones: &[Measured]) -> Option<(f64, f64)> {
    phones.get(phones.len() / 2)?.rates.filter(|rates| rates.0 > 0.0 && rates.1 > 0.0)
}

/// So many phones, of the kinds that there are, in their proportion.
fn alike(phones: &[Measured], count: usize) -> Vec<Measured> {
    let at = |number: usize| ((2 * number + 1) * phones.len()) / (2 * count.max(1));
    (0..count).filter_map(|number| phones.get(at(number))).cloned().collect()
}

/// How long phones last and stay away, in the mean; `None` if none ever went away.
///
/// A dozen absences say it to a third. Of two mistakes that is the worse which leaves every client short, so they are taken to be
/// longer by their standard error: that of the mean of so many exponential times.
fn churn(usage: &Usage) -> Option<Churn> {
    let lives = &usage.lives;
    let longer = 1.0 + 1.0 / absences(lives).sqrt();
    (lives.deaths > 0.0).then(|| Churn {
        mean_up_s: (lives.up_s / lives.deaths).max(1.0),
        mean_down_s: (longer * lives.down_s / absences(lives)).max(0.1),
    })
}

/// Absences that the time away is of: those that ended, and half of those that last. To count them whole makes absences too short; to
/// count none, too long where few have ended.
fn absences(lives: &Lives) -> f64 {
    f64::midpoint(lives.returns, lives.deaths).max(1.0)
}

/// The share of time that phones are up.
fn up(usage: &Usage) -> f64 {
    churn(usage).map_or(1.0, |churn| churn.up().max(0.05))
}

/// How many times as much came in the busiest five minutes of the window as in the busiest of the last `length_s` seconds, which are
/// played; as far as that is more than chance.
fn hurry(usage: &Usage, length_s: f64) -> f64 {
    let mut most: f64 = 1.0;
    for class in [Class::Interactive, Class::Standard] {
        let played = usage.requests.iter().rev().filter(|asked| asked.class == class);
        let ages = played.map(|asked| usage.now.since(asked.arrived).as_secs_f64()).take_while(|age| *age <= length_s);
        let mean = ages.count() as f64 / length_s.max(1.0);
        let (mut inside, mut outside) = (mean, 0.0_f64);
        for span in &usage.spans {
            let begins = usage.now.since(span.start).as_secs_f64();
            let count = span.arrivals[class as usize] as f64;
            if begins - Span::SECONDS >= length_s {
                // Only what is more than chance.
                outside = outside.max((count - 2.0 * count.sqrt()) / Span::SECONDS);
            } else if begins >= Span::SECONDS {
                inside = inside.max(count / Span::SECONDS);
            }
        }
        if inside > 0.0 {
            most = most.max(outside / inside);
        }
    }
    most
}

/// By how much more than was measured, as a share, the work of so many requests and the absence of phones may well be: twice the
/// standard error of each. Fewer phones are advised only if they can take that.
fn doubt(usage: &Usage, requests: usize) -> f64 {
    let of_work = 2.0 / (requests.max(1) as f64).sqrt();
    (of_work + 2.0 * of_absence(usage)).min(MOST_DOUBT)
}

/// What was measured of a class.
fn measured(question: &Question<'_>, class: Class) -> ClassAdvice {
    let usage = question.usage;
    let of_class = || usage.requests.iter().filter(|asked| asked.class == class);
    let objective = question.objectives.of(class);
    let (mut good, mut late) = (0, 0);
    for asked in of_class() {
        match objective.and_then(|objective| in_time(asked, objective.ttft_s, usage)) {
            Some(true) => good += 1,
            Some(false) => late += 1,
            None => {}
        }
    }
    let window = usage.now.since(usage.since).as_secs_f64().max(1.0);
    let mean = of_class().count() as f64 / window;
    let counts = usage.spans.iter().map(|span| span.arrivals[class as usize] as f64 / Span::SECONDS);
    let (mut slot_s, mut ended) = (0.0, 0_u32);
    for asked in of_class().filter(|asked| asked.ended.is_some()) {
        slot_s += asked.slot_seconds;
        ended += 1;
    }
    ClassAdvice {
        class,
        objective,
        requests: of_class().count(),
        attained: (good + late > 0).then(|| f64::from(good) / f64::from(good + late)),
        late: late as usize,
        refused: of_class().filter(|asked| asked.fate == Fate::Refused).count(),
        arrivals_per_s: (mean, counts.fold(mean, f64::max)),
        slot_s: (ended > 0).then(|| slot_s / f64::from(ended)),
        load: 0.0,
        at_best: None,
    }
}

/// Whether a request met its objective; `None`: it is too early to say, or its client left before.
fn in_time(asked: &Asked, ttft_s: f64, usage: &Usage) -> Option<bool> {
    let by = asked.arrived + std::time::Duration::from_secs_f64(ttft_s);
    match (asked.first_token, asked.ended) {
        (Some(first), _) => Some(first <= by),
        (None, _) if asked.fate == Fate::Refused => Some(false),
        // An answer that showed no first token began with its end at the latest.
        (None, Some(ended)) if asked.fate == Fate::Answered => Some(ended <= by),
        (None, Some(ended)) => (ended > by).then_some(false),
        (None, None) => (usage.now > by).then_some(false),
    }
}

/// What a class takes: seconds of a phone in the middle per second, each request alone and warm.
fn load(rehearsal: &Rehearsal<'_>, class: Class, reference: (f64, f64)) -> f64 {
    if class == Class::Batch && rehearsal.counts[class as usize] {
        return rehearsal.lines_per_s() * rehearsal.line_s();
    }
    let requests = rehearsal.trace.requests.iter().filter(|request| request.class == class as usize);
    // A sum of nothing is -0.
    let seconds = requests.map(|request| rehearsal.alone(request, reference).1).sum::<f64>() + 0.0;
    seconds / rehearsal.trace.length_s
}

/// Classes whose objective no number of phones meets, because too few requests would be in time on an idle phone.
fn bound(rehearsal: &mut Rehearsal<'_>, advice: &mut Advice, fastest: (f64, f64)) {
    for class in &mut advice.classes {
        let Some(objective) = class.objective.filter(|_| rehearsal.counts[class.class as usize]) else { continue };
        let of_class = || rehearsal.trace.requests.iter().filter(|request| request.class == class.class as usize);
        let able = of_class().filter(|request| rehearsal.alone(request, fastest).0 <= objective.ttft_s).count();
        let share = able as f64 / of_class().count().max(1) as f64;
        if share < objective.share {
            class.at_best = Some(share);
            rehearsal.counts[class.class as usize] = false;
        }
    }
}

/// Phones in the middle, and where they differ by more than a kind, the fastest.
fn kinds(phones: &[Measured], wanted: usize, search: &mut Search<'_>) -> Vec<KindAdvice> {
    let named = |kind, phone: &Measured, phones| KindAdvice {
        kind,
        phones,
        slots: phone.slots,
        rates: phone.rates.unwrap_or_default(),
    };
    let (Some(middle), Some(fast)) = (phones.get(phones.len() / 2), phones.get(phones.len() - 1 - phones.len() / 10))
    else {
        return Vec::new();
    };
    if speed(fast) < KIND_WIDTH * speed(middle) {
        return vec![named("typical", middle, wanted - phones.len())];
    }
    let mut kinds = Vec::new();
    for (kind, phone) in [("typical", middle), ("fastest", fast)] {
        if let Some(more) = search.more_of(phone, wanted - phones.len()) {
            kinds.push(named(kind, phone, more));
        }
    }
    kinds
}

#[cfg(test)]
mod tests;
