//! The control port: what a test in another process may do to a fleet.
//!
//! | route | does |
//! |---|---|
//! | `GET /phones` | all phones: id, url, state, order, counters |
//! | `POST /phones` | starts one more ([`PhoneSpec`]) |
//! | `GET`, `DELETE /phones/{id}` | one phone; stops it |
//! | `POST /phones/{id}/fault` | [`FaultOrder`], as in `{"fault":"cut_after","chunks":3,"next":1}` |
//! | `POST /phones/{id}/kill`, `/revive`, `/reset-stats` | with `{"seconds":2}` dead for that time only |
//! | `POST /phones/{id}/cut` | the tunnel loses all its connections |
//! | `POST /phones/{id}/occupy` | `{"slots":1,"seconds":5}`: somebody else's work takes free slots |
//! | `POST /phones/{id}/pace` | `{"pace":0.5}`: reads and writes at this share of its speed |
//! | `GET /phones/{id}/requests` | the last requests as they came |
//! | `GET /stats` | sums over all phones |
//! | `GET /ca.pem` | the certificate of the relay's authority |
//!
//! `{id}` is an id, a place in the order, or `all`.

use crate::config::PhoneConfig;
use crate::fault::FaultOrder;
use crate::fleet::{Fleet, PhoneSpec};
use crate::handle::{PhoneHandle, SpawnError};
use crate::http::{Conn, NoRequest, Reply, Request};
use crate::tasks::Tasks;
use crate::wire::{ResetOnDrop, Socket, Wire};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

const IDLE: Duration = Duration::from_secs(60);
/// Pause after an accept that failed for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A running control port; it closes when this is dropped.
#[derive(Debug)]
pub struct Control {
    address: SocketAddr,
    _tasks: Tasks,
}

impl Control {
    /// Opens a control port for `fleet`; phones added through it are variations of `template`.
    pub async fn start(address: SocketAddr, fleet: Arc<Fleet>, template: PhoneConfig) -> Result<Self, SpawnError> {
        let failed = |cause| SpawnError::Listen { address, cause };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let mut tasks = Tasks::default();
        tasks.spawn(run(listener, fleet, Arc::new(template)));
        Ok(Self { address, _tasks: tasks })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn run(listener: TcpListener, fleet: Arc<Fleet>, template: Arc<PhoneConfig>) {
    let mut guests = Tasks::default();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => guests.spawn(serve(stream, fleet.clone(), template.clone())),
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
            () = guests.reap() => {}
        }
    }
}

async fn serve(stream: TcpStream, fleet: Arc<Fleet>, template: Arc<PhoneConfig>) {
    stream.set_nodelay(true).ok();
    let mut conn = Conn::new(Wire::Plain(Socket::new(stream, ResetOnDrop::default())), 0, "");
    loop {
        let reply = match conn.read_request(IDLE).await {
            Ok(request) => {
                conn.says_close = request.closes;
                answer(&fleet, &template, &request).await
            }
            Err(NoRequest::Ended) => return conn.close().await,
            Err(NoRequest::Refused(status)) => {
                conn.says_close = true;
                error(status, "not a request")
            }
        };
        if conn.reply(&reply).await.is_err() || conn.says_close {
            return conn.close().await;
        }
    }
}

fn error(status: u16, message: impl Into<String>) -> Reply {
    Reply::json(status, &json!({"error": message.into()}))
}

async fn answer(fleet: &Fleet, template: &PhoneConfig, request: &Request) -> Reply {
    let parts: Vec<&str> = request.path().trim_matches('/').split('/').collect();
    match (request.method.as_str(), parts.as_slice()) {
        ("GET", ["phones"]) => Reply::json(200, &fleet.phones().iter().map(describe).collect()),
        ("POST", ["phones"]) => add(fleet, template, &request.body).await,
        ("GET", ["stats"]) => Reply::json(200, &json!(fleet.stats())),
        ("GET", ["ca.pem"]) => match fleet.relay() {
            Some(relay) => Reply::new(200, "application/x-pem-file", relay.ca_pem()),
            None => error(404, "there is no relay"),
        },
        ("DELETE", ["phones", name]) if fleet.remove(name) => Reply::json(200, &json!({"removed": true})),
        (method, ["phones", name, rest @ ..]) => {
            let phones = if *name == "all" { fleet.phones() } else { fleet.get(name).into_iter().collect() };
            if phones.is_empty() {
                return error(404, format!("no phone {name:?}"));
            }
            let replies: Vec<Reply> = phones.iter().map(|phone| one(phone, method, rest, &request.body)).collect();
            let failed = replies.iter().position(|reply| reply.status != 200);
            replies.into_iter().nth(failed.unwrap_or(0)).unwrap_or_else(|| error(404, "no phone"))
        }
        _ => error(404, "no such route"),
    }
}

