//! How reading and writing slow down with context and with company. One per model: it is a property of the network's
//! layers, not of the phone.
//!
//! A replica has one rate for reading and one for writing (see [`Rate`](super::Rate)), those of a request alone on an
//! empty context. This turns tokens into *work*, tokens at that rate: a token read or written behind a long context is
//! more work than the first one, and streams that share a replica slow each other down by less than their number.
//! So samples of short and long prompts measure the same rate, and a rate measured on guards' one-liners predicts
//! how long a review takes.
//!
//! The priors are fitted to published measurements of 0.8 to 9 billion parameters on phones. A table of rates per
//! context length was rejected: it has to be filled per replica, and a phone sees few prompts an hour.

use super::{positive, slope::Slope, up_to};
use crate::usage::Slowdown;

/// Reading a token costs this much more per token before it.
const READING: f64 = 3.92e-4;
/// Writing costs twice as much behind 20,000 tokens.
const WRITING: f64 = 1.0 / 20_000.0;
/// What each further stream costs all, as a share: four write 2.1 times what one does.
const SHARING: f64 = 0.304;
/// Slopes by context go up to this many times their prior.
const STEEPEST: f64 = 4.0;
/// Streams that share without gain write as one does.
const WORST_SHARING: f64 = 1.0;
/// Seconds before reading starts: network, templates, tokenizer.
const OVERHEAD: f64 = 0.1;
const LONGEST_OVERHEAD: f64 = 3.0;
/// What the prior of it is worth in samples, and the weight of one more once there are many.
const OVERHEAD_PRIOR: f64 = 3.0;
const OVERHEAD_WEIGHT: f64 = 0.05;
/// One counts as at most so many times the mean, and a step: a connection that hung is not an overhead.
const OVERHEAD_CLIP: f64 = 3.0;
const OVERHEAD_STEP: f64 = 0.05;
/// More than any model's context.
const MOST_TOKENS: f64 = 1e7;
/// Shorter reads measure the round trip, shorter answers the network's jitter.
const SHORTEST_READ: f64 = 32.0;
const SHORTEST_ANSWER: f64 = 4.0;
/// More streams than any phone has slots.
const MOST_STREAMS: f64 = 64.0;

/// Reading, writing and sharing of one model.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    reading: Slope,
    writing: Slope,
    sharing: Slope,
    overhead: f64,
    /// Samples behind it, while they are few.
    overheads: f64,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            reading: Slope::new(READING, STEEPEST * READING),
            writing: Slope::new(WRITING, STEEPEST * WRITING),
            sharing: Slope::new(SHARING, WORST_SHARING),
            overhead: OVERHEAD,
            overheads: OVERHEAD_PRIOR,
        }
    }
}

impl Shape {
    /// The work of reading the prompt's tokens `from..to`, in tokens at zero context.
    pub(crate) fn prefill_work(&self, from: f64, to: f64) -> f64 {
        let (from, to) = (up_to(MOST_TOKENS, from), up_to(MOST_TOKENS, to));
        (to - from).max(0.0) * (1.0 + self.reading.get() * f64::midpoint(from, to))
    }

    /// The work of writing `tokens` behind `context`, in tokens at zero context.
    pub(crate) fn decode_work(&self, context: f64, tokens: f64) -> f64 {
        let (context, tokens) = (up_to(MOST_TOKENS, context), up_to(MOST_TOKENS, tokens));
        tokens * (1.0 + self.writing.get() * (context + tokens / 2.0))
    }

    /// What this many streams write in all, over what one does alone.
    pub(crate) fn gain(&self, streams: f64) -> f64 {
        let streams = up_to(MOST_TOKENS, streams);
        streams / (1.0 + self.sharing.get() * (streams - 1.0).max(0.0))
    }

    /// Seconds from the dispatch to the first token that are no reading.
    pub(crate) fn overhead(&self) -> f64 {
        self.overhead
    }

    /// The tokens `from..to` took so long, reduced to a replica that does nothing else. `rate` is what the replica was
    /// believed to read at before this.
    pub(crate) fn observe_prefill(&mut self, from: f64, to: f64, seconds_at_full_share: f64, rate: f64) {
        let (from, to) = (up_to(MOST_TOKENS, from), up_to(MOST_TOKENS, to));
        let (Some(seconds), Some(rate)) = (positive(seconds_at_full_share), positive(rate)) else { return };
        if to - from < SHORTEST_READ {
            return;
        }
        let weight = self.prefill_work(from, to) / rate;
        self.reading.observe(f64::midpoint(from, to), seconds * rate / (to - from), weight);
    }

