//! That an announcement was made by the holder of a key, and now.
//!
//! Signed is the body as it is, behind the moment and the nonce, so nothing has to be written in one canonical way:
//!
//! ```text
//! huntgroup-registration-v1\n
//! X-Timestamp\n
//! X-Nonce\n
//! BODY
//! ```
//!
//! Phones sign bytes that they are given in hex, and find their key and the time by the same names as Acurast's own
//! developer tools use. Rejected: fields in the JSON (they would have to be taken out of what is signed, and both sides would have
//! to write the rest alike), a nonce of ours (a call more for each, through a tunnel that is slow and may be gone).

use std::time::Duration;

use http::HeaderMap;
use ring::signature::{ED25519, UnparsedPublicKey};
use store::UnixMillis;

/// What every signed text begins with: no other text that the key signs can be taken for one.
pub const PREFIX: &str = "huntgroup-registration-v1\n";
const KEY: &str = "x-publickey";
const SIGNATURE: &str = "x-signature";
const TIMESTAMP: &str = "x-timestamp";
const NONCE: &str = "x-nonce";
/// Of a nonce. 16 random letters are enough never to meet twice; 64 hold a digest in hex.
const NONCE_LENGTH: std::ops::RangeInclusive<usize> = 8..=64;
/// A number below that is seconds: as milliseconds it would lie in January 1970 to March 1973.
const FIRST_MILLIS: u64 = 100_000_000_000;

/// Why a signature does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// Some of the headers, not all of them.
    #[error(
        "a signed call carries X-PublicKey, X-Signature, X-Timestamp and X-Nonce, each once; {0} is missing or not text"
    )]
    Incomplete(&'static str),
    /// Not a key.
    #[error("X-PublicKey must be an Ed25519 key: 64 hex digits")]
    Key,
    /// Not a signature.
    #[error("X-Signature must be an Ed25519 signature: 128 hex digits")]
    Signature,
    /// Not a moment.
    #[error("X-Timestamp must be the time in seconds, or in milliseconds, since 1970")]
    Timestamp,
    /// Not a nonce.
    #[error("X-Nonce must be 8 to 64 of a-z, A-Z, 0-9, '-', '_'")]
    Nonce,
    /// Too long ago, or yet to come.
    #[error("signed for another time: X-Timestamp differs from the gateway's clock by more than registration.window")]
    NotNow,
    /// Not this text, or not by this key.
    #[error(
        "the signature does not fit: signed must be the lines huntgroup-registration-v1, X-Timestamp and X-Nonce, and the body behind them"
    )]
    Wrong,
}

impl SignatureError {
    /// The header that is wrong.
    pub fn header(self) -> Option<&'static str> {
        match self {
            Self::Incomplete(header) => Some(header),
            Self::Key => Some("X-PublicKey"),
            Self::Signature | Self::Wrong => Some("X-Signature"),
            Self::Timestamp | Self::NotNow => Some("X-Timestamp"),
            Self::Nonce => Some("X-Nonce"),
        }
    }
}

/// What a valid signature says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Signed {
    /// Whose: 64 hex digits in lower case.
    pub(super) key: String,
    /// For when.
    pub(super) at: UnixMillis,
    /// Not used before by that key, if the caller has seen to that.
    pub(super) nonce: String,
}

/// Checks the signature of a call, if it has one.
///
/// # Errors
/// It has one, and that does not hold.
pub(super) fn verify(
    headers: &HeaderMap,
    body: &[u8],
    now: UnixMillis,
    window: Duration,
) -> Result<Option<Signed>, SignatureError> {
    if ![KEY, SIGNATURE, TIMESTAMP, NONCE].iter().any(|name| headers.contains_key(*name)) {
        return Ok(None);
    }
    let (key, signature) = (header(headers, KEY, "X-PublicKey")?, header(headers, SIGNATURE, "X-Signature")?);
    let (timestamp, nonce) = (header(headers, TIMESTAMP, "X-Timestamp")?, header(headers, NONCE, "X-Nonce")?);
    let key: [u8; 32] = bytes(key).ok_or(SignatureError::Key)?;
    let signature: [u8; 64] = bytes(signature).ok_or(SignatureError::Signature)?;
    let at = moment(timestamp).ok_or(SignatureError::Timestamp)?;
    let is_nonce = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if !NONCE_LENGTH.contains(&nonce.len()) || !nonce.bytes().all(is_nonce) {
        return Err(SignatureError::Nonce);
    }
    if u128::from(at.0.abs_diff(now.0)) > window.as_millis() {
        return Err(SignatureError::NotNow);
    }
    let text = [PREFIX.as_bytes(), timestamp.as_bytes(), b"\n", nonce.as_bytes(), b"\n", body].concat();
    let right = UnparsedPublicKey::new(&ED25519, key).verify(&text, &signature);
    right.map_err(|_| SignatureError::Wrong)?;
    Ok(Some(Signed { key: hex::encode(key), at, nonce: nonce.to_owned() }))
}

fn header<'a>(headers: &'a HeaderMap, name: &str, shown: &'static str) -> Result<&'a str, SignatureError> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().filter(|_| values.next().is_none());
    value.and_then(|value| value.to_str().ok()).map(str::trim).ok_or(SignatureError::Incomplete(shown))
}

