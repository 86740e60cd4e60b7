//! The engine: slots, a first-come queue before them, and time that passes as the phone model says.
//!
//! A request works in steps: its overhead, a batch of its prompt, a few tokens of its answer. Each step is a task on the
//! phone's [`Processor`](simulation::phone::Processor), so requests slow each other down behind a socket exactly as they
//! do in virtual time. Rejected: shares looked up at the start of each step, which is what this was (a newcomer is felt
//! only from the next step on; on a slow phone a batch takes seconds).

mod bench;

use crate::clock;
use crate::config::PhoneConfig;
use crate::stats::{Book, PhoneStats};
use bench::{Bench, Place};
use simulation::phone::{Load, PhoneSpeed, SlotCaches};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// What runs beside a task is the processor's business: a step is described as it would be alone.
const ALONE: Load = Load { active: 1, decoding: 1 };
/// Tokens handed over at once when many are due, so that a fast phone still looks at its connection.
const LARGEST_BURST: u32 = 64;

#[derive(Debug)]
pub(crate) struct Engine {
    speed: PhoneSpeed,
    time_scale: f64,
    batch_tokens: usize,
    promised: u32,
    places: Arc<Semaphore>,
    caches: Mutex<SlotCaches>,
    bench: Bench,
    /// Tokens are held back at most this long, so that they come in fewer pieces.
    write_interval: Duration,
    book: Arc<Book>,
}

impl Engine {
    pub(crate) fn new(config: &PhoneConfig, book: Arc<Book>) -> Self {
        let places = config.engine_places();
        Self {
            speed: config.speed,
            time_scale: config.time_scale,
            batch_tokens: config.batch_tokens.max(1) as usize,
            promised: config.promised_places() as u32,
            places: Arc::new(Semaphore::new(places)),
            caches: Mutex::new(SlotCaches::new(usize::from(config.slots.max(1)).min(places), config.remembers_prompts)),
            bench: Bench::new(config.speed, config.time_scale),
            write_interval: config.write_interval,
            book,
        }
    }

    fn caches(&self) -> MutexGuard<'_, SlotCaches> {
        self.caches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether each slot is busy.
    pub(crate) fn busy_slots(&self) -> Vec<bool> {
        self.caches().busy().collect()
    }

    /// Whether a request would have to wait.
    pub(crate) fn is_full(&self) -> bool {
        self.places.available_permits() == 0
    }

    /// Loses all prompt caches.
    pub(crate) fn forget(&self) {
        self.caches().forget();
    }

    /// Goes on at this share of its own speed.
    pub(crate) fn set_pace(&self, pace: f64) {
        self.bench.set_pace(pace);
    }

    /// Gives up to `count` free places to somebody else's work, which slows down what runs beside it.
    pub(crate) fn occupy(self: &Arc<Self>, count: usize) -> Vec<Stranger> {
        let sit = || {
            let permit = self.places.clone().try_acquire_owned().ok()?;
            let slot = self.caches().take(&[]).map(|choice| choice.slot);
            let place = self.bench.sit();
            self.bench.write(&place);
            Some(Stranger { engine: self.clone(), slot, place, _permit: permit })
        };
        (0..count).map_while(|_| sit()).collect()
    }

    /// Waits in line for a place, then takes the slot that suits the prompt best.
    pub(crate) async fn seat(self: &Arc<Self>, prompt: Vec<u32>) -> Seat {
        let mut line = InLine::join(self);
        let permit = match self.places.clone().try_acquire_owned() {
            Ok(permit) => Some(permit),
            Err(_) => {
                line.waits();
                self.places.clone().acquire_owned().await.ok()
            }
        };
        let choice = self.caches().take(&prompt);
        let place = self.bench.sit();
        let cached = choice.map_or(0, |choice| choice.cached);
        line.leave(|stats| {
            stats.running_now += 1;
            stats.peak_running = stats.peak_running.max(stats.running_now);
            stats.prompt_tokens += prompt.len() as u64;
            stats.cached_tokens += cached as u64;
        });
        let now = clock::now();
        Seat {
            engine: self.clone(),
            place,
            permit,
            slot: choice.map(|choice| choice.slot),
            prompt_tokens: prompt.len(),
            held: prompt,
            cached,
            read: cached,
            written: 0,
            decoding: false,
            owed: 0.0,
            started: now,
            first_token: None,
        }
    }
}

/// Work that nobody here asked for, in a place of the engine until it is dropped. It is in no book.
#[derive(Debug)]
pub(crate) struct Stranger {
    engine: Arc<Engine>,
    slot: Option<usize>,
    place: Place,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Stranger {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            // Whatever was remembered there, it is the stranger's prompt now.
            self.engine.caches().put_back(slot, Vec::new());
        }
        self.engine.bench.leave(&self.place);
    }
}

/// A request before it has a place; leaves the line when dropped.
struct InLine<'a> {
    engine: &'a Engine,
    since: Option<Instant>,
    left: bool,
}

impl<'a> InLine<'a> {
    fn join(engine: &'a Engine) -> Self {
        let promised = engine.promised;
        engine.book.update(|stats| {
            stats.waiting_now += 1;
            let in_flight = stats.running_now + stats.waiting_now;
            stats.peak_in_flight = stats.peak_in_flight.max(in_flight);
            stats.over_subscribed += u64::from(in_flight > promised);
        });
        Self { engine, since: None, left: false }
    }

    fn waits(&mut self) {
        self.since = Some(clock::now());
        self.engine.book.update(|stats| stats.waited += 1);
    }

