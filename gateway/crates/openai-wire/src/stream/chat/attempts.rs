//! What becomes of an answer between two attempts at it.

use super::ChatStream;
use super::call::Calls;
use super::choices::{ChoiceSet, Choices};
use super::draft::Draft;
use crate::answer::Answer;
use crate::carry::{CarryOn, Engine, Leg, Obstacle};
use crate::stream::gate::Gate;
use crate::stream::ledger::Ledger;
use crate::stream::limits::Wanted;

impl ChatStream {
    pub fn begin_attempt(&mut self, leg: Leg, engine: Engine, ledger: &mut Ledger) {
        let wanted = if engine.obeys { Wanted::default() } else { self.wanted.clone() };
        self.calls = Calls::default();
        self.full = false;
        match leg {
            Leg::Anew => {
                // Whether one that does not obey writes more than one, nobody knows before it ends.
                self.due = if engine.obeys { self.wished } else { ChoiceSet::up_to(1) };
                self.broken = ledger.content_sent;
                if !self.broken {
                    self.forget();
                }
                self.gate = Gate::anew(&wanted);
                ledger.begin_anew(engine);
            }
            Leg::CarryOn => match self.carry_on(ledger) {
                Ok(part) => self.begin_part(part, wanted, engine, ledger),
                Err(_) => self.broken = true,
            },
        }
    }

    /// Nothing was written that anybody has seen.
    fn forget(&mut self) {
        self.drop_held();
        self.target = None;
        let Choices { roles, .. } = self.choices;
        self.choices = Choices::default();
        if self.shown {
            self.choices.roles = roles;
        } else {
            self.heads.clear();
        }
        self.transcript.clear();
        self.draft = Draft::default();
        self.timings.clear();
    }

    fn begin_part(&mut self, part: CarryOn, wanted: Wanted, engine: Engine, ledger: &mut Ledger) {
        if let Some((choice, tokens)) = self.counted(ledger) {
            self.transcript.set_tokens(choice, tokens);
        }
        self.drop_held();
        self.broken = false;
        self.timings.clear();
        self.target = Some(part.choice);
        self.full = self.wanted.is_full(part.tokens);
        let (tokens, counted) = self.transcript.tokens();
        ledger.begin_carry_on(tokens, counted, part.tokens.into(), engine);
        self.gate = Some(Gate::carry_on(part, wanted)).filter(|gate| !gate.is_open());
    }

    /// What was held back goes with its attempt.
    fn drop_held(&mut self) {
        self.hold.clear();
        self.transcript.cut_back();
        if let Some(before) = self.before_call.take() {
            (self.choices, self.draft) = *before;
        }
    }

    pub fn carried_tokens(&mut self, tokens: u32, ledger: &mut Ledger) {
        let Some(choice) = self.target else { return };
        self.transcript.set_tokens(choice, tokens);
        self.full = self.wanted.is_full(tokens);
        let (all, counted) = self.transcript.tokens();
        ledger.correct_carried(all, counted, tokens.into());
        if let Some(gate) = &mut self.gate {
            gate.correct_carried(tokens);
        }
    }

    pub fn carry_on(&self, ledger: &Ledger) -> Result<CarryOn, Obstacle> {
        let choices = self.before_call.as_ref().map_or(self.choices, |before| before.0);
        if !ledger.content_sent && self.transcript.is_blank() && choices.finished.is_empty() {
            return Err(Obstacle::Nothing);
        }
        let choice = choices.open(self.due).first().ok_or(Obstacle::Nothing)?;
        let mut part = self.transcript.carry_on(choice)?;
        if let Some((_, tokens)) = self.counted(ledger).filter(|(counted, _)| *counted == choice) {
            part.tokens = tokens;
        }
        Ok(part)
    }

    /// The choice that the running attempt has written, and its tokens by the engine's own count.
    fn counted(&self, ledger: &Ledger) -> Option<(u32, u32)> {
        // A count is of all that was written; what is held back does not count.
        let choice = self.target.or_else(|| self.choices.seen.only()).filter(|_| self.before_call.is_none())?;
        Some((choice, u32::try_from(ledger.written()?).ok()?))
    }

    /// Whether the client gets one object at the end.
    pub fn is_plain(&self) -> bool {
        self.plain
    }

    /// Bytes kept.
    pub fn kept(&self) -> usize {
        self.transcript.bytes() + self.draft.bytes() + self.hold.len()
    }

    /// Gives back what is kept of a stream.
    pub fn keep_no_more(&mut self) {
        self.transcript.give_up();
        self.hold.give_up();
    }

    pub fn into_answer(mut self, ledger: &Ledger) -> Answer {
        let (usage, estimated) = ledger.usage().unwrap_or_default();
        let text_bytes = self.transcript.bytes() + self.draft.bytes();
        let usage_json = usage.to_json(self.route);
        let body = self.draft.into_body(&self.heads, &mut self.transcript, &usage_json, &self.timings);
        Answer {
            body,
            usage: (!estimated).then_some(usage),
            timings: ledger.timings,
            text_bytes: if estimated { text_bytes as u64 } else { 0 },
        }
    }
}
