//! Where log lines go: standard error, as text for people or JSON for machines.
//!
//! Standard output stays free for what commands print. Below us, pingora and rustls tell every connection that a phone
//! broke, which the gateway reports once and in its own words: they are held at warn unless the filter names them.

use std::io::{self, IsTerminal};

use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt};

/// How a line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One object a line.
    Json,
}

/// How the log is written.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// Text or JSON.
    pub format: LogFormat,
    /// `error`, `warn`, `info`, `debug`, `trace`, or a filter such as `info,huntgroup::fleet=debug`.
    pub level: String,
}

/// Why the log could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// The level is no filter.
    #[error("`{0}` is no log level or filter")]
    Level(String),
    /// Something else writes the log of this process already.
    #[error("the log is set up already")]
    Twice,
}

/// Libraries that are heard only from warn on, unless the filter names them.
const QUIET: [&str; 8] =
    ["pingora_core", "pingora_pool", "pingora_http", "pingora", "rustls", "tokio_rustls", "hyper", "hyper_util"];

/// Sets up the log of this process, once.
pub fn init(options: &LogOptions) -> Result<(), InitError> {
    let filter = filter(&options.level)?;
    let lines = tracing_subscriber::registry().with(filter);
    let installed = match options.format {
        LogFormat::Text => {
            lines.with(fmt::layer().with_writer(io::stderr).with_ansi(io::stderr().is_terminal())).try_init()
        }
        LogFormat::Json => lines.with(fmt::layer().json().flatten_event(true).with_writer(io::stderr)).try_init(),
    };
    installed.map_err(|_| InitError::Twice)
}

fn filter(level: &str) -> Result<EnvFilter, InitError> {
    let wrong = || InitError::Level(level.to_owned());
    // A mistyped level parses as a target with that name, and would silence everything.
    let leading = level.split(',').find(|part| !part.contains(['=', '[']));
    let known =
        |name: &str| ["off", "error", "warn", "info", "debug", "trace"].contains(&name.to_ascii_lowercase().as_str());
    if !leading.is_some_and(|name| known(name.trim())) {
        return Err(wrong());
    }
    let named = |library: &str| {
        level.split(',').any(|part| part.split("::").next().unwrap_or(part).split('=').next() == Some(library))
    };
    let quiet: String =
        QUIET.iter().filter(|library| !named(library)).map(|library| format!("{library}=warn,")).collect();
    EnvFilter::builder().parse(format!("{quiet}{level}")).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_stay_quiet_unless_they_are_named() {
        let plain = filter("debug").expect("a level").to_string();
        assert!(plain.contains("pingora_core=warn") && plain.contains("debug"), "{plain}");
        let named = filter("info,pingora_core=debug").expect("a filter").to_string();
        assert!(named.contains("pingora_core=debug") && !named.contains("pingora_core=warn"), "{named}");
    }

    #[test]
    fn a_mistyped_level_is_refused() {
        for wrong in ["", "verbose", "inof", "huntgroup=debug", "info,huntgroup=loud"] {
            assert!(filter(wrong).is_err(), "{wrong:?} was taken");
        }
    }
}
