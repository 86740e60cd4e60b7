//! `huntgroup serve`: the gateway itself.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;

use super::Failure;
use crate::{
    app, clock,
    config::{self, Config, LogLevel, Overrides},
    telemetry::{self, LogFormat, LogOptions},
};

/// Where more detailed filters than `telemetry.log_level` come from.
const LOG_VARIABLE: &str = "HUNTGROUP_LOG";

/// Flags of `huntgroup serve`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  huntgroup serve --config huntgroup.toml
  huntgroup serve --replica https://0123456789abcdef.acu.run --listen 127.0.0.1:8080
  huntgroup serve --config huntgroup.toml --upgrade        beside the running one, in its place

Signals: TERM and INT drain and leave once nothing is in flight (a second one leaves at once), HUP
reads the configuration again, QUIT hands the listeners to a process started with --upgrade.
HUNTGROUP_LOG sets a log filter, such as info,huntgroup::fleet=debug.")]
pub struct ServeArgs {
    /// Configuration file; without one the defaults hold
    #[arg(long, value_name = "FILE", env = "HUNTGROUP_CONFIG")]
    pub config: Option<PathBuf>,
    /// A phone, besides those of the configuration; may be given more than once
    #[arg(long = "replica", value_name = "URL")]
    pub replicas: Vec<String>,
    /// Public address, instead of the configuration's; may be given more than once
    #[arg(long, value_name = "ADDR")]
    pub listen: Vec<SocketAddr>,
    /// Address of the admin API, instead of the configuration's
    #[arg(long, value_name = "ADDR")]
    pub admin_listen: Option<SocketAddr>,
    /// Database file, instead of the configuration's; :memory: keeps nothing
    #[arg(long, value_name = "FILE")]
    pub store: Option<PathBuf>,
    /// Take the listeners over from the process in server.pid_file, which then drains
    #[arg(long)]
    pub upgrade: bool,
    /// For load tests with fake phones that live as fast: this many seconds of the gateway in one of the world's
    #[arg(long, value_name = "TIMES", hide = true, value_parser = pace)]
    pub clock_pace: Option<f64>,
}

/// Reads how much faster than the world a load test's gateway lives.
fn pace(text: &str) -> Result<f64, String> {
    let pace = text.parse().ok().filter(|pace| (1.0..=1000.0).contains(pace));
    pace.ok_or_else(|| "expected a number from 1 to 1000".to_owned())
}

/// Runs until a signal ends it.
///
/// # Errors
/// The configuration has mistakes, or the gateway can't start.
pub(super) fn run(args: ServeArgs) -> Result<u8, Failure> {
    let overrides =
        Overrides { replicas: args.replicas, listen: args.listen, admin_listen: args.admin_listen, store: args.store };
    if let Some(pace) = args.clock_pace {
        clock::run_faster(pace);
    }
    let config = config::load(args.config.as_deref(), overrides.clone())?;
    let options = app::Options { config_path: args.config, overrides, upgrade: args.upgrade };
    start(config, options)
}

/// Sets up the log and runs the gateway.
pub(super) fn start(config: Config, options: app::Options) -> Result<u8, Failure> {
    telemetry::init(&log_options(&config))?;
    if let Some(pace) = clock::pace() {
        tracing::warn!(pace, "the clock runs faster than the world's: this is for load tests");
    }
    app::run(config, options)?;
    Ok(0)
}

fn log_options(config: &Config) -> LogOptions {
    let level = match config.telemetry.log_level {
        LogLevel::Error => "error",
        LogLevel::Warn => "warn",
        LogLevel::Info => "info",
        LogLevel::Debug => "debug",
        LogLevel::Trace => "trace",
    };
    LogOptions {
        format: match config.telemetry.log {
            config::LogFormat::Text => LogFormat::Text,
            config::LogFormat::Json => LogFormat::Json,
        },
        level: std::env::var(LOG_VARIABLE).unwrap_or_else(|_| level.to_owned()),
    }
}
