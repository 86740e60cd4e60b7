//! Wherever an answer breaks off, and however its bytes are cut: with others to carry it on the client reads the same.

use crate::carried_chats::{event, keeping};
use crate::chat_streams::data;
use bytes::BytesMut;
use openai_wire::{AnswerStream, CarryOn, Engine, Leg, Obstacle, Route, StreamOptions};
use proptest::prelude::*;
use serde_json::{Value, json};

/// What a model writes of one choice, piece by piece; all pieces are different.
#[derive(Clone, Debug)]
struct Written {
    thoughts: Vec<String>,
    words: Vec<String>,
    /// Behind them.
    calls: bool,
}

/// An engine's way to begin a continuation.
#[derive(Clone, Copy, Debug)]
enum Echo {
    None,
    /// The whole text in an event of its own.
    Alone,
    /// In one event with the first new piece.
    Joined,
    /// In the pieces in which it was written: known again only where it is long.
    Pieces,
}

/// One attempt: where its bytes end, how the engine begins, and in how many bytes they are read.
#[derive(Clone, Debug)]
struct Attempt {
    end: prop::sample::Index,
    echo: Echo,
    reads: Vec<usize>,
}

fn escaped(text: &str) -> String {
    let quoted = serde_json::to_string(text).expect("json");
    quoted[1..quoted.len() - 1].to_owned()
}

impl Written {
    /// The events of an engine that was given this much of it, as its choice `index`.
    fn rest(&self, given: &CarryOn, echo: Echo, id: &str, index: u32) -> Vec<String> {
        let piece = |delta: Value| event(id, &json!({"index":index,"delta":delta,"finish_reason":null}).to_string());
        let mut events = vec![piece(json!({"role":"assistant","content":null}))];
        let (mut thoughts, mut words) = (String::new(), String::new());
        let said = |pieces: &[String], given: &str, so_far: &mut String| {
            let known = pieces.iter().take_while(|piece| {
                let known = so_far.len() < given.len();
                if known {
                    so_far.push_str(&escaped(piece));
                }
                known
            });
            known.count()
        };
        let thought = said(&self.thoughts, &given.reasoning, &mut thoughts);
        let word = said(&self.words, &given.content, &mut words);
        assert_eq!((&thoughts, &words), (&given.reasoning, &given.content), "a part is whole pieces");
        let (key, pieces, known) = match word {
            0 => ("reasoning_content", &self.thoughts, thought),
            _ => ("content", &self.words, word),
        };
        let mut rest: Vec<(&str, String)> = Vec::new();
        let first = pieces.get(known).cloned();
        // No echo is known again in one that a model could have written: see `echo` and `gate`.
        let sure = match given.content.is_empty() || given.reasoning.is_empty() {
            true => given.tokens > 1,
            false => given.content.len() > 32,
        };
        match echo {
            Echo::Alone if sure => rest.push((key, pieces[..known].concat())),
            Echo::Joined if sure && first.is_some() => rest.push((key, pieces[..=known].concat())),
            Echo::Pieces if pieces[..known].iter().map(|piece| escaped(piece).len()).sum::<usize>() >= 128 => {
                rest.extend(pieces[..known].iter().map(|piece| (key, piece.clone())));
            }
            _ => {}
        }
        let joined = matches!(echo, Echo::Joined) && sure && first.is_some();
        let mut new: Vec<(&str, String)> = Vec::new();
        if word == 0 {
            new.extend(self.thoughts[thought..].iter().map(|piece| ("reasoning_content", piece.clone())));
        }
        new.extend(self.words[word..].iter().map(|piece| ("content", piece.clone())));
        rest.extend(new.into_iter().skip(usize::from(joined)));
        events.extend(rest.into_iter().map(|(key, text)| piece(json!({key: text}))));
        if self.calls {
            for (n, arguments) in ["{\"a\":", "1}"].into_iter().enumerate() {
                let call = json!({"index":0,"id":(n == 0).then_some("call"),"function":{"arguments":arguments}});
                events.push(piece(json!({"tool_calls":[call]})));
            }
        }
        events.push(event(id, &json!({"index":index,"delta":{},"finish_reason":"stop"}).to_string()));
        events
    }
}

