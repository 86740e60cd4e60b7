//! The admin API's committed description, its routes, and what it says of itself are one and the same.
//!
//! After a change of the API: `UPDATE=1 cargo test -p huntgroup --test openapi`.

use std::{collections::BTreeSet, fs, path::Path};

use huntgroup::admin;
use serde_json::Value;

const COMMITTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/openapi.json");

fn described() -> Value {
    serde_json::from_str(&admin::document()).expect("the description is JSON")
}

#[test]
fn the_committed_description_is_the_one_that_is_served() {
    let served = admin::document();
    if std::env::var_os("UPDATE").is_some() {
        fs::create_dir_all(Path::new(COMMITTED).parent().expect("a folder")).expect("the folder of documents");
        fs::write(COMMITTED, &served).expect("the description can be written");
    }
    let committed = fs::read_to_string(COMMITTED).unwrap_or_default();
    assert!(committed == served, "docs/openapi.json is out of date: UPDATE=1 cargo test -p huntgroup --test openapi");
}

#[test]
fn every_route_is_described_and_every_description_is_a_route() {
    let routes: BTreeSet<(String, String)> =
        admin::ROUTES.iter().map(|(method, path)| ((*method).to_owned(), (*path).to_owned())).collect();
    let document = described();
    let paths = document["paths"].as_object().expect("paths");
    let of_path = |(path, methods): (&String, &Value)| {
        let methods = methods.as_object().expect("methods").keys().cloned().collect::<Vec<_>>();
        methods.into_iter().map(|method| (method, path.clone())).collect::<Vec<_>>()
    };
    let described: BTreeSet<(String, String)> = paths.iter().flat_map(of_path).collect();
    assert_eq!(routes, described);
}

#[test]
fn every_reference_leads_somewhere_and_every_call_says_what_it_does() {
    let document = described();
    let text = document.to_string();
    for reference in text.split("\"$ref\":\"").skip(1).filter_map(|rest| rest.split('"').next()) {
        let pointer = reference.strip_prefix('#').expect("a reference into the document");
        assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
    }
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for (method, call) in methods.as_object().expect("methods") {
            assert!(call["summary"].is_string(), "{method} {path} does not say what it does");
            assert!(
                call["responses"].as_object().is_some_and(|all| !all.is_empty()),
                "{method} {path} answers nothing"
            );
        }
    }
}
