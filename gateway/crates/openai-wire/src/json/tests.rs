use super::*;
use proptest::prelude::*;
use serde_json::Value;

fn scan(text: &str) -> Result<(), JsonError> {
    let mut scanner = Scanner::new(text);
    scanner.skip()?;
    scanner.finish()
}

/// The same text, walked by the other half of the scanner.
fn walk(scanner: &mut Scanner<'_>) -> Result<Value, JsonError> {
    Ok(match scanner.kind()? {
        Kind::Object => {
            let mut map = serde_json::Map::new();
            let mut open = scanner.object()?;
            while let Some(key) = scanner.member(&mut open)? {
                assert_eq!(scanner.slice(key.start..key.start + 1), "\"");
                assert!(key.before <= key.start);
                map.insert(key.name.into_owned(), walk(scanner)?);
            }
            map.into()
        }
        Kind::Array => {
            let mut list = Vec::new();
            let mut open = scanner.array()?;
            while scanner.element(&mut open)? {
                list.push(walk(scanner)?);
            }
            list.into()
        }
        Kind::Text => {
            let text = scanner.text()?;
            let meant = text.decode();
            assert_eq!(text.len(), meant.len());
            assert_eq!(text.is_empty(), meant.is_empty());
            meant.into_owned().into()
        }
        Kind::Number => serde_json::from_str(scanner.number()?).expect("a number for both"),
        Kind::Bool => scanner.boolean()?.into(),
        Kind::Null => {
            assert!(scanner.null()?);
            Value::Null
        }
    })
}

fn any_json() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        any::<String>(),
        proptest::collection::vec(
            prop_oneof![
                Just("\\"),
                Just("\""),
                Just("\n"),
                Just("é"),
                Just("😀"),
                Just("abcdefghijklmnop"),
                Just("\u{1}")
            ],
            0..8
        )
        .prop_map(|parts| parts.concat()),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text.prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::btree_map(".{0,20}", inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// A JSON text with some bytes replaced by ones that matter to JSON.
fn damaged() -> impl Strategy<Value = String> {
    let bytes = b"{}[]\",:\\0123456789-+.eEtrufalsn \n\t/u\x01\x7f".to_vec();
    let damage = (any::<prop::sample::Index>(), prop::sample::select(bytes), 0..3_u8);
    (any_json(), proptest::collection::vec(damage, 0..4)).prop_map(|(value, damage)| {
        let mut text: Vec<u8> = value.to_string().into_bytes();
        for (at, byte, how) in damage {
            if text.is_empty() {
                break;
            }
            let at = at.index(text.len());
            match how {
                0 => text[at] = byte,
                1 => text.insert(at, byte),
                _ => drop(text.remove(at)),
            }
        }
        String::from_utf8_lossy(&text).into_owned()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn accepts_exactly_what_serde_json_accepts(text in damaged()) {
        let theirs = serde_json::from_str::<Value>(&text);
        let mut scanner = Scanner::new(&text);
        let walked = walk(&mut scanner).and_then(|value| scanner.finish().map(|()| value));
        prop_assert_eq!(scan(&text).is_ok(), theirs.is_ok(), "{}", &text);
        prop_assert_eq!(walked.is_ok(), theirs.is_ok(), "{}", &text);
        if let (Ok(ours), Ok(theirs)) = (walked, theirs) {
            prop_assert_eq!(ours, theirs);
        }
    }

    #[test]
    fn what_is_quoted_reads_back(text in any::<String>()) {
        let quoted = String::from_utf8(quoted(&text)).expect("utf-8");
        prop_assert_eq!(serde_json::from_str::<String>(&quoted).expect("json"), text);
    }
}

#[test]
fn each_flaw_is_named_at_its_place() {
    for (text, at, flaw) in [
        ("", 0, Flaw::End),
        ("{\"a\":", 5, Flaw::End),
        ("\"abc", 4, Flaw::End),
        ("[1 2]", 3, Flaw::Expected("`,` or `]`")),
        ("{\"a\" 1}", 5, Flaw::Expected("`:`")),
        ("{\"a\":1,}", 7, Flaw::Expected("a key in quotes")),
        ("[01]", 1, Flaw::Expected("a number")),
        ("[1.]", 1, Flaw::Expected("a digit after the decimal point")),
        ("[1e+]", 1, Flaw::Expected("a digit in the exponent")),
        ("nul", 0, Flaw::Expected("null")),
        ("hello", 0, Flaw::Expected("a value")),
        ("\"a\u{1}\"", 2, Flaw::Control),
        ("\"a long enough string for vectors\u{1}\"", 33, Flaw::Control),
        (r#""\x""#, 1, Flaw::Escape),
        (r#""\u12""#, 1, Flaw::Escape),
        (r#""\ud800""#, 1, Flaw::Surrogate),
        (r#""\ud800\u0041""#, 1, Flaw::Surrogate),
        (r#""\udc00""#, 1, Flaw::Surrogate),
        ("1e400", 0, Flaw::Range),
        ("{} {}", 3, Flaw::Trailing),
    ] {
        assert_eq!(scan(text), Err(JsonError { at, flaw }), "{text}");
    }
}

#[test]
fn depth_is_bounded_in_what_is_walked_and_in_what_is_skipped() {
    let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    let limit = MAX_DEPTH as usize;
    assert_eq!(scan(&nested(limit)), Ok(()));
    assert_eq!(scan(&nested(limit + 1)).map_err(|error| error.flaw), Err(Flaw::Depth));
    assert!(walk(&mut Scanner::new(&nested(limit))).is_ok());
    assert_eq!(walk(&mut Scanner::new(&nested(limit + 1))).map_err(|error| error.flaw), Err(Flaw::Depth));
    // Skipping starts from the depth that walking has reached.
    let text = format!("{{\"a\":{}}}", nested(limit));
    let mut scanner = Scanner::new(&text);
    let mut open = scanner.object().expect("object");
    scanner.member(&mut open).expect("member");
    assert_eq!(scanner.skip().map_err(|error| error.flaw), Err(Flaw::Depth));
    // A hostile body of openers costs neither stack nor time.
    assert_eq!(scan(&"{\"a\":[".repeat(1_000_000)).map_err(|error| error.flaw), Err(Flaw::Depth));
}

#[test]
fn positions_count_lines_and_characters() {
    let text = "{\n \"é\": x}";
    let at = text.find('x').expect("x");
    assert_eq!(position(text.as_bytes(), at), (2, 7));
    assert_eq!(position(text.as_bytes(), 0), (1, 1));
    assert_eq!(position(text.as_bytes(), 999), (2, 9));
}
