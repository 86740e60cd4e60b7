//! Plays a record again.

use std::{
    collections::VecDeque,
    fmt,
    io::{self, BufRead},
};

use scheduler::{Class, Effect, Event, Scheduler, SchedulerConfig, Snapshot, Timestamp};
use serde::Deserialize;

use super::{
    Head, Line, VERSION,
    outcomes::{Ledger, Outcomes},
};

/// What a record holds, once it was played again and every effect was as recorded.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// The scheduler's seed.
    pub seed: u64,
    /// When it was told the first thing.
    pub from: Timestamp,
    /// When it was told the last.
    pub until: Timestamp,
    /// How many things it was told.
    pub events: u64,
    /// How often it was told that time passed.
    pub advances: u64,
    /// Effects that were the same.
    pub effects: u64,
    /// Effects of the last call that are not in the record: it broke off before them.
    pub unconfirmed: u64,
    /// The last line is not whole, and was left out.
    pub torn: bool,
    /// Most requests that waited at once, after any call.
    pub peak_waiting: usize,
    /// What came of the requests, by class as in [`Class::ALL`].
    pub classes: [Outcomes; Class::ALL.len()],
    /// The scheduler at the end: decisions and waste by kind, replicas, the queue.
    pub snapshot: Snapshot,
}

/// Why a record can't be played again.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file can't be read.
    #[error("line {line}: {source}")]
    Read {
        /// Where.
        line: u64,
        /// Why.
        source: io::Error,
    },
    /// It is no record.
    #[error("line 1: expected {{\"huntgroup_record\":{VERSION},\"seed\":…,\"config\":…}}: {0}")]
    Head(Mistake),
    /// It is one in another form.
    #[error("line 1: the record has version {0}, this program plays version {VERSION}")]
    Version(u64),
    /// A line is not of the form.
    #[error("line {line}: expected \"at\" and one of \"event\", \"advance\":true, \"effect\": {mistake}")]
    Line {
        /// Which.
        line: u64,
        /// What is wrong with it.
        mistake: Mistake,
    },
    /// The scheduler does something else today.
    #[error(
        "line {line}: the effects differ at {:.6} s: recorded {}, now {}",
        at.since(Timestamp::ZERO).as_secs_f64(), Shown(recorded), Shown(now)
    )]
    Differs {
        /// Where the record says so, or where it says nothing more.
        line: u64,
        /// When.
        at: Timestamp,
        /// What the record says; `None`: nothing more at that time.
        recorded: Option<Box<Effect>>,
        /// What happened now; `None`: nothing more at that time.
        now: Option<Box<Effect>>,
    },
    /// An effect is not of the time of its cause.
    #[error("line {line}: the effect is of {} ns, what caused it of {} ns", effect.0, cause.0)]
    Time {
        /// Which.
        line: u64,
        /// Its time.
        effect: Timestamp,
        /// That of the event before.
        cause: Timestamp,
    },
}

/// What is wrong with a line, and in which column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake(String);

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<serde_json::Error> for Mistake {
    fn from(error: serde_json::Error) -> Self {
        // Each line is read for itself, so the reader's own line number is always 1.
        Self(error.to_string().replace(" at line 1 column", " at column"))
    }
}

struct Shown<'e>(&'e Option<Box<Effect>>);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("nothing more"),
            Some(effect) => match serde_json::to_string(effect) {
                Ok(json) => f.write_str(&json),
                Err(_) => write!(f, "{effect:?}"),
            },
        }
    }
}

/// Plays a record with a fresh scheduler and compares every effect.
///
/// # Errors
/// The first line that is not of the form, or whose effect is not what the scheduler wants now.
pub fn replay(reader: impl BufRead) -> Result<Replayed, RecordError> {
    let mut lines = Lines { reader, text: Vec::new(), line: 0, torn: false };
    let head = lines.head()?;
    let mut play = Play::new(head);
    while let Some(line) = lines.next()? {
        play.line(line, lines.line)?;
    }
    Ok(play.finish(lines.torn))
}

/// The lines of a record, by number.
struct Lines<R> {
    reader: R,
    text: Vec<u8>,
    line: u64,
    torn: bool,
}

impl<R: BufRead> Lines<R> {
    /// Reads the next line; false at the end.
    fn read(&mut self) -> Result<bool, RecordError> {
        self.line += 1;
        self.text.clear();
        let read = self.reader.read_until(b'\n', &mut self.text);
        read.map(|bytes| bytes > 0).map_err(|source| RecordError::Read { line: self.line, source })
    }

