//! An answer over several replicas: what there is of it, who has written it, and what is told of that.

use std::sync::Arc;

use openai_wire::AnswerStream;
use scheduler::{Left, Part};

use crate::{
    fleet::Replica,
    relay::{Partial, Seam, Shape},
    telemetry::names::{CONTINUATION_FAILED, impossible},
};

/// How often an answer may be carried on. 16: phones that stay for minutes write an answer of an hour in fewer; what breaks off
/// more often does so for a reason of its own, and each time the whole prompt is read once more.
const MOST: usize = 16;

/// What there is of an answer that broke off, and who has written it.
pub struct Continued {
    partial: Option<Box<Partial>>,
    left: Left,
    /// Names of the replicas whose text is in it, in order.
    writers: Vec<Arc<str>>,
}

/// Where a part comes from that an attempt carries on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The replica that wrote the last of it.
    pub from: Arc<str>,
    /// Its tokens.
    pub tokens: u32,
    /// Both replicas write the same answers.
    pub same_group: bool,
    /// How many replicas have written in it.
    writers: usize,
}

impl Default for Continued {
    /// Nothing was written.
    fn default() -> Self {
        Self { partial: None, left: Left::Nothing, writers: Vec::new() }
    }
}

impl Continued {
    /// What the core is told of a part that an attempt has left; and where the answer is lost by that, what became of it.
    pub fn judge(&self, partial: &Partial, shape: &Shape<'_>) -> (Left, Option<&'static str>) {
        match partial.left(shape) {
            (Left::Part(part), _) if self.times() >= MOST => {
                if part.seen {
                    (Left::Closed, Some(CONTINUATION_FAILED))
                } else {
                    (Left::Nothing, None)
                }
            }
            (left, obstacle) => (left, obstacle.map(impossible)),
        }
    }

    /// An attempt has left this; `left` is what the core is told of it.
    pub fn keep(&mut self, partial: Partial, left: Left) {
        self.partial = Some(Box::new(partial));
        self.left = left;
    }

    /// What the core is told when an attempt leaves no more than there is.
    pub fn left(&self) -> Left {
        self.left
    }

    /// Whether the client has seen a part: no attempt can begin anew.
    pub fn is_seen(&self) -> bool {
        matches!(self.left, Left::Part(Part { seen: true, .. }))
    }

    /// Events with content.
    pub fn length(&self) -> u64 {
        self.partial.as_ref().map_or(0, |partial| partial.length())
    }

    /// What the client has seen, or would have.
    pub fn codec(&self) -> Option<&AnswerStream> {
        self.partial.as_ref().map(|partial| partial.codec())
    }

    /// What an attempt on this replica carries on; `None` if it begins anew. A part that the client has seen is carried on
    /// whether the core `asks` for it or not.
    pub fn seam(&self, asks: bool, replica: &Replica) -> Option<(Box<Seam>, Origin)> {
        let partial = self.partial.as_ref().filter(|_| asks || self.is_seen())?;
        let seam = partial.seam()?;
        let writer = partial.writer();
        let same_group = writer.id == replica.id || writer.group().is_some_and(|group| replica.group() == Some(group));
        let (tokens, writers) = (seam.part().tokens, self.writers.len());
        let origin = Origin { from: Arc::clone(&writer.label), tokens, same_group, writers };
        Some((seam, origin))
    }

    /// A replica has written behind a part, or begun anew.
    pub fn wrote(&mut self, replica: &Replica, behind: Option<&Origin>) {
        // Another copy may have gone on from the same part: what that wrote is not in this answer.
        self.writers.truncate(behind.map_or(0, |origin| origin.writers));
        self.writers.push(Arc::clone(&replica.label));
    }

    /// How often it was carried on.
    pub fn times(&self) -> usize {
        self.writers.len().saturating_sub(1)
    }

    /// How it came about, for whoever reads a stream's comments; `None` if one replica wrote it. With the replicas' names if
    /// they are `shown`.
    pub fn comment(&self, shown: bool) -> Option<String> {
        let times = Some(self.times()).filter(|times| *times > 0)?;
        let names = if shown { format!(" replicas={}", self.writers.join(",")) } else { String::new() };
        Some(format!("huntgroup continued={times}{names}"))
    }
}
