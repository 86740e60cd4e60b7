//! A run of the scheduler as a file: written while it happens, played again exactly.
//!
//! Problem: a decision that looks wrong in the field can't be judged from a log, which tells what was decided and not what
//! was known. Choice: the scheduler is a function of its settings, its seed and what it is told, so these are written down
//! in order, and with them its effects, so that a replay proves itself: the first effect that differs is an error with its
//! line. Rejected: snapshots of its state (large, and no proof of how it came about) and a record of the effects alone
//! (nothing to play).
//!
//! The form is one JSON object a line, to be read with the usual tools. Times are nanoseconds since the driver's start.
//!
//! | line | means |
//! |---|---|
//! | `{"huntgroup_record":1,"seed":…,"config":…}` | the first: what the scheduler was made from |
//! | `{"at":…,"event":{…}}` | it was told something |
//! | `{"at":…,"advance":true}` | it was told that time passed |
//! | `{"at":…,"effect":{…}}` | what it wanted done then, in its order; `at` is that of the line that caused it |
//!
//! A record begins with a fresh scheduler: one that starts in the middle of a run has no beginning to be played from. What
//! breaks off (a full disk, a killed process) can be played up to there.

mod outcomes;
mod replay;

pub use outcomes::Outcomes;
pub use replay::{RecordError, Replayed, replay};

use std::io::{self, Write};

use scheduler::{Effect, Event, SchedulerConfig, Timestamp};
use serde::{Deserialize, Serialize};

/// The version of the form.
const VERSION: u64 = 1;

/// The first line.
#[derive(Serialize, Deserialize)]
struct Head<C> {
    huntgroup_record: u64,
    seed: u64,
    config: C,
}

/// Any other line: exactly one of the three. No enum with the time beside it: `serde` reads that through a buffer which
/// knows no maps by number, and settings have one.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<Told, Wanted> {
    at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<Told>,
    #[serde(skip_serializing_if = "Option::is_none")]
    advance: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    effect: Option<Wanted>,
}

/// Writes a record, line by line, to anything that takes bytes. Each line is one `write_all`; wrap a file in a
/// [`io::BufWriter`].
///
/// It belongs beside the scheduler: tell it everything that the scheduler is told, in the same order and with the same
/// times, and every effect as it is polled.
#[derive(Debug)]
pub struct Recorder<W> {
    out: W,
    line: Vec<u8>,
    at: Timestamp,
}

impl<W: Write> Recorder<W> {
    /// Begins the record of `Scheduler::new(config, seed)`.
    ///
    /// # Errors
    /// What `out` says.
    pub fn new(out: W, config: &SchedulerConfig, seed: u64) -> io::Result<Self> {
        let mut recorder = Self { out, line: Vec::new(), at: Timestamp::ZERO };
        recorder.write(&Head { huntgroup_record: VERSION, seed, config })?;
        Ok(recorder)
    }

    /// `Scheduler::handle(event, at)` is called, or was.
    ///
    /// # Errors
    /// What the output says.
    pub fn event(&mut self, event: &Event, at: Timestamp) -> io::Result<()> {
        self.at = at;
        self.write(&Line::<_, ()> { at, event: Some(event), advance: None, effect: None })
    }

    /// `Scheduler::advance(at)` is called, or was.
    ///
    /// # Errors
    /// What the output says.
    pub fn advance(&mut self, at: Timestamp) -> io::Result<()> {
        self.at = at;
        self.write(&Line::<(), ()> { at, event: None, advance: Some(true), effect: None })
    }

    /// `Scheduler::poll_effect` gave this after the latest call.
    ///
    /// # Errors
    /// What the output says.
    pub fn effect(&mut self, effect: &Effect) -> io::Result<()> {
        self.write(&Line::<(), _> { at: self.at, event: None, advance: None, effect: Some(effect) })
    }

    /// Passes on what the output may hold back.
    ///
    /// # Errors
    /// What the output says.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// The output.
    pub fn into_inner(self) -> W {
        self.out
    }

    fn write(&mut self, line: &impl Serialize) -> io::Result<()> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, line)?;
        self.line.push(b'\n');
        self.out.write_all(&self.line)
    }
}