    fn head(&mut self) -> Result<Head<SchedulerConfig>, RecordError> {
        #[derive(Deserialize)]
        struct Version {
            huntgroup_record: u64,
        }
        self.read()?;
        let wrong = |error: serde_json::Error| RecordError::Head(error.into());
        let version: Version = serde_json::from_slice(&self.text).map_err(wrong)?;
        if version.huntgroup_record != VERSION {
            return Err(RecordError::Version(version.huntgroup_record));
        }
        serde_json::from_slice(&self.text).map_err(wrong)
    }

    fn next(&mut self) -> Result<Option<Line<Event, Effect>>, RecordError> {
        if !self.read()? {
            return Ok(None);
        }
        match serde_json::from_slice(&self.text) {
            Ok(line) => Ok(Some(line)),
            // Only what breaks off in the middle of a line ends without a line's end.
            Err(_) if self.text.last() != Some(&b'\n') => {
                self.torn = true;
                Ok(None)
            }
            Err(error) => Err(RecordError::Line { line: self.line, mistake: error.into() }),
        }
    }
}

/// A record being played.
struct Play {
    seed: u64,
    scheduler: Scheduler,
    ledger: Ledger,
    /// Effects of the latest call that the record has not shown yet.
    pending: VecDeque<Effect>,
    from: Option<Timestamp>,
    at: Timestamp,
    events: u64,
    advances: u64,
    effects: u64,
    peak_waiting: usize,
}

impl Play {
    fn new(head: Head<SchedulerConfig>) -> Self {
        Self {
            seed: head.seed,
            scheduler: Scheduler::new(head.config, head.seed),
            ledger: Ledger::default(),
            pending: VecDeque::new(),
            from: None,
            at: Timestamp::ZERO,
            events: 0,
            advances: 0,
            effects: 0,
            peak_waiting: 0,
        }
    }

    fn line(&mut self, line: Line<Event, Effect>, number: u64) -> Result<(), RecordError> {
        match line {
            Line { at, event: Some(event), advance: None, effect: None } => {
                self.call(at, number)?;
                self.events += 1;
                self.ledger.told(&event, at);
                self.scheduler.handle(event, at);
                self.settle();
            }
            Line { at, event: None, advance: Some(true), effect: None } => {
                self.call(at, number)?;
                self.advances += 1;
                self.scheduler.advance(at);
                self.settle();
            }
            Line { at, event: None, advance: None, effect: Some(effect) } => self.compare(at, effect, number)?,
            _ => {
                let mistake = Mistake("found none or several of them".to_owned());
                return Err(RecordError::Line { line: number, mistake });
            }
        }
        Ok(())
    }

    /// Another call begins: the record has shown all effects of the one before.
    fn call(&mut self, at: Timestamp, line: u64) -> Result<(), RecordError> {
        if let Some(effect) = self.pending.pop_front() {
            return Err(RecordError::Differs { line, at: self.at, recorded: None, now: Some(Box::new(effect)) });
        }
        self.from.get_or_insert(at);
        self.at = at;
        Ok(())
    }

    fn settle(&mut self) {
        while let Some(effect) = self.scheduler.poll_effect() {
            self.ledger.wanted(&effect);
            self.pending.push_back(effect);
        }
        self.ledger.settled(&self.scheduler, self.at);
        self.peak_waiting = self.peak_waiting.max(self.scheduler.waiting());
    }

    fn compare(&mut self, at: Timestamp, recorded: Effect, line: u64) -> Result<(), RecordError> {
        let now = self.pending.pop_front();
        if now.as_ref() != Some(&recorded) {
            let (recorded, now) = (Some(Box::new(recorded)), now.map(Box::new));
            return Err(RecordError::Differs { line, at: self.at, recorded, now });
        }
        if at != self.at {
            return Err(RecordError::Time { line, effect: at, cause: self.at });
        }
        self.effects += 1;
        Ok(())
    }

    fn finish(self, torn: bool) -> Replayed {
        Replayed {
            seed: self.seed,
            from: self.from.unwrap_or_default(),
            until: self.at,
            events: self.events,
            advances: self.advances,
            effects: self.effects,
            unconfirmed: self.pending.len() as u64,
            torn,
            peak_waiting: self.peak_waiting,
            classes: self.ledger.finish(),
            snapshot: self.scheduler.snapshot(self.at),
        }
    }
}
