//! The phones of a scenario, and what happens to them.

use super::table::{Item, Table, as_number, as_text};
use fakephone::{Dialect, Fault, FaultOrder};
use simulation::phone::PhoneSpeed;

/// The phones.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Fleet {
    /// How many times faster than life they are.
    pub(crate) time_scale: f64,
    /// How long the tunnel of a phone without network hangs before it ends a connection, seconds.
    pub(crate) stall_s: f64,
    /// Alike phones.
    pub(crate) groups: Vec<PhoneGroup>,
}

impl Fleet {
    /// Phones in all, spares included.
    pub(crate) fn len(&self) -> usize {
        self.groups.iter().map(|group| group.count).sum()
    }

    /// Group of each phone, in the order in which phones are numbered.
    pub(crate) fn phones(&self) -> impl Iterator<Item = (usize, &PhoneGroup)> {
        self.groups.iter().enumerate().flat_map(|(index, group)| (0..group.count).map(move |_| (index, group)))
    }
}

/// Phones that are alike.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PhoneGroup {
    /// What steps and reports call them.
    pub(crate) name: String,
    /// How many.
    pub(crate) count: usize,
    /// The model they say they serve.
    pub(crate) model: String,
    /// How fast they are, before `time_scale`.
    pub(crate) speed: PhoneSpeed,
    /// By how much they differ: deviation of the logarithm of the speed.
    pub(crate) jitter: f64,
    /// Parallel requests each serves.
    pub(crate) slots: u16,
    /// Context of a slot, tokens.
    pub(crate) context: u32,
    /// The engine they run.
    pub(crate) dialect: Dialect,
    /// Not part of the pool until an operator adds them.
    pub(crate) spare: bool,
}

/// Some of the phones.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Pick {
    /// How many, or which share if it was given in percent.
    pub(crate) amount: Amount,
    /// Only phones of this group.
    pub(crate) group: Option<String>,
}

/// How many.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Amount {
    /// So many.
    Count(usize),
    /// This share, rounded up.
    Share(f64),
}

impl Amount {
    /// Of `all`.
    pub(crate) fn of(self, all: usize) -> usize {
        match self {
            Self::Count(count) => count.min(all),
            Self::Share(share) => ((share * all as f64).ceil() as usize).min(all),
        }
    }
}

/// Something that happens to the fleet.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StepAt {
    /// When, seconds from the start.
    pub(crate) at_s: f64,
    /// What.
    pub(crate) step: Step,
}

/// What can happen to the fleet.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    /// Phones fail, dealt the ways in turn; after a while they are well again, if a time is given.
    Fail {
        /// Which.
        phones: Pick,
        /// How; `None` is the death of the engine's process.
        ways: Vec<Option<FaultOrder>>,
        /// For how long, seconds.
        for_s: Option<f64>,
    },
    /// All phones that failed are well again.
    Heal,
    /// The relay is away.
    RelayDown {
        /// For how long, seconds.
        for_s: f64,
    },
    /// The operator takes phones out of service gently.
    Drain(Pick),
    /// The operator puts drained phones back.
    Undrain,
    /// The operator adds spare phones.
    Add(Pick),
    /// The operator removes phones, after a drain.
    Remove(Pick),
}

/// The situations in which a phone behind its tunnel is lost, one fault for each.
const EVERY_WAY: [Fault; 5] =
    [Fault::UnknownId, Fault::TlsStall, Fault::AppClosed, Fault::EverySecondStalls, Fault::Refuse];

pub(super) fn read_fleet(table: Table<'_>) -> Fleet {
    table.demand("phones");
    let fleet = Fleet {
        time_scale: table.number("time_scale", 0.01..=10_000.0).unwrap_or(1.0),
        stall_s: table.seconds("stall").unwrap_or(30.0),
        groups: table.tables("phones").into_iter().map(read_group).collect(),
    };
    table.close();
    fleet
}

