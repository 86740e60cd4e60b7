//! The fields that are the same on every chunk, and chunks of our own with them.

use crate::json::quoted;
use crate::route::Route;
use bytes::{BufMut, BytesMut};

/// Longest id or fingerprint kept, in bytes; real ones have about 40.
pub(super) const MAX_KEPT: usize = 256;

/// A field that is the same on every chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    Id,
    Created,
    Model,
    Fingerprint,
}

/// Their values as JSON text; empty until known.
#[derive(Clone, Debug, Default)]
pub(super) struct Heads {
    pub is_chat: bool,
    pub id: Vec<u8>,
    pub created: Vec<u8>,
    pub model: Vec<u8>,
    pub fingerprint: Vec<u8>,
}

impl Heads {
    pub fn new(route: Route, model: &str) -> Self {
        Self { is_chat: route == Route::ChatCompletions, model: quoted(model), ..Self::default() }
    }

    /// Forgets what replicas have named: nobody saw it.
    pub fn clear(&mut self) {
        for head in [&mut self.id, &mut self.created, &mut self.fingerprint] {
            head.clear();
        }
    }

    pub fn get(&self, head: Head) -> &[u8] {
        match head {
            Head::Id => &self.id,
            Head::Created => &self.created,
            Head::Model => &self.model,
            Head::Fingerprint => &self.fingerprint,
        }
    }

    /// Keeps the first sound value of a field (`None` is none). Whether what stands there must give way to what is kept.
    pub fn differs(&mut self, head: Head, raw: Option<&str>) -> bool {
        let kept = match head {
            Head::Id => &mut self.id,
            Head::Created => &mut self.created,
            Head::Model => &mut self.model,
            Head::Fingerprint => &mut self.fingerprint,
        };
        match raw {
            Some(raw) if kept.is_empty() && raw.len() <= MAX_KEPT => {
                kept.extend_from_slice(raw.as_bytes());
                false
            }
            raw => !kept.is_empty() && raw.is_none_or(|raw| kept.as_slice() != raw.as_bytes()),
        }
    }

    /// The member that says what a chunk is.
    pub fn object(&self) -> &'static str {
        if self.is_chat { r#""object":"chat.completion.chunk""# } else { r#""object":"text_completion""# }
    }

    /// The beginning of a chunk of our own, up to its choices.
    pub fn open(&self, out: &mut BytesMut) {
        out.put_slice(b"data: {");
        out.put_slice(self.object().as_bytes());
        for head in [Head::Id, Head::Created, Head::Model, Head::Fingerprint] {
            if !self.get(head).is_empty() {
                out.put_u8(b',');
                self.put(out, head);
            }
        }
        out.put_slice(b",\"choices\":[");
    }

    /// The end of a chunk of our own.
    pub fn close(&self, include_usage: bool, out: &mut BytesMut) {
        out.put_slice(if include_usage { b"],\"usage\":null}\n\n".as_slice() } else { b"]}\n\n" });
    }

    /// A choice of a chunk of our own: `delta` is what stands in it (of a completion: its text member), `finish` its reason.
    pub fn choice(&self, index: u32, delta: &[&str], finish: Option<&str>, out: &mut BytesMut) {
        out.put_slice(b"{\"index\":");
        out.put_slice(index.to_string().as_bytes());
        out.put_slice(if self.is_chat { b",\"delta\":{".as_slice() } else { b"," });
        for piece in delta {
            out.put_slice(piece.as_bytes());
        }
        out.put_slice(if self.is_chat { b"}".as_slice() } else { b",\"logprobs\":null" });
        out.put_slice(b",\"finish_reason\":");
        match finish {
            Some(reason) => {
                out.put_u8(b'"');
                out.put_slice(reason.as_bytes());
                out.put_slice(b"\"}");
            }
            None => out.put_slice(b"null}"),
        }
    }

    /// A member.
    pub fn put(&self, out: &mut BytesMut, head: Head) {
        out.put_slice(match head {
            Head::Id => br#""id":"#.as_slice(),
            Head::Created => br#""created":"#,
            Head::Model => br#""model":"#,
            Head::Fingerprint => br#""system_fingerprint":"#,
        });
        out.put_slice(self.get(head));
    }
}