    /// `tokens` behind `context` took so long. `mean_share` is the mean over that time of [`gain`](Self::gain) of the
    /// streams that wrote over the requests that ran, so 1 for a request alone; `mean_streams` the mean number of streams
    /// that wrote, this one included. `rate` is what the replica was believed to write at before this.
    pub(crate) fn observe_decode(
        &mut self,
        context: f64,
        tokens: f64,
        seconds: f64,
        mean_share: f64,
        mean_streams: f64,
        rate: f64,
    ) {
        let (context, tokens) = (up_to(MOST_TOKENS, context), up_to(MOST_TOKENS, tokens));
        let (Some(seconds), Some(share), Some(rate)) = (positive(seconds), positive(mean_share), positive(rate)) else {
            return;
        };
        if tokens < SHORTEST_ANSWER {
            return;
        }
        let others = up_to(MOST_STREAMS, mean_streams - 1.0);
        let work = self.decode_work(context, tokens);
        let done = seconds * share.min(1.0) * rate;
        let weight = work / rate;
        // Each slope is fitted to what the other leaves unexplained.
        let sharing = done / work * (1.0 + self.sharing.get() * others);
        self.writing.observe(context + tokens / 2.0, done / tokens, weight);
        self.sharing.observe(others, sharing, weight);
    }

    /// All of it, for those who look on.
    pub(crate) fn slowdown(&self) -> Slowdown {
        Slowdown {
            reading: self.reading.get(),
            writing: self.writing.get(),
            sharing: self.sharing.get(),
            overhead: self.overhead,
        }
    }