fn read_group(table: Table<'_>) -> PhoneGroup {
    for key in ["name", "count", "model", "speed"] {
        table.demand(key);
    }
    let speed = table.text("speed").and_then(|text| match text.parse::<PhoneSpeed>() {
        Ok(speed) => Some(speed),
        Err(error) => {
            table.wrong_at("speed", error);
            None
        }
    });
    let dialect = table.text("dialect").map_or(Some(Dialect::Llama), |text| match text.parse() {
        Ok(dialect) => Some(dialect),
        Err(error) => {
            table.wrong_at("dialect", error);
            None
        }
    });
    let decode = table.number("decode", 0.001..=1000.0).unwrap_or(1.0);
    let group = PhoneGroup {
        name: table.text("name").unwrap_or_default(),
        count: table.count("count", 1..=5000).unwrap_or(1) as usize,
        model: table.text("model").unwrap_or_default(),
        speed: speed.unwrap_or_else(PhoneSpeed::instant).scaled_by(1.0, decode),
        jitter: table.number("jitter", 0.0..=2.0).unwrap_or(0.0),
        slots: table.count("slots", 1..=64).unwrap_or(1) as u16,
        context: table.count("context", 128..=1_000_000).unwrap_or(16_384) as u32,
        dialect: dialect.unwrap_or(Dialect::Llama),
        spare: table.flag("spare").unwrap_or(false),
    };
    table.close();
    group
}

pub(super) fn read_steps(root: &Table<'_>) -> Vec<StepAt> {
    let mut steps: Vec<StepAt> = root.tables("steps").into_iter().filter_map(read_step).collect();
    steps.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    steps
}

fn read_step(table: Table<'_>) -> Option<StepAt> {
    table.demand("at");
    table.demand("do");
    let at_s = table.seconds("at");
    let what = table.text("do").unwrap_or_default();
    let step = match what.as_str() {
        "fail" => {
            let for_s = table.seconds("for");
            let ways = table.item("ways").map_or_else(|| every_way().collect(), |item| read_ways(&item));
            read_pick(&table).map(|phones| Step::Fail { phones, ways, for_s })
        }
        "heal" => Some(Step::Heal),
        "relay_down" => {
            table.demand("for");
            table.seconds("for").map(|for_s| Step::RelayDown { for_s })
        }
        "drain" => read_pick(&table).map(Step::Drain),
        "undrain" => Some(Step::Undrain),
        "add" => read_pick(&table).map(Step::Add),
        "remove" => read_pick(&table).map(Step::Remove),
        _ => {
            table.wrong_at("do", "expected fail, heal, relay_down, drain, undrain, add or remove");
            return None;
        }
    };
    table.close();
    Some(StepAt { at_s: at_s?, step: step? })
}

/// The death of the engine, and every way of the tunnel.
fn every_way() -> impl Iterator<Item = Option<FaultOrder>> {
    std::iter::once(None).chain(EVERY_WAY.into_iter().map(|fault| Some(fault.into())))
}

/// `phones = 3`, `"30%"` or `"all"`, and `group`.
fn read_pick(table: &Table<'_>) -> Option<Pick> {
    table.demand("phones");
    let group = table.text("group");
    let item = table.item("phones")?;
    let amount = match as_text(item.value) {
        Some("all") => Some(Amount::Share(1.0)),
        Some(text) => {
            let percent = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
            percent.filter(|percent| (0.0..=100.0).contains(percent)).map(|percent| Amount::Share(percent / 100.0))
        }
        None => as_number(item.value).filter(|n| *n >= 1.0 && n.fract() == 0.0).map(|n| Amount::Count(n as usize)),
    };
    if amount.is_none() {
        item.wrong("expected a number of phones, a share such as \"30%\", or \"all\"");
    }
    Some(Pick { amount: amount?, group })
}

/// A list of faults by name (`"tls_stall"`, `"kill"`) or as tables (`{ fault = "cut_after", chunks = 3 }`).
fn read_ways(item: &Item<'_>) -> Vec<Option<FaultOrder>> {
    let mut ways = Vec::new();
    for way in item.items() {
        let text = as_text(way.value);
        if text == Some("kill") {
            ways.push(None);
            continue;
        }
        if text == Some("every way") {
            ways.extend(every_way());
            continue;
        }
        let json = text.map_or_else(|| way.json(), |name| serde_json::json!({ "fault": name }));
        match serde_json::from_value::<FaultOrder>(json) {
            Ok(order) => ways.push(Some(order)),
            Err(error) => way.wrong(format_args!("no fault of a phone: {error}")),
        }
    }
    ways
}
