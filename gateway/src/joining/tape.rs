//! The answer to one request, written once and read by any number of clients, each at its own pace.
//!
//! The bytes lie in one buffer behind a plain lock, which is held for one copy; readers have positions. So a reader that comes
//! late begins at the beginning, and a slow one slows nobody, as long as the answer stays within its bound.
//! Beyond it (or beyond what all answers may take together) the tape is *closed*: nobody can join any more, what all
//! have read is dropped, and the writer waits for the slowest of those who are there, as for a single client.
//!
//! Rejected: a broadcast channel (a slow reader loses pieces, a late one has no beginning); pieces shared by reference (an
//! event has some 200 bytes: its handle is a fifth of that, and keeps alive what the phone's connection had read with it).

use std::{
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use pingora::http::ResponseHeader;
use scheduler::{Class, Timestamp};
use tokio::sync::Notify;

use super::room::Charge;
use crate::{clock, error::ApiError, listener::Progress};

/// Most that is read at once; what a socket takes at once.
const MAX_PIECE: usize = 64 << 10;
/// What a closed tape holds that somebody has not read yet.
const WINDOW: usize = 64 << 10;
/// Least by which the buffer grows.
const GROWTH: usize = 4 << 10;

/// What is known of an answer before it is there.
#[derive(Clone)]
pub struct Opening {
    /// What was asked for, by its configured name.
    pub model: Arc<str>,
    /// How urgent.
    pub class: Class,
    /// Whether it will be a stream.
    pub stream: bool,
    /// The head for clients that get one early; `None` if none does.
    pub head: Option<Box<ResponseHeader>>,
    /// What is sent while there is nothing to send, if not the usual.
    pub filler: Option<Bytes>,
    /// How long it still waits.
    pub progress: Option<Progress>,
}

/// Why there is no whole answer.
#[derive(Debug)]
pub struct Failure {
    /// For those who have seen nothing yet.
    pub error: ApiError,
    /// The same, as the last words to those who have.
    pub event: Bytes,
}

/// How an answer ended.
#[derive(Clone, Debug)]
pub enum End {
    /// It is whole.
    Whole,
    /// It is not.
    Failed(Arc<Failure>),
}

/// What a reader comes to next, in this order.
pub enum Step {
    /// What there is to know while it waits.
    Opened(Opening),
    /// The head of the answer.
    Head(Box<ResponseHeader>),
    /// A piece of it.
    Piece(Bytes),
    /// Its end.
    Ended(End),
}

/// Nobody reads any more, and nobody came back in time.
#[derive(Debug, PartialEq, Eq)]
pub struct Abandoned;

/// The written answer.
pub struct Tape {
    first: Arc<str>,
    max: usize,
    grace: Duration,
    state: Mutex<State>,
    /// For readers: something was written.
    written: Notify,
    /// For the writer: a reader came, went, or read on.
    audience: Notify,
}

struct State {
    opening: Option<Opening>,
    head: Option<Box<ResponseHeader>>,
    text: Text,
    /// Bytes of the answer that have been dropped: where `text` begins.
    dropped: u64,
    end: Option<End>,
    /// Counts what was written.
    version: u64,
    /// Can be joined.
    open: bool,
    /// Readers and how far they have read.
    readers: Vec<(u64, u64)>,
    next_reader: u64,
    /// Since when there are none.
    deserted: Option<Timestamp>,
    charge: Charge,
}

/// Still written, or whole.
enum Text {
    Growing(Vec<u8>),
    Whole(Bytes),
}

/// One client's place in an answer. Dropped, it is not waited for.
pub struct Reader {
    tape: Arc<Tape>,
    number: u64,
    position: u64,
    opened: bool,
    headed: bool,
    seen: u64,
}

impl Tape {
    /// An empty one, and its first reader. It answers the request `first`, may grow to `max` bytes, and outlives its last
    /// reader by `grace`. If it is not `open`, nobody else can join.
    pub fn new(first: Arc<str>, max: usize, grace: Duration, charge: Charge, open: bool) -> (Arc<Self>, Reader) {
        let state = State {
            opening: None,
            head: None,
            text: Text::Growing(Vec::new()),
            dropped: 0,
            end: None,
            version: 0,
            open,
            readers: Vec::new(),
            next_reader: 0,
            deserted: None,
            charge,
        };
        let (written, audience) = (Notify::new(), Notify::new());
        let tape = Arc::new(Self { first, max, grace, state: Mutex::new(state), written, audience });
        let number = tape.state().enter();
        let reader = Reader::new(Arc::clone(&tape), number);
        (tape, reader)
    }

    /// Another reader, and whether the answer is whole already; `None` if it can't be joined any more.
    pub fn join(self: &Arc<Self>) -> Option<(Reader, bool)> {
        let (number, over) = {
            let mut state = self.state();
            if !state.open {
                return None;
            }
            (state.enter(), state.end.is_some())
        };
        self.audience.notify_one();
        Some((Reader::new(Arc::clone(self), number), over))
    }

    /// Whether it can be joined.
    pub fn is_open(&self) -> bool {
        self.state().open
    }

    /// Tells readers what there is to know while they wait.
    pub fn open(&self, opening: Opening) {
        self.write(|state| state.opening = Some(opening));
    }

    /// Writes the head of the answer.
    pub fn head(&self, head: Box<ResponseHeader>) {
        self.write(|state| state.head = Some(head));
    }

    /// By how much the buffer would grow with a piece of this length.
    pub fn growth(&self, piece: usize) -> usize {
        let state = self.state();
        if state.open { state.growth(piece, self.max) } else { 0 }
    }

    /// Writes a piece, all of it or none. Closes the tape where there is no room for it, and waits for its readers
    /// then.
    pub async fn append(&self, piece: &[u8]) -> Result<(), Abandoned> {
        while !self.write(|state| state.append(piece, self.max)) {
            self.audience_changes().await?;
        }
        Ok(())
    }

    /// The answer is whole.
    pub fn finish(&self) {
        self.write(State::finish);
    }

    /// There will be no whole answer; nothing happens if it has ended already.
    pub fn fail(&self, error: ApiError, event: Bytes) {
        self.write(|state| {
            if state.end.is_none() {
                state.open = false;
                state.end = Some(End::Failed(Arc::new(Failure { error, event })));
            }
        });
    }

    /// Whether it has come to its end.
    pub fn has_ended(&self) -> bool {
        self.state().end.is_some()
    }

    /// Resolves when nobody has read for too long; nobody can join then.
    pub async fn abandoned(&self) -> Abandoned {
        loop {
            if let Err(abandoned) = self.audience_changes().await {
                return abandoned;
            }
        }
    }

    /// Waits until a reader comes, goes or reads on.
    async fn audience_changes(&self) -> Result<(), Abandoned> {
        let (deserted, open) = {
            let state = self.state();
            (state.deserted, state.open)
        };
        let Some(since) = deserted else {
            self.audience.notified().await;
            return Ok(());
        };
        // Nobody can come back to a closed one.
        let until = clock::instant(if open { since + self.grace } else { since });
        if tokio::time::timeout_at(until, self.audience.notified()).await.is_err() {
            let mut state = self.state();
            if state.readers.is_empty() {
                state.open = false;
                return Err(Abandoned);
            }
        }
        Ok(())
    }

    fn write<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = {
            let mut state = self.state();
            state.version += 1;
            change(&mut state)
        };
        self.written.notify_waiters();
        changed
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn enter(&mut self) -> u64 {
        let number = self.next_reader;
        self.next_reader += 1;
        self.readers.push((number, 0));
        self.deserted = None;
        number
    }

    fn leave(&mut self, number: u64) {
        self.readers.retain(|reader| reader.0 != number);
        if self.readers.is_empty() {
            self.deserted = Some(clock::now());
        }
        self.forget_read();
    }

    /// Bytes that are there.
    fn held(&self) -> usize {
        match &self.text {
            Text::Growing(text) => text.len(),
            Text::Whole(text) => text.len(),
        }
    }

    /// By a quarter at least: a handful of copies in all, and little that is reserved in vain.
    fn growth(&self, piece: usize, max: usize) -> usize {
        let Text::Growing(text) = &self.text else { return 0 };
        let needed = text.len() + piece;
        if needed <= text.capacity() {
            return 0;
        }
        needed.max((text.len() + (text.len() / 4).max(GROWTH)).min(max)) - text.capacity()
    }

    fn append(&mut self, piece: &[u8], max: usize) -> bool {
        if self.open && !self.has_room(piece.len(), max) {
            self.open = false;
            self.forget_read();
        }
        let fits = self.open || self.held() == 0 || self.held() + piece.len() <= WINDOW;
        if fits && let Text::Growing(text) = &mut self.text {
            text.extend_from_slice(piece);
        }
        fits
    }

    fn has_room(&mut self, piece: usize, max: usize) -> bool {
        let growth = self.growth(piece, max);
        if self.held() + piece > max || !self.charge.grow(growth) {
            return false;
        }
        if let Text::Growing(text) = &mut self.text {
            text.reserve_exact(text.capacity() - text.len() + growth);
        }
        true
    }

    fn finish(&mut self) {
        self.end = Some(End::Whole);
        if let Text::Growing(text) = &mut self.text {
            self.charge.shrink(text.capacity() - text.len());
            // Copied: what a buffer that is shrunk gives back lies between what is kept, and is of little use to others.
            self.text = Text::Whole(Bytes::copy_from_slice(text));
        }
        if let Some(opening) = &mut self.opening {
            (opening.head, opening.progress) = (None, None);
        }
    }

    /// Drops what every reader of a closed tape has read.
    fn forget_read(&mut self) {
        if self.open {
            return;
        }
        let least = self.readers.iter().map(|(_, position)| *position).min();
        let read = least.map_or(self.held(), |least| usize::try_from(least - self.dropped).unwrap_or(usize::MAX));
        let Text::Growing(text) = &mut self.text else { return };
        // A part is only moved up when it is the smaller one: each byte is moved at most once.
        if read == 0 || read < text.len() - read {
            return;
        }
        text.drain(..read);
        self.dropped += read as u64;
        let before = text.capacity();
        text.shrink_to(WINDOW);
        self.charge.shrink(before - text.capacity());
    }

    fn read(&mut self, number: u64, position: u64) -> Option<Bytes> {
        let from = usize::try_from(position - self.dropped).unwrap_or(usize::MAX);
        let piece = match &self.text {
            Text::Growing(text) => Bytes::copy_from_slice(bounded(text.get(from..)?)),
            Text::Whole(text) => text.slice_ref(bounded(text.get(from..)?)),
        };
        if let Some(reader) = self.readers.iter_mut().find(|reader| reader.0 == number) {
            reader.1 += piece.len() as u64;
        }
        (!piece.is_empty()).then_some(piece)
    }
}

fn bounded(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len().min(MAX_PIECE)]
}

