//! What a caller says of the trace that its request belongs to: `traceparent` and `tracestate` of W3C Trace Context.
//!
//! What can't be read counts as not there, as the standard has it: a trace is never a reason to refuse a request.

use http::{HeaderMap, HeaderName};
use ring::rand::{SecureRandom as _, SystemRandom};

const PARENT: HeaderName = HeaderName::from_static("traceparent");
const STATE: HeaderName = HeaderName::from_static("tracestate");
/// Longest `tracestate` that is kept; the standard asks for at least 512 letters.
const MAX_STATE: usize = 512;

/// The caller's trace.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Context {
    pub(super) trace: [u8; 16],
    pub(super) parent: [u8; 8],
    /// The caller records it.
    pub(super) sampled: bool,
    pub(super) state: Option<Box<str>>,
}

impl Context {
    /// Of a head; `None` if it brings none that can be read.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut lines = headers.get_all(PARENT).iter();
        let line = lines.next()?.to_str().ok().filter(|_| lines.next().is_none())?;
        let context = Self::parse(line.trim())?;
        Some(Self { state: state(headers), ..context })
    }

    /// `version-trace-parent-flags`. A later version may have more behind that; version ff is none.
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let mut next = || parts.next();
        let (version, trace, parent, flags) = (next()?, next()?, next()?, next()?);
        let [version] = bytes(version)?;
        let ends = next().is_none();
        if version == 0xff || version == 0 && !ends {
            return None;
        }
        let (trace, parent, [flags]): ([u8; 16], [u8; 8], [u8; 1]) = (bytes(trace)?, bytes(parent)?, bytes(flags)?);
        let is_valid = trace != [0; 16] && parent != [0; 8];
        is_valid.then_some(Self { trace, parent, sampled: flags & 1 == 1, state: None })
    }
}

/// All lines of `tracestate`, joined as the standard has it; `None` if there are none, or too much.
fn state(headers: &HeaderMap) -> Option<Box<str>> {
    let lines: Option<Vec<_>> = headers.get_all(STATE).iter().map(|line| line.to_str().ok()).collect();
    let whole = lines?.join(",");
    (!whole.is_empty() && whole.len() <= MAX_STATE).then(|| whole.into())
}

/// Lower-case hexadecimal digits, and just so many.
fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    hex::decode_to_slice(text, &mut bytes).ok().filter(|()| !text.bytes().any(|digit| digit.is_ascii_uppercase()))?;
    Some(bytes)
}

/// New numbers for a trace and a span.
pub(super) struct Ids {
    pub(super) trace: [u8; 16],
    pub(super) span: [u8; 8],
}

impl Ids {
    /// Drawn at random; `None` while the system has no randomness.
    pub(super) fn fresh(random: &SystemRandom) -> Option<Self> {
        let mut drawn = [0; 24];
        random.fill(&mut drawn).ok()?;
        let (mut trace, mut span) = ([0; 16], [0; 8]);
        trace.copy_from_slice(&drawn[..16]);
        span.copy_from_slice(&drawn[16..]);
        (trace != [0; 16] && span != [0; 8]).then_some(Self { trace, span })
    }

    /// Whether the trace falls into this share of all.
    pub(super) fn is_within(&self, share: f64) -> bool {
        let drawn = u64::from_le_bytes(self.trace[8..].try_into().unwrap_or_default());
        (drawn >> 11) as f64 / (1_u64 << 53) as f64 <= share && share > 0.0
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    fn head(lines: &[(HeaderName, &str)]) -> HeaderMap {
        lines.iter().map(|(name, line)| (name.clone(), HeaderValue::from_str(line).unwrap())).collect()
    }

    #[test]
    fn a_parent_is_read_with_its_decision_and_its_state() {
        let line = format!("00-{TRACE}-{SPAN}-01");
        let context = Context::of(&head(&[(PARENT, &line), (STATE, "a=1"), (STATE, "b=2")])).unwrap();
        assert_eq!(hex::encode(context.trace), TRACE);
        assert_eq!(hex::encode(context.parent), SPAN);
        assert_eq!((context.sampled, context.state.as_deref()), (true, Some("a=1,b=2")));
        assert!(!Context::parse(&format!("00-{TRACE}-{SPAN}-00")).unwrap().sampled);
        assert!(!Context::parse(&format!("00-{TRACE}-{SPAN}-02")).unwrap().sampled);
        let later = format!("cc-{TRACE}-{SPAN}-01-what-the-future-brings");
        assert!(Context::parse(&later).unwrap().sampled);
    }

    #[test]
    fn what_is_no_parent_counts_as_none() {
        let none = "0".repeat(32);
        for line in [
            String::new(),
            "00".into(),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("0-{TRACE}-{SPAN}-01"),
            format!("00-{none}-{SPAN}-01"),
            format!("00-{TRACE}-0000000000000000-01"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{}-{SPAN}-01", &TRACE[1..]),
            format!("00-{TRACE}-{SPAN}-zz"),
            format!("00-{TRACE}é-{SPAN}-01"),
        ] {
            assert_eq!(Context::parse(&line), None, "{line}");
        }
        let line = format!("00-{TRACE}-{SPAN}-01");
        assert_eq!(Context::of(&head(&[(PARENT, &line), (PARENT, &line)])), None);
        let long = "x".repeat(600);
        assert_eq!(Context::of(&head(&[(PARENT, &line), (STATE, &long)])).unwrap().state, None);
    }

    #[test]
    fn a_share_of_the_traces_is_within_it() {
        let ids = |last: u64| Ids { trace: [[1; 8], last.to_le_bytes()].concat().try_into().unwrap(), span: [1; 8] };
        assert!(ids(u64::MAX).is_within(1.0) && ids(0).is_within(0.01));
        assert!(!ids(0).is_within(0.0) && !ids(u64::MAX).is_within(0.5) && ids(u64::MAX / 4).is_within(0.5));
    }
}
