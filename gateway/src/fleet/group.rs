//! Which replicas write the same answer, token by token, where nothing is drawn by lot.
//!
//! Same engine build, same model file, same template and settings. None of them has a number that says so, so what a
//! llama-server tells of each is hashed together. Other engines tell too little: each of their replicas is in a group of its
//! own. Not told, and so not looked at: threads and batch sizes (they change nothing), the kind of processor (it may) and the
//! weights themselves (two trainings of one size look alike; clients know them by two names). Comparing a fixed answer of every
//! replica would find those, for seconds of each phone.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use scheduler::GroupId;
use serde_json::Value;

/// Of the model: its size and kind. `n_ctx` is no part of it: a slot's room does not change what is written in it.
const MODEL: [&str; 4] = ["size", "n_params", "ftype", "n_vocab"];
/// Of the settings, where a build tells them.
const SETTINGS: [&str; 4] = ["cache_type_k", "cache_type_v", "type_k", "type_v"];

/// The group by the answers to `/props` and `/v1/models`; `None` if they tell too little. A build without a name of its own
/// ("b0-unknown") is told apart by the rest alone.
pub(super) fn group(props: &Value, list: &Value) -> Option<GroupId> {
    let meta = list.get("data")?.get(0)?.get("meta")?;
    let model = MODEL.map(|name| meta.get(name).map(Value::to_string));
    let [Some(_), Some(_), ..] = model else { return None };
    let template = props.get("chat_template")?.as_str()?;
    let build = props.get("build_info").and_then(Value::as_str);
    let defaults = props.get("default_generation_settings");
    // What a request leaves open is taken from here: temperature, penalties.
    let params = defaults.and_then(|defaults| defaults.get("params")).map(Value::to_string);
    let told = |name: &str| props.get(name).or_else(|| defaults?.get(name)).map(Value::to_string);
    // The same in every process of one build, and no longer: it is never kept.
    let mut hasher = DefaultHasher::new();
    (build, model, template, params, SETTINGS.map(told)).hash(&mut hasher);
    Some(GroupId(hasher.finish()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn props() -> Value {
        json!({"build_info": "b11549-abc", "chat_template": "{{ messages }}",
               "default_generation_settings": {"n_ctx": 4096, "params": {"temperature": 0.8}}})
    }

    fn list() -> Value {
        json!({"data": [{"id": "/m/a.gguf", "meta": {"size": 100, "n_params": 10, "ftype": "Q4_0", "n_vocab": 7, "n_ctx": 4096}}]})
    }

    fn changed(mut value: Value, pointer: &str, to: Value) -> Value {
        *value.pointer_mut(pointer).expect("the pointer is right") = to;
        value
    }

    #[test]
    fn the_same_build_model_template_and_settings_are_one_group_whatever_the_path_and_the_context() {
        let one = group(&props(), &list());
        assert!(one.is_some());
        let elsewhere = changed(list(), "/data/0/id", json!("other"));
        let larger = changed(elsewhere, "/data/0/meta/n_ctx", json!(8192));
        let roomier = changed(props(), "/default_generation_settings/n_ctx", json!(8192));
        assert_eq!(group(&roomier, &larger), one);
    }

    #[test]
    fn whatever_changes_the_text_makes_another_group() {
        let one = group(&props(), &list());
        let others = [
            group(&changed(props(), "/build_info", json!("b11434-def")), &list()),
            group(&changed(props(), "/chat_template", json!("{{ other }}")), &list()),
            group(&changed(props(), "/default_generation_settings/params/temperature", json!(0.0)), &list()),
            group(&props(), &changed(list(), "/data/0/meta/size", json!(101))),
            group(&props(), &changed(list(), "/data/0/meta/ftype", json!("Q8_0"))),
        ];
        assert!(others.iter().all(|other| other.is_some() && *other != one));
    }

    #[test]
    fn a_build_without_a_name_makes_a_group_with_its_model_and_none_without() {
        let nameless = changed(props(), "/build_info", json!("b0-unknown"));
        assert!(group(&nameless, &list()).is_some());
        assert_eq!(group(&nameless, &json!({"data": [{"id": "a"}]})), None);
        assert_eq!(group(&props(), &changed(list(), "/data/0/meta", json!({"n_ctx": 1}))), None);
        assert_eq!(group(&json!({}), &list()), None);
    }
}
