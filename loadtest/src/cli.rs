//! The command line.

mod sim;

pub(crate) use sim::{Choice, Compare, Replay, Sim, chosen, players, runs};

use crate::scenario::{Arrivals, Scenario, parse_seconds};
use clap::{Args, CommandFactory as _, Parser, Subcommand, error::ErrorKind};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  See it all: fake phones, a gateway of its own, ten seconds of load, a page with plots:
    loadtest live scenarios/smoke.toml --self --html smoke.html

  The same work against a running gateway with real phones:
    loadtest live scenarios/steady.toml --url http://127.0.0.1:8080 --key \"$KEY\" --any-answer

  With fake phones of another process: count over-subscription and make phones fail; look at the gateway's gauges:
    fakephone --phones 100 --mix --speed 0.8b --time-scale 20 \\
        --relay 127.0.0.1:8443 --control 127.0.0.1:8444
    loadtest live scenarios/chaos.toml --key \"$KEY\" --control http://127.0.0.1:8444 \\
        --admin http://127.0.0.1:9091 --token \"$TOKEN\"

Exit codes: 0 everything was as the scenario expects, 1 it was not, 64 usage.";

/// Plays load scenarios against huntgroup and reports what came of them.
#[derive(Debug, Parser)]
#[command(version, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// How to play.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The ways of playing a scenario.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Over HTTP, against a running gateway or, with --self, one of its own.
    #[command(after_help = EXAMPLES)]
    Live(Live),
    /// In virtual time: the gateway's scheduler, or another policy, and modelled phones.
    #[command(after_help = sim::sim_help())]
    Sim(Sim),
    /// In virtual time, several policies side by side, with what no policy can beat.
    #[command(after_help = sim::compare_help())]
    Compare(Compare),
    /// A record of a gateway's scheduler, played again exactly.
    Replay(Replay),
}

impl Cli {
    /// Reads the command line.
    ///
    /// # Errors
    /// Help that was asked for, or what is wrong.
    pub(crate) fn read() -> Result<Self, clap::Error> {
        let cli = Self::try_parse()?;
        match &cli.command {
            Command::Sim(sim) if sim.scenarios.is_empty() && !sim.policies.contains(&Choice::List) => {
                let why = "expected at least one scenario FILE, such as scenarios/sim/dev-review-100-70.json\n";
                Err(Self::command().error(ErrorKind::MissingRequiredArgument, why))
            }
            _ => Ok(cli),
        }
    }
}

/// `loadtest live`.
#[derive(Debug, Args)]
pub(crate) struct Live {
    /// The scenario's file; scenarios/*.toml are examples with comments.
    pub(crate) scenario: PathBuf,

    /// The gateway.
    #[arg(long, default_value = "http://127.0.0.1:8080", conflicts_with = "own")]
    pub(crate) url: String,

    /// A key of the gateway.
    #[arg(long, env = "HUNTGROUP_KEY", hide_env_values = true)]
    pub(crate) key: Option<String>,

    /// The gateway's admin API: for steps of the operator, and to see whether all gauges go back to 0.
    #[arg(long, value_name = "URL", conflicts_with = "own")]
    pub(crate) admin: Option<String>,

    /// Token of the admin API.
    #[arg(long, env = "HUNTGROUP_ADMIN_TOKEN", hide_env_values = true, requires = "admin")]
    pub(crate) token: Option<String>,

    /// Control port of fake phones: to make them fail, and to see what reached them.
    #[arg(long, value_name = "URL", conflicts_with = "own")]
    pub(crate) control: Option<String>,

    /// Start fake phones and a gateway for this play, and stop them afterwards.
    #[arg(long = "self")]
    pub(crate) own: bool,

    /// The gateway's program for --self; by default the one beside this program.
    #[arg(long, value_name = "PATH", requires = "own")]
    pub(crate) huntgroup: Option<PathBuf>,

    /// Keep the log of the gateway that --self started.
    #[arg(long, value_name = "FILE", requires = "own")]
    pub(crate) gateway_log: Option<PathBuf>,

    /// The phones are real: answers must be whole, but may say anything.
    #[arg(long, conflicts_with = "own")]
    pub(crate) any_answer: bool,

    /// How long work arrives, instead of the scenario's duration: 30s, 5m.
    #[arg(long, value_parser = duration)]
    pub(crate) duration: Option<f64>,

    /// Clients of all closed-loop classes together, instead of the scenario's, in its proportions.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) clients: Option<u64>,

    /// Source of everything random, instead of the scenario's.
    #[arg(long)]
    pub(crate) seed: Option<u64>,

    /// Write the report as JSON; - writes it to standard output instead of the table.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Write the report as a page with plots.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a length of time such as 30s or 5m, above 0")]
struct NoDuration;

fn duration(text: &str) -> Result<f64, NoDuration> {
    parse_seconds(text).filter(|seconds| *seconds > 0.0).ok_or(NoDuration)
}

impl Live {
    /// The scenario as the flags change it.
    pub(crate) fn apply(&self, scenario: &mut Scenario) {
        if let Some(duration_s) = self.duration {
            scenario.duration_s = duration_s;
            scenario.warmup_s = scenario.warmup_s.min(duration_s / 4.0);
        }
        if let Some(seed) = self.seed {
            scenario.seed = seed;
        }
        if let Some(wanted) = self.clients {
            share_clients(scenario, wanted);
        }
    }
}

/// Gives each closed-loop class its share of `wanted` clients, at least one.
fn share_clients(scenario: &mut Scenario, wanted: u64) {
    let counts = scenario.classes.iter_mut().filter_map(|class| match &mut class.arrivals {
        Arrivals::Clients { count } => Some(count),
        _ => None,
    });
    let counts: Vec<&mut u64> = counts.collect();
    let all: u64 = counts.iter().map(|count| **count).sum();
    let (mut before, mut given) = (0, 0);
    for count in counts {
        // By the running sum, so that rounding does not add up.
        before += *count;
        let up_to = (before * wanted + all / 2) / all;
        *count = up_to.saturating_sub(given).max(1);
        given = up_to;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn clients_are_shared_in_the_scenarios_proportions() {
        let class = |name: &str, count: u64| {
            format!("[[classes]]\nname='{name}'\nmodel='m'\narrivals={{clients={count}}}\nprompt=1\nanswer=1\n")
        };
        let text = format!(
            "name='t'\nwhy='t'\nduration='9s'\n[fleet]\n[[fleet.phones]]\nname='p'\ncount=1\nmodel='m'\nspeed='instant'\n{}{}{}",
            class("a", 30),
            class("b", 10),
            class("c", 1)
        );
        let mut scenario = crate::scenario::read(&text).expect("a good scenario");
        share_clients(&mut scenario, 200);
        let counts: Vec<_> = scenario.classes.iter().map(|class| class.arrivals).collect();
        let expected = [146, 49, 5].map(|count| Arrivals::Clients { count });
        assert_eq!(counts, expected);
    }
}
