//! What the gateway answers by itself: the list of models, and whether it is alive. From memory, at once.

use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;

use crate::{
    error::ApiError,
    fleet::ModelEntry,
    gateway::Gateway,
    listener::{Exchange, Target},
    relay::head::{self, Facts},
};

/// OpenAI's model object.
#[derive(Serialize)]
struct Model<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
}

#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: Vec<Model<'a>>,
}

impl<'a> From<&'a ModelEntry> for Model<'a> {
    fn from(entry: &'a ModelEntry) -> Self {
        Self { id: &entry.name, object: "model", created: entry.created, owned_by: "huntgroup" }
    }
}

/// `GET /v1/models` and `GET /v1/models/{id}`: those that the tenant may use.
pub async fn answer(gateway: &Gateway, exchange: &mut Exchange, target: &Target) {
    let found = gateway.authenticate(exchange).and_then(|tenant| {
        let entries = gateway.fleet.models();
        let mut allowed = entries.iter().filter(|entry| tenant.may_use(entry.alias_of.as_ref().unwrap_or(&entry.name)));
        match target {
            Target::Model(id) => {
                let entry = allowed.find(|entry| *entry.name == **id);
                entry
                    .map(|entry| json(&Model::from(entry)))
                    .ok_or_else(|| ApiError::ModelNotFound { model: id.clone() })
            }
            _ => Ok(json(&List { object: "list", data: allowed.map(Model::from).collect() })),
        }
    });
    match found {
        Ok(body) => respond(exchange, 200, body).await,
        Err(error) => gateway.refuse(exchange, None, &error, None).await,
    }
}

/// `GET /healthz` and `/readyz`.
pub async fn health(exchange: &mut Exchange, well: bool) {
    let (status, body) = if well { (200, r#"{"status":"ok"}"#) } else { (503, r#"{"status":"not ready"}"#) };
    respond(exchange, status, Bytes::from_static(body.as_bytes())).await;
}

async fn respond(exchange: &mut Exchange, status: u16, body: Bytes) {
    let head = head::plain(status, &Facts { id: &Arc::clone(exchange.id()), permit: None });
    if exchange.respond(head, [body]).await.is_err() {
        tracing::debug!(request = %exchange.id(), "the client left before its answer");
    }
}

fn json(value: &impl Serialize) -> Bytes {
    // Strings and numbers always serialise.
    serde_json::to_vec(value).map(Bytes::from).unwrap_or_default()
}
