//! The end of a response that was carried on, in the shape in which llama-server ends one.
//!
//! llama-server ends its parts when the answer is whole, not when the next part begins. Which of these events the client has
//! already depends on where the answer broke off: each item knows.
//!
//! It says `completed` also where the answer ended at its `max_output_tokens`, and so does this: whether an answer was carried
//! on is not for the client to see.

use super::items::{Item, Kind, Stage};
use super::{ResponsesStream, StreamError};
use crate::stream::Ledger;
use crate::stream::members::Members;
use crate::usage::Usage;
use bytes::BytesMut;
use std::fmt::Write;

impl ResponsesStream {
    /// Ends all items, and the response.
    pub(super) fn write_end(&mut self, ledger: &mut Ledger, out: &mut BytesMut) -> Result<(), StreamError> {
        let mut output = String::with_capacity(self.transcript.bytes() + 512);
        for place in 0..self.items.len() {
            let item = self.end_item(place, ledger, out)?;
            output.push_str(if place == 0 { "[" } else { "," });
            output.push_str(&item);
        }
        output.push_str(if output.is_empty() { "[]" } else { "]" });
        let response = self.last_snapshot(&output, ledger.usage().map(|(usage, _)| usage));
        let sent = self.line.write("response.completed", out, format_args!(r#","response":{response}"#))?;
        self.went_out(sent, ledger);
        self.whole(response.as_bytes(), ledger, out);
        Ok(())
    }

    /// Ends an item as far as it is not; it as it stands in the last snapshot.
    fn end_item(&mut self, place: usize, ledger: &mut Ledger, out: &mut BytesMut) -> Result<String, StreamError> {
        let text = self.items.text(place, &self.transcript);
        let Some(item) = self.items.get(place) else { return Ok(String::new()) };
        let (id, stage) = (&item.id, item.stage);
        let whole = whole_item(item, text);
        let mut sent = false;
        if item.kind == Kind::Message && item.parts > 0 {
            let at = format_args!(r#","output_index":{place},"content_index":0,"item_id":"{id}""#);
            if stage < Stage::TextDone {
                let members = format_args!(r#"{at},"logprobs":[],"text":"{text}""#);
                sent |= self.line.write("response.output_text.done", out, members)?;
            }
            if stage < Stage::PartDone {
                let members = format_args!(r#"{at},"part":{}"#, whole_part(text));
                sent |= self.line.write("response.content_part.done", out, members)?;
            }
        }
        if stage < Stage::Done {
            let members = format_args!(r#","output_index":{place},"item":{whole}"#);
            sent |= self.line.write("response.output_item.done", out, members)?;
        }
        self.went_out(sent, ledger);
        Ok(whole)
    }

    /// The response as its first event had it, with what has become of it.
    fn last_snapshot(&self, output: &str, usage: Option<Usage>) -> String {
        let mut members = Members::default();
        members.take(&self.snapshot);
        if members.get("created_at").is_none() {
            let created = self.chat.as_ref().map_or("", |leg| leg.created.as_str());
            members.set("created_at", if created.is_empty() { "0" } else { created });
        }
        members.set("status", r#""completed""#);
        members.remove("timings");
        members.set("model", std::str::from_utf8(&self.model).unwrap_or(r#""""#));
        members.set("output", output);
        if let Some(Usage { prompt_tokens, completion_tokens, cached_tokens }) = usage {
            let total = prompt_tokens + completion_tokens;
            members.set("usage", &format!(
                r#"{{"input_tokens":{prompt_tokens},"output_tokens":{completion_tokens},"total_tokens":{total},"input_tokens_details":{{"cached_tokens":{cached_tokens}}}}}"#
            ));
        }
        let mut whole = Vec::with_capacity(output.len() + 1024);
        whole.push(b'{');
        members.write(&mut whole);
        whole.push(b'}');
        // All of it was text.
        String::from_utf8(whole).unwrap_or_default()
    }
}

fn whole_part(text: &str) -> String {
    format!(r#"{{"type":"output_text","annotations":[],"logprobs":[],"text":"{text}"}}"#)
}

fn whole_item(item: &Item, text: &str) -> String {
    let id = &item.id;
    let mut whole = String::with_capacity(text.len() + 256);
    // Memory grows as it must.
    let _infallible = match (item.kind, &item.call) {
        (Kind::Call, Some(call)) => write!(
            whole,
            r#"{{"id":"{id}","type":"function_call","status":"completed","arguments":"{}","call_id":"{}","name":"{}"}}"#,
            call.arguments, call.call_id, call.name
        ),
        (Kind::Reasoning, _) => write!(
            whole,
            r#"{{"id":"{id}","summary":[],"type":"reasoning","content":[{{"text":"{text}","type":"reasoning_text"}}],"encrypted_content":""}}"#
        ),
        _ => {
            let part = if item.parts > 0 { whole_part(text) } else { String::new() };
            write!(
                whole,
                r#"{{"type":"message","status":"completed","id":"{id}","content":[{part}],"role":"assistant"}}"#
            )
        }
    };
    whole
}
