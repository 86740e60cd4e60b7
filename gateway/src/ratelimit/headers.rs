//! `x-ratelimit-*`: what the official SDKs' users read to pace themselves.

use std::time::Duration;

use http::{HeaderName, HeaderValue};

use super::bucket::Level;

/// The three headers of one kind of unit.
struct Names {
    limit: HeaderName,
    remaining: HeaderName,
    reset: HeaderName,
}

const REQUESTS: Names = Names {
    limit: HeaderName::from_static("x-ratelimit-limit-requests"),
    remaining: HeaderName::from_static("x-ratelimit-remaining-requests"),
    reset: HeaderName::from_static("x-ratelimit-reset-requests"),
};
const TOKENS: Names = Names {
    limit: HeaderName::from_static("x-ratelimit-limit-tokens"),
    remaining: HeaderName::from_static("x-ratelimit-remaining-tokens"),
    reset: HeaderName::from_static("x-ratelimit-reset-tokens"),
};

/// The names of all of them.
pub(super) fn names() -> impl Iterator<Item = HeaderName> {
    [REQUESTS, TOKENS].into_iter().flat_map(|names| [names.limit, names.remaining, names.reset])
}

/// The headers for what is limited.
pub(super) fn headers(requests: Option<Level>, tokens: Option<Level>) -> Vec<(HeaderName, HeaderValue)> {
    let mut headers = Vec::new();
    for (names, level) in [(REQUESTS, requests), (TOKENS, tokens)] {
        let Some(level) = level else { continue };
        headers.push((names.limit, HeaderValue::from(level.limit)));
        headers.push((names.remaining, HeaderValue::from(level.remaining)));
        // Digits, dots and letters: always a valid header value.
        if let Ok(reset) = HeaderValue::try_from(go_duration(level.reset)) {
            headers.push((names.reset, reset));
        }
    }
    headers
}

/// A length of time as Go prints it, to the millisecond and rounded up: `0s`, `12ms`, `1.5s`, `6m0s`, `1h0m3s`.
fn go_duration(length: Duration) -> String {
    let millis = u64::try_from(length.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
    if millis == 0 {
        return "0s".into();
    }
    if millis < 1_000 {
        return format!("{millis}ms");
    }
    let (seconds, rest) = (millis / 1_000, millis % 1_000);
    let (hours, minutes, seconds) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    let fraction = if rest == 0 { String::new() } else { format!(".{}", format!("{rest:03}").trim_end_matches('0')) };
    match (hours, minutes) {
        (0, 0) => format!("{seconds}{fraction}s"),
        (0, _) => format!("{minutes}m{seconds}{fraction}s"),
        _ => format!("{hours}h{minutes}m{seconds}{fraction}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_are_written_as_go_does() {
        for (millis, text) in [
            (0, "0s"),
            (12, "12ms"),
            (999, "999ms"),
            (1_000, "1s"),
            (1_500, "1.5s"),
            (1_050, "1.05s"),
            (60_000, "1m0s"),
            (359_999, "5m59.999s"),
            (360_000, "6m0s"),
            (3_603_000, "1h0m3s"),
            (90_000_001, "25h0m0.001s"),
        ] {
            assert_eq!(go_duration(Duration::from_millis(millis)), text);
        }
        assert_eq!(go_duration(Duration::from_nanos(1)), "1ms");
    }

    #[test]
    fn only_what_is_limited_has_headers() {
        let level = Level { limit: 60, remaining: 59, reset: Duration::from_secs(1) };
        let seen: Vec<String> = headers(Some(level), None)
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        let expected =
            ["x-ratelimit-limit-requests: 60", "x-ratelimit-remaining-requests: 59", "x-ratelimit-reset-requests: 1s"];
        assert_eq!(seen, expected);
        assert!(headers(None, None).is_empty());
        assert_eq!(headers(Some(level), Some(level)).len(), 6);
    }
}
