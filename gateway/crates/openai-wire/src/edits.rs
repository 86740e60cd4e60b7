//! Changes to a text, kept beside it: replace, cut and insert at byte positions, then weave both into the result.
//!
//! The scanner notes an edit when it stands at the place; nothing moves until the whole text has been understood, so a
//! text that turns out to be wrong was never half changed.

use std::ops::Range;

/// One change: these bytes of the original give way to the patch. An empty range inserts.
#[derive(Clone, Debug)]
pub(crate) struct Edit<P> {
    /// Replaced bytes.
    pub range: Range<usize>,
    /// What stands there instead.
    pub patch: P,
}

/// Changes to one text; they must not overlap.
#[derive(Clone, Debug)]
pub(crate) struct Edits<P> {
    list: Vec<Edit<P>>,
}

impl<P> Default for Edits<P> {
    fn default() -> Self {
        Self { list: Vec::new() }
    }
}

impl<P> Edits<P> {
    /// Replaces `range` by `patch`.
    pub fn replace(&mut self, range: Range<usize>, patch: P) {
        self.list.push(Edit { range, patch });
    }

    /// Puts `patch` before the byte at `at`.
    pub fn insert(&mut self, at: usize, patch: P) {
        self.replace(at..at, patch);
    }

    /// Forgets all changes, keeps the memory.
    pub fn clear(&mut self) {
        self.list.clear();
    }

    /// How many changes there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Brings the changes into the order of the text. Inserts at one place keep the order in which they were noted and
    /// come before a cut that begins there.
    pub fn sort(&mut self) {
        self.list.sort_by_key(|edit| (edit.range.start, edit.range.end));
    }

    /// Calls `keep` with each untouched range of a text of `len` bytes and `put` with each patch, in order. The changes
    /// must be sorted.
    pub fn weave<S>(&self, len: usize, sink: &mut S, keep: impl Fn(&mut S, Range<usize>), put: impl Fn(&mut S, &P)) {
        let mut at = 0;
        for edit in &self.list {
            debug_assert!(at <= edit.range.start, "edits overlap");
            if at < edit.range.start {
                keep(sink, at..edit.range.start);
            }
            put(sink, &edit.patch);
            at = edit.range.end;
        }
        if at < len {
            keep(sink, at..len);
        }
    }
}

/// Where members of one object are cut, so that commas still fit.
///
/// A cut member that follows a kept one takes the comma before it; a run of cut members at the front takes everything
/// up to the first kept one.
#[derive(Debug, Default)]
pub(crate) struct MemberCuts {
    kept: bool,
    leading: Option<Range<usize>>,
}

impl MemberCuts {
    /// The member whose key begins at `start` stays.
    pub fn keep<P>(&mut self, start: usize, edits: &mut Edits<P>, cut: P) {
        if let Some(leading) = self.leading.take() {
            edits.replace(leading.start..start, cut);
        }
        self.kept = true;
    }

    /// The member from `start` to `end` goes; `before` is where the previous member ended.
    pub fn drop<P>(&mut self, before: usize, start: usize, end: usize, edits: &mut Edits<P>, cut: P) {
        if self.kept {
            edits.replace(before..end, cut);
        } else {
            self.leading = Some(self.leading.as_ref().map_or(start, |run| run.start)..end);
        }
    }

    /// The object is over. Says whether any member stayed.
    pub fn finish<P>(self, edits: &mut Edits<P>, cut: P) -> bool {
        if let Some(leading) = self.leading {
            edits.replace(leading, cut);
        }
        self.kept
    }
}