fn one(phone: &PhoneHandle, method: &str, rest: &[&str], body: &[u8]) -> Reply {
    match (method, rest) {
        ("GET", []) => {}
        ("GET", ["requests"]) => return Reply::json(200, &json!(phone.requests())),
        ("POST", ["fault"]) => match serde_json::from_slice::<FaultOrder>(body) {
            Ok(order) => phone.obey(order),
            Err(wrong) => return error(400, wrong.to_string()),
        },
        ("POST", ["cut"]) => phone.cut_connections(),
        ("POST", ["kill" | "occupy" | "pace"]) => match Numbers::read(body) {
            Ok(numbers) => match (rest[0], numbers) {
                ("kill", Numbers { seconds: None, .. }) => phone.kill(),
                ("kill", Numbers { seconds: Some(time), .. }) => phone.kill_for(time),
                ("occupy", Numbers { seconds: Some(time), slots, .. }) => {
                    return Reply::json(200, &json!({"taken": phone.occupy(slots.unwrap_or(1), time)}));
                }
                ("pace", Numbers { pace: Some(pace), .. }) => phone.set_pace(pace),
                _ => return error(400, "a number is missing"),
            },
            Err(wrong) => return error(400, wrong),
        },
        ("POST", ["revive"]) => phone.revive(),
        ("POST", ["reset-stats"]) => phone.reset_stats(),
        _ => return error(404, "no such route"),
    }
    Reply::json(200, &describe(phone))
}

/// The numbers that orders carry.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Numbers {
    #[serde(default, deserialize_with = "seconds")]
    seconds: Option<Duration>,
    slots: Option<usize>,
    pace: Option<f64>,
}

fn seconds<'de, D: Deserializer<'de>>(source: D) -> Result<Option<Duration>, D::Error> {
    let seconds = Option::<f64>::deserialize(source)?;
    seconds.map(Duration::try_from_secs_f64).transpose().map_err(serde::de::Error::custom)
}

impl Numbers {
    /// Reads a body, which may be empty or null.
    fn read(body: &[u8]) -> Result<Self, String> {
        let body = if body.is_empty() { b"null" } else { body };
        let numbers: Option<Self> = serde_json::from_slice(body).map_err(|wrong| wrong.to_string())?;
        let numbers = numbers.unwrap_or_default();
        match numbers.pace {
            Some(pace) if !(pace >= 0.0 && pace.is_finite()) => Err("pace must not be below 0".to_owned()),
            _ => Ok(numbers),
        }
    }
}

async fn add(fleet: &Fleet, template: &PhoneConfig, body: &[u8]) -> Reply {
    let body = if body.is_empty() { b"{}" } else { body };
    let spec: PhoneSpec = match serde_json::from_slice(body) {
        Ok(spec) => spec,
        Err(wrong) => return error(400, wrong.to_string()),
    };
    let template = PhoneConfig { id: None, ..template.clone() }.at_place(template.seed, fleet.take_place() as u64);
    match spec.apply(&template) {
        Ok(config) => match fleet.add(config).await {
            Ok(phone) => Reply::json(200, &describe(&phone)),
            Err(failed) => error(409, failed.to_string()),
        },
        Err(wrong) => error(400, wrong.to_string()),
    }
}

/// A phone as the control port shows it.
fn describe(phone: &PhoneHandle) -> Value {
    let config = phone.config();
    json!({"id": phone.id(), "url": phone.url(), "dialect": config.dialect.name(), "model": config.model,
        "slots": config.slots, "context_tokens": config.context_tokens, "alive": phone.is_alive(),
        "order": phone.order(), "stats": phone.stats()})
}
