//! A replica's body: the client's bytes with the changed pieces between.

use super::layout::{Patch, StreamOptionsAt, Without};
use super::{Request, UpstreamRewrite};
use crate::carry::CarryOn;
use crate::edits::Edits;
use crate::json::quoted;
use crate::route::Route;
use crate::segments::Segments;
use bytes::Bytes;
use std::ops::Range;

/// Members of a chat by which the engine goes on with the last message and sends only what is new. The first is wanted by the
/// second: without it llama-server answers 400.
pub(super) const GO_ON: &str = r#""add_generation_prompt":false,"continue_final_message":true"#;

/// Asks for usage at the end of a stream.
pub(super) const ASK_USAGE: &str = r#""stream_options":{"include_usage":true}"#;

/// Asks how the reading of the prompt gets on.
pub(super) const ASK_PROGRESS: &str = r#""return_progress":true"#;

/// What an attempt's body differs in from the client's.
#[derive(Default)]
struct Changes {
    edits: Edits<Patch>,
    /// Members put before all others.
    front: Vec<Patch>,
}

impl Changes {
    fn replace(&mut self, range: &Range<usize>, patch: Patch) {
        self.edits.replace(range.clone(), patch);
    }
}

impl Request {
    pub(super) fn spliced(&self, rewrite: &UpstreamRewrite<'_>) -> Segments {
        let stream = rewrite.stream && self.route.streams();
        let carried = rewrite.carry_on.is_some();
        let edits = self.layout.cuts(|without| match without {
            Without::Always => true,
            Without::Plain => !stream,
            Without::CarriedOn => carried,
        });
        let mut changes = Changes { edits, front: Vec::new() };
        self.change_model(rewrite.model, &mut changes);
        if self.route.streams() {
            self.change_stream(stream, &mut changes);
        }
        if rewrite.ask_usage && stream && self.route.has_stream_options() {
            self.change_usage(&mut changes);
        }
        if rewrite.progress && stream {
            changes.front.push(Patch::Static(ASK_PROGRESS));
        }
        if let Some(part) = rewrite.carry_on {
            self.put_part(part, &mut changes);
        }
        self.woven(changes)
    }

    fn change_model(&self, model: &str, changes: &mut Changes) {
        if model.is_empty() || model == self.model {
            return;
        }
        match &self.layout.model {
            Some(range) => changes.replace(range, Patch::Owned(quoted(model).into())),
            None => {
                let mut member = br#""model":"#.to_vec();
                crate::json::quote(model, &mut member);
                changes.front.push(Patch::Owned(member.into()));
            }
        }
    }

    fn change_stream(&self, stream: bool, changes: &mut Changes) {
        let value = if stream { "true" } else { "false" };
        match &self.layout.stream {
            Some(range) if self.body[range.clone()] == *value.as_bytes() => {}
            Some(range) => changes.replace(range, Patch::Static(value)),
            None => changes.front.push(Patch::Static(if stream { r#""stream":true"# } else { r#""stream":false"# })),
        }
    }

    fn change_usage(&self, changes: &mut Changes) {
        match &self.layout.stream_options {
            StreamOptionsAt::Absent => changes.front.push(Patch::Static(ASK_USAGE)),
            StreamOptionsAt::Null(range) => changes.replace(range, Patch::Static(r#"{"include_usage":true}"#)),
            StreamOptionsAt::Object { include_usage: Some(range), .. } => {
                if !self.include_usage {
                    changes.replace(range, Patch::Static("true"));
                }
            }
            StreamOptionsAt::Object { front, empty, include_usage: None } => {
                changes.edits.insert(*front, Patch::Static(r#""include_usage":true"#));
                if !empty {
                    changes.edits.insert(*front, Patch::Static(","));
                }
            }
        }
    }

    /// Puts the part behind the prompt, and takes its tokens off what may be written.
    fn put_part(&self, part: &CarryOn, changes: &mut Changes) {
        for (range, limit) in &self.layout.limits {
            if part.tokens > 0 {
                changes.replace(range, Patch::Owned(rest_of(*limit, part.tokens).to_string().into()));
            }
        }
        let Some(seam) = self.layout.seam else { return };
        let text = match self.route {
            // Completions have no reasoning apart from their text.
            Route::Completions => part.content.clone(),
            _ if part.content.is_empty() && part.reasoning.is_empty() => return,
            Route::Messages => format!(",{}", said(part)),
            _ => {
                changes.front.push(Patch::Static(GO_ON));
                format!(",{}", written(part))
            }
        };
        changes.edits.insert(seam, Patch::Owned(text.into()));
    }

    fn woven(&self, changes: Changes) -> Segments {
        let Changes { mut edits, front } = changes;
        // A required member always follows, so each new one ends in a comma.
        for patch in front {
            edits.insert(self.layout.front, patch);
            edits.insert(self.layout.front, Patch::Static(","));
        }
        edits.sort();
        let mut segments = Segments::with_capacity(2 * edits.len() + 1);
        edits.weave(
            self.body.len(),
            &mut segments,
            |segments, range| segments.push(self.body.slice(range)),
            |segments, patch| match patch {
                Patch::Cut => {}
                Patch::Static(text) => segments.push(Bytes::from_static(text.as_bytes())),
                Patch::Owned(bytes) => segments.push(bytes.clone()),
            },
        );
        segments
    }
}

/// What may still be written when `tokens` are. Engines take a limit of 0 for none or for one, so at least 1: the answer had
/// not said yet that it was over.
pub(super) fn rest_of(limit: u32, tokens: u32) -> u32 {
    limit.saturating_sub(tokens).max(1)
}

/// The part as the assistant's message of a chat.
///
/// With both kinds of text the engine sets them apart as the model's template does, so that an answer cut behind its
/// reasoning is exactly the uncut one only if the model had written it so; cut inside the reasoning it always is.
pub(super) fn written(part: &CarryOn) -> String {
    let CarryOn { content, reasoning, .. } = part;
    if reasoning.is_empty() {
        return format!(r#"{{"role":"assistant","content":"{content}"}}"#);
    }
    format!(r#"{{"role":"assistant","content":"{content}","reasoning_content":"{reasoning}"}}"#)
}

/// The part as the assistant's message on [`Route::Messages`].
///
/// llama-server goes on with a last message of the assistant's here without being told, and doesn't pass on the members by
/// which a chat tells it: an older build therefore repeats the text before what is new. Blocks of thoughts are passed on; with
/// the text left out when there is none yet, the thoughts go on (measured).
fn said(part: &CarryOn) -> String {
    let CarryOn { content, reasoning, .. } = part;
    if reasoning.is_empty() {
        return format!(r#"{{"role":"assistant","content":"{content}"}}"#);
    }
    let text = if content.is_empty() { String::new() } else { format!(r#",{{"type":"text","text":"{content}"}}"#) };
    format!(r#"{{"role":"assistant","content":[{{"type":"thinking","thinking":"{reasoning}"}}{text}]}}"#)
}
