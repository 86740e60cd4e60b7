//! Streams: kept warm, never silently cut.

use fakephone::{Fault, LineEnding, Scope};

use crate::harness::{Fleet, Gateway, chat, phone};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_stream_gets_its_head_and_comments_before_the_first_token() {
    let fleet = Fleet::of(1, &phone(1, 50.0)).await;
    let config = "[streams]\nhead_after = \"1s\"\nkeepalive_interval = \"1s\"\n";
    let gateway = Gateway::over(&fleet, config).await;
    fleet.phones[0].set_fault_within(Fault::Slow { seconds: 3.5 }, Scope::Next(1));
    let mut exchange = gateway.client().await.post("/v1/chat/completions", &chat("slow", true, 3)).await;
    assert!(exchange.read_until(": keep-alive\n\n").await, "{}", exchange.seen());
    assert!(!exchange.seen().contains("\"content\""), "{}", exchange.seen());
    let answer = exchange.answer().await;
    assert!(answer.text().matches(": keep-alive").count() >= 2, "{}", answer.text());
    assert!(answer.is_whole("slow", 3), "{}{}", answer.head, answer.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_goes_on_after_the_head_has_gone_out_and_a_final_refusal_travels_inside() {
    let fleet = Fleet::of(2, &phone(1, 50.0)).await;
    let config = "[streams]\nhead_after = \"1s\"\nfirst_token_min = \"2s\"\n";
    let gateway = Gateway::over(&fleet, config).await;
    for phone in &fleet.phones {
        phone.set_fault_within(Fault::FreezeBeforeHead, Scope::Next(1));
    }
    let answer = gateway.chat(&chat("frozen", true, 3)).await;
    assert_eq!(answer.status, 200);
    assert!(!answer.clean, "a lost answer must not end cleanly: {}", answer.text());
    assert_eq!(answer.error().expect("an error event")["code"], "upstream_error", "{}", answer.text());
    assert!(!answer.text().contains("[DONE]"));
    gateway.wait_at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_breaks_off_and_is_not_carried_on_ends_in_an_error_event_and_an_aborted_connection() {
    let fleet = Fleet::of(2, &phone(1, 50.0)).await;
    let gateway = Gateway::over(&fleet, "[streams]\ngap_min = \"1s\"\ncontinue = \"never\"\n").await;
    for (name, fault) in [
        ("cut", Fault::CutAfter { chunks: 5, mid_word: true }),
        ("reset", Fault::ResetAfter { chunks: 5 }),
        ("hang", Fault::HangAfter { chunks: 5 }),
        ("early done", Fault::EarlyDone { chunks: 5 }),
        ("error", Fault::ErrorAfter { chunks: 5, code: 500 }),
    ] {
        for phone in &fleet.phones {
            phone.set_fault_within(fault.clone(), Scope::Always);
        }
        let answer = gateway.chat(&chat(name, true, 40)).await;
        assert_eq!(answer.status, 200, "{name}");
        assert!(!answer.clean, "{name} ended cleanly: {}", answer.text());
        assert!(answer.error().is_some(), "{name} without an error event: {}", answer.text());
        assert!(!answer.text().contains("[DONE]"), "{name}: {}", answer.text());
        for phone in &fleet.phones {
            phone.clear_fault();
        }
        gateway.wait_at_rest().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_correct_stream_gives_the_same_text_however_it_is_cut_into_packets() {
    let fleet = Fleet::of(1, &phone(1, 1000.0)).await;
    let gateway = Gateway::over(&fleet, "").await;
    for line_ending in [LineEnding::Lf, LineEnding::CrLf, LineEnding::Cr] {
        for bytes in [1, 3, 7, 64] {
            fleet.phones[0].set_fault(Fault::SplitEverywhere { line_ending, bytes });
            let answer = gateway.chat(&chat("split", true, 12)).await;
            assert!(answer.is_whole("split", 12), "{line_ending:?} {bytes}: {}{}", answer.head, answer.text());
        }
    }
    fleet.phones[0].set_fault(Fault::NoDone);
    let answer = gateway.chat(&chat("no done", true, 12)).await;
    assert!(answer.is_whole("no done", 12), "a finish reason is enough: {}", answer.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hostile_stream_is_bounded() {
    let fleet = Fleet::of(1, &phone(1, 1000.0)).await;
    let gateway = Gateway::over(&fleet, "[streams]\nmax_event = \"64KiB\"\n").await;
    fleet.phones[0].set_fault_within(Fault::EndlessLine, Scope::Next(1));
    let answer = gateway.chat(&chat("endless", true, 12)).await;
    assert!(answer.status == 502 || !answer.clean, "{}{}", answer.head, answer.text());
    assert!(answer.error().is_some(), "{}", answer.text());
    gateway.wait_at_rest().await;
}