/// Reads an attempt up to where its bytes end, or all of it.
fn read(stream: &mut AnswerStream, upstream: &[u8], attempt: Option<&Attempt>, out: &mut BytesMut) {
    let end = attempt.map_or(upstream.len(), |attempt| attempt.end.index(upstream.len() + 1));
    let whole = [usize::MAX];
    let mut rest = &upstream[..end];
    for size in attempt.map_or(&whole[..], |attempt| &attempt.reads).iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (now, later) = rest.split_at((*size).min(rest.len()));
        stream.push(now, out).expect("sound");
        rest = later;
    }
    // A finish reason is enough; less is not.
    let _ended = stream.end(out);
}

/// The whole answer: as many attempts as it takes.
fn answer(options: StreamOptions, written: &[Written], attempts: &[Attempt]) -> (AnswerStream, BytesMut) {
    let mut stream = AnswerStream::new(Route::ChatCompletions, options);
    let mut out = BytesMut::new();
    let mut attempts = attempts.iter();
    for number in 0..100 {
        let attempt = attempts.next();
        let echo = attempt.map_or(Echo::None, |attempt| attempt.echo);
        let id = format!("r{number}");
        let upstream = match stream.carry_on() {
            Err(obstacle) => {
                assert_eq!(obstacle, Obstacle::Nothing);
                stream.begin_attempt(Leg::Anew, Engine::default());
                let of = |(index, choice): (usize, &Written)| {
                    choice.rest(&CarryOn::default(), Echo::None, &id, index as u32)
                };
                let mut choices: Vec<_> = written.iter().enumerate().map(of).map(Vec::into_iter).collect();
                let mut upstream = String::new();
                while choices.iter().any(|events| events.len() > 0) {
                    choices.iter_mut().filter_map(Iterator::next).for_each(|event| upstream.push_str(&event));
                }
                upstream
            }
            Ok(part) => {
                stream.begin_attempt(Leg::CarryOn, Engine::default());
                written[part.choice as usize].rest(&part, echo, &id, 0).concat()
            }
        };
        read(&mut stream, (upstream + "data: [DONE]\n\n").as_bytes(), attempt, &mut out);
        if stream.is_complete() {
            return (stream, out);
        }
    }
    panic!("no end after 100 attempts");
}

fn attempt() -> impl Strategy<Value = Attempt> {
    let echo = prop::sample::select(vec![Echo::None, Echo::Alone, Echo::Joined, Echo::Pieces]);
    (any::<prop::sample::Index>(), echo, proptest::collection::vec(1..200_usize, 1..4))
        .prop_map(|(end, echo, reads)| Attempt { end, echo, reads })
}

/// Pieces with what is awkward to cut; numbered, so that no two are the same.
fn pieces(most: usize) -> impl Strategy<Value = Vec<String>> {
    let piece = prop::sample::select(vec!["word", "é", "😀 \"", "\n\\", "\u{1}/", "long long long long long long"]);
    proptest::collection::vec(piece, 0..most)
        .prop_map(|pieces| pieces.into_iter().enumerate().map(|(n, piece)| format!(" {n}{piece}")).collect())
}

fn written(calls: bool) -> impl Strategy<Value = Vec<Written>> {
    // Without a word there is nothing that a second choice could wait for.
    let choice = (pieces(4), pieces(12)).prop_map(move |(thoughts, words)| Written { thoughts, words, calls });
    proptest::collection::vec(choice, 1..3)
}

