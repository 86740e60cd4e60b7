//! A file's name: a label that its owner gave it. It never is a path, and what stands in it does nothing to a terminal, a log,
//! a header or an eye.

use std::fmt::Write as _;

/// Letters of a name.
const MAX: usize = 255;

/// What a `Content-Disposition` header says the name is, in either of its spellings; `None` if it says nothing.
pub(super) fn stated(disposition: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(disposition);
    let parameters = parameters(&text);
    let named = |wanted: &str| parameters.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted));
    let extended = named("filename*").and_then(|(_, value)| decode_extended(value));
    extended.or_else(|| named("filename").map(|(_, value)| value.clone()))
}

/// Names and values behind the header's first semicolon; values without their quotes.
fn parameters(text: &str) -> Vec<(&str, String)> {
    let mut found = Vec::new();
    let mut rest = text.split_once(';').map_or("", |(_, rest)| rest);
    while let Some((name, value)) = rest.split_once('=') {
        let (value, after) = match value.trim_start().strip_prefix('"') {
            Some(quoted) => unquote(quoted),
            None => {
                let (value, after) = value.split_once(';').unwrap_or((value, ""));
                (value.trim().to_owned(), after)
            }
        };
        found.push((name.trim_matches([' ', '\t', ';']), value));
        rest = after;
    }
    found
}

/// A quoted value without its quotes, and what follows. Only a quote is escaped: old clients send `C:\folder\name`.
fn unquote(quoted: &str) -> (String, &str) {
    let mut value = String::new();
    let mut letters = quoted.char_indices().peekable();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return (value, &quoted[at + 1..]),
            '\\' if letters.next_if(|(_, next)| *next == '"').is_some() => value.push('"'),
            letter => value.push(letter),
        }
    }
    (value, "")
}

/// `UTF-8''na%C3%AFve.jsonl` (RFC 8187).
fn decode_extended(value: &str) -> Option<String> {
    let (charset, rest) = value.split_once('\'')?;
    let (_, encoded) = rest.split_once('\'')?;
    charset
        .eq_ignore_ascii_case("utf-8")
        .then(|| percent_encoding::percent_decode_str(encoded).decode_utf8_lossy().into_owned())
}

/// The part of a stated name that is kept: what is behind its last slash, without letters that can't be seen or that turn the
/// direction of others, and not too long to be a name. An ending stays.
pub(super) fn clean(name: &str) -> String {
    let base = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let visible: String = base.chars().filter(|letter| !is_invisible(*letter)).collect();
    let visible = visible.trim();
    let letters = visible.chars().count();
    if letters <= MAX {
        return visible.to_owned();
    }
    let ending = visible.rfind('.').map_or("", |dot| &visible[dot..]);
    let ending = if ending.chars().count() <= 16 { ending } else { "" };
    let kept = MAX - ending.chars().count();
    visible.chars().take(kept).chain(ending.chars()).collect()
}

/// Controls, and letters that only format others: a name with them is not what it looks like.
fn is_invisible(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
        )
}

/// The `Content-Disposition` of an answer: the name for those who read ASCII, and as it is for the others.
pub(super) fn attachment(name: &str) -> String {
    let plain: String = name
        .chars()
        .map(|letter| if (' '..='~').contains(&letter) && !matches!(letter, '"' | '\\' | '%') { letter } else { '_' })
        .collect();
    let mut header = format!("attachment; filename=\"{plain}\"");
    if plain != name {
        header.push_str("; filename*=UTF-8''");
        for byte in name.bytes() {
            if byte.is_ascii_alphanumeric() || b"!#$&+-.^_`|~".contains(&byte) {
                header.push(char::from(byte));
            } else {
                // Writing to a string can't fail.
                write!(header, "%{byte:02X}").unwrap_or_default();
            }
        }
    }
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_however_it_is_written() {
        for (header, expected) in [
            (r#"form-data; name="file"; filename="a.jsonl""#, Some("a.jsonl")),
            (r#"form-data; filename=a.jsonl; name="file""#, Some("a.jsonl")),
            (r#"form-data; name="filename=x"; FileName = "a;b.jsonl""#, Some("a;b.jsonl")),
            (r#"form-data; name="file"; filename="a\"b.jsonl""#, Some("a\"b.jsonl")),
            (r#"form-data; name="file"; filename="C:\folder\a.jsonl""#, Some(r"C:\folder\a.jsonl")),
            ("form-data; name=file; filename*=UTF-8''na%C3%AFve.jsonl", Some("naïve.jsonl")),
            ("form-data; filename=\"plain.jsonl\"; filename*=utf-8'en'%e2%82%ac.jsonl", Some("€.jsonl")),
            ("form-data; filename*=latin1''%E9.jsonl; filename=e.jsonl", Some("e.jsonl")),
            ("form-data; name=\"file\"", None),
            ("form-data", None),
            ("form-data; filename=\"open", Some("open")),
            ("form-data; filename=", Some("")),
        ] {
            assert_eq!(stated(header.as_bytes()).as_deref(), expected, "{header}");
        }
        assert_eq!(stated(b"form-data; filename=\"\xff.jsonl\"").as_deref(), Some("\u{fffd}.jsonl"));
    }

    #[test]
    fn a_label_is_what_it_looks_like() {
        let long = format!("{}.jsonl", "x".repeat(10_000));
        for (stated, expected) in [
            ("a.jsonl", "a.jsonl"),
            ("../../etc/passwd.jsonl", "passwd.jsonl"),
            (r"C:\Users\me\a.jsonl", "a.jsonl"),
            ("..", ".."),
            ("a\0b\r\n\u{1b}[31m.jsonl", "ab[31m.jsonl"),
            ("\u{202e}lnosj.exe.jsonl", "lnosj.exe.jsonl"),
            ("\u{200b}\u{feff} a.jsonl ", "a.jsonl"),
            ("名前.jsonl", "名前.jsonl"),
            ("folder/", ""),
        ] {
            assert_eq!(clean(stated), expected, "{stated:?}");
        }
        let cut = clean(&long);
        assert_eq!(cut.chars().count(), 255);
        assert!(cut.ends_with("x.jsonl"));
    }

    #[test]
    fn a_header_holds_any_name_in_ascii() {
        assert_eq!(attachment("a b.jsonl"), r#"attachment; filename="a b.jsonl""#);
        assert_eq!(
            attachment("a\"\\%ï.jsonl"),
            r#"attachment; filename="a____.jsonl"; filename*=UTF-8''a%22%5C%25%C3%AF.jsonl"#
        );
    }
}
