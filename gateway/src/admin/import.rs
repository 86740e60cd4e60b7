//! Lists of replicas from elsewhere: our own list, and what the Laya app's deploy script prints.

use std::collections::BTreeMap;

use axum::{Extension, Json, extract::State};
use serde::Deserialize;
use serde_json::Value;
use store::{By, ReplicaSource};

use super::{
    Shared,
    answer::AdminError,
    form::{AmendReplica, Body, StatedForm},
    guard::Caller,
    view::{ErrorView, Imported, RefusedItem},
};
use crate::fleet::{Added, Amendment, ChangeError, Fleet};

/// Elements of one list: twice the largest pool. Each that is refused is told, so a body full of commas would be answered
/// with a hundred times its size.
const MAX_ITEMS: usize = 10_000;

/// A list to import: of addresses, of objects with `url` and anything that can be stated, what `GET /admin/replicas`
/// answers, or what the Laya app's deploy script prints.
#[derive(Deserialize)]
#[serde(untagged, expecting = "send a list of replicas, or {\"data\": [...]} as GET /admin/replicas answers")]
pub(super) enum ImportForm {
    /// `[…]`.
    List(Vec<Value>),
    /// `{"data": […]}`.
    Export {
        /// The list.
        data: Vec<Value>,
    },
}

/// Adds many replicas. What can't be taken is told, and the rest is taken.
#[utoipa::path(post, path = "/admin/replicas/import", tag = "replicas", 
    request_body(content = Vec<Object>, description = "Addresses, or objects with `url` and what can be stated; what \
        `GET /admin/replicas` answers; or what the Laya app's deploy script prints"),
    responses((status = 200, description = "What became of each", body = Imported), (status = 400, body = ErrorView),
        (status = 413, description = "More than 8 MiB", body = ErrorView)))]
pub(super) async fn import(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Body(form): Body<ImportForm>,
) -> Result<Json<Imported>, AdminError> {
    let (ImportForm::List(items) | ImportForm::Export { data: items }) = form;
    check_length(items.len())?;
    let mut done = Imported { added: 0, changed: 0, unchanged: 0, refused: Vec::new() };
    for (index, item) in items.into_iter().enumerate() {
        let taken = match read_item(item) {
            Ok(item) => take(&shared.app.fleet, item, shared.by(&caller)).await.map_err(AdminError::from),
            Err(error) => Err(error),
        };
        match taken {
            Ok(Taken::New) => done.added += 1,
            Ok(Taken::Changed) => done.changed += 1,
            Ok(Taken::Unchanged) => done.unchanged += 1,
            // The next ones would fare no better.
            Err(error @ (AdminError::Store(_) | AdminError::Change(ChangeError::Store(_)))) => return Err(error),
            Err(error) => done.refused.push(RefusedItem { index, reason: error.to_string() }),
        }
    }
    Ok(Json(done))
}

/// What became of an element.
enum Taken {
    New,
    Changed,
    Unchanged,
}

/// An instance of a deployment that is known at another address has moved; anything else is stated at its address.
async fn take(fleet: &Fleet, item: Item, by: By) -> Result<Taken, ChangeError> {
    let Item { url, stated, instance } = item;
    let Some(Instance { deployment, number }) = instance else {
        return Ok(taken(&fleet.add(&url, stated, ReplicaSource::Import, by).await?));
    };
    let moved = match fleet.instance(&deployment, &number) {
        Some(known) => fleet.set_deployed(known.id, &deployment, &url, by.clone()).await?,
        None => false,
    };
    let added = fleet.add(&url, stated, ReplicaSource::Import, by.clone()).await?;
    let news = fleet.set_deployed(added.replica().id, &deployment, &url, by).await?;
    Ok(match taken(&added) {
        Taken::Unchanged if moved || news => Taken::Changed,
        taken => taken,
    })
}

fn taken(added: &Added) -> Taken {
    match added {
        Added::New(_) => Taken::New,
        Added::Changed(_) => Taken::Changed,
        Added::Unchanged(_) => Taken::Unchanged,
    }
}

fn check_length(items: usize) -> Result<(), AdminError> {
    if items <= MAX_ITEMS {
        return Ok(());
    }
    let message = format!("a list has at most {MAX_ITEMS} elements, and this one has {items}; send it in parts");
    Err(AdminError::Invalid { param: None, message })
}

/// One element.
struct Item {
    url: String,
    stated: Amendment,
    instance: Option<Instance>,
}

/// One of the phones of a deployment.
struct Instance {
    deployment: String,
    number: String,
}

