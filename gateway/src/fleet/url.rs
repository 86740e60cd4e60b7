//! A replica's address: parsed once, by hand, into something that cannot be odd.
//!
//! A general URL parser accepts much that must not reach a socket (user names, decimal and octal addresses, back
//! slashes, paths that end up in front of ours). A replica's address is a scheme, a host and a port, so the grammar
//! here is that and nothing else; whatever needs interpretation is refused with the form that would be right. Errors
//! never repeat the text: a URL typed with `user:password@` must not end up in a log.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use crate::{config, upstream::is_public};

/// Longest accepted text: the longest host name (253) with scheme and port.
const MAX_LENGTH: usize = 300;
const HTTPS_PORT: u16 = 443;
const HTTP_PORT: u16 = 80;

/// What an operator allows beyond `https` at a public address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UrlRules {
    /// Plain `http`, together with `allow_private` and only to such hosts or to names.
    pub allow_http: bool,
    /// Loopback, private and link-local addresses.
    pub allow_private: bool,
    /// Names must be, or end in, one of these; empty allows any. IP addresses are then refused.
    pub suffixes: Vec<String>,
}

impl From<&config::Pool> for UrlRules {
    fn from(pool: &config::Pool) -> Self {
        Self { allow_http: pool.allow_http, allow_private: pool.allow_private, suffixes: pool.url_suffixes.clone() }
    }
}

/// Where a replica is reached: scheme, host and port. Equal addresses are equal values.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaUrl {
    host: Host,
    port: u16,
    tls: bool,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Host {
    Name(Box<str>),
    Address(IpAddr),
}

/// Why a text is no replica's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Too long.
    #[error("longer than {MAX_LENGTH} characters")]
    TooLong,
    /// White space, control characters, or letters outside ASCII.
    #[error("has a character that no address has; write international names in their xn-- form")]
    Character,
    /// Neither `https://` nor `http://`.
    #[error("must start with https://")]
    Scheme,
    /// `http://` without permission.
    #[error(
        "plain http is off: the prompts would travel unprotected; use https, or set pool.allow_http and pool.allow_private for replicas on your own network"
    )]
    Http,
    /// `user:password@`.
    #[error("must not contain a user name or password; a replica's key goes into api_key")]
    UserInfo,
    /// Something after host and port.
    #[error("must end after the host and port: no path, query or fragment (the gateway adds /v1/…)")]
    Path,
    /// Not a host name.
    #[error("has no valid host name")]
    Host,
    /// A number that could be read as an address.
    #[error("has an address in an unusual form; write it as four decimal numbers, or in [brackets]")]
    OddAddress,
    /// `fe80::1%eth0`.
    #[error("must not name a network zone (%…)")]
    Zone,
    /// `host.`.
    #[error("must not end in a dot")]
    TrailingDot,
    /// Not 1 to 65535.
    #[error("has no valid port (1 to 65535)")]
    Port,
    /// This machine or its network.
    #[error("is a loopback, private or reserved address; set pool.allow_private to use such replicas")]
    Private,
    /// Not in the list.
    #[error("is not under one of the allowed host suffixes (pool.url_suffixes)")]
    Suffix,
}

impl ReplicaUrl {
    /// Reads an address and applies the operator's rules. A single trailing `/` is accepted.
    ///
    /// # Errors
    /// The first thing that is wrong. Never contains the text.
    pub fn parse(text: &str, rules: &UrlRules) -> Result<Self, UrlError> {
        let url = Self::read(text)?;
        url.check(rules)?;
        Ok(url)
    }

