//! `[chain]`: where deployments are looked up.

use std::{fmt, hash::Hash as _, net::IpAddr, time::Duration};

use toml::de::DeValue;

use super::{
    secret::{self, Sources},
    value::{Refused, Value},
    visit::{Section, Visitor, live},
};
use crate::{
    chain::{AccountId, JobId},
    fleet::ReplicaUrl,
    upstream::is_public,
};

/// Longest accepted text of a node's address.
const MAX_LENGTH: usize = 2_000;

/// A node's address. What stands behind the host may be a key of its operator's and is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct RpcUrl {
    /// Scheme, host and port.
    pub node: ReplicaUrl,
    /// What is asked for there, with its leading slash.
    pub path: String,
}

impl RpcUrl {
    /// Reads an address: `https`, or `http` to an address of this host or its network.
    ///
    /// # Errors
    /// What is wrong, without the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_LENGTH {
            return Err("too long".into());
        }
        if text.starts_with("wss:") || text.starts_with("ws:") {
            return Err("a WebSocket address; the same node's https address is what is needed".into());
        }
        let front = text.find("://").map_or(0, |at| at + 3);
        let split = text[front..].find(['/', '?', '#']).map_or(text.len(), |at| front + at);
        let (node, path) = text.split_at(split);
        let node = ReplicaUrl::read(node).map_err(|error| error.to_string())?;
        let near = node.host().trim_matches(['[', ']']).parse().is_ok_and(|address: IpAddr| !is_public(address));
        if !node.tls() && !near {
            return Err("plain http is for a node at an address of this host or its own network; use https".into());
        }
        if !path.bytes().all(|byte| byte.is_ascii_graphic()) || path.contains('#') {
            return Err("what follows the host has a character that no address has".into());
        }
        let path = if path.starts_with('/') { path.into() } else { format!("/{path}") };
        Ok(Self { node, path })
    }
}

impl fmt::Display for RpcUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let more = if self.path == "/" { "" } else { "/…" };
        write!(f, "{}{more}", self.node)
    }
}

impl fmt::Debug for RpcUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Value for RpcUrl {
    const ACCEPTED: &'static str = "an https address, or \"env:NAME\" or \"file:PATH\" where it is";

    fn read(raw: &DeValue<'_>, sources: &Sources<'_>) -> Result<Self, Refused> {
        // A key may be in it: it is not repeated.
        let refused = |why: String| Refused { why, secret: true };
        let written = String::read(raw, sources)?;
        let text = if written.starts_with("env:") || written.starts_with("file:") {
            let secret = secret::resolve(&written, sources).map_err(|error| refused(error.to_string()))?;
            secret.reveal().to_owned()
        } else {
            written
        };
        Self::parse(&text).map_err(refused)
    }

    fn show(&self) -> String {
        self.to_string()
    }

    fn feed(&self, hasher: &mut std::hash::DefaultHasher) {
        (self.node.to_string(), &self.path).hash(hasher);
    }
}

/// A value that its own parser reads from a string.
macro_rules! parsed {
    ($type:ty, $accepted:literal) => {
        impl Value for $type {
            const ACCEPTED: &'static str = $accepted;
            fn read(raw: &DeValue<'_>, sources: &Sources<'_>) -> Result<Self, Refused> {
                String::read(raw, sources)?
                    .parse()
                    .map_err(|error: <$type as std::str::FromStr>::Err| Refused::because(error.to_string()))
            }
            fn show(&self) -> String {
                self.to_string()
            }
        }
    };
}
parsed!(JobId, "a job, such as \"Acurast:5Grw…:4711\"");
parsed!(AccountId, "an address, such as \"5Grw…\"");

/// Deployments that are looked up on the chain.
#[derive(Clone, Debug, PartialEq)]
pub struct Chain {
    /// The node that is asked. None: nothing is looked up.
    pub rpc: Option<RpcUrl>,
    /// Jobs whose phones come into the pool.
    pub jobs: Vec<JobId>,
    /// Accounts, all of whose running jobs count.
    pub deployers: Vec<AccountId>,
    /// Between two looks. 1 min: a block is made every 12 s and final a little later, and a phone needs minutes for its model.
    pub every: Duration,
    /// What follows a phone's id in its host name, with a port if it is not 443.
    pub suffix: String,
}

impl Default for Chain {
    fn default() -> Self {
        Self {
            rpc: None,
            jobs: Vec::new(),
            deployers: Vec::new(),
            every: Duration::from_secs(60),
            suffix: "acu.run".into(),
        }
    }
}

impl Section for Chain {
    fn visit<V: Visitor>(&mut self, v: &mut V) {
        v.value(live("rpc"), &mut self.rpc);
        v.list(live("jobs"), &mut self.jobs);
        v.list(live("deployers"), &mut self.deployers);
        v.ranged(live("every"), &mut self.every, Duration::from_secs(1)..=Duration::from_secs(3_600));
        v.value(live("suffix"), &mut self.suffix);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nodes_address_is_https_or_near() {
        for fine in
            ["https://rpc.acurast.example", "https://n.example:9944/", "http://127.0.0.1:9944", "http://[::1]:9944"]
        {
            assert!(RpcUrl::parse(fine).is_ok(), "{fine}");
        }
        for odd in [
            "http://rpc.acurast.example",
            "http://8.8.8.8",
            "http://localhost:9944",
            "wss://rpc.acurast.example",
            "https://user:password@rpc.acurast.example",
            "https://rpc.acurast.example/a b",
            "rpc.acurast.example",
            "",
            "é://x",
        ] {
            assert!(RpcUrl::parse(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn what_may_be_a_key_is_kept_and_not_shown() {
        let url = RpcUrl::parse("https://n.example/v1/0123-secret?key=secret").unwrap();
        assert_eq!(url.path, "/v1/0123-secret?key=secret");
        assert_eq!(format!("{url} {url:?}"), "https://n.example/… https://n.example/…");
        assert_eq!(RpcUrl::parse("https://n.example?key=1").unwrap().path, "/?key=1");
    }
}
