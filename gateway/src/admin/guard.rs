//! What every call to the admin API must pass: host name, origin, token, content type.
//!
//! A browser on the operator's machine can be made to send requests here by any page. The host name stops names rebound
//! to this address; the content type makes other sites' pages ask first, which nobody answers (no CORS); the token stops
//! everybody else.

use std::{future::Future, net::SocketAddr};

use axum::{
    extract::{ConnectInfo, Request, State},
    http::{HeaderMap, HeaderValue, Method, header},
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::{Shared, answer::AdminError, connections::Peer, console, register};
use crate::{clock, config};

/// Who calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    /// From where.
    pub(super) peer: SocketAddr,
}

impl Caller {
    /// For the audit trail.
    pub(super) fn who(&self) -> String {
        format!("admin@{}", self.peer.ip())
    }
}

/// Lets a call through, or answers it.
pub(super) async fn guard(
    State(shared): State<Shared>,
    ConnectInfo(Peer { address: peer, .. }): ConnectInfo<Peer>,
    mut request: Request,
    next: Next,
) -> Response {
    let mut response = match check(&shared, peer, &request) {
        Ok(()) => {
            request.extensions_mut().insert(Caller { peer });
            if is_read(request.method()) { next.run(request).await } else { to_its_end(next.run(request)).await }
        }
        Err(error) => {
            tracing::warn!(%peer, why = %error, "admin call refused");
            error.into_response()
        }
    };
    let headers = response.headers_mut();
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn is_read(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

/// Runs a change also if its caller hangs up. The server drops a call whose connection is gone, and between the store and
/// the pool that would leave a replica removed for the store and serving for the scheduler until the next start.
pub(super) async fn to_its_end(call: impl Future<Output = Response> + Send + 'static) -> Response {
    #[expect(clippy::disallowed_methods, reason = "it is waited for right here, unless there is nobody to wait for it")]
    let running = tokio::spawn(call);
    running.await.unwrap_or_else(|_| AdminError::Ours("the call failed; the log says why".into()).into_response())
}

fn check(shared: &Shared, peer: SocketAddr, request: &Request) -> Result<(), AdminError> {
    if request.uri().path() == register::PATH {
        return Ok(()); // It has rules of its own, and says why.
    }
    let config = shared.app.reload.admin();
    let headers = request.headers();
    check_host(headers, &config.hosts)?;
    check_origin(headers)?;
    if needs_token(request.uri().path(), &config, shared.app.config.listen.ip().is_loopback()) {
        check_token(shared, peer, headers, config.token.as_ref())?;
    }
    check_content_type(request)
}

fn check_host(headers: &HeaderMap, allowed: &[String]) -> Result<(), AdminError> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next().and_then(|host| host.to_str().ok()).filter(|_| hosts.next().is_none());
    let host = host.ok_or(AdminError::Host)?;
    let authority: axum::http::uri::Authority = host.parse().map_err(|_| AdminError::Host)?;
    let name = authority.host().to_ascii_lowercase();
    let is_address = name.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>().is_ok();
    let is_ours = name == "localhost" || allowed.iter().any(|allowed| allowed.eq_ignore_ascii_case(&name));
    if is_address || is_ours { Ok(()) } else { Err(AdminError::Host) }
}

/// A page of this very listener may call; pages of others may not.
fn check_origin(headers: &HeaderMap) -> Result<(), AdminError> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let own = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let of_page = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    match of_page {
        Some((_, host)) if host.eq_ignore_ascii_case(own) => Ok(()),
        _ => Err(AdminError::Origin),
    }
}

fn needs_token(path: &str, config: &config::Admin, on_loopback: bool) -> bool {
    match path {
        "/healthz" | "/readyz" => false,
        // The console's files hold no data: the page asks for the token itself.
        _ if console::is_of_page(path) => false,
        "/metrics" => !(config.public_metrics && on_loopback),
        _ => true,
    }
}

fn check_token(
    shared: &Shared,
    peer: SocketAddr,
    headers: &HeaderMap,
    token: Option<&config::Secret>,
) -> Result<(), AdminError> {
    // Without a token only a loopback listener is served at all.
    let Some(token) = token else { return Ok(()) };
    let now = clock::now();
    if shared.failed_logins.is_blocked(peer.ip(), now) {
        return Err(AdminError::TooManyLogins);
    }
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let given = given.and_then(|value| value.split_once(' '));
    let given = given.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, given)| given.trim());
    match given {
        Some(given) if token.is(given) => Ok(()),
        Some(_) => {
            shared.failed_logins.note(peer.ip(), now);
            Err(AdminError::Token)
        }
        None => Err(AdminError::Token),
    }
}

