//! `decode_answer` and `classify_error`: no panic; what goes to the client is JSON, and errors have a client's status.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use openai_wire::{Route, classify_error, decode_answer};
use serde_json::Value;

fuzz_target!(|input: &[u8]| {
    let [which, kind, status @ .., ] = input else { return };
    let Some((status, body)) = status.split_first() else { return };
    let route = Route::ALL[usize::from(*which) % Route::ALL.len()];
    let kind = [None, Some("application/json"), Some("text/html"), Some("")][usize::from(*kind) % 4];
    let error = classify_error(route, 200 + 2 * u16::from(*status), kind, body);
    assert!((400..600).contains(&error.status));
    match decode_answer(route, kind, Bytes::copy_from_slice(body), "asked") {
        Ok(answer) => match serde_json::from_slice::<Value>(&answer.body.to_bytes()) {
            Ok(_) => {}
            Err(error) => assert!(error.to_string().contains("recursion limit"), "{error}"),
        },
        Err(error) => assert!((400..600).contains(&error.status)),
    }
});
