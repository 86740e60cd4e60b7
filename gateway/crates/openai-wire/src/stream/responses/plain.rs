//! A response as one object, as the engine would have sent it without a stream.
//!
//! It is the last event's snapshot. llama-server's own differs from its plain answer in two members: there `completed_at` is
//! missing, and the `status` of reasoning. They are added.

use crate::edits::{Edits, MemberCuts};
use crate::json::{JsonError, Kind, Scanner};
use crate::route::Route;
use crate::segments::Segments;
use crate::usage::Usage;
use bytes::Bytes;
use std::ops::Range;

#[derive(Clone, Debug)]
enum Patch {
    Cut,
    Model,
    Usage,
    /// An item's `status`.
    Status,
    /// `completed_at`, from where `created_at` stands: the clock of the engine, which tells both at the same time.
    CompletedAt(Range<usize>),
}

/// The body, from the last snapshot; `model` is JSON text, `usage` what replaces counts that can't be.
pub fn body(whole: &Bytes, model: &[u8], usage: Option<Usage>) -> Segments {
    let mut edits = Edits::default();
    let sound = std::str::from_utf8(whole).is_ok_and(|text| read(text, usage.is_some(), &mut edits).is_ok());
    debug_assert!(sound, "the snapshot was scanned as a part of its event");
    edits.sort();
    let mut segments = Segments::with_capacity(2 * edits.len() + 1);
    edits.weave(
        whole.len(),
        &mut segments,
        |segments, range| segments.push(whole.slice(range)),
        |segments, patch| match patch {
            Patch::Cut => {}
            Patch::Model => segments.push(Bytes::copy_from_slice(model)),
            Patch::Usage => segments.push(usage.unwrap_or_default().to_json(Route::Responses).into()),
            Patch::Status => segments.push(Bytes::from_static(br#","status":"completed""#)),
            Patch::CompletedAt(range) => {
                segments.push(Bytes::from_static(br#","completed_at":"#));
                segments.push(whole.slice(range.clone()));
            }
        },
    );
    segments
}

fn read(text: &str, new_usage: bool, edits: &mut Edits<Patch>) -> Result<(), JsonError> {
    let mut scanner = Scanner::new(text);
    let mut open = scanner.object()?;
    let mut cuts = MemberCuts::default();
    let (mut created, mut has_completed, mut completed) = (None, false, false);
    let mut unmarked = Vec::new();
    while let Some(key) = scanner.member(&mut open)? {
        let kind = scanner.kind()?;
        let name = key.name.as_ref();
        if name == "timings" {
            scanner.skip()?;
            cuts.drop(key.before, key.start, scanner.at(), edits, Patch::Cut);
            continue;
        }
        cuts.keep(key.start, edits, Patch::Cut);
        match name {
            "output" if kind == Kind::Array => items(&mut scanner, &mut unmarked)?,
            "status" if kind == Kind::Text => completed = scanner.text()?.raw == "completed",
            "model" => edits.replace(scanner.skip()?, Patch::Model),
            "usage" if new_usage => edits.replace(scanner.skip()?, Patch::Usage),
            "created_at" if kind == Kind::Number => created = Some(scanner.skip()?),
            "completed_at" => has_completed = scanner.skip().map(|_| true)?,
            _ => scanner.pass()?,
        }
    }
    cuts.finish(edits, Patch::Cut);
    if completed {
        unmarked.into_iter().for_each(|at| edits.insert(at, Patch::Status));
        if let (Some(created), false) = (created, has_completed) {
            edits.insert(scanner.at() - 1, Patch::CompletedAt(created));
        }
    }
    Ok(())
}

/// Where the items end that have no `status`.
fn items(scanner: &mut Scanner<'_>, unmarked: &mut Vec<usize>) -> Result<(), JsonError> {
    let mut list = scanner.array()?;
    while scanner.element(&mut list)? {
        if scanner.kind()? != Kind::Object {
            scanner.skip()?;
            continue;
        }
        let mut item = scanner.object()?;
        let (mut has_status, mut empty) = (false, true);
        while let Some(key) = scanner.member(&mut item)? {
            empty = false;
            has_status |= key.name == "status";
            scanner.skip()?;
        }
        if !has_status && !empty {
            unmarked.push(scanner.at() - 1);
        }
    }
    Ok(())
}
