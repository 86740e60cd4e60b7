//! The record of what the core is told and what it wants, for `loadtest replay`.
//!
//! Problem: a record is of use only if it is whole and in order, so it is taken under the core's mutex; but writing may take
//! seconds (a busy disk), and nothing may wait for that. Choice: a bounded channel to a thread that writes. What does not
//! fit ends the record, since one with a hole can't be played: the file then breaks off in a line that says so. Nothing in it
//! is a client's or a phone's text: events hold numbers, and keyed fingerprints of prompts.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel},
    },
    thread::{self, JoinHandle},
};

use scheduler::{Effect, Event, SchedulerConfig, Timestamp};
use simulation::record::Recorder;

/// Lines under way to the file: three seconds of a thousand requests a second.
const MAX_UNWRITTEN: usize = 16_384;

/// The last words of a record that could not be kept up with. No line's end: a replay takes it for what was cut off.
const CUT: &[u8] = b"{\"cut\":\"the file could not keep up\"}";

/// A record being written.
pub struct Record {
    /// Gone once the record is cut.
    lines: Option<SyncSender<Line>>,
    cut: Arc<AtomicBool>,
    dropped: u64,
    writer: Option<JoinHandle<()>>,
}

enum Line {
    Event(Box<Event>, Timestamp),
    Advance(Timestamp),
    Effect(Effect),
}

impl Record {
    /// Begins the record of a scheduler with these settings and this seed. A file that is there already, of an earlier run,
    /// gets `.before` added to its name.
    ///
    /// # Errors
    /// The file can't be created.
    pub fn create(path: &Path, config: &SchedulerConfig, seed: u64) -> io::Result<Self> {
        let mut before = OsString::from(path);
        before.push(".before");
        match fs::rename(path, before) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        Self::begin(File::create(path)?, config, seed, MAX_UNWRITTEN)
    }

    fn begin(
        out: impl Write + Send + 'static,
        config: &SchedulerConfig,
        seed: u64,
        max_unwritten: usize,
    ) -> io::Result<Self> {
        let mut recorder = Recorder::new(BufWriter::new(out), config, seed)?;
        recorder.flush()?;
        let (lines, received) = sync_channel(max_unwritten);
        let cut = Arc::new(AtomicBool::new(false));
        let noticed = Arc::clone(&cut);
        let writer = thread::Builder::new().name("record".into()).spawn(move || {
            if let Err(error) = write(recorder, &received, &noticed) {
                tracing::error!(%error, "scheduler.record can't be written any more");
            }
        })?;
        Ok(Self { lines: Some(lines), cut, dropped: 0, writer: Some(writer) })
    }

    /// The core is told this.
    pub fn event(&mut self, event: &Event, now: Timestamp) {
        self.push(|| Line::Event(Box::new(event.clone()), now));
    }

    /// The core is told that time passed.
    pub fn advance(&mut self, now: Timestamp) {
        self.push(|| Line::Advance(now));
    }

    /// The core wants this.
    pub fn effect(&mut self, effect: &Effect) {
        self.push(|| Line::Effect(effect.clone()));
    }

    fn push(&mut self, line: impl FnOnce() -> Line) {
        let Some(lines) = &self.lines else {
            self.dropped += 1;
            return;
        };
        let Err(error) = lines.try_send(line()) else { return };
        // Of a writer that is gone nothing has to be said: it has done so itself.
        if let TrySendError::Full(_) = error {
            tracing::error!("scheduler.record ends here: its file could not keep up");
            self.cut.store(true, Ordering::Release);
        }
        self.dropped += 1;
        self.lines = None;
    }

    /// Writes what is under way, and waits for that.
    pub fn end(mut self) {
        if self.dropped > 0 {
            tracing::error!(lines = self.dropped, "scheduler.record is not whole");
        }
        drop(self.lines.take());
        if self.writer.take().is_some_and(|writer| writer.join().is_err()) {
            tracing::error!("the writer of scheduler.record panicked");
        }
    }
}

