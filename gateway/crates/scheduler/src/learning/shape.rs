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
/// Weight of one more overhead, and how many times the mean it counts at most: a connection that hung is not an overhead.
const OVERHEAD_WEIGHT: f64 = 0.05;
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
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            reading: Slope::new(READING, STEEPEST * READING),
            writing: Slope::new(WRITING, STEEPEST * WRITING),
            sharing: Slope::new(SHARING, WORST_SHARING),
            overhead: OVERHEAD,
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

    /// The first token came this much later than the engine's own reading explains.
    pub(crate) fn observe_overhead(&mut self, seconds: f64) {
        if !seconds.is_finite() {
            return;
        }
        let believable = seconds.clamp(0.0, OVERHEAD_CLIP * self.overhead + OVERHEAD_STEP);
        self.overhead = (self.overhead + OVERHEAD_WEIGHT * (believable - self.overhead)).min(LONGEST_OVERHEAD);
    }
}
