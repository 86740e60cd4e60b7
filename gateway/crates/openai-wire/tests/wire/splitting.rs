//! What the client gets never depends on how the bytes were cut.

use bytes::BytesMut;
use openai_wire::{AnswerStream, Engine, Leg, Route, SseDecoder, StreamError, StreamOptions, Usage};
use proptest::prelude::*;

const CHAT: &str = concat!(
    ": ping\n\n",
    r#"data: {"id":"a","created":1,"model":"t","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":null},"finish_reason":null}]}"#,
    "\n\n",
    "\n\n:\n\n",
    r#"data:{"id":"b","model":"t","choices":[{"delta":{"content":"é 😀"}}]}"#,
    "\n\n",
    "data: {\"id\":\"a\",\ndata:\"choices\":[{\"index\":0,\ndata: \"delta\":{\"tool_calls\":[{\"id\":\"c\",\"function\":{}}]},\"finish_reason\":\"\"}]}\n\n",
    r#"data: {"timings":{"prompt_n":3,"predicted_n":2},"id":"a","choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#,
    "\n\n",
    "id: 5\ndata: [DONE]\n\n",
);

const RESPONSES: &str = concat!(
    "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"r\"}}\n\n",
    "event: response.output_item.added\ndata: {\"type\":\"response.output_item.added\",\"item\":{\"id\":\"m\"}}\n\n",
    "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"item_id\":\"m\",\"delta\":\"Hi\"}\n\n",
    "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"r\",\"model\":\"t\",\"output\":[]}}\n\n",
);

const MESSAGES: &str = concat!(
    "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"model\":\"t\"}}\n\n",
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"Hi\"}}\n\n",
    "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\n",
    "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
);

#[derive(Debug, PartialEq)]
struct Seen {
    out: Vec<u8>,
    result: Result<(), StreamError>,
    content_events: u64,
    usage: Option<Usage>,
    /// The answer in one piece, where that was asked for.
    body: Vec<u8>,
}

fn relay<'a>(route: Route, include_usage: bool, pieces: impl IntoIterator<Item = &'a [u8]>) -> Seen {
    let options = StreamOptions { include_usage, ..StreamOptions::default() };
    relay_as(route, (options, Engine::default()), pieces)
}

fn relay_as<'a>(
    route: Route,
    (options, engine): (StreamOptions, Engine),
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> Seen {
    let plain = options.plain;
    let mut stream = AnswerStream::new(route, StreamOptions { model: "asked".into(), ..options });
    stream.begin_attempt(Leg::Anew, engine);
    let mut out = BytesMut::new();
    let mut result = Ok(());
    for piece in pieces {
        if let Err(error) = stream.push(piece, &mut out) {
            result = Err(error);
            break;
        }
    }
    let result = result.and_then(|()| stream.end(&mut out));
    let (content_events, usage) = (stream.content_events(), stream.usage());
    let body = if plain && result.is_ok() { stream.into_answer().body.to_bytes().to_vec() } else { Vec::new() };
    Seen { out: out.to_vec(), result, content_events, usage, body }
}

/// All that may be asked of a stream.
fn asked() -> impl Strategy<Value = (StreamOptions, Engine)> {
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let limits = (0..40_usize, 0..4_u32, prop::sample::select(vec!["", "H", "é ", "i", "😀"]));
    (flags, limits).prop_map(
        |((include_usage, plain, hold_tool_calls, timings, obeys), (max_kept, max_tokens, stop))| {
            let stop = if stop.is_empty() { Vec::new() } else { vec![stop.to_owned()] };
            let max_tokens = (max_tokens > 0).then_some(max_tokens);
            let options = StreamOptions {
                include_usage,
                plain,
                hold_tool_calls,
                max_kept,
                timings,
                max_tokens,
                stop,
                ..StreamOptions::default()
            };
            (options, Engine { counts: obeys, obeys })
        },
    )
}