impl Reader {
    fn new(tape: Arc<Tape>, number: u64) -> Self {
        Self { tape, number, position: 0, opened: false, headed: false, seen: u64::MAX }
    }

    /// The id of the request whose answer this is.
    pub fn first(&self) -> &Arc<str> {
        &self.tape.first
    }

    /// What comes next; `None` if that has not been written yet.
    pub fn next(&mut self) -> Option<Step> {
        let mut state = self.tape.state();
        self.seen = state.version;
        if !self.opened
            && let Some(opening) = &state.opening
        {
            self.opened = true;
            return Some(Step::Opened(opening.clone()));
        }
        if !self.headed
            && let Some(head) = &state.head
        {
            self.headed = true;
            return Some(Step::Head(head.clone()));
        }
        if let Some(piece) = state.read(self.number, self.position) {
            self.position += piece.len() as u64;
            state.forget_read();
            let waited_for = !state.open;
            drop(state);
            if waited_for {
                self.tape.audience.notify_one();
            }
            return Some(Step::Piece(piece));
        }
        state.end.clone().map(Step::Ended)
    }

    /// Resolves when something has been written since the last look.
    pub async fn written(&self) {
        let mut written = pin!(self.tape.written.notified());
        written.as_mut().enable();
        if self.tape.state().version == self.seen {
            written.await;
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.tape.state().leave(self.number);
        self.tape.audience.notify_one();
    }
}
