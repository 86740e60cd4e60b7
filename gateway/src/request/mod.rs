//! From a body and a head to what the scheduler needs: model, class, deadline, estimated work.

mod fingerprint;
#[cfg(test)]
mod tests;

use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use openai_wire::{Request, Route, ServiceTier};
use scheduler::{Carry, Class, ModelId, Prefix, RequestSpec, TenantId, Timestamp};

pub use self::fingerprint::FingerprintKey;
use crate::{auth::Tenant, error::ApiError, fleet};

/// How urgent a request is.
pub const CLASS: &str = "x-huntgroup-class";
const DEADLINE: &str = "x-huntgroup-deadline";
const CONTINUE: &str = "x-huntgroup-continue";
const PROGRESS: &str = "x-huntgroup-progress";
const KEY: &str = "idempotency-key";
/// The official SDKs count their tries in it, from 0.
const RETRY_COUNT: &str = "x-stainless-retry-count";
/// Longest idempotency key: a UUID has 36, a path with a date fits as well.
const MAX_KEY: usize = 255;
/// Bytes of text per token, until usage says better: English prose and JSON lie between 3 and 5.
const BYTES_PER_TOKEN: u64 = 4;
/// Tokens of an answer without `max_tokens`: a chat turn.
pub const USUAL_ANSWER: u32 = 256;
/// Longest deadline a client can set: a day.
const MAX_DEADLINE: f64 = 86_400.0;

/// Decodes a body, and fingerprints its prompt on the way. After this nothing parses it again.
pub fn decode(route: Route, body: Bytes, key: &FingerprintKey) -> Result<(Request, Prefix), ApiError> {
    let mut fingerprinter = key.begin();
    let request = Request::decode_telling(route, body, fingerprint::counted(), |piece| fingerprinter.take(piece))?;
    Ok((request, fingerprinter.prefix()))
}

/// How urgent a request is: what its header says, else its `service_tier`, else what is usual for its model, else for the
/// tenant; never more urgent than the tenant may.
pub fn class(headers: &HeaderMap, request: &Request, tenant: &Tenant, usual: Option<Class>) -> Result<Class, ApiError> {
    let asked = match headers.get(CLASS) {
        None => request.service_tier.and_then(|tier| match tier {
            ServiceTier::Priority => Some(Class::Interactive),
            ServiceTier::Flex => Some(Class::Batch),
            ServiceTier::Auto | ServiceTier::Default => None,
        }),
        Some(value) => Some(
            named(value.as_bytes())
                .ok_or(ApiError::Header { header: CLASS, message: "must be interactive, standard or batch".into() })?,
        ),
    };
    Ok(asked.or(usual).unwrap_or(tenant.default_class).max(tenant.max_class))
}

fn named(value: &[u8]) -> Option<Class> {
    Class::ALL.into_iter().find(|class| value.eq_ignore_ascii_case(class.name().as_bytes()))
}

/// When the client's patience ends, if it said so.
pub fn deadline(headers: &HeaderMap, started: Timestamp) -> Result<Option<Timestamp>, ApiError> {
    let Some(value) = headers.get(DEADLINE) else { return Ok(None) };
    let seconds: f64 = value.to_str().ok().and_then(|text| text.trim().parse().ok()).unwrap_or(f64::NAN);
    if !(seconds > 0.0 && seconds <= MAX_DEADLINE) {
        return Err(ApiError::Header {
            header: DEADLINE,
            message: "must be seconds, above 0 and at most 86400".into(),
        });
    }
    Ok(Some(started + Duration::from_secs_f64(seconds)))
}

/// Whether the client wants to be told, in the stream, how long it still waits.
pub fn wants_progress(headers: &HeaderMap) -> Result<bool, ApiError> {
    match headers.get(PROGRESS).map(|value| value.as_bytes().to_ascii_lowercase()).as_deref() {
        None | Some(b"false") => Ok(false),
        Some(b"true") => Ok(true),
        Some(_) => Err(ApiError::Header { header: PROGRESS, message: "must be true or false".into() }),
    }
}

/// Whether there is an idempotency key, sound or not.
pub fn has_idempotency_key(headers: &HeaderMap) -> bool {
    headers.contains_key(KEY)
}

/// What a client tells this request by when it sends it again.
pub fn idempotency_key(headers: &HeaderMap) -> Result<Option<&str>, ApiError> {
    let mut keys = headers.get_all(KEY).iter();
    let Some(key) = keys.next() else { return Ok(None) };
    let sound = |key: &&str| (1..=MAX_KEY).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic());
    match key.to_str().ok().filter(sound) {
        Some(key) if keys.next().is_none() => Ok(Some(key)),
        _ => Err(ApiError::Header {
            header: KEY,
            message:
                "must be one key of 1 to 255 visible ASCII characters, a new one for each request and the same in \
                      its retries; a UUID is a good one"
                    .into(),
        }),
    }
}

/// How many tries came before this one, by the client's own account; 0 if it does not say.
pub fn retries(headers: &HeaderMap) -> u32 {
    headers.get(RETRY_COUNT).and_then(|value| value.to_str().ok()?.trim().parse().ok()).unwrap_or(0)
}

/// Who may carry the answer on, if its replica goes away: what the operator allows, or less if the client says so.
pub fn carry(headers: &HeaderMap, allowed: Carry) -> Result<Carry, ApiError> {
    let asked = match headers.get(CONTINUE).map(|value| value.as_bytes().to_ascii_lowercase()).as_deref() {
        None | Some(b"always") => Carry::Anyone,
        Some(b"same_group") => Carry::SameGroup,
        Some(b"never") => Carry::Never,
        Some(_) => {
            return Err(ApiError::Header { header: CONTINUE, message: "must be always, same_group or never".into() });
        }
    };
    Ok(asked.min(allowed))
}

/// The most tokens that a request can have cost, whatever a replica claims: its limit per tenant must not be a phone's to
/// use up. A token has at least a byte; templates add some. `None` for pictures, whose tokens are not in their bytes.
pub fn dearest(request: &Request) -> Option<u64> {
    /// What a chat template and its tools add to a prompt.
    const TEMPLATE: u64 = 4096;
    /// An answer without `max_tokens` ends with the context; no phone has a larger one.
    const UNBOUNDED: u32 = 131_072;
    let answer = u64::from(request.max_tokens.unwrap_or(UNBOUNDED)) * u64::from(request.all_choices());
    (!request.has_images).then(|| request.prompt_bytes + TEMPLATE + answer)
}

/// What the scheduler needs to know.
pub fn spec(
    request: &Request,
    prefix: Prefix,
    model: ModelId,
    tenant: TenantId,
    class: Class,
    deadline: Option<Timestamp>,
) -> RequestSpec {
    RequestSpec {
        model,
        route: fleet::position(request.route),
        tenant,
        class,
        deadline,
        prompt_tokens: u32::try_from(request.prompt_bytes / BYTES_PER_TOKEN).unwrap_or(u32::MAX),
        max_output: request.max_tokens,
        stream: request.stream,
        carry: Carry::Never,
        body_bytes: request.body_len() as u64,
        prefix,
    }
}
