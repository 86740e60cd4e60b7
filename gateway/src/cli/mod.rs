//! The command line: what `huntgroup` takes, and what each command exits with.
//!
//! 0: done. 1: failed, with the reason on standard error. 64: called wrongly, with the right call. Results go to standard
//! output, everything else to standard error.

mod advice;
mod batch;
mod batches;
mod check;
mod client;
mod completions;
mod cost;
#[cfg(feature = "demo")]
mod demo;
mod keys;
mod replicas;
mod serve;
mod show;
mod table;
mod top;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::{Parser, Subcommand};

use self::client::CliError;
use crate::{app::AppError, config::ConfigErrors, telemetry::InitError};

/// For a wrong call: EX_USAGE of sysexits.h.
const USAGE: u8 = 64;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// It talks to a gateway, and that did not work.
    #[error(transparent)]
    Client(#[from] CliError),
    /// The configuration has mistakes.
    #[error("the configuration can't be used:\n{0}")]
    Config(#[from] ConfigErrors),
    /// The gateway can't start.
    #[error(transparent)]
    App(#[from] AppError),
    /// The log can't be set up.
    #[error(transparent)]
    Log(#[from] InitError),
    /// The system.
    #[error(transparent)]
    System(#[from] io::Error),
    /// The demonstration can't start.
    #[cfg(feature = "demo")]
    #[error(transparent)]
    Demo(#[from] demo::DemoError),
}

impl Failure {
    fn exit_code(&self) -> u8 {
        if let Self::Client(error) = self { error.exit_code() } else { 1 }
    }

    /// Whoever read the output has stopped reading: `huntgroup replicas list | head`.
    fn is_broken_pipe(&self) -> bool {
        let (Self::Client(CliError::Output(error)) | Self::System(error)) = self else { return false };
        error.kind() == io::ErrorKind::BrokenPipe
    }
}

/// One OpenAI-compatible address in front of many phones.
#[derive(Debug, Parser)]
#[command(name = "huntgroup", version, max_term_width = 100, arg_required_else_help = true, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  huntgroup demo                                        try it without a phone
  huntgroup check --config huntgroup.toml               every mistake of a configuration at once
  huntgroup serve --config huntgroup.toml               run the gateway
  huntgroup serve --replica https://0123456789abcdef.acu.run
  huntgroup keys create --tenant backend                make an API key
  huntgroup replicas add https://fedcba9876543210.acu.run
  huntgroup replicas drain fedcba9876543210 --wait      take a phone out without cutting an answer
  huntgroup top                                         everything at a glance, live
  huntgroup batches list                                how far batches are, and when they are done
  huntgroup cost                                        what the phones cost, and what for
  huntgroup advice                                      how many phones each model should have

OpenAI clients use http://HOST:8080/v1 as their base URL.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the gateway
    Serve(serve::ServeArgs),
    /// Check a configuration: all mistakes at once
    Check(check::CheckArgs),
    /// List and change the phones of a running gateway
    Replicas(replicas::ReplicasArgs),
    /// List, watch and cancel batches of a running gateway
    Batches(batches::BatchesArgs),
    /// How many phones each model of a running gateway should have, and why
    Advice(advice::AdviceArgs),
    /// Make, list and revoke API keys of a running gateway
    Keys(keys::KeysArgs),
    /// What the phones of a running gateway have cost, and what for
    Cost(cost::CostArgs),
    /// Watch a running gateway: phones, requests, queue, batches
    Top(top::TopArgs),
    /// Print what a shell needs to complete commands and flags
    Completions(completions::CompletionsArgs),
    /// Run a gateway with simulated phones, to try it
    #[cfg(feature = "demo")]
    Demo(demo::DemoArgs),
}

/// Runs the command that the process was called with.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return misuse(&error),
    };
    let (mut out, mut err) = (io::stdout(), io::stderr());
    let result = cli.command.run(&mut out, &mut err);
    match result.and_then(|code| Ok(out.flush().map(|()| code)?)) {
        Ok(code) => ExitCode::from(code),
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            // Without a standard error there is nobody left to tell.
            drop(writeln!(err, "huntgroup: {error}"));
            ExitCode::from(error.exit_code())
        }
    }
}

/// Help and version are no mistakes.
fn misuse(error: &clap::Error) -> ExitCode {
    drop(error.print());
    if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS }
}

impl Command {
    fn run(self, out: &mut dyn Write, err: &mut dyn Write) -> Result<u8, Failure> {
        match self {
            Self::Serve(args) => serve::run(args),
            Self::Check(args) => Ok(check::run(&args, out, err)?),
            Self::Replicas(args) => wait_for(replicas::run(args, out, err)).map(|()| 0),
            Self::Batches(args) => wait_for(batches::run(args, out, err)),
            Self::Advice(args) => wait_for(advice::run(args, out)).map(|()| 0),
            Self::Keys(args) => wait_for(keys::run(args, out, err)).map(|()| 0),
            Self::Cost(args) => wait_for(cost::run(args, out)).map(|()| 0),
            Self::Top(args) => wait_for(top::run(args, out)).map(|()| 0),
            Self::Completions(args) => Ok(completions::run(&args, out).map(|()| 0)?),
            #[cfg(feature = "demo")]
            Self::Demo(args) => demo::run(&args),
        }
    }
}

/// Runs a short command that talks to a gateway.
fn wait_for<T>(command: impl Future<Output = Result<T, CliError>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(command)?)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_is_no_mistake_and_a_wrong_call_is() {
        assert!(!Cli::try_parse_from(["huntgroup", "--help"]).unwrap_err().use_stderr());
        for wrong in
            [&["huntgroup"][..], &["huntgroup", "frobnicate"], &["huntgroup", "check"], &["huntgroup", "replicas"]]
        {
            assert!(Cli::try_parse_from(wrong).unwrap_err().use_stderr(), "{wrong:?}");
        }
    }

    #[test]
    fn every_command_has_examples_that_it_understands_and_help_that_fits_a_terminal() {
        fn walk(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name()).trim().to_owned();
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let mut found = 0;
            for line in after.lines() {
                assert!(line.chars().count() <= 100, "{path}: {line}");
                // An example, without its remark and without what a shell does with it.
                let Some(example) = line.strip_prefix("  ") else { continue };
                let call =
                    example.split("   ").next().unwrap_or_default().split(['>', '|', '&']).next().unwrap_or_default();
                found += 1;
                let parsed = Cli::try_parse_from(call.split_whitespace());
                assert!(parsed.is_ok(), "{path}: {call}: {}", parsed.err().map(|e| e.to_string()).unwrap_or_default());
            }
            assert!(found > 0, "{path} has no examples");
            for inner in command.get_subcommands() {
                walk(inner, &path);
            }
        }
        walk(&Cli::command(), "");
    }

    #[test]
    fn the_help_shows_every_command_and_examples() {
        let help = Cli::command().render_long_help().to_string();
        for word in [
            "serve",
            "check",
            "replicas",
            "batches",
            "advice",
            "keys",
            "cost",
            "top",
            "completions",
            "demo",
            "Examples:",
        ] {
            assert!(help.contains(word), "{word}");
        }
    }
}
