//! A hundred phones, two hundred clients, and a third of the pool dying in every way while answers are awaited.

use std::{sync::Arc, time::Duration};

use fakephone::Fault;
use tokio::task::JoinSet;

use crate::harness::{Client, Fleet, Gateway, chat, now, phone};

const PHONES: usize = 100;
const CLIENTS: usize = 200;
const ROUNDS: usize = 6;

/// The tunnel's failures, and the engine's.
fn fault(number: usize) -> Fault {
    match number % 8 {
        0 => Fault::UnknownId,
        1 => Fault::TlsStall,
        2 => Fault::AppClosed,
        3 => Fault::BlackHole,
        4 => Fault::Refuse,
        5 => Fault::EverySecondStalls,
        6 => Fault::ResetBeforeHead,
        _ => Fault::Html { status: 502 },
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_client_sees_an_error_while_a_third_of_the_phones_dies() {
    // Mostly prefill, so that phones die while answers are awaited: 1,000 words are read in about half a second.
    let fleet = Arc::new(Fleet::of(PHONES, &phone(2, 4.0)).await);
    // Times that a machine busy with other tests keeps: only a phone that is dead may exceed them.
    let config = "[streams]\nfirst_token_min = \"15s\"\nplain_total = \"20s\"\n[pool]\nconnect_timeout = \"1s\"\ntls_timeout = \"1s\"\n";
    let gateway = Gateway::over(&fleet, config).await;
    let port = gateway.public;
    let clients = JoinSet::from_iter((0..CLIENTS).map(|client| async move {
        let filler = "word ".repeat(1000);
        for round in 0..ROUNDS {
            let prompt = format!("{filler} client {client} round {round}");
            // Answers of one token: nothing is in the middle of being written when a phone dies.
            let body = chat(&prompt, client % 2 == 0, 1);
            let answer = Client::connect(port).await.post("/v1/chat/completions", &body).await.answer().await;
            assert!(answer.is_whole(&prompt, 1), "client {client} round {round}: {}{}", answer.head, answer.text());
        }
    }));
    let killed = Arc::clone(&fleet);
    let killer = async move {
        for number in 0..PHONES * 3 / 10 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            killed.phones[number * 3].set_fault(fault(number));
        }
    };
    let started = now();
    tokio::join!(killer, clients.join_all());
    println!("{} requests in {:?}", CLIENTS * ROUNDS, started.elapsed());
    assert_eq!(fleet.over_subscribed(), 0);
    gateway.wait_at_rest().await;
    assert!(gateway.metric("huntgroup_failovers_total", "").await > 0.0, "phones died while answers were awaited");
}