    /// Reads an address without applying rules; for what was checked before and is kept in the store.
    ///
    /// # Errors
    /// The first thing that is wrong with its form.
    pub fn read(text: &str) -> Result<Self, UrlError> {
        if text.len() > MAX_LENGTH {
            return Err(UrlError::TooLong);
        }
        if text.contains('@') {
            return Err(UrlError::UserInfo);
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) || text.contains('\\') {
            return Err(UrlError::Character);
        }
        let (scheme, rest) = text.split_once("://").ok_or(UrlError::Scheme)?;
        let tls = match scheme {
            _ if scheme.eq_ignore_ascii_case("https") => true,
            _ if scheme.eq_ignore_ascii_case("http") => false,
            _ => return Err(UrlError::Scheme),
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        if authority.contains(['/', '?', '#']) {
            return Err(UrlError::Path);
        }
        let (host, port) = split_port(authority)?;
        let port = match port {
            Some(port) => read_port(port)?,
            None if tls => HTTPS_PORT,
            None => HTTP_PORT,
        };
        Ok(Self { host: read_host(host)?, port, tls })
    }

    /// Applies the operator's rules; they may have become stricter since the address was accepted.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self, rules: &UrlRules) -> Result<(), UrlError> {
        let private = match &self.host {
            Host::Address(address) => !is_public(*address),
            Host::Name(name) => is_local_name(name),
        };
        if private && !rules.allow_private {
            return Err(UrlError::Private);
        }
        let is_near = private || matches!(self.host, Host::Name(_));
        let may_be_plain = rules.allow_http && rules.allow_private && is_near;
        if !(self.tls || may_be_plain) {
            return Err(UrlError::Http);
        }
        let under = |name: &str, suffix: &str| {
            let suffix = suffix.trim_start_matches('.');
            name.strip_suffix(suffix).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        let allowed = match &self.host {
            _ if rules.suffixes.is_empty() => true,
            Host::Name(name) => rules.suffixes.iter().any(|suffix| under(name, &suffix.to_ascii_lowercase())),
            Host::Address(_) => false,
        };
        if allowed { Ok(()) } else { Err(UrlError::Suffix) }
    }

    /// Whether TLS is spoken.
    pub fn tls(&self) -> bool {
        self.tls
    }

    /// The host as URLs have it: a name in lower case, or an address (IPv6 in brackets).
    pub fn host(&self) -> String {
        match &self.host {
            Host::Name(name) => name.to_string(),
            Host::Address(IpAddr::V4(v4)) => v4.to_string(),
            Host::Address(IpAddr::V6(v6)) => format!("[{v6}]"),
        }
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What the replica is called when nobody names it, from the shortest form to the one that is always unique.
    pub fn names(&self) -> [String; 3] {
        let host = self.host();
        let default_port = self.port == if self.tls { HTTPS_PORT } else { HTTP_PORT };
        let with_port = format!("{host}:{}", self.port);
        match &self.host {
            Host::Name(name) if name.contains('.') => {
                let first = name.split('.').next().unwrap_or(name);
                [first.to_owned(), format!("{first}:{}", self.port), with_port]
            }
            _ if default_port => [host, with_port, self.to_string()],
            _ => [with_port.clone(), with_port, self.to_string()],
        }
    }

    /// What stands between the gateway and this replica: everything behind the first label, which a relay serves for
    /// all its phones. An address, or a bare name, stands for itself.
    pub fn relay(&self) -> String {
        match &self.host {
            Host::Name(name) if name.contains('.') => {
                format!("{}:{}", name.split_once('.').map_or(&**name, |(_, rest)| rest), self.port)
            }
            _ => format!("{}:{}", self.host(), self.port),
        }
    }
}

/// The canonical form: lower case, no default port, no slash.
impl fmt::Display for ReplicaUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, default_port) = if self.tls { ("https", HTTPS_PORT) } else { ("http", HTTP_PORT) };
        write!(f, "{scheme}://{}", self.host())?;
        if self.port != default_port {
            write!(f, ":{}", self.port)?;
        }
        Ok(())
    }
}

impl fmt::Debug for ReplicaUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

fn split_port(authority: &str) -> Result<(&str, Option<&str>), UrlError> {
    if authority.starts_with('[') {
        let end = authority.find(']').ok_or(UrlError::Host)?;
        let (host, rest) = authority.split_at(end + 1);
        return match rest.strip_prefix(':') {
            Some(port) => Ok((host, Some(port))),
            None if rest.is_empty() => Ok((host, None)),
            None => Err(UrlError::Host),
        };
    }
    match authority.split_once(':') {
        Some((_, port)) if port.contains(':') => Err(UrlError::OddAddress),
        Some((host, port)) => Ok((host, Some(port))),
        None => Ok((authority, None)),
    }
}

