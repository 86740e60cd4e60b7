//! The engine: slots, a first-come queue before them, and time that passes as the phone model says.
//!
//! Requests that run share the processor; the shares are looked up at every batch and every token, as a real engine
//! re-decides at every pass over the weights. Rejected: a central loop per phone that computes every next event. It
//! would be exact between two tokens, but costs a task per phone and a wake-up of everybody at every change.

use crate::clock;
use crate::config::PhoneConfig;
use crate::stats::{Book, PhoneStats};
use simulation::phone::{Load, PhoneSpeed, SlotCaches};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// How far a request may lag behind its schedule and still catch up. More is time the client did not read: lost.
const LARGEST_LAG: Duration = Duration::from_millis(20);
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
    active: AtomicU32,
    decoding: AtomicU32,
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
            active: AtomicU32::new(0),
            decoding: AtomicU32::new(0),
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
        self.active.fetch_add(1, Ordering::Relaxed);
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
            permit,
            slot: choice.map(|choice| choice.slot),
            prompt_tokens: prompt.len(),
            held: prompt,
            cached,
            read: cached,
            written: 0,
            decoding: false,
            due: now,
            started: now,
            first_token: None,
        }
    }

    fn load(&self) -> Load {
        Load { active: self.active.load(Ordering::Relaxed), decoding: self.decoding.load(Ordering::Relaxed) }
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

/// A place in the engine, held by one request; dropping it frees the slot, which then holds what was read and written.
#[derive(Debug)]
pub(crate) struct Seat {
    engine: Arc<Engine>,
    permit: Option<OwnedSemaphorePermit>,
    slot: Option<usize>,
    held: Vec<u32>,
    prompt_tokens: usize,
    cached: usize,
    read: usize,
    written: u32,
    decoding: bool,
    due: Instant,
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

    pub(crate) fn is_decoding(&self) -> bool {
        self.decoding
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

    /// Lets the overhead of a request pass.
    pub(crate) async fn prepare(&mut self) {
        self.spend(self.engine.speed.overhead_seconds).await;
    }

    /// Reads one more batch of the prompt; false when it has been read whole.
    pub(crate) async fn read_batch(&mut self) -> bool {
        if self.read >= self.prompt_tokens {
            return false;
        }
        let to = (self.read + self.engine.batch_tokens).min(self.prompt_tokens);
        let seconds = self.engine.speed.prefill_seconds(self.read as f64, to as f64, self.engine.load());
        self.spend(seconds).await;
        self.read = to;
        true
    }

    /// Waits for the next token and says how many are due by then, at most `limit` and at least one.
    pub(crate) async fn write_tokens(&mut self, limit: u32) -> u32 {
        if !self.decoding {
            self.decoding = true;
            self.first_token = Some(clock::now());
            self.engine.decoding.fetch_add(1, Ordering::Relaxed);
        }
        let seconds = self.token_seconds(self.written);
        self.spend(seconds).await;
        let now = clock::now();
        let mut count = 1;
        while count < limit.min(LARGEST_BURST) {
            let due = self.due + self.scaled(self.token_seconds(self.written + count));
            if due > now {
                break;
            }
            self.due = due;
            count += 1;
        }
        self.written += count;
        self.engine.book.update(|stats| stats.written_tokens += u64::from(count));
        count
    }

    /// Notes what was written, so that a later turn of the conversation finds it in the slot.
    pub(crate) fn remember(&mut self, tokens: impl IntoIterator<Item = u32>) {
        self.held.extend(tokens);
    }

    fn token_seconds(&self, index: u32) -> f64 {
        let context = self.prompt_tokens as f64 + f64::from(index);
        self.engine.speed.decode_seconds(context, 1.0, self.engine.load())
    }

    fn scaled(&self, model_seconds: f64) -> Duration {
        Duration::try_from_secs_f64(model_seconds / self.engine.time_scale).unwrap_or(Duration::ZERO)
    }

    /// Lets time of the phone model pass, on a schedule, so that timer slack does not add up over tokens.
    async fn spend(&mut self, model_seconds: f64) {
        let now = clock::now();
        let earliest = now.checked_sub(LARGEST_LAG).unwrap_or(now);
        self.due = self.due.max(earliest) + self.scaled(model_seconds);
        if self.due > now {
            tokio::time::sleep_until(self.due).await;
        } else {
            tokio::task::yield_now().await;
        }
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
        self.engine.active.fetch_sub(1, Ordering::Relaxed);
        if self.decoding {
            self.engine.decoding.fetch_sub(1, Ordering::Relaxed);
        }
        self.engine.book.update(|stats| stats.running_now -= 1);
        drop(self.permit.take());
    }
}