fn upstreams() -> [(Route, &'static str); 3] {
    [(Route::ChatCompletions, CHAT), (Route::Responses, RESPONSES), (Route::Messages, MESSAGES)]
}

#[test]
fn a_cut_at_every_byte_with_every_line_end_gives_the_same_stream() {
    for (route, upstream) in upstreams() {
        for include_usage in [false, true] {
            let expected = relay(route, include_usage, [upstream.as_bytes()]);
            assert_eq!(expected.result, Ok(()), "{route:?}");
            assert!(expected.content_events > 0 && !expected.out.is_empty());
            for end in ["\n", "\r\n", "\r"] {
                let bytes = upstream.replace('\n', end).into_bytes();
                assert_eq!(relay(route, include_usage, bytes.chunks(1)), expected, "{route:?} {end:?} byte by byte");
                for at in 0..=bytes.len() {
                    let cut = relay(route, include_usage, [&bytes[..at], &bytes[at..]]);
                    assert_eq!(cut, expected, "{route:?} {end:?} cut at {at}");
                }
            }
        }
    }
}

#[test]
fn a_stream_that_ends_anywhere_too_early_is_never_complete() {
    for (route, upstream) in upstreams() {
        // From the finish reason on the answer is whole.
        let whole = match route {
            Route::ChatCompletions => upstream.find("\n\nid: 5").expect("finish"),
            Route::Responses => upstream.len() - 2,
            _ => upstream.find("\n\nevent: message_stop").expect("finish"),
        };
        for at in 0..upstream.len() {
            let seen = relay(route, false, [&upstream.as_bytes()[..at]]);
            assert_eq!(seen.result.is_ok(), at >= whole, "{route:?} ends at {at}: {:?}", seen.result);
            let done = seen.out.windows(6).any(|bytes| bytes == b"[DONE]");
            assert_eq!(done, at >= whole && route == Route::ChatCompletions);
        }
    }
}

/// A stream with some bytes replaced, at places and by values that matter.
fn damaged() -> impl Strategy<Value = (Route, Vec<u8>)> {
    let bytes = b"{}[]\",:\\0 \n\r\td-\xFFe".to_vec();
    let damage = (any::<prop::sample::Index>(), prop::sample::select(bytes));
    (0..3_usize, proptest::collection::vec(damage, 0..4)).prop_map(|(which, damage)| {
        let (route, upstream) = upstreams()[which];
        let mut bytes = upstream.as_bytes().to_vec();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        (route, bytes)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn cuts_change_nothing_in_sound_and_damaged_streams(
        (route, bytes) in damaged(), asked in asked(),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        places.extend([0, bytes.len()]);
        places.sort_unstable();
        let pieces = places.windows(2).map(|pair| &bytes[pair[0]..pair[1]]);
        prop_assert_eq!(relay_as(route, asked.clone(), pieces), relay_as(route, asked, [&bytes[..]]));
    }

    #[test]
    fn the_client_only_ever_gets_whole_events_of_sound_json((route, bytes) in damaged(), asked in asked()) {
        let plain = asked.0.plain;
        let seen = relay_as(route, asked, [&bytes[..]]);
        let mut decoder = SseDecoder::new();
        decoder.push(&seen.out);
        let mut last_done = false;
        while let Some(event) = decoder.next_event() {
            let data = event.expect("within bounds").data;
            prop_assert!(!last_done, "nothing follows [DONE]");
            last_done = data == b"[DONE]";
            prop_assert!(last_done || serde_json::from_slice::<serde_json::Value>(data).is_ok(), "{}", String::from_utf8_lossy(data));
        }
        prop_assert!(decoder.finish().is_none());
        if plain {
            prop_assert!(seen.out.is_empty());
            prop_assert!(seen.result.is_err() || serde_json::from_slice::<serde_json::Value>(&seen.body).is_ok());
        } else if route == Route::ChatCompletions {
            prop_assert_eq!(last_done, seen.result.is_ok());
        }
    }

    #[test]
    fn any_bytes_at_all_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..400), route in 0..7_usize) {
        let seen = relay(Route::ALL[route], true, bytes.chunks(7));
        prop_assert!(seen.result.is_err());
    }
}
