//! `SseDecoder` and `AnswerStream`: no panic; a cut anywhere changes nothing; the client gets whole events of sound JSON and
//! `[DONE]` only at the end of a whole answer, also where a second replica carries on what the first began.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use openai_wire::{AnswerStream, Engine, Leg, Obstacle, Route, SseDecoder, StreamError, StreamOptions};
use serde_json::Value;

/// What the first bytes of the input ask for.
#[derive(Clone, Copy)]
struct Asked {
    route: Route,
    flags: u8,
    /// Largest read, bytes.
    size: usize,
    /// Where the first replica's bytes end.
    seam: usize,
}

impl Asked {
    fn flag(self, bit: u8) -> bool {
        self.flags & (1 << bit) != 0
    }

    fn options(self) -> StreamOptions {
        StreamOptions {
            model: "asked".into(),
            include_usage: self.flag(0),
            plain: self.flag(1),
            hold_tool_calls: self.flag(2),
            timings: self.flag(3),
            max_kept: if self.flag(4) { 64 } else { 1 << 20 },
            choices: 1 + u32::from(self.flag(3)),
            max_tokens: self.flag(5).then_some(3),
            stop: if self.flag(6) { vec!["ab".into(), "é\"".into()] } else { Vec::new() },
        }
    }

    fn relay(self, first: &[u8], second: &[u8], size: usize) -> Relayed {
        let engine = Engine { counts: !self.flag(7), obeys: !self.flag(7) };
        let mut stream = AnswerStream::new(self.route, self.options());
        let mut out = BytesMut::new();
        stream.begin_attempt(Leg::Anew, engine);
        let mut result = read(&mut stream, first, size, &mut out);
        if result.is_err() {
            let leg = match stream.carry_on() {
                Ok(_) => Some(Leg::CarryOn),
                Err(Obstacle::Nothing) => Some(Leg::Anew),
                Err(_) => None,
            };
            if let Some(leg) = leg {
                stream.begin_attempt(leg, engine);
                result = read(&mut stream, second, size, &mut out);
            }
        }
        let complete = stream.is_complete();
        let body = (complete && self.flag(1)).then(|| stream.into_answer().body.to_bytes().to_vec());
        Relayed { out: out.to_vec(), result, complete, body }
    }
}

#[derive(Debug, PartialEq)]
struct Relayed {
    out: Vec<u8>,
    result: Result<(), StreamError>,
    complete: bool,
    body: Option<Vec<u8>>,
}

fn read(stream: &mut AnswerStream, bytes: &[u8], size: usize, out: &mut BytesMut) -> Result<(), StreamError> {
    for piece in bytes.chunks(size) {
        stream.push(piece, out)?;
    }
    stream.end(out)
}

fn is_json(bytes: &[u8]) {
    if let Err(error) = serde_json::from_slice::<Value>(bytes) {
        assert!(error.to_string().contains("recursion limit"), "{error}");
    }
}

fuzz_target!(|input: &[u8]| {
    let [which, flags, size, seam, bytes @ ..] = input else { return };
    let routes = [Route::ChatCompletions, Route::Completions, Route::Responses, Route::Messages];
    let asked = Asked {
        route: routes[usize::from(*which) % routes.len()],
        flags: *flags,
        size: usize::from(*size).max(1),
        seam: usize::from(*seam) * bytes.len() / 255,
    };
    let (first, second) = bytes.split_at(asked.seam);
    let whole = asked.relay(first, second, usize::MAX);
    assert_eq!(whole, asked.relay(first, second, asked.size));
    if let Some(body) = &whole.body {
        is_json(body);
    }
    assert!(!asked.flag(1) || whole.out.is_empty());
    let mut decoder = SseDecoder::new();
    decoder.push(&whole.out);
    let mut done = false;
    while let Some(event) = decoder.next_event() {
        let data = event.expect("an event of ours is within bounds").data;
        assert!(!done, "nothing follows [DONE]");
        done = data == b"[DONE]";
        if !done {
            is_json(data);
        }
    }
    assert!(decoder.finish().is_none());
    assert!(!done || whole.complete);
});
