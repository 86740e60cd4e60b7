//! A fleet and its control port.

use crate::client::{Client, ask, chat, get, post};
use fakephone::{Control, Fleet, PhoneConfig, Place, Relay};
use http::{Method, Request};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpStream;

const LOCAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

async fn fleet(place: Place, phones: u64) -> (Arc<Fleet>, Control) {
    let fleet = Arc::new(Fleet::new(place));
    for seed in 0..phones {
        fleet.add(PhoneConfig::default().with_seed(seed)).await.expect("a phone");
    }
    let control = Control::start(LOCAL, fleet.clone(), PhoneConfig::default()).await.expect("a control port");
    (fleet, control)
}

async fn call(control: &Control, method: Method, path: &str, body: &Value) -> (u16, Value) {
    let mut client = Client::over(TcpStream::connect(control.address()).await.expect("a connection")).await;
    let mut request = post(path, body);
    *request.method_mut() = method;
    let answer = client.ask(request).await.expect("an answer");
    (answer.status, answer.json())
}

#[tokio::test]
async fn a_fleet_is_listed_broken_killed_and_asked_over_http() {
    let (fleet, control) = fleet(Place::Ports(LOCAL.ip(), 0), 3).await;
    let (status, phones) = call(&control, Method::GET, "/phones", &Value::Null).await;
    assert_eq!((status, phones.as_array().map(Vec::len)), (200, Some(3)));
    let id = phones[1]["id"].as_str().expect("an id").to_owned();

    let order = json!({"fault": "status", "code": 503, "next": 1});
    let (status, phone) = call(&control, Method::POST, &format!("/phones/{id}/fault"), &order).await;
    assert_eq!((status, &phone["order"]["fault"]), (200, &json!("status")));
    let broken = fleet.get("1").expect("the second phone");
    assert_eq!(broken.id(), id);
    assert_eq!(ask(&broken, chat("x", json!({}))).await.expect("an answer").status, 503);
    assert_eq!(ask(&broken, chat("x", json!({}))).await.expect("an answer").status, 200);

    let (_, requests) = call(&control, Method::GET, "/phones/1/requests", &Value::Null).await;
    assert_eq!(requests.as_array().map(Vec::len), Some(2));
    let (_, stats) = call(&control, Method::GET, "/stats", &Value::Null).await;
    assert_eq!((&stats["started"], &stats["completed"], &stats["failed"]), (&json!(2), &json!(1), &json!(1)));

    let (status, _) = call(&control, Method::POST, "/phones/all/kill", &Value::Null).await;
    assert_eq!(status, 200);
    assert!(fleet.phones().iter().all(|phone| !phone.is_alive()));
    call(&control, Method::POST, "/phones/all/revive", &Value::Null).await;
    assert!(fleet.phones().iter().all(|phone| phone.is_alive()));
    call(&control, Method::POST, "/phones/1/reset-stats", &Value::Null).await;
    assert_eq!(broken.stats().started, 0);
}

#[tokio::test]
async fn phones_are_added_and_removed_over_http() {
    let (fleet, control) = fleet(Place::Ports(LOCAL.ip(), 0), 1).await;
    let spec = json!({"dialect": "mnn", "slots": 2, "speed": "4b*0.5", "model": "m"});
    let (status, phone) = call(&control, Method::POST, "/phones", &spec).await;
    assert_eq!((status, &phone["dialect"], &phone["slots"]), (200, &json!("mnn"), &json!(2)));
    let added = fleet.get(phone["id"].as_str().expect("an id")).expect("it is there");
    assert_eq!(ask(&added, get("/v1/models")).await.expect("an answer").status, 200);
    let (status, _) = call(&control, Method::DELETE, "/phones/1", &Value::Null).await;
    assert_eq!((status, fleet.len()), (200, 1));
}

#[tokio::test]
async fn phones_are_killed_for_a_time_occupied_and_lose_their_connections_over_http() {
    let (fleet, control) = fleet(Place::Ports(LOCAL.ip(), 0), 1).await;
    let phone = fleet.get("0").expect("a phone");
    let (_, taken) = call(&control, Method::POST, "/phones/0/occupy", &json!({"slots": 3, "seconds": 600})).await;
    assert_eq!(taken, json!({"taken": 1}));
    assert_eq!(ask(&phone, get("/slots")).await.expect("an answer").json()[0]["is_processing"], true);
    let mut client = Client::to(&phone).await;
    assert_eq!(client.ask(get("/health")).await.expect("an answer").status, 200);
    let (status, _) = call(&control, Method::POST, "/phones/0/cut", &Value::Null).await;
    assert_eq!((status, client.ask(get("/health")).await.is_err()), (200, true));
    assert_eq!(call(&control, Method::POST, "/phones/0/pace", &json!({"pace": 0.5})).await.0, 200);
    assert_eq!(call(&control, Method::POST, "/phones/0/kill", &json!({"seconds": 0.1})).await.0, 200);
    let back = async { while TcpStream::connect(phone.address()).await.is_err() || !phone.is_alive() {} };
    tokio::time::timeout(crate::SOON, back).await.expect("it is back");
    assert_eq!(ask(&phone, chat("x", json!({}))).await.expect("an answer").status, 200);
}

#[tokio::test]
async fn mistakes_are_told() {
    let (_fleet, control) = fleet(Place::Ports(LOCAL.ip(), 0), 1).await;
    for (method, path, body, status) in [
        (Method::GET, "/phones/7", Value::Null, 404),
        (Method::GET, "/nonsense", Value::Null, 404),
        (Method::GET, "/ca.pem", Value::Null, 404),
        (Method::POST, "/phones/0/fault", json!({"fault": "explode"}), 400),
        (Method::POST, "/phones/0/occupy", json!({"slots": 2}), 400),
        (Method::POST, "/phones/0/kill", json!({"seconds": -2}), 400),
        (Method::POST, "/phones/0/pace", json!({"speed": 2}), 400),
        (Method::POST, "/phones", json!({"slot": 2}), 400),
        (Method::POST, "/phones", json!({"speed": "100b"}), 400),
    ] {
        let (seen, answer) = call(&control, method, path, &body).await;
        assert_eq!(seen, status, "{path}");
        assert!(answer["error"].is_string());
    }
}

#[tokio::test]
async fn the_certificate_of_the_authority_is_handed_out() {
    let relay = Relay::start_local().await.expect("a relay");
    let (_fleet, control) = fleet(Place::Relay(relay.clone()), 1).await;
    let mut client = Client::over(TcpStream::connect(control.address()).await.expect("a connection")).await;
    let request: Request<_> = get("/ca.pem");
    assert_eq!(client.ask(request).await.expect("an answer").text(), relay.ca_pem());
}
