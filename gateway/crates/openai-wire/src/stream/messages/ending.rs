//! The end of a message, as far as it is ours to write.

use super::MessagesStream;
use super::blocks::Kind;
use crate::json::quoted;
use crate::stream::gate::Ends;
use crate::stream::transcript::Part;
use crate::stream::{Ledger, StreamError};
use bytes::BytesMut;

impl MessagesStream {
    /// The stream is over; the answer is whole if it has its stop reason, or all tokens that it may have.
    pub fn finish(&mut self, ledger: &mut Ledger, out: &mut BytesMut) -> Result<(), StreamError> {
        if self.broken {
            return Err(StreamError::Cut);
        }
        if self.full && !self.stopped {
            return self.end_here(Ends::Length, ledger, out);
        }
        if !self.stopped {
            return Err(StreamError::Cut);
        }
        self.own("message_stop", format_args!(r#"{{"type":"message_stop"}}"#), ledger, out)?;
        self.outlet.release(out);
        ledger.complete = true;
        Ok(())
    }

    /// Ends the message, for an engine that did not or because there is nothing left to write.
    pub(super) fn end_here(&mut self, why: Ends, ledger: &mut Ledger, out: &mut BytesMut) -> Result<(), StreamError> {
        self.close_blocks(false, ledger, out)?;
        let (reason, sequence) = match why {
            Ends::Length => ("max_tokens", b"null".to_vec()),
            Ends::Stop(number) => ("stop_sequence", quoted(self.wanted.stop(number))),
        };
        let sequence = String::from_utf8_lossy(&sequence);
        let delta = format!(r#"{{"stop_reason":"{reason}","stop_sequence":{sequence}}}"#);
        let tokens = ledger.usage().map_or(0, |(usage, _)| usage.completion_tokens);
        let usage = format!(r#"{{"output_tokens":{tokens}}}"#);
        if self.outlet.is_plain() {
            self.message.end(&delta, &usage);
        }
        let data = format_args!(r#"{{"type":"message_delta","delta":{delta},"usage":{usage}}}"#);
        self.own("message_delta", data, ledger, out)?;
        self.stopped = true;
        self.finish(ledger, out)
    }

    /// No more text comes: what the gate held of it is to be seen.
    pub(super) fn write_rest(&mut self, ledger: &mut Ledger, out: &mut BytesMut) -> Result<(), StreamError> {
        for part in [Part::Reasoning, Part::Content] {
            let Some(gate) = &mut self.gate else { return Ok(()) };
            let rest = gate.rest(0, part);
            let place = self.blocks.iter().rposition(|block| block.kind.part() == Some(part));
            let (Some(place), false) = (place, rest.is_empty()) else { continue };
            let rest = gate.text(rest).to_owned();
            self.transcript.write(0, part, &rest);
            let (kind, member) = match part {
                Part::Content => ("text_delta", "text"),
                Part::Reasoning => ("thinking_delta", "thinking"),
            };
            let data = format_args!(
                r#"{{"type":"content_block_delta","index":{place},"delta":{{"type":"{kind}","{member}":"{rest}"}}}}"#
            );
            self.own("content_block_delta", data, ledger, out)?;
        }
        Ok(())
    }

    /// Closes all blocks, or only those `left` from earlier attempts.
    pub(super) fn close_blocks(
        &mut self,
        left: bool,
        ledger: &mut Ledger,
        out: &mut BytesMut,
    ) -> Result<(), StreamError> {
        while let Some((place, block)) = self.blocks.open(left) {
            if block.kind == Kind::Thinking {
                let data = format_args!(
                    r#"{{"type":"content_block_delta","index":{place},"delta":{{"type":"signature_delta","signature":""}}}}"#
                );
                self.own("content_block_delta", data, ledger, out)?;
            }
            let data = format_args!(r#"{{"type":"content_block_stop","index":{place}}}"#);
            self.own("content_block_stop", data, ledger, out)?;
            self.blocks.close(place);
        }
        Ok(())
    }
}
