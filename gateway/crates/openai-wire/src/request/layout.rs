//! Where the fields stand that a replica gets changed.
//!
//! Which members are left out depends on the attempt (a stream or not, a beginning or a part carried on), so their places
//! are kept and the cuts made when the attempt is: a member goes with the comma behind it, and the last ones of the object
//! with the comma before them. A required member is never left out, so one of the two is always there.

use crate::edits::Edits;
use bytes::Bytes;
use std::ops::Range;

/// The places, noted by the scan.
#[derive(Clone, Debug, Default)]
pub(super) struct Layout {
    /// Just after the opening brace.
    pub front: usize,
    /// Members that not every body has, in their order.
    pub members: Vec<Member>,
    /// The model's value, quotes included.
    pub model: Option<Range<usize>>,
    /// The value of `stream`, if it is there.
    pub stream: Option<Range<usize>>,
    pub stream_options: StreamOptionsAt,
    /// The values that limit how much is written, and what they are.
    pub limits: Vec<(Range<usize>, u32)>,
    /// Where the part that is carried on goes: behind the last message, or before the closing quote of the prompt.
    pub seam: Option<usize>,
}

/// Which bodies go without a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Without {
    Always,
    /// Those that ask for no stream.
    Plain,
    /// Those by which an answer is carried on, even from its beginning.
    CarriedOn,
}

/// Where a member stands that not every body has.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub without: Without,
    /// Where the member before it ended.
    pub before: usize,
    pub start: usize,
    pub end: usize,
    /// Where the next member begins, if there is one.
    pub next: Option<usize>,
}

/// Where `stream_options` stands.
#[derive(Clone, Debug, Default)]
pub(super) enum StreamOptionsAt {
    #[default]
    Absent,
    Null(Range<usize>),
    Object {
        front: usize,
        empty: bool,
        include_usage: Option<Range<usize>>,
    },
}

/// What stands in a changed body instead.
#[derive(Clone, Debug)]
pub(super) enum Patch {
    Cut,
    Static(&'static str),
    Owned(Bytes),
}

impl Layout {
    /// The cuts of the members that `goes` says go.
    pub fn cuts(&self, goes: impl Fn(Without) -> bool) -> Edits<Patch> {
        let mut edits = Edits::default();
        // Where the members begin that go together with the end of the object.
        let mut tail = None;
        for member in self.members.iter().rev().filter(|member| goes(member.without)) {
            let range = match member.next {
                Some(next) if Some(next) != tail => member.start..next,
                _ => {
                    tail = Some(member.start);
                    member.before..member.end
                }
            };
            edits.replace(range, Patch::Cut);
        }
        edits
    }
}
