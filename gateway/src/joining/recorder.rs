//! Who writes a tape, and takes it off the list of those that can be joined when it can't be any more.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use pingora::http::ResponseHeader;

use super::{
    Joining,
    known::Name,
    tape::{Abandoned, Opening, Tape},
};
use crate::{clock, error::ApiError};

/// The one writer of a tape. Dropped before its end (a panic), it leaves a failed answer.
pub struct Recorder {
    tape: Arc<Tape>,
    joining: Arc<Joining>,
    name: Name,
    keep: Duration,
}

impl Recorder {
    pub(super) fn new(tape: Arc<Tape>, joining: Arc<Joining>, name: Name, keep: Duration) -> Self {
        Self { tape, joining, name, keep }
    }

    /// Tells readers what there is to know while they wait.
    pub fn open(&self, opening: Opening) {
        self.tape.open(opening);
    }

    /// Writes the head of the answer.
    pub fn head(&self, head: Box<ResponseHeader>) {
        self.tape.head(head);
    }

    /// Writes a piece of the answer.
    pub async fn append(&self, piece: &[u8]) -> Result<(), Abandoned> {
        let growth = self.tape.growth(piece.len());
        if growth > 0 {
            self.joining.make_room(growth);
        }
        self.tape.append(piece).await
    }

    /// The answer is whole, and is kept if it can be joined.
    pub fn finish(&self) {
        self.tape.finish();
        if self.tape.is_open() {
            let now = clock::now();
            self.joining.keep(&self.name, &self.tape, now + self.keep, now);
        } else {
            self.forget();
        }
    }

    /// There will be no whole answer. It is off the list before anybody learns that: whoever tries again starts anew.
    pub fn fail(&self, error: ApiError, event: Bytes) {
        self.forget();
        self.tape.fail(error, event);
    }

    /// Resolves when nobody has read for too long.
    pub async fn abandoned(&self) {
        let Abandoned = self.tape.abandoned().await;
        self.forget();
    }

    fn forget(&self) {
        self.joining.forget(&self.name, &self.tape);
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if !self.tape.has_ended() {
            self.fail(ApiError::Internal, Bytes::new());
        }
    }
}