fn read_port(text: &str) -> Result<u16, UrlError> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| digits && *port != 0).ok_or(UrlError::Port)
}

fn read_host(text: &str) -> Result<Host, UrlError> {
    if text.contains('%') {
        return Err(if text.starts_with('[') { UrlError::Zone } else { UrlError::Host });
    }
    if let Some(inner) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
        return inner.parse::<Ipv6Addr>().map(|v6| Host::Address(v6.into())).map_err(|_| UrlError::OddAddress);
    }
    if text.ends_with('.') {
        return Err(UrlError::TrailingDot);
    }
    let name = text.to_ascii_lowercase();
    let last = name.rsplit('.').next().unwrap_or_default();
    // A last label like this makes resolvers read the whole as an IPv4 address: 127.1, 0x7f.1, 2130706433.
    if last.bytes().all(|byte| byte.is_ascii_digit()) && !last.is_empty() || last.starts_with("0x") {
        return name.parse::<Ipv4Addr>().map(|v4| Host::Address(v4.into())).map_err(|_| UrlError::OddAddress);
    }
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if name.len() > 253 || !name.split('.').all(label) {
        return Err(UrlError::Host);
    }
    Ok(Host::Name(name.into()))
}

fn is_local_name(name: &str) -> bool {
    name == "localhost" || name.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strict() -> UrlRules {
        UrlRules::default()
    }

    fn lenient() -> UrlRules {
        UrlRules { allow_http: true, allow_private: true, suffixes: Vec::new() }
    }

    fn canonical(text: &str) -> String {
        ReplicaUrl::parse(text, &lenient()).unwrap().to_string()
    }

    #[test]
    fn spellings_of_one_address_are_one_value() {
        for text in
            ["https://AbC.acu.run", "HTTPS://abc.acu.run/", "https://abc.acu.run:443", "https://abc.acu.run:443/"]
        {
            assert_eq!(canonical(text), "https://abc.acu.run", "{text}");
        }
        assert_eq!(canonical("http://127.0.0.1:8080/"), "http://127.0.0.1:8080");
        assert_eq!(canonical("http://[0:0:0:0:0:0:0:1]:80"), "http://[::1]");
    }

    #[test]
    fn what_is_not_scheme_host_and_port_is_refused_with_its_reason() {
        for (text, why) in [
            ("", UrlError::Scheme),
            ("abc.acu.run", UrlError::Scheme),
            ("ftp://abc.acu.run", UrlError::Scheme),
            ("file:///etc/passwd", UrlError::Scheme),
            ("https://u:p@abc.acu.run", UrlError::UserInfo),
            ("https://abc.acu.run@10.0.0.1", UrlError::UserInfo),
            ("https://abc.acu.run/v1", UrlError::Path),
            ("https://abc.acu.run//", UrlError::Path),
            ("https://abc.acu.run?x=1", UrlError::Path),
            ("https://abc.acu.run#x", UrlError::Path),
            ("https://abc.acu.run\\@evil", UrlError::UserInfo),
            ("https://abc.acu.run\\evil", UrlError::Character),
            ("https://abc.acu.run\r\nHost: x", UrlError::Character),
            ("https://abc .acu.run", UrlError::Character),
            ("https://ab\u{441}.acu.run", UrlError::Character),
            ("https://", UrlError::Host),
            ("https:///", UrlError::Host),
            ("https://a..b", UrlError::Host),
            ("https://-a.b", UrlError::Host),
            ("https://a_b.c", UrlError::Host),
            ("https://ab%2ecd.run", UrlError::Host),
            ("https://abc.acu.run.", UrlError::TrailingDot),
            ("https://abc.acu.run:", UrlError::Port),
            ("https://abc.acu.run:0", UrlError::Port),
            ("https://abc.acu.run:65536", UrlError::Port),
            ("https://abc.acu.run:+80", UrlError::Port),
            ("https://abc.acu.run:80a", UrlError::Port),
            ("https://2130706433", UrlError::OddAddress),
            ("https://0x7f000001", UrlError::OddAddress),
            ("https://127.1", UrlError::OddAddress),
            ("https://0177.0.0.1", UrlError::OddAddress),
            ("https://1.2.3.4.5", UrlError::OddAddress),
            ("https://::1", UrlError::OddAddress),
            ("https://[::1", UrlError::Host),
            ("https://[::1]x", UrlError::Host),
            ("https://[1.2.3.4]", UrlError::OddAddress),
            ("https://[fe80::1%25eth0]", UrlError::Zone),
        ] {
            assert_eq!(ReplicaUrl::parse(text, &lenient()).unwrap_err(), why, "{text}");
        }
        let long = format!("https://{}.run", "a.".repeat(200));
        assert_eq!(ReplicaUrl::parse(&long, &lenient()).unwrap_err(), UrlError::TooLong);
    }

    #[test]
    fn a_password_in_the_text_is_in_no_error() {
        let error = ReplicaUrl::parse("https://admin:hunter2@abc.acu.run", &lenient()).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"));
    }

    #[test]
    fn without_permission_only_https_to_public_hosts_is_accepted() {
        let parse = |text| ReplicaUrl::parse(text, &strict());
        assert!(parse("https://abc.acu.run").is_ok());
        assert!(parse("https://8.8.8.8").is_ok());
        assert_eq!(parse("http://abc.acu.run").unwrap_err(), UrlError::Http);
        for text in [
            "https://127.0.0.1",
            "https://localhost:8080",
            "https://a.localhost",
            "https://192.168.0.9",
            "https://[::ffff:10.0.0.1]",
            "https://169.254.169.254",
        ] {
            assert_eq!(parse(text).unwrap_err(), UrlError::Private, "{text}");
        }
    }

    #[test]
    fn plain_http_never_goes_to_a_public_address() {
        assert!(ReplicaUrl::parse("http://192.168.0.9:8080", &lenient()).is_ok());
        assert!(ReplicaUrl::parse("http://phone-1:8080", &lenient()).is_ok());
        assert_eq!(ReplicaUrl::parse("http://8.8.8.8:8080", &lenient()).unwrap_err(), UrlError::Http);
        let only_http = UrlRules { allow_http: true, ..strict() };
        assert_eq!(ReplicaUrl::parse("http://phone-1:8080", &only_http).unwrap_err(), UrlError::Http);
    }

    #[test]
    fn a_suffix_list_admits_whole_labels_only() {
        let rules = UrlRules { suffixes: vec!["acu.run".into(), ".Canary.example".into()], ..lenient() };
        for text in ["https://abc.acu.run", "https://acu.run", "https://x.canary.example"] {
            assert!(ReplicaUrl::parse(text, &rules).is_ok(), "{text}");
        }
        for text in ["https://evilacu.run", "https://acu.run.evil.com", "https://8.8.8.8", "https://localhost"] {
            assert_eq!(ReplicaUrl::parse(text, &rules).unwrap_err(), UrlError::Suffix, "{text}");
        }
    }

    #[test]
    fn names_are_short_first_and_unique_last() {
        let names = |text| ReplicaUrl::parse(text, &lenient()).unwrap().names();
        assert_eq!(names("https://abc.acu.run"), ["abc", "abc:443", "abc.acu.run:443"]);
        assert_eq!(names("http://127.0.0.1:8001")[0], "127.0.0.1:8001");
        assert_eq!(names("http://phone-1")[0], "phone-1");
    }

    #[test]
    fn phones_of_one_suffix_share_a_relay_and_addresses_do_not() {
        let relay = |text| ReplicaUrl::parse(text, &lenient()).unwrap().relay();
        assert_eq!(relay("https://abc.acu.run"), relay("https://def.acu.run"));
        assert_ne!(relay("https://abc.acu.run"), relay("https://abc.canary.acu.run"));
        assert_ne!(relay("http://127.0.0.1:8001"), relay("http://127.0.0.1:8002"));
    }
}
