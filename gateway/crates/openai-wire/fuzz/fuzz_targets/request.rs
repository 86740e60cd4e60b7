//! `Request::decode`: no panic; what is accepted is JSON for another parser too, and so is what a replica gets, under the
//! replica's own model name. Run with `cargo +nightly fuzz run request` from the crate's folder.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use openai_wire::{Request, Route, UpstreamRewrite};
use serde_json::Value;

fuzz_target!(|input: &[u8]| {
    let Some((&which, body)) = input.split_first() else { return };
    let route = Route::ALL[usize::from(which) % Route::ALL.len()];
    let Ok(request) = Request::decode(route, Bytes::copy_from_slice(body)) else { return };
    for ask_usage in [false, true] {
        let sent = request.upstream_body(&UpstreamRewrite { model: "replica", ask_usage }).to_bytes();
        // One level at the very limit is all by which the two parsers differ.
        match serde_json::from_slice::<Value>(&sent) {
            Ok(sent) => assert_eq!(sent["model"], "replica"),
            Err(error) => assert!(error.to_string().contains("recursion limit"), "{error}"),
        }
    }
});
