//! A phone that dies before its answer begins is not the client's business.

use fakephone::{Fault, Scope, WrongCertificate};
use serde_json::json;

use crate::harness::{Fleet, Gateway, chat, phone};

/// Patience short enough that a frozen phone is given up within a test.
const IMPATIENT: &str = "[streams]\nfirst_token_min = \"1s\"\ngap_min = \"1s\"\nplain_total = \"3s\"\n";

/// Every way in which a phone fails before its first token (phones.md section 2, and an engine's own).
fn faults() -> Vec<(&'static str, Fault)> {
    vec![
        ("refuse", Fault::Refuse),
        ("black hole", Fault::BlackHole),
        ("TLS stall", Fault::TlsStall),
        ("unknown id", Fault::UnknownId),
        ("app closed", Fault::AppClosed),
        ("expired certificate", Fault::WrongCertificate { kind: WrongCertificate::Expired }),
        ("reset before head", Fault::ResetBeforeHead),
        ("close before head", Fault::CloseBeforeHead),
        ("freeze before head", Fault::FreezeBeforeHead),
        ("HTML 200", Fault::Html { status: 200 }),
        ("HTML 404", Fault::Html { status: 404 }),
        ("HTML 502", Fault::Html { status: 502 }),
        ("HTML 530", Fault::Html { status: 530 }),
        ("500", Fault::Status { code: 500, retry_after: None }),
        ("429", Fault::Status { code: 429, retry_after: Some(1) }),
        ("503", Fault::Status { code: 503, retry_after: None }),
        ("empty 200", Fault::Empty200),
        ("error in 200", Fault::ErrorIn200 { code: 429 }),
        ("broken JSON", Fault::BrokenJson),
        ("redirect", Fault::Redirect { location: "http://127.0.0.1:1/".into() }),
        ("wrong key", Fault::WrongKey),
        ("loading", Fault::Loading { for_s: 1.0 }),
        ("cut before content", Fault::CutAfter { chunks: 0, mid_word: false }),
        ("reset before content", Fault::ResetAfter { chunks: 0 }),
        ("hang before content", Fault::HangAfter { chunks: 0 }),
        ("odd framing", Fault::OddFraming),
        ("huge header", Fault::HugeHeaders { bytes: 1 << 20 }),
        ("many headers", Fault::ManyHeaders { lines: 500 }),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_phone_does_before_its_first_token_the_client_gets_the_other_phones_answer() {
    let fleet = Fleet::of(2, &phone(4, 50.0)).await;
    let gateway =
        Gateway::over(&fleet, &format!("[pool]\nconnect_timeout = \"1s\"\ntls_timeout = \"1s\"\n{IMPATIENT}")).await;
    for (name, fault) in faults() {
        for stream in [false, true] {
            // Both fail on their first request, so that the choice of phone can't hide the fault; one gets well at once.
            let broken = usize::from(stream);
            fleet.phones[broken].set_fault_within(fault.clone(), Scope::Always);
            let answers = [
                gateway.chat(&chat(&format!("{name} {stream} first"), stream, 5)).await,
                gateway.chat(&chat(&format!("{name} {stream} second"), stream, 5)).await,
            ];
            for (answer, which) in answers.iter().zip(["first", "second"]) {
                let prompt = format!("{name} {stream} {which}");
                assert!(answer.is_whole(&prompt, 5), "{name}, stream {stream}: {}{}", answer.head, answer.text());
            }
            fleet.phones[broken].clear_fault();
            fleet.phones[broken].revive();
            // Whatever it was put out for, an operator who drains and undrains does not bring it back; removing and adding does.
            let url = fleet.phones[broken].url().to_owned();
            let removed = gateway
                .admin("DELETE", &format!("/admin/replicas/{}?force=true", fleet.phones[broken].id()), None)
                .await;
            assert!(removed.status < 300, "{}", removed.text());
            let added = gateway.admin("POST", "/admin/replicas", Some(&json!({ "url": url }))).await;
            assert!(added.status < 300, "{}", added.text());
            gateway.wait_ready(2).await;
        }
    }
    assert_eq!(fleet.over_subscribed(), 0);
    gateway.wait_at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_of_megabytes_is_replayed_whole_on_the_next_phone() {
    let fleet = Fleet::of(3, &phone(1, 1000.0).with_context(8_000_000)).await;
    let gateway = Gateway::over(&fleet, "").await;
    fleet.phones[0].set_fault(Fault::Status { code: 500, retry_after: None });
    fleet.phones[1].set_fault(Fault::ResetBeforeHead);
    // Two words of five megabytes: a prompt that costs a phone nothing and a replay everything.
    let prompt = format!("{} {}", "a".repeat(5_000_000), "b".repeat(5_000_000));
    for _ in 0..3 {
        let answer = gateway.chat(&chat(&prompt, false, 3)).await;
        assert!(answer.is_whole(&prompt, 3), "{}{}", answer.head, answer.text());
    }
    let digests: Vec<_> =
        fleet.phones.iter().filter_map(|phone| phone.last_work()).map(|seen| seen.body_sha256).collect();
    assert_eq!(digests.len(), 3, "every phone has seen the request");
    assert!(digests.windows(2).all(|pair| pair[0] == pair[1]), "and each the same bytes: {digests:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_phone_is_asked_twice_and_the_last_word_is_an_error_that_is_not_sent_again() {
    let fleet = Fleet::of(3, &phone(1, 50.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    for phone in &fleet.phones {
        phone.reset_stats();
        phone.set_fault(Fault::Status { code: 500, retry_after: None });
    }
    let answer = gateway.chat(&chat("nobody", false, 3)).await;
    assert_eq!(answer.status, 502, "{}", answer.text());
    assert_eq!(answer.error().expect("an error")["code"], "upstream_error");
    assert_eq!(answer.header("x-should-retry"), Some("false"));
    let started: Vec<u64> = fleet.phones.iter().map(|phone| phone.stats().started).collect();
    assert_eq!(started, [1, 1, 1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_wrong_in_itself_is_tried_once() {
    let fleet = Fleet::of(3, &phone(1, 50.0).with_context(64)).await;
    let gateway = Gateway::over(&fleet, "").await;
    let mut body = chat("hello", false, 3);
    body["temperature"] = json!("hot");
    let answer = gateway.chat(&body).await;
    assert_eq!(answer.status, 400, "{}", answer.text());
    let too_long = gateway.chat(&chat(&"word ".repeat(500), false, 3)).await;
    assert_eq!(too_long.status, 400, "{}", too_long.text());
    assert_eq!(too_long.error().expect("an error")["code"], "context_length_exceeded");
    let started: u64 = fleet.phones.iter().map(|phone| phone.stats().started).sum();
    assert!(started <= 2, "{started} attempts for two requests that no phone can answer");
    assert_eq!(gateway.metric("huntgroup_failovers_total", "").await, 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn phones_that_close_idle_connections_early_cause_no_error_and_no_failure() {
    let fleet = Fleet::of(1, &phone(1, 1000.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    fleet.phones[0].set_fault(Fault::StaleKeepAlive {
        idle_s: 5.0,
        max_requests: None,
        close_after_reading_body_on_reused: true,
    });
    for round in 0..40 {
        let prompt = format!("round {round}");
        let answer = gateway.chat(&chat(&prompt, false, 3)).await;
        assert!(answer.is_whole(&prompt, 3), "{}{}", answer.head, answer.text());
        assert_eq!(answer.header("x-huntgroup-attempts"), Some("1"));
    }
    assert_eq!(gateway.states("ready").await, 1);
}
