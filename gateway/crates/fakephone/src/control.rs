//! The control port: what a test in another process may do to a fleet.
//!
//! | route | does |
//! |---|---|
//! | `GET /phones` | all phones: id, url, state, order, counters |
//! | `POST /phones` | starts one more ([`PhoneSpec`]) |
//! | `GET`, `DELETE /phones/{id}` | one phone; stops it |
//! | `POST /phones/{id}/fault` | [`FaultOrder`], as in `{"fault":"cut_after","chunks":3,"next":1}` |
//! | `POST /phones/{id}/kill`, `/revive`, `/reset-stats` | |
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
        ("POST", ["kill"]) => phone.kill(),
        ("POST", ["revive"]) => phone.revive(),
        ("POST", ["reset-stats"]) => phone.reset_stats(),
        _ => return error(404, "no such route"),
    }
    Reply::json(200, &describe(phone))
}

async fn add(fleet: &Fleet, template: &PhoneConfig, body: &[u8]) -> Reply {
    let body = if body.is_empty() { b"{}" } else { body };
    let spec: PhoneSpec = match serde_json::from_slice(body) {
        Ok(spec) => spec,
        Err(wrong) => return error(400, wrong.to_string()),
    };
    let mut template = template.clone();
    template.id = None;
    template.seed = template.seed.wrapping_add(fleet.len() as u64);
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