/// A call without a body may leave the type out: what another site's page can send without asking first carries either
/// another type or an `Origin`.
fn check_content_type(request: &Request) -> Result<(), AdminError> {
    let headers = request.headers();
    let length = headers.get(header::CONTENT_LENGTH).map(HeaderValue::as_bytes);
    let has_body = headers.contains_key(header::TRANSFER_ENCODING) || length.is_some_and(|length| length != b"0");
    let kind = headers.get(header::CONTENT_TYPE);
    if is_read(request.method()) || (!has_body && kind.is_none()) {
        return Ok(());
    }
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let is_json = kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"));
    if is_json { Ok(()) } else { Err(AdminError::ContentType) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(header::HeaderName, &'static str)]) -> HeaderMap {
        list.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn a_rebound_name_is_refused_and_addresses_and_listed_names_are_not() {
        let listed = ["ops.example".to_owned()];
        for (host, passes) in [
            ("127.0.0.1:9091", true),
            ("[::1]:9091", true),
            ("localhost", true),
            ("OPS.example:9091", true),
            ("evil.example", false),
            ("localhost.evil.example", false),
            ("", false),
        ] {
            assert_eq!(check_host(&headers(&[(header::HOST, host)]), &listed).is_ok(), passes, "{host}");
        }
        assert!(check_host(&HeaderMap::new(), &listed).is_err());
    }

    #[test]
    fn only_pages_of_this_listener_may_call() {
        let host = (header::HOST, "127.0.0.1:9091");
        let origin = |origin| headers(&[host.clone(), (header::ORIGIN, origin)]);
        assert!(check_origin(&origin("http://127.0.0.1:9091")).is_ok());
        assert!(check_origin(&origin("http://evil.example")).is_err());
        assert!(check_origin(&origin("null")).is_err());
    }

    #[test]
    fn a_form_of_another_sites_page_is_refused_and_a_bare_call_is_not() {
        let call = |method: Method, list: &[(header::HeaderName, &'static str)]| {
            let mut request = Request::new(axum::body::Body::empty());
            *request.method_mut() = method;
            *request.headers_mut() = headers(list);
            check_content_type(&request).is_ok()
        };
        let (kind, length) = (header::CONTENT_TYPE, header::CONTENT_LENGTH);
        assert!(call(Method::POST, &[]));
        assert!(call(Method::POST, &[(length.clone(), "0")]));
        assert!(call(Method::POST, &[(kind.clone(), "application/json; charset=utf-8"), (length.clone(), "2")]));
        assert!(!call(Method::POST, &[(length.clone(), "2")]));
        assert!(!call(Method::POST, &[(kind.clone(), "text/plain"), (length.clone(), "2")]));
        assert!(!call(Method::POST, &[(kind.clone(), "application/x-www-form-urlencoded"), (length, "0")]));
        assert!(call(Method::GET, &[(kind, "text/plain")]));
    }

    #[tokio::test]
    async fn a_change_goes_to_its_end_though_its_caller_hangs_up() {
        let (stored, store) = tokio::sync::oneshot::channel::<()>();
        let (changed, change) = tokio::sync::oneshot::channel::<()>();
        let mut call = Box::pin(to_its_end(async move {
            store.await.unwrap();
            changed.send(()).unwrap();
            axum::http::StatusCode::OK.into_response()
        }));
        tokio::select! {
            biased;
            _ = &mut call => panic!("nothing is stored yet"),
            () = tokio::task::yield_now() => {}
        }
        drop(call);
        stored.send(()).unwrap();
        change.await.unwrap();
    }

    #[tokio::test]
    async fn a_change_that_panics_is_answered() {
        let answer = to_its_end(async { panic!("on purpose") }).await;
        assert_eq!(answer.status(), axum::http::StatusCode::INTERNAL_SERVER_ERROR);
    }

    #[test]
    fn health_is_open_and_metrics_only_on_loopback() {
        let config = config::Admin::default();
        assert!(!needs_token("/healthz", &config, false));
        assert!(!needs_token("/", &config, false));
        assert!(!needs_token("/metrics", &config, true));
        assert!(needs_token("/metrics", &config, false));
        assert!(needs_token("/admin/replicas", &config, true));
    }
}