    /// The first token came this much later than the engine's own reading explains.
    pub(crate) fn observe_overhead(&mut self, seconds: f64) {
        if !seconds.is_finite() {
            return;
        }
        let believable = seconds.clamp(0.0, OVERHEAD_CLIP * self.overhead + OVERHEAD_STEP);
        self.overheads = (self.overheads + 1.0).min(1.0 / OVERHEAD_WEIGHT);
        self.overhead = (self.overhead + (believable - self.overhead) / self.overheads).min(LONGEST_OVERHEAD);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{learning::Rate, rng::Rng, time::Timestamp};

    /// A phone as it is, with slopes this many times the priors.
    struct Phone {
        rate: f64,
        steepness: f64,
        sharing: f64,
    }

    impl Phone {
        fn read(&self, from: f64, to: f64) -> f64 {
            ((to - from) + self.steepness * READING / 2.0 * (to * to - from * from)) / self.rate
        }

        fn write(&self, context: f64, tokens: f64, streams: f64) -> f64 {
            let alone = tokens * (1.0 + self.steepness * WRITING * (context + tokens / 2.0)) / self.rate;
            alone * (1.0 + self.sharing * (streams - 1.0))
        }
    }

    fn scatter(rng: &mut Rng) -> f64 {
        (0.4 * (rng.unit() - 0.5)).exp()
    }

    fn near(is: f64, should: f64, share: f64) -> bool {
        (is / should).ln().abs() < share
    }

    #[test]
    fn the_priors_are_the_published_measurements() {
        let shape = Shape::default();
        // Seven thousand tokens in 97 s by a phone that reads 171 a second at first.
        assert!(near(shape.prefill_work(0.0, 7000.0) / 171.3, 97.0, 0.01));
        assert!(near(shape.decode_work(20_000.0, 1.0), 2.0, 0.001));
        // Four chats write 46 tokens a second where one writes 22.
        assert!(near(shape.gain(4.0), 46.0 / 22.0, 0.01));
        assert_eq!(shape.gain(1.0), 1.0);
    }

    #[test]
    fn work_adds_up_over_parts() {
        let shape = Shape::default();
        let (whole, parts) =
            (shape.prefill_work(0.0, 9000.0), shape.prefill_work(0.0, 2500.0) + shape.prefill_work(2500.0, 9000.0));
        assert!(near(whole, parts, 1e-9));
        let (whole, parts) =
            (shape.decode_work(500.0, 300.0), shape.decode_work(500.0, 100.0) + shape.decode_work(600.0, 200.0));
        assert!(near(whole, parts, 1e-9));
    }

    #[test]
    fn more_context_and_more_streams_never_cost_less() {
        let shape = Shape::default();
        for at in (0..30_000).step_by(1000).map(f64::from) {
            assert!(shape.prefill_work(at + 1000.0, at + 2000.0) > shape.prefill_work(at, at + 1000.0));
            assert!(shape.decode_work(at + 1000.0, 10.0) > shape.decode_work(at, 10.0));
        }
        for streams in (0..64).map(f64::from) {
            assert!(shape.gain(streams + 1.0) > shape.gain(streams));
            assert!(shape.gain(streams + 1.0) / (streams + 1.0) <= 1.0);
        }
    }

    /// The rate is learned from work that this shape computes, and this shape from what that rate leaves unexplained. They
    /// must not agree on something wrong.
    #[test]
    fn shape_and_rates_settle_together_though_each_is_learned_by_the_other() {
        for (seed, steepness, sharing) in [(1, 0.4, 0.1), (2, 1.0, 0.304), (3, 2.0, 0.6), (4, 3.0, 0.8)] {
            let mut rng = Rng::new(seed);
            let mut shape = Shape::default();
            let mut phones: Vec<(Phone, Phone, Rate, Rate)> = (0..20)
                .map(|_| {
                    let speed = 20.0 + 300.0 * rng.unit();
                    let phone = |rate| Phone { rate, steepness, sharing };
                    (phone(speed), phone(speed / 10.0), Rate::new(Some(150.0)), Rate::new(None))
                })
                .collect();
            let mut now = Timestamp::ZERO;
            for round in 0..2500 {
                now.0 += 1_000_000_000;
                let at = round % phones.len();
                let (reader, writer, reading, writing) = &mut phones[at];

                let from = if rng.unit() < 0.4 { 5000.0 * rng.unit() } else { 0.0 };
                let to = from + 100.0 + 7000.0 * rng.unit() * rng.unit();
                let seconds = reader.read(from, to) * scatter(&mut rng);
                shape.observe_prefill(from, to, seconds, reading.at(now, 100.0));
                reading.observe(shape.prefill_work(from, to), seconds, 1.0, now);

                let (context, tokens) = (12_000.0 * rng.unit(), 20.0 + 300.0 * rng.unit());
                let streams = 1.0 + (4.0 * rng.unit()).floor();
                let seconds = writer.write(context, tokens, streams) * scatter(&mut rng);
                let share = shape.gain(streams) / streams;
                shape.observe_decode(context, tokens, seconds, share, streams, writing.at(now, 10.0));
                writing.observe(shape.decode_work(context, tokens), seconds * share, 1.0, now);
            }
            let (mut worst, mut sum) = (0.0_f64, 0.0);
            for (reader, writer, reading, writing) in &phones {
                for (from, to) in [(0.0, 300.0), (0.0, 7000.0), (5500.0, 7000.0)] {
                    let predicted = shape.prefill_work(from, to) / reading.at(now, 100.0);
                    let error = (predicted / reader.read(from, to)).ln().abs();
                    (worst, sum) = (worst.max(error), sum + error);
                }
                for (context, streams) in [(100.0, 1.0), (8000.0, 1.0), (100.0, 4.0), (8000.0, 4.0)] {
                    let work = shape.decode_work(context, 100.0) * streams / shape.gain(streams);
                    let error = (work / writing.at(now, 10.0) / writer.write(context, 100.0, streams)).ln().abs();
                    (worst, sum) = (worst.max(error), sum + error);
                }
            }
            let mean = sum / (7 * phones.len()) as f64;
            assert!(mean < 0.12 && worst < 0.5, "{steepness} {sharing}: mean {mean}, worst {worst}, {shape:?}");
        }
    }

    #[test]
    fn sharing_is_not_learned_from_requests_alone() {
        let mut shape = Shape::default();
        for round in 0..1000 {
            shape.observe_decode(f64::from(round * 10), 100.0, 10.0, 1.0, 1.0, 10.0);
        }
        assert!(near(shape.gain(4.0), Shape::default().gain(4.0), 0.01));
    }

    #[test]
    fn the_overhead_is_found_and_a_hung_connection_is_not_an_overhead() {
        let mut shape = Shape::default();
        for _ in 0..40 {
            shape.observe_overhead(0.4);
        }
        assert!(near(shape.overhead(), 0.4, 0.1), "{}", shape.overhead());
        shape.observe_overhead(30.0);
        assert!(shape.overhead() < 0.45);
        for _ in 0..200 {
            shape.observe_overhead(30.0);
        }
        assert_eq!(shape.overhead(), LONGEST_OVERHEAD);
        // An engine whose own times exceed what passed here has none.
        for _ in 0..500 {
            shape.observe_overhead(-5.0);
        }
        assert!((0.0..0.01).contains(&shape.overhead()));
    }

    #[test]
    fn whatever_is_observed_answers_stay_usable() {
        let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, 1e-300, 1.0, 300.0, 1e300];
        let mut rng = Rng::new(7);
        let mut shape = Shape::default();
        let mut pick = || odd.get((rng.unit() * odd.len() as f64) as usize).copied().unwrap_or(1.0);
        for _ in 0..50_000 {
            shape.observe_prefill(pick(), pick(), pick(), pick());
            shape.observe_decode(pick(), pick(), pick(), pick(), pick(), pick());
            shape.observe_overhead(pick());
            let answers = [shape.prefill_work(pick(), pick()), shape.decode_work(pick(), pick()), shape.gain(pick())];
            assert!(answers.iter().all(|answer| answer.is_finite() && *answer >= 0.0), "{answers:?}");
            assert!((0.0..=LONGEST_OVERHEAD).contains(&shape.overhead()));
            assert!(shape.prefill_work(0.0, 7000.0) <= 7000.0 * (1.0 + STEEPEST * READING * 3500.0) + 1e-6);
            assert!((1.0..=4.0).contains(&shape.gain(4.0)));
        }
    }
}
