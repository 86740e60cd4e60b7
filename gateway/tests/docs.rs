//! Holds the documents to the code: codes and headers of the public API, commands, links.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use clap::Parser as _;
use huntgroup::cli::Cli;

/// The repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every page for people.
fn documents() -> Vec<String> {
    let mut found = vec!["README.md".to_owned(), "CHANGELOG.md".to_owned(), "loadtest/README.md".to_owned()];
    for folder in ["gateway/docs", "gateway/docs/decisions"] {
        for entry in fs::read_dir(root().join(folder)).expect("the folder of documents") {
            let name = entry.expect("an entry").file_name().into_string().expect("a name");
            if name.ends_with(".md") {
                found.push(format!("{folder}/{name}"));
            }
        }
    }
    assert!(found.len() > 10, "{found:?}");
    found
}

/// A text from one mark to the next.
fn between<'a>(text: &'a str, from: &str, to: &str) -> &'a str {
    let (_, rest) = text.split_once(from).unwrap_or_else(|| panic!("no {from:?}"));
    rest.split(to).next().unwrap_or(rest)
}

/// The string literals in a piece of code that look like a code: lower-case words with underscores.
fn codes(source: &str) -> BTreeSet<String> {
    let is_code = |text: &&str| text.len() > 3 && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    source.split('"').skip(1).step_by(2).filter(is_code).map(str::to_owned).collect()
}

/// All values of `error.code` that the gateway has of its own.
fn codes_of_the_gateway() -> BTreeSet<String> {
    let errors = read("gateway/src/error.rs");
    let bodies = read("gateway/crates/openai-wire/src/decode_error.rs");
    let engines = read("gateway/crates/openai-wire/src/upstream_error.rs");
    let mut found = codes(between(&errors, "pub fn code(", "/// The outcome in metrics"));
    found.extend(codes(between(&errors, "fn shed_code(", "\n}\n")));
    let batches = read("gateway/src/batch/api/error.rs");
    found.extend(codes(between(&batches, "pub const fn code(", "\n    }\n")));
    found.extend(codes(between(&bodies, "pub fn code(", "\n    }\n")));
    let engines = between(&engines, "fn describe_with_status(", "fn context_message(");
    found.extend(codes(engines).into_iter().filter(|code| code.contains('_') && !code.ends_with("_error")));
    // Words that engines use, which are looked for and not said.
    found.remove("parse_error");
    found
}

#[test]
fn the_page_about_the_api_names_exactly_the_codes_that_there_are() {
    let page = read("gateway/docs/api.md");
    let errors = between(&page, "## Errors", "\n## ");
    let column = |row: &str| row.split('|').nth(2).unwrap_or_default().to_owned();
    let rows = errors.lines().filter(|line| line.starts_with("| 4") || line.starts_with("| 5"));
    let told: BTreeSet<String> = rows
        .map(column)
        .flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>())
        .collect();
    let known = codes_of_the_gateway();
    assert!(known.len() > 15, "{known:?}");
    assert_eq!(told, known);
}

#[test]
fn the_page_about_the_api_names_every_header_of_ours() {
    let page = read("gateway/docs/api.md").to_ascii_lowercase();
    let mut found = 0;
    for source in ["gateway/src/request/mod.rs", "gateway/src/relay/head.rs"] {
        for header in read(source).split('"').skip(1).step_by(2).filter(|text| text.starts_with("x-")) {
            assert!(page.contains(header), "{header}");
            found += 1;
        }
    }
    assert!(found > 5, "{found}");
}

#[test]
fn every_command_that_a_document_names_is_understood() {
    let mut found = 0;
    for path in documents() {
        let text = read(&path);
        let in_line = text.split('`').skip(1).step_by(2).map(str::to_owned);
        let in_blocks = text.lines().map(|line| line.trim().trim_start_matches("./target/release/").to_owned());
        // Runs of words in a sentence and options with a choice are no calls.
        for call in in_line.chain(in_blocks).filter(|call| call.starts_with("huntgroup ") && !call.contains(['…', '*']))
        {
            let call = call.split(['#', '|', '>', '&']).next().unwrap_or_default().replace('\n', " ");
            if let Err(error) = Cli::try_parse_from(call.split_whitespace()) {
                assert!(!error.use_stderr() || is_a_group(&call), "{path}: {call}: {error}");
            }
            found += 1;
        }
    }
    assert!(found > 15, "{found}");
}

/// `huntgroup replicas`: a group of commands, named as such.
fn is_a_group(call: &str) -> bool {
    let words: Vec<&str> = call.split_whitespace().collect();
    matches!(words.as_slice(), ["huntgroup", "replicas" | "keys" | "batches" | "check"])
}

#[test]
fn every_link_leads_to_a_file_that_is_there() {
    for path in documents() {
        let folder = root().join(&path).parent().expect("a folder").to_owned();
        for link in read(&path).split("](").skip(1).filter_map(|rest| rest.split(')').next().map(str::to_owned)) {
            let file = link.split('#').next().unwrap_or_default();
            if file.is_empty() || file.contains("://") {
                continue;
            }
            assert!(folder.join(file).exists(), "{path}: {link}");
        }
    }
}
