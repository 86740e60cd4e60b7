//! A request body for hyper: slices of what the client sent, never copied.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use openai_wire::Segments;

/// Yields the segments one after the other; its length is known, so the request goes out with `Content-Length`.
#[derive(Debug, Default)]
pub struct SegmentsBody {
    rest: std::collections::VecDeque<Bytes>,
    left: u64,
}

impl From<Segments> for SegmentsBody {
    fn from(segments: Segments) -> Self {
        let rest: std::collections::VecDeque<Bytes> = segments.into_iter().filter(|part| !part.is_empty()).collect();
        let left = rest.iter().map(|part| part.len() as u64).sum();
        Self { rest, left }
    }
}

impl From<Bytes> for SegmentsBody {
    fn from(whole: Bytes) -> Self {
        let left = whole.len() as u64;
        Self { rest: (left > 0).then_some(whole).into_iter().collect(), left }
    }
}

impl Body for SegmentsBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = self.rest.pop_front();
        self.left -= next.as_ref().map_or(0, |part| part.len() as u64);
        Poll::Ready(next.map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
