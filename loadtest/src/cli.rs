//! The command line.

mod advise;
mod live;
mod sim;

pub(crate) use advise::Advise;
pub(crate) use live::{GatewayPolicy, Live};
pub(crate) use sim::{Choice, Compare, Replay, Seeds, Sim, chosen, players, runs};

use clap::{CommandFactory as _, Parser, Subcommand, error::ErrorKind};

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

  A scenario of the simulator, live at a twentieth of its time, beside what the simulator says:
    loadtest live scenarios/sim/dev-mixed-100-40.json --speedup 20 --within 15%

Exit codes: 0 everything was as the scenario expects (or, with --within, as simulated), 1 it was not, 64 usage.";

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
    Live(Box<Live>),
    /// In virtual time: the gateway's scheduler, or another policy, and modelled phones.
    #[command(after_help = sim::sim_help())]
    Sim(Sim),
    /// In virtual time, several policies side by side, with what no policy can beat.
    #[command(after_help = sim::compare_help())]
    Compare(Compare),
    /// A record of a gateway's scheduler, played again exactly.
    Replay(Replay),
    /// In virtual time: how many phones would be advised, and whether that is right.
    #[command(after_help = advise::EXAMPLES)]
    Advise(Advise),
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
            Command::Live(live) => match live.misplaced() {
                Some(why) => Err(Self::command().error(ErrorKind::ArgumentConflict, why + "\n")),
                None => Ok(cli),
            },
            _ => Ok(cli),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