/// One element: an address, or an object with one.
fn read_item(item: Value) -> Result<Item, AdminError> {
    let mut fields = match item {
        Value::String(url) => return Ok(Item { url, stated: Amendment::default(), instance: None }),
        Value::Object(fields) => fields,
        _ => return Err(AdminError::Invalid { param: None, message: "neither a url nor an object".into() }),
    };
    let url = match fields.remove("url") {
        Some(Value::String(url)) => url,
        // The deploy script lists instances that have not announced themselves yet.
        Some(Value::Null) | None => return Err(AdminError::invalid("url", "is missing: it has no url (yet)")),
        Some(_) => return Err(AdminError::invalid("url", "must be text")),
    };
    let (stated, instance) = if fields.contains_key("deployment_id") {
        deployed(&fields)
    } else {
        let stated =
            exported(fields).map_err(|error| AdminError::Invalid { param: None, message: error.to_string() })?;
        (stated, None)
    };
    // Of an instance nothing is told but which it is: what operators say of it besides stays.
    let stated = if instance.is_some() { stated.read_change()? } else { stated.read()? };
    Ok(Item { url, stated, instance })
}

/// `{instance, deployment_id, url, registered_s, acknowledged_s, ready_s}`.
fn deployed(fields: &serde_json::Map<String, Value>) -> (StatedForm, Option<Instance>) {
    let text = |name: &str| match fields.get(name)? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        // Deployment ids come as nested arrays as well.
        other if !other.is_null() => Some(other.to_string()),
        _ => None,
    };
    let labels: BTreeMap<String, Option<String>> =
        ["instance", "deployment_id"].iter().filter_map(|name| Some(((*name).to_owned(), Some(text(name)?)))).collect();
    let instance = text("deployment_id").zip(text("instance"));
    let instance = instance.map(|(deployment, number)| Instance { deployment, number });
    (StatedForm { labels: Some(Some(labels)), ..StatedForm::default() }, instance)
}

/// Of our own list, what was stated is taken, not what was found.
fn exported(mut fields: serde_json::Map<String, Value>) -> Result<StatedForm, serde_json::Error> {
    const ALWAYS_STATED: [&str; 4] = ["name", "labels", "expires_at", "cost_acu_per_day"];
    if let Some(Value::Object(mut stated)) = fields.remove("stated") {
        stated.extend(fields.into_iter().filter(|(name, _)| ALWAYS_STATED.contains(&name.as_str())));
        // What was not stated is left as it is, not taken back.
        fields = stated
            .into_iter()
            .filter(|(_, value)| !value.is_null() && *value != Value::Object(Default::default()))
            .collect();
    }
    serde_json::from_value::<AmendReplica>(Value::Object(fields)).map(|form| form.stated)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fleet::LabelChange;

    #[test]
    fn the_deploy_scripts_list_is_taken_as_it_is() {
        let item = json!({"instance": 3, "deployment_id": [{"acurast": "5F"}, 7], "url": "https://a.acu.run",
            "registered_s": 12.5, "acknowledged_s": 40.0, "ready_s": null});
        let Item { url, stated, instance } = read_item(item).unwrap();
        assert_eq!(url, "https://a.acu.run");
        let Some(LabelChange::Some(labels)) = stated.labels else { panic!("others must stay") };
        assert_eq!(labels["instance"].as_deref(), Some("3"));
        let Instance { deployment, number } = instance.unwrap();
        assert_eq!((deployment.as_str(), number.as_str()), ("[{\"acurast\":\"5F\"},7]", "3"));
        let waiting = read_item(json!({"instance": 4, "deployment_id": 8, "url": null})).err().unwrap();
        assert!(waiting.to_string().contains("no url"));
    }

    #[test]
    fn of_an_export_only_what_was_stated_is_stated_again() {
        let item = json!({"id": 3, "name": "a", "url": "https://a.acu.run", "state": "ready", "slots": 4, "models": ["found"],
            "labels": {"room": "1"}, "expires_at": null, "cost_acu_per_day": 0.5, "history": [],
            "stated": {"models": {}, "slots": 2, "context_tokens": null, "dialect": null}});
        let amendment = read_item(item).unwrap().stated;
        assert_eq!(amendment.slots, Some(Some(2)));
        assert_eq!(amendment.models, None);
        assert_eq!(amendment.cost_acu_per_day, Some(Some(0.5)));
        assert_eq!(amendment.name.as_deref(), Some("a"));
    }

    #[test]
    fn a_list_that_no_pool_has_is_refused_as_a_whole() {
        assert!(check_length(MAX_ITEMS).is_ok());
        assert!(check_length(1_000_000).unwrap_err().to_string().contains("in parts"));
    }

    #[test]
    fn a_plain_list_of_addresses_or_objects_will_do() {
        assert_eq!(read_item(json!("https://a.acu.run")).unwrap().url, "https://a.acu.run");
        let amendment = read_item(json!({"url": "https://a.acu.run", "slots": 3})).unwrap().stated;
        assert_eq!(amendment.slots, Some(Some(3)));
        assert!(read_item(json!({"url": "https://a.acu.run", "slotz": 3})).is_err());
        assert!(read_item(json!(7)).is_err());
    }
}
