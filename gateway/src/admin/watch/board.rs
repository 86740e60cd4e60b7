//! Everything as of the last look, written once for all readers, and the bytes on their way to them.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use scheduler::ReplicaId;
use tokio::sync::broadcast;

/// Pieces that a reader may lag behind. 8: some seconds of a busy network; all of a large pool changing each second, they are 5 MB.
const LAG: usize = 8;
/// Events with their state, in the order in which a reader gets them, and the last; what `pool` has is kept by replica. Those that
/// are not named here come between.
const FIRST: [&str; 6] = ["pool", "totals", "queue", "requests", "batches", "history"];
const LAST: &str = "events";

/// One event of a stream.
pub(super) fn written(name: &str, json: &str) -> String {
    // JSON has no raw line breaks, so one line of data it is.
    format!("event: {name}\ndata: {json}\n\n")
}

pub(super) struct Board {
    state: Mutex<State>,
    pieces: broadcast::Sender<Bytes>,
}

#[derive(Default)]
struct State {
    /// Nothing is here until the first look.
    seen: bool,
    replicas: BTreeMap<ReplicaId, String>,
    wholes: BTreeMap<&'static str, String>,
    /// All of it for readers, once one has asked since the last look.
    joined: Option<Bytes>,
}

/// What a look has found to be different.
#[derive(Default)]
pub(super) struct Changes {
    /// New or changed replicas, as JSON.
    pub(super) replicas: BTreeMap<ReplicaId, String>,
    /// Replicas that are no more.
    pub(super) gone: Vec<ReplicaId>,
    /// Data of events that say all of what they are about: readers get it if it is not what they had.
    pub(super) wholes: Vec<(&'static str, String)>,
    /// The same, for those who join: readers have heard of it piece by piece.
    pub(super) kept: Vec<(&'static str, String)>,
    /// What happened: for readers alone.
    pub(super) news: Vec<(&'static str, String)>,
}

impl Default for Board {
    fn default() -> Self {
        Self { state: Mutex::default(), pieces: broadcast::Sender::new(LAG) }
    }
}

impl Board {
    pub(super) fn subscribe(&self) -> broadcast::Receiver<Bytes> {
        self.pieces.subscribe()
    }

    /// Everything, and what comes after it; `None` before the first look.
    pub(super) fn whole(&self) -> Option<(Bytes, broadcast::Receiver<Bytes>)> {
        let mut state = self.state();
        if !state.seen {
            return None;
        }
        let whole = match &state.joined {
            Some(joined) => joined.clone(),
            None => Bytes::from(state.join()),
        };
        state.joined = Some(whole.clone());
        Some((whole, self.pieces.subscribe()))
    }

    /// Takes in what is different, and sends it to the readers.
    pub(super) fn post(&self, changes: Changes) {
        let mut state = self.state();
        let piece = state.take_in(changes);
        if !piece.is_empty() {
            state.joined = None;
            // Under the lock, so that whoever takes the whole gets exactly what comes after it. Fails when nobody reads.
            drop(self.pieces.send(piece.into()));
        }
    }

    /// Forgets everything: nobody looks any more.
    pub(super) fn clear(&self) {
        *self.state() = State::default();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn take_in(&mut self, changes: Changes) -> String {
        let mut piece = String::new();
        let Changes { replicas, gone, wholes, kept, news } = changes;
        if !(self.seen && replicas.is_empty() && gone.is_empty()) {
            let gone: Vec<u32> = gone.iter().map(|id| self.forget(*id)).collect();
            let json = format!("{{\"replicas\":{},\"gone\":{gone:?}}}", list(replicas.values()));
            piece.push_str(&written("delta", &json));
            self.replicas.extend(replicas);
        }
        self.seen = true;
        for (name, json) in wholes {
            if self.wholes.get(name) != Some(&json) {
                piece.push_str(&written(name, &json));
                self.wholes.insert(name, json);
            }
        }
        self.wholes.extend(kept);
        for (name, json) in news {
            piece.push_str(&written(name, &json));
        }
        piece
    }

    fn forget(&mut self, id: ReplicaId) -> u32 {
        self.replicas.remove(&id);
        id.0
    }

    fn join(&self) -> String {
        let mut whole = String::new();
        let others = self.wholes.keys().filter(|name| !FIRST.contains(name) && **name != LAST);
        for name in FIRST.iter().chain(others).chain([&LAST]) {
            if *name == "pool" {
                whole.push_str(&written(name, &format!("{{\"replicas\":{}}}", list(self.replicas.values()))));
            } else if let Some(json) = self.wholes.get(name) {
                whole.push_str(&written(name, json));
            }
        }
        whole
    }
}

fn list<'a>(items: impl Iterator<Item = &'a String>) -> String {
    let mut list = String::from("[");
    for item in items {
        if list.len() > 1 {
            list.push(',');
        }
        list.push_str(item);
    }
    list.push(']');
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(replicas: &[(u32, &str)], gone: &[u32], queue: &str) -> Changes {
        Changes {
            replicas: replicas.iter().map(|(id, json)| (ReplicaId(*id), (*json).to_owned())).collect(),
            gone: gone.iter().map(|id| ReplicaId(*id)).collect(),
            wholes: vec![("queue", queue.to_owned())],
            ..Changes::default()
        }
    }

    fn text(bytes: &Bytes) -> &str {
        std::str::from_utf8(bytes).unwrap()
    }

    #[test]
    fn whoever_joins_gets_everything_and_then_only_what_is_different() {
        let board = Board::default();
        assert!(board.whole().is_none());
        board.post(changes(&[(1, "{\"id\":1}"), (2, "{\"id\":2}")], &[], "{}"));
        let (whole, mut pieces) = board.whole().unwrap();
        let expected = "event: pool\ndata: {\"replicas\":[{\"id\":1},{\"id\":2}]}\n\nevent: queue\ndata: {}\n\n";
        assert_eq!(text(&whole), expected);
        // The same bytes for everybody.
        assert_eq!(whole.as_ptr(), board.whole().unwrap().0.as_ptr());
        board.post(changes(&[], &[], "{}"));
        assert!(pieces.try_recv().is_err());
        board.post(changes(&[(3, "{\"id\":3}")], &[1], "[]"));
        let piece = pieces.try_recv().unwrap();
        let expected = "event: delta\ndata: {\"replicas\":[{\"id\":3}],\"gone\":[1]}\n\nevent: queue\ndata: []\n\n";
        assert_eq!(text(&piece), expected);
        assert!(
            text(&board.whole().unwrap().0).starts_with("event: pool\ndata: {\"replicas\":[{\"id\":2},{\"id\":3}]}")
        );
        board.clear();
        assert!(board.whole().is_none());
    }

    #[test]
    fn news_is_told_once_and_what_is_kept_of_it_is_for_those_who_join() {
        let board = Board::default();
        board.post(Changes::default());
        let (_, mut pieces) = board.whole().unwrap();
        let (news, kept) = (vec![("event", "1".to_owned())], vec![("events", "[1]".to_owned())]);
        board.post(Changes { news, kept, ..Changes::default() });
        assert_eq!(text(&pieces.try_recv().unwrap()), "event: event\ndata: 1\n\n");
        let whole = board.whole().unwrap().0;
        assert!(text(&whole).ends_with("event: events\ndata: [1]\n\n") && !text(&whole).contains("event: event\n"));
    }

    #[test]
    fn a_slow_reader_misses_pieces_and_holds_nothing() {
        let board = Board::default();
        board.post(Changes::default());
        let (_, mut pieces) = board.whole().unwrap();
        for number in 0..100 {
            board.post(changes(&[(number, "{}")], &[], "{}"));
        }
        assert!(matches!(pieces.try_recv(), Err(broadcast::error::TryRecvError::Lagged(92))));
        let (whole, mut pieces) = board.whole().unwrap();
        assert_eq!(text(&whole).matches("{}").count(), 101);
        assert!(pieces.try_recv().is_err());
    }
}
