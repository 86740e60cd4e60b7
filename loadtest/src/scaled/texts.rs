//! Prompts whose tokens and bytes are what the scenario says.
//!
//! Problem: the scenario counts in tokens, phones count what they are sent, and the gateway sees bytes. Choice: to a fake
//! phone a token is a word or the marker of a role, so a prompt of so many tokens has so many words less its markers; and
//! the words are as long as it takes to make four bytes a token, which is what the gateway takes a token for and where it
//! cuts prompts to fingerprint them. So tokens, estimates and shared prefixes agree with the simulator's. Rejected: words
//! of natural lengths (the estimates would be off by a share that the simulated gateway does not have to bear).
//!
//! A prompt begins with the template, the same for all requests that share it; the word behind it names the request, and
//! no other has it, so two prompts share the template and not one token more. That word also tells the phone how long the
//! answer is, which the gateway is not told.

use crate::words::Message;
use simulation::{rng::Rng, workload::Segment};

/// Bytes of text in a token: what the gateway believes, as does the simulated one.
const BYTES_PER_TOKEN: usize = 4;
/// Longest word that makes up for short ones.
const LONGEST_WORD: usize = 24;
/// A template needs two markers: that of its own message, and that of the one behind it. A shorter one is left out, and
/// its tokens are the request's own.
const SHORTEST_TEMPLATE: u32 = 3;

/// The beginning of a conversation, or of a single request.
pub(super) fn first(template: Segment, own_tokens: u32, number: usize, output: u32) -> Vec<Message> {
    let name = name(number, output);
    if template.tokens < SHORTEST_TEMPLATE {
        // A marker before the text, one after it.
        let tokens = template.tokens + own_tokens;
        return vec![Message { role: "user", text: text(&name, tokens, 2, number as u64) }];
    }
    let beginning = format!("t{}", template.content);
    vec![
        Message { role: "system", text: text(&beginning, template.tokens, 2, template.content) },
        Message { role: "user", text: text(&name, own_tokens, 1, number as u64) },
    ]
}

/// A later turn: what the user says, of so many tokens together with the markers before and after it.
pub(super) fn next(tokens: u32, number: usize, output: u32) -> Message {
    Message { role: "user", text: text(&name(number, output), tokens, 2, number as u64) }
}

/// Names a request, and says how long its answer is.
fn name(number: usize, output: u32) -> String {
    format!("r{number}={output}")
}

/// A text that makes up `tokens` together with `markers`, and begins with `first`.
fn text(first: &str, tokens: u32, markers: u32, salt: u64) -> String {
    let words = tokens.saturating_sub(markers).max(1) as usize;
    let bytes = tokens as usize * BYTES_PER_TOKEN;
    let mut chance = Rng::new(salt, "words");
    let mut text = String::with_capacity(bytes + LONGEST_WORD);
    text.push_str(first);
    for left in (1..words).rev() {
        text.push(' ');
        // The rest of the bytes, shared evenly among the rest of the words, each with the space after it.
        let length = bytes.saturating_sub(text.len()).div_ceil(left).saturating_sub(1).clamp(1, LONGEST_WORD);
        text.extend((0..length).map(|_| char::from(b'a' + chance.below(26) as u8)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a fake phone counts: words and the markers of roles, one more for the answer to come.
    fn tokens(messages: &[Message]) -> usize {
        messages.iter().map(|message| 1 + message.text.split_whitespace().count()).sum::<usize>() + 1
    }

    fn bytes(messages: &[Message]) -> usize {
        messages.iter().map(|message| message.text.len()).sum()
    }

    #[test]
    fn a_prompt_has_the_tokens_of_the_scenario_and_four_bytes_each() {
        for (template, own) in [(5500, 1500), (120, 40), (250, 250), (3, 2), (450, 5), (0, 300), (2, 10), (5500, 300)] {
            let messages = first(Segment { content: 7, tokens: template }, own, 123_456, 20);
            assert_eq!(tokens(&messages), (template + own) as usize, "{template} + {own}");
            let (bytes, wanted) = (bytes(&messages) as f64, f64::from(4 * (template + own)));
            assert!((bytes - wanted).abs() <= 12.0, "{bytes} bytes of {wanted} for {template} + {own}");
        }
    }

    #[test]
    fn a_template_ends_where_the_gateway_thinks_it_does_and_nothing_else_is_shared() {
        let template = Segment { content: 1001, tokens: 5500 };
        let (one, two) = (first(template, 900, 1, 5), first(template, 900, 2, 5));
        assert_eq!(one[0].text, two[0].text);
        assert!(one[0].text.len().abs_diff(4 * 5500) <= 2, "{}", one[0].text.len());
        assert_ne!(one[1].text.split(' ').next(), two[1].text.split(' ').next());
        assert_ne!(one[0].text, first(Segment { content: 1002, ..template }, 900, 1, 5)[0].text);
    }

    #[test]
    fn a_turn_adds_what_the_user_says_to_what_was_said_before() {
        let mut messages = first(Segment { content: 7, tokens: 450 }, 100, 4, 30);
        let before = tokens(&messages);
        let answer = fakephone::answer_text("m", &messages[1].text, 30);
        messages.push(Message { role: "assistant", text: answer });
        messages.push(next(80, 5, 20));
        assert_eq!(tokens(&messages), before + 30 + 80);
        assert!(messages[3].text.starts_with("r5=20 "));
    }
}
