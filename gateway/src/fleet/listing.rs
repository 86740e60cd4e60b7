//! Lists of models, in the shapes that engines give them, and which engine each shape gives away.

use serde_json::Value;

use super::{answer::printable, dialect::Dialect, naming::Reported};

/// Models read from one replica's list. 64: a phone holds a handful; one that claims thousands is up to no good.
const MAX_MODELS: usize = 64;
/// Longest name of a model, in letters: the longest file name with a directory.
const MAX_NAME: usize = 256;

/// What `mnncli serve` calls every model.
const MNN_CONSTANT: &str = "ModelScope/MNN/Qwen2.5-0.5B-Instruct";

/// A list of models, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listing {
    /// The engine whose shape this is.
    pub(super) dialect: Dialect,
    /// What it lists; of switchable ones, those that are current.
    pub(super) models: Vec<Reported>,
    /// Tokens that prompt and answer of one slot must fit.
    pub(super) context_tokens: Option<u32>,
    /// Parameters of the largest model.
    pub(super) parameters: Option<u64>,
}

impl Default for Listing {
    fn default() -> Self {
        Self { dialect: Dialect::OpenAi, models: Vec::new(), context_tokens: None, parameters: None }
    }
}

/// Reads a list of models; `None` if it is none.
pub(super) fn read_listing(body: &Value) -> Option<Listing> {
    let Some(data) = body.get("data").and_then(Value::as_array) else {
        // Decision servers list under another name.
        let models = body.get("models").and_then(Value::as_array)?;
        let models = models.iter().filter_map(|model| reported(model.get("name")?.as_str())).take(MAX_MODELS).collect();
        return Some(Listing { models, ..Listing::default() });
    };
    let dialect = data.iter().find_map(shape).unwrap_or(Dialect::OpenAi);
    let current = |model: &&Value| model.get("current").and_then(Value::as_bool) != Some(false);
    let models = data.iter().filter(current).filter_map(model).take(MAX_MODELS).collect();
    let meta = |name: &'static str| data.iter().filter_map(move |model| model.get("meta")?.get(name)?.as_u64());
    let context_tokens = meta("n_ctx").next().and_then(|tokens| u32::try_from(tokens).ok());
    Some(Listing { dialect, models, context_tokens, parameters: meta("n_params").max() })
}

/// The engine that an entry gives away.
fn shape(model: &Value) -> Option<Dialect> {
    let id = model.get("id").and_then(Value::as_str);
    let permission = model.get("permission").and_then(|list| list.get(0)?.get("id")?.as_str());
    if permission.is_some_and(|text| text.strip_prefix("modelperm-") == id) {
        return Some(Dialect::MnnApp);
    }
    match model.get("owned_by").and_then(Value::as_str) {
        Some("llamacpp") => Some(Dialect::LlamaServer),
        // The command line tool has one name for everything; the app names what it has loaded.
        Some("mnn") if id == Some(MNN_CONSTANT) => Some(Dialect::Mnn),
        Some("mnn") => Some(Dialect::MnnApp),
        _ => model.get("current").is_some_and(Value::is_boolean).then_some(Dialect::Qvac),
    }
}

fn model(model: &Value) -> Option<Reported> {
    let mut reported = reported(model.get("id")?.as_str())?;
    let aliases = model.get("aliases").and_then(Value::as_array).into_iter().flatten();
    reported.aliases = aliases
        .filter_map(Value::as_str)
        .filter(|alias| is_name(alias) && *alias != reported.id)
        .take(8)
        .map(str::to_owned)
        .collect();
    Some(reported)
}

/// A single reported name, if it is one that can be used.
pub(super) fn reported(name: Option<&str>) -> Option<Reported> {
    name.filter(|name| is_name(name)).map(|name| Reported { id: name.to_owned(), aliases: Vec::new() })
}

fn is_name(name: &str) -> bool {
    !name.trim().is_empty() && printable(name, MAX_NAME) == name
}

/// The context of one slot in llama-server's properties.
pub(super) fn llama_context(props: &Value) -> Option<u32> {
    let tokens = props.get("default_generation_settings")?.get("n_ctx")?.as_u64()?;
    u32::try_from(tokens).ok().filter(|tokens| *tokens > 0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn names(body: &Value) -> Vec<String> {
        read_listing(body).unwrap().models.into_iter().map(|model| model.id).collect()
    }

    #[test]
    fn each_engines_list_gives_it_away() {
        let llama = json!({"models": [], "data": [{"id": "tiny", "aliases": ["tiny", "t"], "owned_by": "llamacpp", "meta": {"n_ctx": 2048, "n_params": 752_393_024}}]});
        let listing = read_listing(&llama).unwrap();
        assert_eq!((listing.dialect, listing.context_tokens), (Dialect::LlamaServer, Some(2048)));
        assert_eq!(listing.parameters, Some(752_393_024));
        assert_eq!(listing.models, [Reported { id: "tiny".into(), aliases: vec!["t".into()] }]);
        let mnn = json!({"data": [{"id": "ModelScope/MNN/Qwen2.5-0.5B-Instruct", "owned_by": "mnn"}]});
        assert_eq!(read_listing(&mnn).unwrap().dialect, Dialect::Mnn);
        let app = json!({"data": [{"id": "q", "permission": [{"id": "modelperm-q"}]}]});
        assert_eq!(read_listing(&app).unwrap().dialect, Dialect::MnnApp);
        let other = json!({"data": [{"id": "gpt", "owned_by": "openai"}]});
        assert_eq!(read_listing(&other).unwrap().dialect, Dialect::OpenAi);
    }

    #[test]
    fn of_switchable_models_only_the_current_one_counts() {
        let qvac = json!({"data": [{"id": "a", "current": false}, {"id": "b", "current": true}]});
        assert_eq!(read_listing(&qvac).unwrap().dialect, Dialect::Qvac);
        assert_eq!(names(&qvac), ["b"]);
    }

    #[test]
    fn names_that_could_harm_a_terminal_or_memory_are_left_out() {
        let many: Vec<_> = (0..10_000).map(|n| json!({"id": format!("m{n}")})).collect();
        assert_eq!(names(&json!({ "data": many })).len(), MAX_MODELS);
        let odd =
            json!({"data": [{"id": "a\u{1b}[2J"}, {"id": "x".repeat(257)}, {"id": " "}, {"id": 7}, 8, {"id": "ok"}]});
        assert_eq!(names(&odd), ["ok"]);
        assert_eq!(read_listing(&json!({"object": "list"})), None);
    }
}