    /// Leaves the line and does `more` in the same step, so that nobody sees a request that neither waits nor runs.
    fn leave(&mut self, more: impl FnOnce(&mut PhoneStats)) {
        if !std::mem::replace(&mut self.left, true) {
            let waited = self.since.map_or(0.0, |since| (clock::now() - since).as_secs_f64());
            self.engine.book.update(|stats| {
                stats.waiting_now -= 1;
                stats.longest_wait_s = stats.longest_wait_s.max(waited);
                more(stats);
            });
        }
    }
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        self.leave(|_| {});
    }
}

/// How far the prompt has been read, tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) total: usize,
    pub(crate) cached: usize,
    pub(crate) processed: usize,
    pub(crate) milliseconds: u64,
}

impl Progress {
    /// llama-server's `prompt_progress`. What was in the cache counts as processed from the start.
    pub(crate) fn report(&self) -> serde_json::Value {
        serde_json::json!({"total": self.total, "cache": self.cached, "processed": self.processed,
            "time_ms": self.milliseconds})
    }
}

/// A place in the engine, held by one request; dropping it frees the slot, which then holds what was read and written.
#[derive(Debug)]
pub(crate) struct Seat {
    engine: Arc<Engine>,
    place: Place,
    permit: Option<OwnedSemaphorePermit>,
    slot: Option<usize>,
    held: Vec<u32>,
    prompt_tokens: usize,
    cached: usize,
    read: usize,
    written: u32,
    decoding: bool,
    /// Of tokens that were handed over before their time, seconds alone.
    owed: f64,
    /// Since when it reads.
    started: Instant,
    first_token: Option<Instant>,
}

impl Seat {
    pub(crate) fn cached(&self) -> usize {
        self.cached
    }

    pub(crate) fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// Tokens written so far.
    pub(crate) fn written(&self) -> u32 {
        self.written
    }

    /// Seconds of the phone model spent reading and writing so far.
    pub(crate) fn timings(&self) -> (f64, f64) {
        let now = clock::now();
        let first = self.first_token.unwrap_or(now);
        let scale = self.engine.time_scale;
        ((first - self.started).as_secs_f64() * scale, (now - first).as_secs_f64() * scale)
    }

    pub(crate) fn progress(&self) -> Progress {
        Progress {
            total: self.prompt_tokens,
            cached: self.cached,
            processed: self.read,
            milliseconds: (self.timings().0 * 1000.0) as u64,
        }
    }

    /// Lets the overhead of a request pass. An engine's own account of its reading begins after it.
    pub(crate) async fn prepare(&mut self) {
        let seconds = self.engine.speed.overhead_seconds;
        self.engine.bench.work(&self.place, seconds).await;
        self.started = clock::now();
    }

    /// Reads one more batch of the prompt; false when it has been read whole.
    pub(crate) async fn read_batch(&mut self) -> bool {
        if self.read >= self.prompt_tokens {
            return false;
        }
        let to = (self.read + self.engine.batch_tokens).min(self.prompt_tokens);
        let seconds = self.engine.speed.prefill_seconds(self.read as f64, to as f64, ALONE);
        self.engine.bench.work(&self.place, seconds).await;
        self.read = to;
        true
    }

    /// Waits for the next tokens and says how many there are, at most `limit` and at least one.
    ///
    /// Where tokens come in pieces, the first one comes at once: the model found it when it had read the prompt. What it
    /// costs is made up for with the next piece.
    pub(crate) async fn write_tokens(&mut self, limit: u32) -> u32 {
        if !self.decoding {
            self.decoding = true;
            self.first_token = Some(clock::now());
            self.engine.bench.write(&self.place);
        }
        let in_pieces = !self.engine.write_interval.is_zero();
        if in_pieces && self.written == 0 && limit > 1 {
            self.owed = self.seconds_of(0, 1);
            return self.wrote(1);
        }
        let mut count = if in_pieces { self.piece(limit) } else { 1 };
        let seconds = std::mem::take(&mut self.owed) + self.seconds_of(self.written, count);
        self.engine.bench.work(&self.place, seconds).await;
        while count < limit.min(LARGEST_BURST) {
            let next = self.seconds_of(self.written + count, 1);
            if !self.engine.bench.catch_up(&self.place, next) {
                break;
            }
            count += 1;
        }
        self.wrote(count)
    }

    fn wrote(&mut self, count: u32) -> u32 {
        self.written += count;
        self.engine.book.update(|stats| stats.written_tokens += u64::from(count));
        count
    }

    /// Tokens that come within the interval between two pieces.
    fn piece(&self, limit: u32) -> u32 {
        let interval = self.engine.write_interval.as_secs_f64() * self.engine.time_scale;
        let tokens = interval / self.seconds_of(self.written, 1);
        // Saturates, for phones that take no time.
        (tokens as u32).clamp(1, limit.max(1))
    }

    /// Notes what was written, so that a later turn of the conversation finds it in the slot.
    pub(crate) fn remember(&mut self, tokens: impl IntoIterator<Item = u32>) {
        self.held.extend(tokens);
    }

    /// What `count` tokens after the first `written` take alone.
    fn seconds_of(&self, written: u32, count: u32) -> f64 {
        let context = self.prompt_tokens as f64 + f64::from(written);
        self.engine.speed.decode_seconds(context, f64::from(count), ALONE)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut held = std::mem::take(&mut self.held);
        if self.read < self.prompt_tokens {
            held.truncate(self.read);
        }
        if let Some(slot) = self.slot {
            self.engine.caches().put_back(slot, held);
        }
        self.engine.bench.leave(&self.place);
        self.engine.book.update(|stats| stats.running_now -= 1);
        drop(self.permit.take());
    }
}
