//! The decoder of server-sent events by itself.

use bytes::BytesMut;
use openai_wire::sse::{write_comment, write_event};
use openai_wire::{SseDecoder, SseError};

type Event = (Option<String>, String);

/// All events of the pieces, the unfinished last one included.
fn events<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Event> {
    let mut decoder = SseDecoder::new();
    let mut found = Vec::new();
    let own = |name: Option<&[u8]>, data: &[u8]| {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (name.map(text), text(data))
    };
    for piece in pieces {
        decoder.push(piece);
        while let Some(event) = decoder.next_event() {
            let event = event.expect("within bounds");
            found.push(own(event.name, event.data));
        }
    }
    if let Some(event) = decoder.finish() {
        found.push(own(event.name, event.data));
    }
    found
}

fn event(name: Option<&str>, data: &str) -> Event {
    (name.map(str::to_owned), data.to_owned())
}

const STREAM: &str = ": hello\n\ndata: one\n\ndata:two\nevent: named\n\n:\n\n\n\ndata: a\ndata:  b\ndata\n\nid: 7\nretry: 5\n\n\
                      event: lost\n\ndata: last\n\n";

fn expected() -> Vec<Event> {
    vec![event(None, "one"), event(Some("named"), "two"), event(None, "a\n b\n"), event(None, "last")]
}

#[test]
fn every_line_end_and_every_split_gives_the_same_events() {
    for end in ["\n", "\r\n", "\r"] {
        let bytes = STREAM.replace('\n', end).into_bytes();
        assert_eq!(events([&bytes[..]]), expected(), "{end:?}");
        assert_eq!(events(bytes.chunks(1)), expected(), "{end:?}, byte by byte");
        for at in 0..=bytes.len() {
            assert_eq!(events([&bytes[..at], &bytes[at..]]), expected(), "{end:?} cut at {at}");
        }
    }
}

#[test]
fn line_ends_may_be_mixed() {
    let bytes = b"data: 1\r\n\ndata: 2\n\r\ndata: 3\r\rdata: 4\r\n\r\n";
    let expected: Vec<Event> = ["1", "2", "3", "4"].iter().map(|data| event(None, data)).collect();
    for at in 0..=bytes.len() {
        assert_eq!(events([&bytes[..at], &bytes[at..]]), expected, "cut at {at}");
    }
}

#[test]
fn an_event_ended_by_cr_does_not_wait_for_the_next_byte() {
    let mut decoder = SseDecoder::new();
    decoder.push(b"data: x\r\n\r");
    assert_eq!(decoder.next_event().expect("whole").expect("sound").data, b"x");
    decoder.push(b"\ndata: y\n\n");
    assert_eq!(decoder.next_event().expect("whole").expect("sound").data, b"y");
    assert_eq!(decoder.next_event(), None);
}

#[test]
fn a_byte_order_mark_is_skipped_and_only_once() {
    assert_eq!(events([&b"\xEF\xBB\xBFdata: x\n\n"[..]]), vec![event(None, "x")]);
    assert_eq!(events([&b"data: x\n\n\xEF\xBB\xBFdata: y\n\n"[..]]), vec![event(None, "x")]);
}

#[test]
fn the_end_of_the_stream_gives_an_event_without_its_blank_line() {
    for tail in ["data: [DONE]", "data: [DONE]\n", "data: [DONE]\r\n", "data: [DONE]\r"] {
        assert_eq!(events([tail.as_bytes()]), vec![event(None, "[DONE]")], "{tail:?}");
    }
    assert_eq!(events([&b"event: x"[..]]), vec![]);
}

#[test]
fn an_event_without_end_is_an_error_and_takes_no_more_memory() {
    let mut decoder = SseDecoder::with_limit(1000);
    let mut result = None;
    for _ in 0..10_000 {
        decoder.push(&[b'x'; 100]);
        if let Some(event) = decoder.next_event() {
            result = Some(event.map(|event| event.data.len()));
            break;
        }
    }
    assert_eq!(result, Some(Err(SseError::TooLong { limit: 1000 })));
    decoder.push(b"\n\ndata: x\n\n");
    assert_eq!(decoder.next_event(), None, "a failed decoder stays failed");
    decoder.reset();
    decoder.push(b"data: x\n\n");
    assert!(decoder.next_event().is_some(), "until it is reset");
}

#[test]
fn the_bound_is_per_event_not_per_stream_and_comments_alone_never_reach_it() {
    let mut decoder = SseDecoder::with_limit(100);
    for _ in 0..1000 {
        decoder.push(b": keep-alive\n");
        assert_eq!(decoder.next_event(), None);
    }
    let many = b"data: 0123456789\n\n".repeat(100);
    decoder.push(&many);
    let mut count = 0;
    while let Some(event) = decoder.next_event() {
        assert_eq!(event.expect("within bounds").data, b"0123456789");
        count += 1;
    }
    assert_eq!(count, 100);
    decoder.push(format!("data: a\n{}", "data: bbbbbbbb\n".repeat(20)).as_bytes());
    assert!(matches!(decoder.next_event(), Some(Err(SseError::TooLong { .. }))), "many short lines count together");
}

#[test]
fn what_is_written_reads_back() {
    let mut out = BytesMut::new();
    write_comment(&mut out, "keep-alive");
    write_event(&mut out, Some("error"), b"{}");
    write_event(&mut out, None, b"two\nlines");
    assert_eq!(events([&out[..]]), vec![event(Some("error"), "{}"), event(None, "two\nlines")]);
}