/// Writes what comes until no more can come.
fn write<W: Write>(mut recorder: Recorder<BufWriter<W>>, lines: &Receiver<Line>, cut: &AtomicBool) -> io::Result<()> {
    loop {
        let line = match lines.try_recv() {
            Ok(line) => line,
            // Nothing to do: whoever looks at the file now sees all of it.
            Err(TryRecvError::Empty) => {
                recorder.flush()?;
                let Ok(line) = lines.recv() else { break };
                line
            }
            Err(TryRecvError::Disconnected) => break,
        };
        match line {
            Line::Event(event, at) => recorder.event(&event, at)?,
            Line::Advance(at) => recorder.advance(at)?,
            Line::Effect(effect) => recorder.effect(&effect)?,
        }
    }
    let mut out = recorder.into_inner();
    if cut.load(Ordering::Acquire) {
        out.write_all(CUT)?;
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use scheduler::{ModelId, RelayId, Release, ReplicaId, ReplicaSpec, Report, RouteSet};

    use super::*;
    use crate::dispatch::{Dispatcher, testing::request};

    /// Takes bytes once it may.
    struct Slow {
        may: Arc<Mutex<()>>,
        bytes: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _may = self.may.lock().expect("no panic holds it");
            self.bytes.lock().expect("no panic holds it").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn ready(dispatcher: &Dispatcher, replica: u32) {
        let replica = ReplicaId(replica);
        let spec = ReplicaSpec {
            models: vec![ModelId(1)],
            routes: RouteSet(1),
            slots: 1,
            context_tokens: None,
            relay: RelayId(1),
            prior: None,
            carries_on: false,
            group: None,
            release: Release::AtOnce,
        };
        dispatcher.handle(Event::ReplicaUp { replica, spec });
        dispatcher.handle(Event::ReplicaReported { replica, report: Report::Ready });
    }

    #[test]
    fn what_a_dispatcher_did_is_played_again_exactly() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run.record");
        let config = SchedulerConfig::default();
        for run in 0..2 {
            let record = Record::create(&path, &config, 7).expect("a file");
            let dispatcher = Arc::new(Dispatcher::new(config.clone(), 7, Some(record)));
            ready(&dispatcher, 1);
            let places: Vec<_> = (0..5 + run).map(|_| dispatcher.submit(request())).collect();
            drop(places);
            dispatcher.end_record();
        }
        let replay = |path: &Path| {
            simulation::record::replay(io::BufReader::new(File::open(path).expect("it is there"))).expect("it plays")
        };
        let last = replay(&path);
        assert!(!last.torn && last.effects > 0 && last.unconfirmed == 0, "{last:?}");
        let arrived =
            |played: &simulation::record::Replayed| played.classes.iter().map(|class| class.arrived).sum::<u64>();
        assert_eq!(arrived(&last), 6);
        assert_eq!(arrived(&replay(&folder.path().join("run.record.before"))), 5, "the earlier run is kept");
    }

    #[test]
    fn a_file_that_is_too_slow_cuts_the_record_and_holds_nobody_up() {
        let (may, bytes) = (Arc::new(Mutex::new(())), Arc::new(Mutex::new(Vec::new())));
        let config = SchedulerConfig::default();
        let out = Slow { may: Arc::clone(&may), bytes: Arc::clone(&bytes) };
        let record = Record::begin(out, &config, 7, 10).expect("a thread");
        let dispatcher = Arc::new(Dispatcher::new(config, 7, Some(record)));
        let stalled = may.lock().expect("no panic holds it");
        // The thread can take some thousand bytes before it has to write.
        for replica in 1..1_000 {
            ready(&dispatcher, replica);
        }
        drop(stalled);
        dispatcher.end_record();
        let bytes = bytes.lock().expect("no panic holds it");
        assert!(bytes.ends_with(CUT), "{}", String::from_utf8_lossy(&bytes));
        let played = simulation::record::replay(&**bytes).expect("it plays up to there");
        assert!(played.torn && played.events < 2_000, "{played:?}");
    }
}
