//! What one event, one request and one answer cost. `cargo bench -p openai-wire`.
//!
//! Plain `std` timing: the best of several rounds, which is the figure least disturbed by other work on the machine.

use bytes::{Bytes, BytesMut};
use openai_wire::{AnswerStream, Request, Route, SseDecoder, StreamOptions, UpstreamRewrite, decode_answer};
use std::hint::black_box;
use std::ops::ControlFlow;
use std::time::Duration;

const ROUNDS: u32 = 15;

#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn now() -> std::time::Instant {
    std::time::Instant::now()
}

/// Runs `work` (which does `units` units) and prints the time per unit of the best round.
fn measure(name: &str, units: u32, mut work: impl FnMut()) {
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        let start = now();
        work();
        best = best.min(start.elapsed());
    }
    println!("{name:<58} {:>9.0} ns", best.as_nanos() as f64 / f64::from(units));
}

fn llama_event(n: u32) -> String {
    format!(
        "data: {{\"choices\":[{{\"finish_reason\":null,\"index\":0,\"delta\":{{\"content\":\" word{n}\"}}}}],\"created\":1764460800,\
         \"id\":\"chatcmpl-AbCdEfGhIjKlMnOpQrStUvWxYz012345\",\"model\":\"/data/models/Qwen3.5-9B-Q4_K_M.gguf\",\
         \"system_fingerprint\":\"b8468-3306dbaef\",\"object\":\"chat.completion.chunk\"}}\n\n"
    )
}

fn streams() {
    const EVENTS: u32 = 10_000;
    let events: Vec<String> = (0..EVENTS).map(llama_event).collect();
    println!("event: {} bytes", events[0].len());
    let asked = |include_usage, model: &str| StreamOptions {
        model: model.to_owned(),
        include_usage,
        ..StreamOptions::default()
    };
    let kept = StreamOptions { max_kept: 1 << 20, hold_tool_calls: true, ..asked(false, "qwen") };
    for (name, options) in [
        ("stream, an event a read, model rewritten", asked(false, "qwen")),
        ("stream, an event a read, usage:null added", asked(true, "qwen")),
        ("stream, an event a read, nothing to change", asked(false, "/data/models/Qwen3.5-9B-Q4_K_M.gguf")),
        ("stream, an event a read, text kept", kept),
        ("stream, an event a read, for a plain answer", StreamOptions { plain: true, ..asked(false, "qwen") }),
    ] {
        let mut out = BytesMut::with_capacity(64 * 1024);
        measure(name, EVENTS, || {
            let mut stream = AnswerStream::new(Route::ChatCompletions, options.clone());
            for event in &events {
                out.clear();
                black_box(stream.push(event.as_bytes(), &mut out)).expect("sound");
            }
        });
    }
    let all = events.concat();
    for size in [64, 1400, 16 * 1024] {
        let mut out = BytesMut::with_capacity(64 * 1024);
        measure(&format!("stream, reads of {size} bytes"), EVENTS, || {
            let mut stream = AnswerStream::new(Route::ChatCompletions, StreamOptions::default());
            for read in all.as_bytes().chunks(size) {
                out.clear();
                black_box(stream.push(read, &mut out)).expect("sound");
            }
        });
    }
    measure("decoder alone, an event a read", EVENTS, || {
        let mut decoder = SseDecoder::new();
        for event in &events {
            decoder.push(event.as_bytes());
            while let Some(event) = decoder.next_event() {
                black_box(event).expect("sound");
            }
        }
    });
}

fn chat_body(content: usize) -> Bytes {
    let prose = "The customer ordered a \\\"blue\\\" kettle,\\nand it came broken. ".repeat(content / 60 + 1);
    format!(
        "{{\"model\":\"qwen\",\"messages\":[{{\"role\":\"system\",\"content\":\"You review payments.\"}},{{\"role\":\"user\",\"content\":\"{}\"}}],\
         \"temperature\":0,\"max_tokens\":64,\"stream\":true}}",
        &prose[..content / 60 * 60]
    )
    .into()
}

fn requests() {
    const TIMES: u32 = 1_000;
    for size in [900, 28 * 1024] {
        let body = chat_body(size);
        measure(&format!("request decode, {} bytes", body.len()), TIMES, || {
            for _ in 0..TIMES {
                black_box(Request::decode(Route::ChatCompletions, body.clone())).expect("sound");
            }
        });
        measure(&format!("request decode, prompt told, {} bytes", body.len()), TIMES, || {
            for _ in 0..TIMES {
                let decoded = Request::decode_telling(Route::ChatCompletions, body.clone(), 128 << 10, |piece| {
                    black_box(piece);
                    ControlFlow::Continue(())
                });
                black_box(decoded).expect("sound");
            }
        });
        let request = Request::decode(Route::ChatCompletions, body.clone()).expect("sound");
        let rewrite = UpstreamRewrite {
            model: "/data/models/Qwen3.5-9B-Q4_K_M.gguf",
            ask_usage: true,
            stream: true,
            ..UpstreamRewrite::default()
        };
        measure(&format!("upstream body, {} bytes", body.len()), TIMES, || {
            for _ in 0..TIMES {
                black_box(request.upstream_body(&rewrite));
            }
        });
    }
}

fn answers() {
    const TIMES: u32 = 10_000;
    let body = Bytes::from_static(
        br#"{"choices":[{"finish_reason":"stop","index":0,"message":{"role":"assistant","content":"RISK_LEVEL: 5"}}],"created":1764460800,"model":"/data/q.gguf","system_fingerprint":"b8468","object":"chat.completion","usage":{"completion_tokens":7,"prompt_tokens":7001,"total_tokens":7008,"prompt_tokens_details":{"cached_tokens":6000}},"id":"chatcmpl-AbCdEfGhIjKlMnOpQrStUvWxYz012345","timings":{"cache_n":6000,"prompt_n":1001,"prompt_ms":12000.5,"predicted_n":7,"predicted_ms":800.25}}"#,
    );
    measure(&format!("plain answer, {} bytes", body.len()), TIMES, || {
        for _ in 0..TIMES {
            let answer = decode_answer(Route::ChatCompletions, Some("application/json"), body.clone(), "qwen");
            black_box(answer).expect("sound");
        }
    });
}

fn main() {
    streams();
    requests();
    answers();
}
