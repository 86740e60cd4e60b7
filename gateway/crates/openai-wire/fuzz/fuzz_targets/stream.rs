//! `SseDecoder` and `AnswerStream`: no panic; a cut anywhere changes nothing; the client gets whole events of sound JSON and
//! `[DONE]` only at the end of a whole answer.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use openai_wire::{AnswerStream, Route, SseDecoder, StreamError, StreamOptions};

fn relay<'a>(route: Route, pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<u8>, Result<(), StreamError>) {
    let mut stream = AnswerStream::new(route, StreamOptions { model: "asked".into(), include_usage: true });
    let mut out = BytesMut::new();
    for piece in pieces {
        if let Err(error) = stream.push(piece, &mut out) {
            return (out.to_vec(), Err(error));
        }
    }
    let result = stream.end(&mut out);
    (out.to_vec(), result)
}

fuzz_target!(|input: &[u8]| {
    let [which, size, bytes @ ..] = input else { return };
    let routes = [Route::ChatCompletions, Route::Completions, Route::Responses, Route::Messages];
    let route = routes[usize::from(*which) % routes.len()];
    let whole = relay(route, std::iter::once(bytes));
    assert_eq!(whole, relay(route, bytes.chunks(usize::from(*size).max(1))));
    let mut decoder = SseDecoder::new();
    decoder.push(&whole.0);
    let mut done = false;
    while let Some(event) = decoder.next_event() {
        let data = event.expect("an event of ours is within bounds").data;
        assert!(!done, "nothing follows [DONE]");
        done = data == b"[DONE]";
        if !done {
            if let Err(error) = serde_json::from_slice::<serde_json::Value>(data) {
                assert!(error.to_string().contains("recursion limit"), "{error}");
            }
        }
    }
    assert!(decoder.finish().is_none());
    assert!(!done || whole.1.is_ok());
});
