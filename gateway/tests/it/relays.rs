//! What is said of a relay: that it is down when there is no way through it, also to phones that this process has never reached, and
//! nothing when it is their engines or their certificates.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use fakephone::{Fault, WrongCertificate};
use rustix::process::Signal;
use serde_json::Value;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use crate::harness::{Fleet, Gateway, chat, free_port, phone};

/// Quick to ask, and to ask again.
const EAGER: &str = "[health]\ninterval = \"1s\"\ntimeout = \"1s\"\npenalty = \"500ms\"\npenalty_cap = \"1s\"\n";
const DOWN: &str = "huntgroup_relay_down";

/// A relay before the phones' own, which can be closed and opened again at the same address. Closed, it refuses connections.
struct Door {
    open: JoinSet<()>,
}

impl Door {
    async fn open(port: u16, to: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("the port is free");
        let mut open = JoinSet::new();
        open.spawn(async move {
            let mut guests = JoinSet::new();
            while let Ok((mut guest, _)) = listener.accept().await {
                guests.spawn(async move {
                    if let Ok(mut phone) = TcpStream::connect(to).await {
                        copy_bidirectional(&mut guest, &mut phone).await.ok();
                    }
                });
            }
        });
        Self { open }
    }

    /// Takes connections, which are counted, and says nothing.
    async fn silent(port: u16) -> (Self, Arc<AtomicUsize>) {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("the port is free");
        let (mut open, taken) = (JoinSet::new(), Arc::<AtomicUsize>::default());
        let counted = Arc::clone(&taken);
        open.spawn(async move {
            let mut guests = Vec::new();
            while let Ok((guest, _)) = listener.accept().await {
                guests.push(guest);
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        (Self { open }, taken)
    }

    async fn close(mut self) {
        self.open.shutdown().await;
    }
}

/// Phones, the port of a door to them, and a gateway that knows them through it.
async fn behind_a_door(phones: usize) -> (Fleet, u16, Door, Gateway) {
    behind_a_door_with(phones, EAGER).await
}

async fn behind_a_door_with(phones: usize, config: &str) -> (Fleet, u16, Door, Gateway) {
    let fleet = Fleet::of(phones, &phone(1, 100.0)).await;
    let port = free_port();
    let door = Door::open(port, fleet.relay.address()).await;
    let urls =
        fleet.phones.iter().map(|phone| format!("\n[[replicas]]\nurl = \"https://{}.localhost:{port}\"\n", phone.id()));
    let config = format!("{config}{}", urls.collect::<String>());
    let gateway = Gateway::builder(&config).trust(&fleet).start().await;
    gateway.wait_ready(phones).await;
    (fleet, port, door, gateway)
}

async fn replicas(gateway: &Gateway) -> Vec<Value> {
    gateway.admin("GET", "/admin/replicas", None).await.json()["data"].as_array().cloned().unwrap_or_default()
}

async fn series(gateway: &Gateway) -> Vec<String> {
    let page = gateway.admin("GET", "/metrics", None).await.text();
    page.lines().filter(|line| line.starts_with(DOWN)).map(str::to_owned).collect()
}

/// Breaks all phones at once, and returns what is said of them once they are out.
async fn broken_at_once(gateway: &Gateway, fleet: &Fleet, fault: Fault) -> Vec<String> {
    fleet.phones.iter().for_each(|phone| phone.set_fault(fault.clone()));
    let all = fleet.phones.len();
    gateway.wait_for("all to be out", async |gateway| gateway.states("out").await == all).await;
    assert_eq!(gateway.metric(DOWN, "").await, 0.0, "{:?}", series(gateway).await);
    let list = replicas(gateway).await;
    list.iter().map(|replica| replica["problem"].as_str().unwrap_or_default().to_owned()).collect()
}

#[tokio::test]
async fn engines_that_die_at_once_do_not_make_their_relay_one_that_is_down() {
    let (fleet, _, _door, gateway) = behind_a_door(4).await;
    let problems = broken_at_once(&gateway, &fleet, Fault::AppClosed).await;
    assert!(problems.iter().all(|problem| problem.contains("the tunnel is up")), "{problems:?}");
    fleet.phones.iter().for_each(|phone| phone.clear_fault());
    gateway.wait_for("all to work", async |gateway| gateway.states("out").await == 0).await;
}

#[tokio::test]
async fn a_certificate_that_is_refused_is_told_with_its_rule_and_is_no_outage() {
    let (fleet, _, _door, gateway) = behind_a_door(4).await;
    let expired = Fault::WrongCertificate { kind: WrongCertificate::Expired };
    let problems = broken_at_once(&gateway, &fleet, expired).await;
    let words = "its certificate is refused, it has expired: it must be valid at this machine's time";
    assert!(problems.iter().all(|problem| problem.starts_with(words)), "{problems:?}");
}

#[tokio::test]
async fn a_relay_that_is_down_when_the_gateway_starts_is_found_down_until_it_is_back() {
    let (fleet, port, door, mut gateway) = behind_a_door(4).await;
    gateway.signal(Signal::TERM);
    gateway.exited().await;
    door.close().await;
    gateway.restart().await;
    let label = format!("relay=\"localhost:{port}\"");
    gateway.wait_for("the relay to be down", async |gateway| gateway.metric(DOWN, &label).await == 1.0).await;
    assert_eq!(gateway.states("out").await, 4);
    let door = Door::open(port, fleet.relay.address()).await;
    gateway.wait_ready(4).await;
    assert_eq!(gateway.metric(DOWN, &label).await, 0.0);

    // And as ever, when it goes under phones that work.
    door.close().await;
    gateway.wait_for("the relay to be down again", async |gateway| gateway.metric(DOWN, &label).await == 1.0).await;
    let _door = Door::open(port, fleet.relay.address()).await;
    gateway.wait_ready(4).await;
    assert_eq!(gateway.metric(DOWN, &label).await, 0.0);
}

#[tokio::test]
async fn a_relay_that_takes_connections_and_says_nothing_is_down_and_no_attempt_that_is_under_way_calls_it_back() {
    let patient = "[health]\ninterval = \"3s\"\ntimeout = \"3s\"\n[pool]\ntls_timeout = \"2500ms\"\n";
    let (_fleet, port, door, gateway) = behind_a_door_with(4, patient).await;
    let gateway = Arc::new(gateway);
    door.close().await;
    let (_door, taken) = Door::silent(port).await;
    gateway.wait_for("a probe of each", async |_| taken.load(Ordering::Relaxed) >= 4).await;
    let mut asked = JoinSet::new();
    for _ in 0..4 {
        let asker = Arc::clone(&gateway);
        asked.spawn(async move { asker.chat(&chat("hello", false, 1)).await });
    }
    gateway.wait_for("an attempt on each", async |_| taken.load(Ordering::Relaxed) >= 8).await;
    // The probes, which began before, find it.
    gateway.wait_for("the relay to be down", async |gateway| gateway.metric(DOWN, "").await == 1.0).await;
    gateway
        .wait_for("the end of what was under way", async |gateway| {
            assert_eq!(gateway.metric(DOWN, "").await, 1.0, "it has said nothing");
            gateway.metric("huntgroup_replica_slots", "state=\"busy\"").await == 0.0
        })
        .await;
    assert_eq!(gateway.metric(DOWN, "").await, 1.0, "it has said nothing");
}

#[tokio::test]
async fn a_relay_goes_with_the_last_replica_behind_it_and_so_does_its_series() {
    let fleet = Fleet::of(2, &phone(1, 100.0)).await;
    let gateway = Gateway::over(&fleet, EAGER).await;
    for number in 0..20 {
        let url = format!("https://phone.relay{number}.localhost:{}", fleet.relay.address().port());
        let added = gateway.admin("POST", "/admin/replicas", Some(&serde_json::json!({ "url": url }))).await;
        assert_eq!(added.status, 201, "{}", added.text());
        assert_eq!(series(&gateway).await.len(), 2);
        let removed = gateway.admin("DELETE", &format!("/admin/replicas/{}", added.json()["id"]), None).await;
        assert_eq!(removed.status, 200, "{}", removed.text());
        assert_eq!(series(&gateway).await.len(), 1, "{:?}", series(&gateway).await);
    }
}
