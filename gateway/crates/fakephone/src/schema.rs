//! The smallest sensible instance of a JSON schema, for JSON mode and tool arguments, written as models write JSON.

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};
use serde_json::{Map, Value, json};
use std::io::{self, Write};

/// Deepest nesting followed: schemas may refer to themselves.
const DEEPEST: usize = 16;

/// An instance of `schema` whose strings carry `mark`. Unknown constructs give the mark itself.
pub(crate) fn instance(schema: &Value, mark: &str) -> Value {
    at(schema, schema, mark, 0)
}

/// JSON with a space after each colon and comma, so that it has as many tokens as words.
pub(crate) fn spaced(value: &Value) -> String {
    let mut bytes = Vec::new();
    // Writing to memory cannot fail.
    value.serialize(&mut Serializer::with_formatter(&mut bytes, Spaced)).ok();
    String::from_utf8(bytes).unwrap_or_default()
}

struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

fn at(schema: &Value, root: &Value, mark: &str, depth: usize) -> Value {
    if depth > DEEPEST {
        return Value::Null;
    }
    let inner = |schema: &Value| at(schema, root, mark, depth + 1);
    if let Some(constant) = schema.get("const") {
        return constant.clone();
    }
    if let Some(first) = schema["enum"].as_array().and_then(|values| values.first()) {
        return first.clone();
    }
    if let Some(target) = schema["$ref"].as_str().and_then(|path| path.strip_prefix('#')) {
        return root.pointer(target).map_or(Value::Null, inner);
    }
    for choice in ["anyOf", "oneOf", "allOf"] {
        if let Some(first) = schema[choice].as_array().and_then(|schemas| schemas.first()) {
            return inner(first);
        }
    }
    let kind = match &schema["type"] {
        Value::Array(kinds) => kinds.first().and_then(Value::as_str),
        kind => kind.as_str(),
    };
    match kind {
        Some("object") => object(schema, inner),
        Some("array") => {
            let least = schema["minItems"].as_u64().unwrap_or(1).clamp(1, 16) as usize;
            Value::Array(vec![inner(&schema["items"]); least])
        }
        Some("integer") => json!(schema["minimum"].as_i64().unwrap_or(7)),
        Some("number") => json!(schema["minimum"].as_f64().unwrap_or(0.5)),
        Some("boolean") => json!(true),
        Some("null") => Value::Null,
        None if schema["properties"].is_object() => object(schema, inner),
        _ => json!(mark),
    }
}

fn object(schema: &Value, inner: impl Fn(&Value) -> Value) -> Value {
    let properties = schema["properties"].as_object();
    let fields = properties.into_iter().flatten().map(|(name, schema)| (name.clone(), inner(schema)));
    Value::Object(fields.collect::<Map<_, _>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_has_every_property_with_a_value_of_its_type() {
        let schema = json!({"type":"object","properties":{
            "city":{"type":"string"},"days":{"type":"integer","minimum":3},
            "unit":{"enum":["c","f"]},"tags":{"type":"array","items":{"$ref":"#/$defs/tag"}},
            "note":{"anyOf":[{"type":"null"},{"type":"string"}]}},
            "$defs":{"tag":{"type":"boolean"}}});
        let value = instance(&schema, "#12");
        assert_eq!(value, json!({"city":"#12","days":3,"unit":"c","tags":[true],"note":null}));
    }

    #[test]
    fn json_is_written_with_spaces_and_stays_what_it_was() {
        let value = json!({"a": [1, "x y"], "b": {"c": null}});
        let text = spaced(&value);
        assert_eq!(text, r#"{"a": [1, "x y"], "b": {"c": null}}"#);
        assert_eq!(serde_json::from_str::<Value>(&text).ok(), Some(value));
    }

    #[test]
    fn a_schema_that_contains_itself_ends() {
        let schema = json!({"type":"object","properties":{"next":{"$ref":"#"}}});
        assert!(instance(&schema, "m").is_object());
    }
}
