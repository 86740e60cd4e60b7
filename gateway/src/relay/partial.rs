//! What is kept of an answer between two attempts at it.
//!
//! The codec that read it is all of it: what the client has seen, the text to be carried on, the counts. The next attempt
//! gets a copy and goes on with that; if it fails before it has written anything, the original is still what it was.

use std::sync::Arc;

use openai_wire::{AnswerStream, CarryOn, Engine, Leg, Obstacle};
use scheduler::{Left, Part};

use super::Shape;
use crate::{fleet::Replica, gateway::Held};

/// An answer that broke off.
pub struct Partial {
    codec: AnswerStream,
    /// Who wrote the last of it.
    writer: Arc<Replica>,
    /// What it takes of `limits.max_buffered_bytes`.
    _room: Held,
}

/// A part of an answer that an attempt is to carry on.
pub struct Seam {
    codec: AnswerStream,
    part: CarryOn,
    /// The part's tokens were counted by a replica.
    counted: bool,
}

impl Seam {
    /// Of what there is.
    pub(super) fn of(codec: AnswerStream) -> Result<Self, Obstacle> {
        Ok(Self { part: codec.carry_on()?, codec, counted: false })
    }

    /// The part.
    pub fn part(&self) -> &CarryOn {
        &self.part
    }

    /// A replica has counted the part's tokens.
    pub(super) fn count(&mut self, tokens: u32) {
        (self.part.tokens, self.counted) = (tokens, true);
    }

    /// The attempt begins.
    pub(super) fn begin(self, engine: Engine) -> AnswerStream {
        let Self { mut codec, part, counted } = self;
        codec.begin_attempt(Leg::CarryOn, engine);
        if counted {
            codec.carried_tokens(part.tokens);
        }
        codec
    }
}

impl Partial {
    pub(super) fn new(codec: AnswerStream, writer: Arc<Replica>, room: Held) -> Self {
        Self { codec, writer, _room: room }
    }

    /// What the client has seen of it, for the events that end it.
    pub fn codec(&self) -> &AnswerStream {
        &self.codec
    }

    /// Who wrote the last of it.
    pub fn writer(&self) -> &Arc<Replica> {
        &self.writer
    }

    /// Events with content, over all attempts.
    pub fn length(&self) -> u64 {
        self.codec.content_events()
    }

    /// What an attempt begins with that carries it on; `None` if it begins anew.
    pub fn seam(&self) -> Option<Box<Seam>> {
        Seam::of(self.codec.clone()).ok().map(Box::new)
    }

    /// What the core is told of it: whether another replica may carry it on, or begin anew. With it what is in the way, if the
    /// answer is lost by that.
    pub fn left(&self, shape: &Shape<'_>) -> (Left, Option<Obstacle>) {
        let seen = shape.is_stream() && self.codec.content_sent();
        match shape.carry.and_then(|by| Ok((by, self.codec.carry_on()?))) {
            Ok((by, part)) => {
                // Of several choices one is carried on after the other: how far they are together says whether it gets on.
                let events = u32::try_from(self.length()).unwrap_or(u32::MAX);
                let tokens = if shape.request.choices > 1 { events } else { part.tokens };
                (Left::Part(Part { tokens, seen, by }), None)
            }
            Err(_) if !seen => (Left::Nothing, None),
            Err(obstacle) => (Left::Closed, Some(obstacle)),
        }
    }
}