/// What the client reads of each choice: thoughts, text, arguments, roles and finish reasons.
fn told(events: &[Value], choices: usize) -> Vec<(String, String, String, usize, usize)> {
    let of =
        |index: usize| events.iter().map(|event| &event["choices"][0]).filter(move |choice| choice["index"] == index);
    let text =
        |index, pointer: &str| of(index).filter_map(|choice| choice.pointer(pointer)?.as_str()).collect::<String>();
    let count = |index, pointer: &str| {
        of(index).filter(|choice| choice.pointer(pointer).is_some_and(|value| !value.is_null())).count()
    };
    (0..choices)
        .map(|index| {
            (
                text(index, "/delta/reasoning_content"),
                text(index, "/delta/content"),
                text(index, "/delta/tool_calls/0/function/arguments"),
                count(index, "/delta/role"),
                count(index, "/finish_reason"),
            )
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_client_reads_the_same_whoever_wrote_it(
        calls: bool, written in any::<bool>().prop_flat_map(written),
        attempts in proptest::collection::vec(attempt(), 0..5),
    ) {
        // Without holding them, calls that have gone out could not be carried on.
        let options = StreamOptions { hold_tool_calls: calls || written.iter().any(|choice| choice.calls), ..keeping() };
        let (stream, out) = answer(options, &written, &attempts);
        let events = data(&out);
        let arguments = |choice: &Written| if choice.calls { "{\"a\":1}" } else { "" };
        let expected: Vec<_> = written.iter()
            .map(|choice| (choice.thoughts.concat(), choice.words.concat(), arguments(choice).to_owned(), 1, 1))
            .collect();
        prop_assert_eq!(told(&events, written.len()), expected);
        let (done, chunks) = events.split_last().expect("events");
        prop_assert_eq!(done, "[DONE]");
        prop_assert!(chunks.iter().all(|event| event["id"] == chunks[0]["id"] && event["created"] == 7 && event["model"] == "asked"));
        prop_assert_eq!(chunks.iter().filter(|event| event["usage"].is_object()).count(), 1);
        let events: usize = written.iter().map(|choice| choice.thoughts.len() + choice.words.len()).sum();
        prop_assert!(stream.usage().expect("usage").completion_tokens <= 2 * (events as u64 + 4));
    }

    #[test]
    fn a_plain_answer_is_the_same_whoever_wrote_it(
        written in any::<bool>().prop_flat_map(written), attempts in proptest::collection::vec(attempt(), 0..5),
    ) {
        let options = StreamOptions { plain: true, ..keeping() };
        let (stream, out) = answer(options, &written, &attempts);
        prop_assert!(out.is_empty());
        let body: Value = serde_json::from_slice(&stream.into_answer().body.to_bytes()).expect("json");
        let choices = body["choices"].as_array().expect("choices");
        prop_assert_eq!(choices.len(), written.len());
        for (index, (choice, written)) in choices.iter().zip(&written).enumerate() {
            let thoughts = written.thoughts.concat();
            let mut message = json!({"role":"assistant","content":written.words.concat()});
            if !thoughts.is_empty() {
                message["reasoning_content"] = thoughts.into();
            }
            if written.calls {
                message["tool_calls"] = json!([{"id":"call","type":"function","function":{"name":"","arguments":"{\"a\":1}"}}]);
            }
            prop_assert_eq!(choice, &json!({"index":index,"finish_reason":"stop","message":message}));
        }
    }

    #[test]
    fn cuts_of_bytes_change_nothing_over_several_attempts(
        written in any::<bool>().prop_flat_map(written), attempts in proptest::collection::vec(attempt(), 0..4),
        plain: bool, hold_tool_calls: bool,
    ) {
        let hold_tool_calls = hold_tool_calls || written.iter().any(|choice| choice.calls);
        let options = StreamOptions { plain, hold_tool_calls, ..keeping() };
        let whole: Vec<Attempt> = attempts.iter().map(|attempt| Attempt { reads: vec![usize::MAX], ..attempt.clone() }).collect();
        let (cut, left) = answer(options.clone(), &written, &attempts);
        let (uncut, right) = answer(options, &written, &whole);
        prop_assert_eq!(left, right);
        prop_assert_eq!((cut.usage(), cut.content_events(), cut.kept()), (uncut.usage(), uncut.content_events(), uncut.kept()));
    }
}
