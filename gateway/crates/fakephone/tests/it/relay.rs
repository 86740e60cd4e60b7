//! Phones behind a relay: routed by name, and lost in the ways a tunnel loses them.

use crate::SOON;
use crate::client::{Answer, Client, chat, connector, dial, name_of, read};
use fakephone::{Fault, PhoneConfig, PhoneHandle, Relay, Scope, SpawnError, WrongCertificate, answer_text};
use serde_json::json;
use std::io::ErrorKind;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn relay() -> Relay {
    Relay::start_local().await.expect("a relay")
}

fn quick_stall(seed: u64) -> PhoneConfig {
    PhoneConfig { stall: Duration::from_millis(60), ..PhoneConfig::default().with_seed(seed) }
}

async fn say(relay: &Relay, phone: &PhoneHandle, message: &str) -> Answer {
    let mut client = Client::over(dial(phone, relay.ca_pem()).await.expect("a TLS connection")).await;
    client.ask(chat(message, json!({"max_tokens": 8, "stream": true}))).await.expect("an answer")
}

#[tokio::test]
async fn one_port_serves_many_phones_by_name() {
    let relay = relay().await;
    let phones: Vec<PhoneHandle> = (0..20)
        .map(|seed| {
            let config = PhoneConfig::default().with_seed(seed).with_model(format!("model-{seed}"));
            relay.spawn(config).expect("a phone")
        })
        .collect();
    for (seed, phone) in phones.iter().enumerate() {
        assert_eq!(phone.address(), relay.address());
        assert_eq!(phone.url(), format!("https://{}.localhost:{}", phone.id(), relay.address().port()));
        assert!(phone.id().len() == 16 && phone.id().bytes().all(|byte| byte.is_ascii_hexdigit()));
        let answer = say(&relay, phone, "who are you").await;
        assert_eq!(answer.spoken().0, answer_text(&format!("model-{seed}"), "who are you", 8));
        assert_eq!(phone.stats().completed, 1);
    }
}

#[tokio::test]
async fn an_unknown_name_a_split_hello_and_plain_text_are_reset() {
    let relay = relay().await;
    let phone = relay.spawn(PhoneConfig::default()).expect("a phone");
    let name = phone.id().to_owned();
    drop(phone);
    let stream = TcpStream::connect(relay.address()).await.expect("TCP connects");
    let host = rustls_pki_types::ServerName::try_from(format!("{name}.localhost")).expect("a name");
    let failed = connector(relay.ca_pem()).connect(host, stream).await.map_err(|error| error.kind());
    assert_eq!(failed.err(), Some(ErrorKind::ConnectionReset));

    for bytes in [&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], b"GET / HTTP/1.1\r\n\r\n"] {
        let mut stream = TcpStream::connect(relay.address()).await.expect("TCP connects");
        stream.write_all(bytes).await.expect("to write");
        let end = stream.read(&mut [0; 8]).await.map_err(|error| error.kind());
        assert_eq!(end, Err(ErrorKind::ConnectionReset));
    }
}

#[tokio::test]
async fn a_dead_engine_behind_a_living_tunnel_completes_tls_and_then_ends() {
    let relay = relay().await;
    let phone = relay.spawn(PhoneConfig::default()).expect("a phone");
    phone.kill();
    let mut stream = dial(&phone, relay.ca_pem()).await.expect("TLS completes");
    let end = stream.read(&mut [0; 8]).await;
    assert_eq!(end.map_err(|error| error.kind()), Err(ErrorKind::UnexpectedEof), "no goodbye either");
    phone.revive();
    assert!(say(&relay, &phone, "again").await.is_done());
}

#[tokio::test]
async fn a_phone_unknown_to_the_tunnel_resets_the_handshake_and_ends_what_runs() {
    let relay = relay().await;
    let phone = relay.spawn(PhoneConfig::default()).expect("a phone");
    phone.set_fault_within(Fault::HangAfter { chunks: 2 }, Scope::Next(1));
    let mut client = Client::over(dial(&phone, relay.ca_pem()).await.expect("TLS")).await;
    let head = client.start(chat("x", json!({"stream": true}))).await.expect("a head");
    phone.set_fault(Fault::UnknownId);
    assert!(read(head).await.expect("a body").broken.is_some());
    let failed = dial(&phone, relay.ca_pem()).await.map_err(|error| error.kind());
    assert_eq!(failed.err(), Some(ErrorKind::ConnectionReset));
}

#[tokio::test]
async fn a_phone_without_network_hangs_in_the_handshake_and_streams_fall_silent() {
    let relay = relay().await;
    let phone = relay.spawn(quick_stall(1)).expect("a phone");
    phone.set_fault_within(Fault::HangAfter { chunks: 2 }, Scope::Next(1));
    let mut client = Client::over(dial(&phone, relay.ca_pem()).await.expect("TLS")).await;
    let head = client.start(chat("x", json!({"stream": true}))).await.expect("a head");
    phone.set_fault(Fault::TlsStall);
    let failed = dial(&phone, relay.ca_pem()).await.map_err(|error| error.kind());
    assert_eq!(failed.err(), Some(ErrorKind::UnexpectedEof));
    let answer = read(head).await.expect("a body");
    assert!(answer.broken.is_some() && !answer.is_done());
    phone.clear_fault();
    assert!(say(&relay, &phone, "back").await.is_done());
}

#[tokio::test]
async fn every_second_handshake_hangs_when_two_phones_share_an_id() {
    let relay = relay().await;
    let phone = relay.spawn(quick_stall(1)).expect("a phone");
    phone.set_fault(Fault::EverySecondStalls);
    for round in 0..4 {
        assert_eq!(dial(&phone, relay.ca_pem()).await.is_ok(), round % 2 == 0, "round {round}");
    }
}

#[tokio::test]
async fn wrong_certificates_are_refused_by_a_client_that_checks() {
    let relay = relay().await;
    let phone = relay.spawn(PhoneConfig::default()).expect("a phone");
    for (kind, words) in [
        (WrongCertificate::Expired, "Expired"),
        (WrongCertificate::OtherName, "not valid for name"),
        (WrongCertificate::Untrusted, "invalid peer certificate"),
    ] {
        phone.set_fault(Fault::WrongCertificate { kind });
        let error = dial(&phone, relay.ca_pem()).await.expect_err("a refusal");
        let said = format!("{error:?} {error}").to_lowercase();
        assert!(said.contains(&words.to_lowercase()), "{kind:?}: {said}");
    }
}

#[tokio::test]
async fn two_phones_of_one_id_are_refused_until_the_first_has_gone() {
    let relay = relay().await;
    let first = relay.spawn(PhoneConfig::default()).expect("a phone");
    let second = relay.spawn(PhoneConfig::default());
    assert!(matches!(second, Err(SpawnError::TwoOfOneId(id)) if id == first.id()));
    drop(first);
    let gone = async {
        loop {
            match relay.spawn(PhoneConfig::default()) {
                Ok(phone) => return phone,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    };
    let third = tokio::time::timeout(SOON, gone).await.expect("the id is free");
    assert!(say(&relay, &third, "hello").await.is_done());
    assert_eq!(name_of(&third).to_str(), format!("{}.localhost", third.id()));
}
