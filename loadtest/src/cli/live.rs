//! `loadtest live`.

use super::Seeds;
use crate::scenario::{Arrivals, Scenario, parse_seconds};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// `loadtest live`.
#[derive(Debug, Args)]
pub(crate) struct Live {
    /// The scenario's file: scenarios/*.toml are examples with comments, scenarios/sim/*.json those of the simulator, for
    /// which the phones and the gateway are always started as with --self.
    pub(crate) scenario: PathBuf,

    /// The gateway; http://127.0.0.1:8080 if nothing is said.
    #[arg(long, conflicts_with = "own")]
    pub(crate) url: Option<String>,

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
    #[arg(long, value_name = "PATH")]
    pub(crate) huntgroup: Option<PathBuf>,

    /// Keep the log of the gateway that --self started.
    #[arg(long, value_name = "FILE")]
    pub(crate) gateway_log: Option<PathBuf>,

    /// The phones are real: answers must be whole, but may say anything.
    #[arg(long, conflicts_with = "own")]
    pub(crate) any_answer: bool,

    /// How long work arrives, instead of the scenario's duration: 30s, 5m. Of a scenario of the simulator its own time.
    #[arg(long, visible_alias = "for", value_parser = duration)]
    pub(crate) duration: Option<f64>,

    /// Clients of all closed-loop classes together, instead of the scenario's, in its proportions.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) clients: Option<u64>,

    /// Source of everything random, instead of the scenario's.
    #[arg(long)]
    pub(crate) seed: Option<u64>,

    #[command(flatten)]
    pub(crate) scaled: Scaled,

    /// Write the report as JSON; - writes it to standard output instead of the table.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Write the report as a page with plots.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

/// For scenarios of the simulator only.
#[derive(Debug, Args)]
#[command(next_help_heading = "Scenarios of the simulator (.json)")]
pub(crate) struct Scaled {
    /// How many times faster than the scenario it is played: its times are divided by this, and figures multiplied. 20 if
    /// nothing is said.
    #[arg(long, value_name = "TIMES", value_parser = speedup)]
    pub(crate) speedup: Option<f64>,

    /// Which runs, one after the other: 0,2,5 or 0-4; the first if nothing is said.
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub(crate) seeds: Vec<Seeds>,

    /// How the gateway chooses phones; least_work if nothing is said.
    #[arg(long, value_enum, value_name = "NAME")]
    pub(crate) policy: Option<GatewayPolicy>,

    /// What comes all at once and least urgent goes to the gateway as a file, which it runs as a batch; other classes are
    /// played once more without it.
    #[arg(long)]
    pub(crate) batch_api: bool,

    /// Fail if a mean or a makespan is off from the simulated one by more than this, or a p99 by more than twice this.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub(crate) within: Option<f64>,
}

/// The gateway's own ways to choose a phone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum GatewayPolicy {
    /// Least remaining work.
    LeastWork,
    /// Fewest busy slots in proportion.
    LeastBusy,
    /// In turn.
    RoundRobin,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a number from 1 to 1000")]
struct NoSpeedup;

fn speedup(text: &str) -> Result<f64, NoSpeedup> {
    text.parse().ok().filter(|times| (1.0..=1000.0).contains(times)).ok_or(NoSpeedup)
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a share above 0, such as 15% or 0.15")]
struct NoShare;

fn share(text: &str) -> Result<f64, NoShare> {
    let (number, unit) = text.strip_suffix('%').map_or((text, 1.0), |percent| (percent, 0.01));
    let share = number.trim().parse().ok().map(|number: f64| number * unit);
    share.filter(|share| share.is_finite() && *share > 0.0).ok_or(NoShare)
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a length of time such as 30s or 5m, above 0")]
struct NoDuration;

fn duration(text: &str) -> Result<f64, NoDuration> {
    parse_seconds(text).filter(|seconds| *seconds > 0.0).ok_or(NoDuration)
}

impl Live {
    /// Whether the scenario is one of the simulator's.
    pub(crate) fn is_of_the_simulator(&self) -> bool {
        self.scenario.extension().is_some_and(|extension| extension == "json")
    }

    /// The gateway that is not started here.
    pub(crate) fn gateway_url(&self) -> &str {
        self.url.as_deref().unwrap_or("http://127.0.0.1:8080")
    }

    /// What is wrong with the flags for this kind of scenario.
    pub(super) fn misplaced(&self) -> Option<String> {
        let scaled = &self.scaled;
        let (wrong, kind) = if self.is_of_the_simulator() {
            let flags = [
                ("--url", self.url.is_some()),
                ("--admin", self.admin.is_some()),
                ("--control", self.control.is_some()),
                ("--any-answer", self.any_answer),
                ("--clients", self.clients.is_some()),
                ("--seed", self.seed.is_some()),
            ];
            let why =
                "a scenario of the simulator (.json), which brings its phones and its gateway; its runs are --seeds";
            (flags.to_vec(), why)
        } else {
            let flags = [
                ("--speedup", scaled.speedup.is_some()),
                ("--seeds", !scaled.seeds.is_empty()),
                ("--policy", scaled.policy.is_some()),
                ("--within", scaled.within.is_some()),
                ("--batch-api", scaled.batch_api),
            ];
            (flags.to_vec(), "a TOML scenario: it is for those of the simulator, such as scenarios/sim/*.json")
        };
        let child = self.huntgroup.is_some() || self.gateway_log.is_some();
        if child && !self.own && !self.is_of_the_simulator() {
            return Some("--huntgroup and --gateway-log are about the gateway that --self starts".to_owned());
        }
        let (flag, _) = wrong.into_iter().find(|(_, given)| *given)?;
        Some(format!("{flag} does not go with {kind}"))
    }

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
    use crate::cli::Cli;
    use clap::Parser as _;

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

    #[test]
    fn flags_go_with_their_kind_of_scenario() {
        let misplaced = |words: &str| {
            let cli =
                Cli::try_parse_from(["loadtest", "live"].into_iter().chain(words.split(' '))).expect("it is read");
            let crate::cli::Command::Live(live) = cli.command else { panic!("another command") };
            live.misplaced()
        };
        assert_eq!(misplaced("a.json --speedup 20 --seeds 0-2 --policy least_busy --within 15% --for 600s"), None);
        assert_eq!(misplaced("a.json --batch-api --speedup 20"), None);
        assert_eq!(misplaced("a.json --self --gateway-log x --huntgroup y --json - --html z"), None);
        assert_eq!(misplaced("a.toml --self --seed 3 --clients 4 --for 10s"), None);
        assert!(misplaced("a.json --seed 3").is_some_and(|why| why.contains("--seed ") && why.contains("--seeds")));
        assert!(misplaced("a.toml --gateway-log x").is_some_and(|why| why.contains("--self")));
        assert!(misplaced("a.toml --batch-api").is_some_and(|why| why.contains("--batch-api")));
        assert!(misplaced("a.toml --within 0.1").is_some_and(|why| why.contains("--within")));
        assert_eq!((share("15%"), share("0.15")), (Ok(0.15), Ok(0.15)));
        assert!(share("-1").is_err() && share("x%").is_err() && speedup("0.5").is_err() && speedup("20") == Ok(20.0));
    }
}
