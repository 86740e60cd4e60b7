//! How much text the model will read, counted (and its places noted) while the body is scanned.
//!
//! The count drives estimates of prefill time, so what matters is text: not the JSON around it, not base64 pictures, not
//! ids. The list below names what is *not* text; everything else in a message is (tool results, arguments, names).

use crate::json::{JsonError, Kind, Scanner};
use crate::outline::{Outline, Place};
use std::ops::Range;

/// A token id in a prompt of ids stands for about this many bytes of text (English, common vocabularies).
const BYTES_PER_TOKEN_ID: u64 = 4;

/// What the model will read.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Bytes of text.
    pub bytes: u64,
    /// Whether a picture is among it.
    pub images: bool,
    /// Where it stands.
    pub outline: Outline,
}

impl Tally {
    /// Counts the text in the next value.
    pub fn count(&mut self, scanner: &mut Scanner<'_>) -> Result<(), JsonError> {
        match scanner.kind()? {
            Kind::Text => {
                let place = string(scanner)?;
                self.bytes += place.meant as u64;
                self.outline.text(place);
            }
            Kind::Number => {
                let length = scanner.number()?.len();
                self.bytes += BYTES_PER_TOKEN_ID;
                self.outline.token(scanner.at() - length..scanner.at());
            }
            Kind::Array => {
                let mut open = scanner.array()?;
                while scanner.element(&mut open)? {
                    self.count(scanner)?;
                }
            }
            Kind::Object => drop(self.count_object(scanner)?),
            Kind::Bool | Kind::Null => scanner.pass()?,
        }
        Ok(())
    }

    /// Counts the text of a message. Says whether it is one of the assistant's.
    pub fn count_message(&mut self, scanner: &mut Scanner<'_>) -> Result<bool, JsonError> {
        if scanner.kind()? == Kind::Object {
            return self.count_object(scanner);
        }
        self.count(scanner)?;
        Ok(false)
    }

    /// Counts a value that the model reads as JSON text: tools, a decision's state. Says where it stood.
    pub fn count_json(&mut self, scanner: &mut Scanner<'_>) -> Result<Range<usize>, JsonError> {
        let range = scanner.skip()?;
        self.bytes += range.len() as u64;
        self.outline.json(range.clone());
        Ok(range)
    }

    /// Says whether its role is the assistant's.
    fn count_object(&mut self, scanner: &mut Scanner<'_>) -> Result<bool, JsonError> {
        let mut by_assistant = false;
        let mut open = scanner.object()?;
        while let Some(key) = scanner.member(&mut open)? {
            match key.name.as_ref() {
                "type" if scanner.kind()? == Kind::Text => {
                    let kind = scanner.text()?;
                    self.images |= matches!(kind.raw, "image_url" | "input_image" | "image");
                }
                "image_url" => {
                    self.images = true;
                    self.outline.data(scanner.skip()?);
                }
                "source" | "input_audio" | "file" | "file_data" | "file_id" => self.outline.data(scanner.skip()?),
                "role" if scanner.kind()? == Kind::Text => {
                    let role = scanner.text()?;
                    by_assistant = role.decode() == "assistant";
                    let end = scanner.at() - 1;
                    self.outline.role(end - role.raw.len()..end);
                }
                "role" | "type" | "id" | "call_id" | "tool_call_id" | "tool_use_id" | "cache_control" | "status"
                | "detail" | "signature" | "encrypted_content" => scanner.pass()?,
                _ => self.count(scanner)?,
            }
        }
        Ok(by_assistant)
    }
}

/// Reads a string and says where it stood, between its quotes.
fn string(scanner: &mut Scanner<'_>) -> Result<Place, JsonError> {
    let text = scanner.text()?;
    let end = scanner.at() - 1;
    Ok(Place { range: end - text.raw.len()..end, meant: text.len() })
}