fn moment(text: &str) -> Option<UnixMillis> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = text.parse().ok().filter(|_| is_number)?;
    Some(UnixMillis(if number < FIRST_MILLIS { number * 1000 } else { number }))
}

/// Exactly so many bytes in hex, with or without `0x`.
fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    hex::decode_to_slice(text.strip_prefix("0x").unwrap_or(text), &mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use ring::signature::{Ed25519KeyPair, KeyPair as _};

    use super::*;

    const NOW: UnixMillis = UnixMillis(1_800_000_000_000);
    const WINDOW: Duration = Duration::from_secs(60);
    const BODY: &[u8] = br#"{"event":"started","url":"https://a.acu.run"}"#;

    fn pair() -> Ed25519KeyPair {
        Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap()
    }

    fn signed(timestamp: &str, nonce: &str, body: &[u8]) -> HeaderMap {
        let text =
            [b"huntgroup-registration-v1\n", timestamp.as_bytes(), b"\n", nonce.as_bytes(), b"\n", body].concat();
        let pair = pair();
        let mut headers = HeaderMap::new();
        headers.insert(KEY, hex::encode(pair.public_key()).parse().unwrap());
        headers.insert(SIGNATURE, hex::encode(pair.sign(&text)).parse().unwrap());
        headers.insert(TIMESTAMP, timestamp.parse().unwrap());
        headers.insert(NONCE, nonce.parse().unwrap());
        headers
    }

    fn check(headers: &HeaderMap, body: &[u8]) -> Result<Option<Signed>, SignatureError> {
        verify(headers, body, NOW, WINDOW)
    }

    #[test]
    fn a_call_without_any_of_the_headers_is_not_signed_and_one_with_some_is_wrong() {
        assert_eq!(check(&HeaderMap::new(), BODY), Ok(None));
        for missing in [KEY, SIGNATURE, TIMESTAMP, NONCE] {
            let mut headers = signed("1800000000", "abcdefgh", BODY);
            headers.remove(missing);
            assert!(matches!(check(&headers, BODY), Err(SignatureError::Incomplete(_))), "{missing}");
            let mut headers = signed("1800000000", "abcdefgh", BODY);
            headers.append(missing, "x".parse().unwrap());
            assert!(matches!(check(&headers, BODY), Err(SignatureError::Incomplete(_))), "{missing} twice");
        }
    }

    #[test]
    fn what_is_signed_is_the_moment_the_nonce_and_every_byte_of_the_body() {
        let headers = signed("1800000000", "abcdefgh", BODY);
        let says = check(&headers, BODY).unwrap().unwrap();
        assert_eq!((says.at, says.nonce.as_str(), says.key.len()), (NOW, "abcdefgh", 64));
        let mut longer = BODY.to_vec();
        longer.push(b' ');
        assert_eq!(check(&headers, &longer), Err(SignatureError::Wrong));
        for (name, value) in [
            (TIMESTAMP, "1800000001"),
            (TIMESTAMP, "1800000000000"),
            (NONCE, "abcdefgi"),
            (KEY, "0000000000000000000000000000000000000000000000000000000000000000"),
        ] {
            let mut headers = headers.clone();
            headers.insert(name, value.parse().unwrap());
            assert_eq!(check(&headers, BODY), Err(SignatureError::Wrong), "{name}: {value}");
        }
    }

    #[test]
    fn clocks_may_differ_by_the_window_either_way_and_no_more() {
        for (at, counts) in [
            ("1799999940", true),
            ("1799999939", false),
            ("1800000060", true),
            ("1800000061", false),
            ("1799999940000", true),
            ("1799999939999", false),
            ("0", false),
            ("99999999999999999", false),
        ] {
            let checked = check(&signed(at, "abcdefgh", BODY), BODY);
            assert_eq!(checked.is_ok(), counts, "{at}: {checked:?}");
            assert!(counts || checked == Err(SignatureError::NotNow), "{at}");
        }
    }

    #[test]
    fn odd_values_name_their_header() {
        let with = |name: &'static str, value: &str| {
            let mut headers = signed("1800000000", "abcdefgh", BODY);
            headers.insert(name, value.parse().unwrap());
            check(&headers, BODY).unwrap_err()
        };
        for key in ["", "0x", "zz", &"0".repeat(63), &"0".repeat(66), &"g".repeat(64)] {
            assert_eq!(with(KEY, key), SignatureError::Key, "{key}");
        }
        assert_eq!(with(SIGNATURE, &"0".repeat(64)), SignatureError::Signature);
        for at in ["", "-1", "+1", "1e9", "1800000000.5", "999999999999999999999"] {
            assert_eq!(with(TIMESTAMP, at), SignatureError::Timestamp, "{at}");
        }
        for nonce in ["short", &"a".repeat(65), "with space", "a/b/c/d/e/f"] {
            assert_eq!(with(NONCE, nonce), SignatureError::Nonce, "{nonce}");
        }
    }

    #[test]
    fn a_key_in_capital_letters_or_with_a_prefix_is_the_same_key() {
        let headers = signed("1800000000", "abcdefgh", BODY);
        let key = headers[KEY].to_str().unwrap().to_owned();
        for spelt in [key.to_uppercase(), format!("0x{key}")] {
            let mut headers = headers.clone();
            headers.insert(KEY, spelt.parse().unwrap());
            assert_eq!(check(&headers, BODY).unwrap().unwrap().key, key);
        }
    }
}
