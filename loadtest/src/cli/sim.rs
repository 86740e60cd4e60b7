//! The commands in virtual time.

use clap::{Args, builder::StyledStr};
use simulation::play::{Player, UnknownPlayer};
use std::{fmt::Write as _, path::PathBuf, str::FromStr};

const SIM_EXAMPLES: &str = "\
Examples:
  How the gateway's policy serves a scenario, mean over five runs:
    loadtest sim scenarios/sim/dev-review-100-70.json --seeds 0-4

  The same beside what most proxies do and what perfect knowledge would do, for a program to read:
    loadtest sim scenarios/sim/*.json --policy default,least_connections,oracle --seeds 0-4 --json

  Are the figures still what the files say they must be?
    loadtest sim scenarios/sim/*.json --check

Exit codes: 0 played (and, with --check, all within their ranges), 1 not, 64 usage.";

const COMPARE_EXAMPLES: &str = "\
Examples:
  Everyone who can serve it, side by side, as a page with plots:
    loadtest compare scenarios/sim/dev-mixed-100-40.json --seeds 0-4 --html mixed.html

Exit codes: 0 played, 1 not, 64 usage.";

/// What stands under `sim --help`.
pub(super) fn sim_help() -> StyledStr {
    format!("{}\n\n{SIM_EXAMPLES}", players()).into()
}

/// What stands under `compare --help`.
pub(super) fn compare_help() -> StyledStr {
    format!("{}\n\n{COMPARE_EXAMPLES}", players()).into()
}

/// Every player with a line on what it does.
pub(crate) fn players() -> String {
    let width = Player::all().iter().map(|player| player.name().len()).max().unwrap_or(0);
    Player::all().iter().fold("Policies:".to_owned(), |mut text, player| {
        write!(text, "\n  {:width$}  {}", player.name(), player.about()).ok();
        text
    })
}

/// `loadtest sim`.
#[derive(Debug, Args)]
pub(crate) struct Sim {
    /// Scenario files; scenarios/sim/*.json are examples.
    #[arg(value_name = "FILE")]
    pub(crate) scenarios: Vec<PathBuf>,

    /// Who serves them: one or more policies, "all", or "list" to see what there is.
    #[arg(long = "policy", value_name = "NAME", value_delimiter = ',', default_value = "default")]
    pub(crate) policies: Vec<Choice>,

    /// Which runs: 0 is the scenario's own draw, others differ in everything random; 0,2,5 or 0-4.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "0")]
    pub(crate) seeds: Vec<Seeds>,

    /// One JSON object a line for each file and policy, instead of tables.
    #[arg(long)]
    pub(crate) json: bool,

    /// Play what the files' "ranges" name, with the files' seeds, and fail where a figure is outside.
    #[arg(long, conflicts_with_all = ["policies", "seeds", "json"])]
    pub(crate) check: bool,
}

/// `loadtest compare`.
#[derive(Debug, Args)]
pub(crate) struct Compare {
    /// Scenario files; scenarios/sim/*.json are examples.
    #[arg(value_name = "FILE", required = true)]
    pub(crate) scenarios: Vec<PathBuf>,

    /// Who serves them: several policies, or "all".
    #[arg(long, visible_alias = "policy", value_name = "NAMES", value_delimiter = ',', default_value = "all")]
    pub(crate) policies: Vec<Choice>,

    /// Which runs: 0 is the scenario's own draw, others differ in everything random; 0,2,5 or 0-4.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "0")]
    pub(crate) seeds: Vec<Seeds>,

    /// Write a page with plots.
    #[arg(long, value_name = "OUT")]
    pub(crate) html: Option<PathBuf>,

    /// One JSON object a line for each file, instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `loadtest replay`.
#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// The record that a gateway wrote.
    #[arg(value_name = "FILE")]
    pub(crate) record: PathBuf,

    /// One JSON object instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
}

/// One word of `--policy`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Choice {
    /// Show which there are.
    List,
    /// Every one.
    All,
    /// This one.
    One(Player),
}

impl FromStr for Choice {
    type Err = UnknownPlayer;

    fn from_str(word: &str) -> Result<Self, UnknownPlayer> {
        match word {
            "list" => Ok(Self::List),
            "all" => Ok(Self::All),
            name => Player::named(name).map(Self::One),
        }
    }
}

/// The players of the words, each once, in their order.
pub(crate) fn chosen(words: &[Choice]) -> Vec<Player> {
    let mut players: Vec<Player> = Vec::new();
    let named = words.iter().flat_map(|word| match word {
        Choice::List => &[],
        Choice::All => Player::all(),
        Choice::One(player) => std::slice::from_ref(player),
    });
    for player in named {
        if !players.contains(player) {
            players.push(*player);
        }
    }
    players
}

/// Some runs, the first and the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seeds(u64, u64);

/// Most runs of one scenario.
const MOST_SEEDS: u64 = 10_000;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected numbers such as 0,1,2 or a range such as 0-4, of at most {MOST_SEEDS}")]
pub(crate) struct NoSeeds;

impl FromStr for Seeds {
    type Err = NoSeeds;

    fn from_str(word: &str) -> Result<Self, NoSeeds> {
        let number = |text: &str| text.trim().parse::<u64>().map_err(|_| NoSeeds);
        let (first, last) = match word.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(word)?, number(word)?),
        };
        if first > last || last - first >= MOST_SEEDS {
            return Err(NoSeeds);
        }
        Ok(Self(first, last))
    }
}

/// The runs of the words, each once, in their order.
pub(crate) fn runs(words: &[Seeds]) -> Vec<u64> {
    let mut seen = std::collections::BTreeSet::new();
    words.iter().flat_map(|Seeds(first, last)| *first..=*last).filter(|seed| seen.insert(*seed)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_numbers_and_ranges() {
        let read = |text: &str| text.split(',').map(str::parse).collect::<Result<Vec<Seeds>, _>>();
        assert_eq!(read("0-4").map(|words| runs(&words)), Ok(vec![0, 1, 2, 3, 4]));
        assert_eq!(read("7,0-2,1").map(|words| runs(&words)), Ok(vec![7, 0, 1, 2]));
        for wrong in ["", "a", "4-0", "-1", "0-99999999999", "1-2-3"] {
            assert_eq!(read(wrong), Err(NoSeeds), "{wrong:?}");
        }
    }

    #[test]
    fn policies_are_played_once_in_the_order_of_their_names() {
        let named = |text: &str| {
            let words: Result<Vec<Choice>, _> = text.split(',').map(str::parse).collect();
            words.map(|words| chosen(&words).iter().map(Player::name).collect::<Vec<_>>())
        };
        assert_eq!(named("oracle,default,oracle"), Ok(vec!["oracle", "default"]));
        assert_eq!(named("oracle,all").map(|names| names.len()), Ok(Player::all().len()));
        assert_eq!(named("list"), Ok(vec![]));
        assert_eq!(named("fastest"), Err(UnknownPlayer("fastest".to_owned())));
    }

    #[test]
    fn help_names_every_player() {
        let help = sim_help().to_string();
        assert!(Player::all().iter().all(|player| help.contains(player.name()) && help.contains(player.about())));
    }
}
