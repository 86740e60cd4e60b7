//! `Request::decode`: no panic; the prompt that is told counts as much as what was counted; what is accepted is JSON for
//! another parser too, and so is what a replica gets, under the replica's own model name, a part to be carried on included. Run with `cargo +nightly fuzz run request` from the crate's folder.
#![no_main]

use std::ops::ControlFlow;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use openai_wire::{CarryOn, Piece, Request, Route, UpstreamRewrite};
use serde_json::Value;

fuzz_target!(|input: &[u8]| {
    let Some((&which, body)) = input.split_first() else { return };
    let route = Route::ALL[usize::from(which) % Route::ALL.len()];
    let mut told = 0;
    let decoded = Request::decode_telling(route, Bytes::copy_from_slice(body), usize::MAX, |piece| {
        told += match piece {
            Piece::Text(text) => text.len() as u64,
            Piece::Mark { text, .. } => text as u64,
        };
        ControlFlow::Continue(())
    });
    let Ok(request) = decoded else { return };
    assert!(told == request.prompt_bytes || matches!(route, Route::Embeddings | Route::Rerank));
    let part = CarryOn { choice: 0, content: r#"\"text\""#.into(), reasoning: r"thought\n".into(), tokens: 3 };
    for (stream, carry_on) in [(false, None), (true, None), (true, Some(&part)), (true, Some(&CarryOn::default()))] {
        let rewrite = UpstreamRewrite { model: "replica", stream, progress: stream, carry_on, ask_usage: stream };
        let sent = request.upstream_body(&rewrite).to_bytes();
        // One level at the very limit is all by which the two parsers differ.
        match serde_json::from_slice::<Value>(&sent) {
            Ok(sent) => {
                assert_eq!(sent["model"], "replica");
                let text = carry_on.is_some_and(|part| !part.content.is_empty());
                if text && request.may_be_carried_on().is_ok() {
                    let prompt = match request.upstream_route(true) {
                        Route::Completions => &sent["prompt"],
                        _ => &sent["messages"],
                    };
                    assert!(prompt.to_string().contains(r#"\"text\""#), "{prompt}");
                }
            }
            Err(error) => assert!(error.to_string().contains("recursion limit"), "{error}"),
        }
    }
});
