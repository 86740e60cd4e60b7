//! Which texts can be ids of files and batches: others are not looked up.

const FILE: &str = "file-";
const BATCH: &str = "batch_";
/// Longest id behind its prefix that is looked up.
const MAX: usize = 64;

/// Whether a text can be the id of a file.
pub(super) fn is_file(text: &str) -> bool {
    has_form(text, FILE)
}

/// Whether a text can be the id of a batch.
pub(super) fn is_batch(text: &str) -> bool {
    has_form(text, BATCH)
}

fn has_form(text: &str, prefix: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    text.strip_prefix(prefix).is_some_and(|rest| (1..=MAX).contains(&rest.len()) && rest.bytes().all(letter))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{batch_id, file_id};

    #[test]
    fn new_ids_have_their_form_and_others_have_not() {
        let (file, batch) = (file_id().expect("randomness"), batch_id().expect("randomness"));
        assert!(is_file(&file), "{file}");
        assert!(is_batch(&batch), "{batch}");
        assert!(!is_file(&batch) && !is_batch(&file));
        let long = format!("file-{}", "a".repeat(65));
        for text in ["", "file-", "file", "File-a", "file-a/b", "file-a%2e", "file-ä", "file-a\0", " file-a", &long] {
            assert!(!is_file(text), "{text:?}");
        }
    }
}
