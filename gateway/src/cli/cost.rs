//! `huntgroup cost`: what the pool of a running gateway has cost, and what for.

use std::io::{self, Write};

use clap::{Args, ValueEnum};
use serde_json::Value;

use super::{
    client::{AdminClient, CliError, Common},
    replicas::length,
    show::moment,
    table::{Align, Table, cell, print_json, printable},
};
use crate::telemetry::OTHER;

/// Flags of `huntgroup cost`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  huntgroup cost
  huntgroup cost --window 1h
  huntgroup cost --window all --json

USED: slot time of answers. WASTED: of attempts that brought no whole answer. IDLE: what no slot
took. TOTAL is what the replicas cost, used or not. All of it by the prices that they state; what
has no price is counted nowhere, and said below. A - is not known.")]
pub struct CostArgs {
    /// Of the last hour, the last day, or since the gateway was started
    #[arg(long, value_enum, default_value_t = Window::Day)]
    window: Window,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Window {
    #[value(name = "1h")]
    Hour,
    #[value(name = "24h")]
    Day,
    All,
}

impl Window {
    const fn name(self) -> &'static str {
        match self {
            Self::Hour => "1h",
            Self::Day => "24h",
            Self::All => "all",
        }
    }
}

/// Runs the command.
///
/// # Errors
/// The gateway can't be reached, or refuses.
pub async fn run(args: CostArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let client = AdminClient::from_args(&args.common.admin)?;
    let cost = client.get(&format!("/admin/cost?window={}", args.window.name())).await?;
    if args.common.json {
        print_json(out, &cost)?;
    } else {
        write(&cost, out)?;
    }
    Ok(())
}

fn write(cost: &Value, out: &mut dyn Write) -> io::Result<()> {
    let (from, to) = (cost["from"].as_f64().unwrap_or_default(), cost["to"].as_f64().unwrap_or_default());
    let time = format!("Since {} ({})", moment(&cost["from"]), length(to - from));
    if cost["total"].is_null() {
        writeln!(out, "{time}: no replica in the pool has a price that counts.")?;
    } else {
        writeln!(out, "{time}: {} ACU, of which", amount(&cost["total"]))?;
        for (what, remark) in [("used", String::new()), ("wasted", reasons(cost)), ("idle", away(cost))] {
            let line = format!("  {what:<6} {:>8}  {:>6}  {remark}", amount(&cost[what]), share(cost, what));
            writeln!(out, "{}", line.trim_end())?;
        }
        let (each, tokens) = (&cost["per_request"], &cost["per_million_tokens"]);
        let (answers, all) = (cell(cost, "requests"), amount(&each["total"]));
        writeln!(out, "{answers} whole answers: {all} ACU each, {} of it slot time", amount(&each["slots"]))?;
        writeln!(
            out,
            "a million tokens: {} ACU, {} of it slot time ({} to read, {} to write)",
            amount(&tokens["total"]),
            amount(&tokens["slots"]),
            amount(&tokens["prompt"]),
            amount(&tokens["completion"]),
        )?;
    }
    for (title, list) in [("MODEL", "models"), ("TENANT", "tenants"), ("DEPLOYMENT", "deployments")] {
        let rows: Vec<&Value> = cost[list].as_array().into_iter().flatten().filter(|row| is_told(row)).collect();
        if !rows.is_empty() {
            writeln!(out)?;
            table(title, &rows).write(out)?;
        }
    }
    let notes = notes(cost);
    if !notes.is_empty() {
        writeln!(out)?;
    }
    notes.iter().try_for_each(|note| writeln!(out, "{note}"))
}

/// Whether a row has anything to say: what belongs to nobody is summed up in one that mostly has not.
fn is_told(row: &Value) -> bool {
    let amounts = ["total", "used", "wasted", "idle", "requests", "prompt_tokens", "completion_tokens"];
    row["name"] != OTHER || amounts.iter().any(|field| row[*field].as_f64().is_some_and(|amount| amount != 0.0))
}

fn table(title: &'static str, rows: &[&Value]) -> Table {
    // Tenants keep no replicas.
    let keeps = title != "TENANT";
    let mut columns = vec![(title, Align::Left)];
    columns.extend(keeps.then_some(("TOTAL", Align::Right)));
    columns.extend([("USED", Align::Right), ("WASTED", Align::Right)]);
    columns.extend(keeps.then_some(("IDLE", Align::Right)));
    let answers = ["ANSWERS", "PROMPT", "WRITTEN", "ACU/ANSWER", "ACU/MTOKEN"];
    columns.extend(answers.map(|name| (name, Align::Right)));
    let mut table = Table::new(&columns);
    let kind = if keeps { "total" } else { "slots" };
    for row in rows {
        let mut cells = vec![cell(row, "name")];
        cells.extend(keeps.then(|| amount(&row["total"])));
        cells.extend([amount(&row["used"]), amount(&row["wasted"])]);
        cells.extend(keeps.then(|| amount(&row["idle"])));
        cells.extend(["requests", "prompt_tokens", "completion_tokens"].map(|field| cell(row, field)));
        cells.extend(["per_request", "per_million_tokens"].map(|field| amount(&row[field][kind])));
        table.row(cells);
    }
    table
}

/// What has to be known to read the numbers.
fn notes(cost: &Value) -> Vec<String> {
    let mut notes = Vec::new();
    let replicas = &cost["replicas"];
    let number = |field: &str| replicas[field].as_u64().unwrap_or_default();
    if number("priced") > 0 {
        let now = format!("The pool costs {} ACU a day now", amount(&cost["per_day"]));
        notes.push(format!("{now}: {} with a price.", count(number("priced"), "replica")));
    }
    if number("unpriced") > 0 {
        let who = count(number("unpriced"), "replica");
        let has = if number("unpriced") == 1 { "has" } else { "have" };
        let what =
            if cost["total"].is_null() { "nothing can be said of costs" } else { "what that costs is in no number" };
        notes.push(format!(
            "{who} {has} no price that counts: {what}. Say it: huntgroup replicas patch NAME --cost-acu-per-day ACU"
        ));
    }
    let (priced, unpriced) = (cost["slot_seconds"].as_f64(), cost["unpriced_slot_seconds"].as_f64());
    let mixed = |(priced, unpriced): &(f64, f64)| *priced > 0.0 && *unpriced > 0.0;
    if let Some((priced, unpriced)) = priced.zip(unpriced).filter(mixed) {
        let share = 100.0 * unpriced / (priced + unpriced);
        notes.push(format!(
            "{share:.1} % of the slot time was on replicas without a price: costs per answer are too low."
        ));
    }
    if cost["from"].as_f64().is_some_and(|from| cost["counted_since"].as_f64().is_some_and(|since| from - since < 1.0))
    {
        notes.push("This is all that the gateway has counted: the books begin anew with its start.".to_owned());
    }
    notes
}

fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

fn reasons(cost: &Value) -> String {
    let mut reasons: Vec<(&String, f64)> = cost["wasted_by_reason"]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(reason, cost)| Some((reason, cost.as_f64()?)))
        .collect();
    reasons.sort_by(|a, b| b.1.total_cmp(&a.1));
    let words = reasons.iter().map(|(reason, cost)| format!("{} {}", printable(reason), digits(*cost)));
    words.collect::<Vec<_>>().join(", ")
}

fn away(cost: &Value) -> String {
    let away = cost["idle_away"].as_f64().filter(|away| *away > 0.0);
    away.map(|away| format!("{} of it while replicas took no work", digits(away))).unwrap_or_default()
}

fn share(cost: &Value, part: &str) -> String {
    let of = cost[part].as_f64().zip(cost["total"].as_f64()).filter(|(_, total)| *total > 0.0);
    of.map_or_else(|| "-".to_owned(), |(part, total)| format!("{:.1} %", 100.0 * part / total))
}

fn amount(value: &Value) -> String {
    value.as_f64().map_or_else(|| "-".to_owned(), digits)
}

/// As many decimals as make three digits, and no more than six.
pub(super) fn digits(number: f64) -> String {
    let decimals = match number.abs() {
        0.0 => 0,
        size => (2.0 - size.log10().floor()).clamp(0.0, 6.0) as usize,
    };
    format!("{number:.decimals$}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn written(cost: &Value) -> String {
        let mut out = Vec::new();
        write(cost, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn amounts() -> Value {
        json!({
            "object": "cost", "window": "24h", "from": 60.0, "to": 3720.0, "counted_since": 60.0, "unit": "ACU",
            "replicas": {"priced": 1, "unpriced": 2}, "per_day": 0.5,
            "total": 0.0212, "used": 0.0112, "wasted": 0.0012, "idle": 0.0088, "idle_away": 0.001,
            "wasted_by_reason": {"cut": 0.0002, "client_gone": 0.001},
            "slot_seconds": 900.0, "unpriced_slot_seconds": 100.0,
            "requests": 40, "prompt_tokens": 30_000, "completion_tokens": 4000,
            "per_request": {"slots": 0.00031, "total": 0.00053},
            "per_million_tokens": {"prompt": 0.31, "completion": null, "slots": 0.36, "total": 0.62},
            "models": [], "tenants": [], "deployments": [],
        })
    }

    #[test]
    fn costs_are_shown_with_what_has_to_be_known_to_read_them() {
        let mut cost = amounts();
        let mut row = amounts();
        row["name"] = json!("small\u{1b}");
        // Nothing belongs to nobody: no row of zeroes is shown for it.
        let none = json!({"name": "other", "total": 0.0, "used": null, "wasted": 0.0, "idle": 0.0, "requests": 0, "prompt_tokens": 0, "completion_tokens": 0});
        cost["models"] = json!([row, none]);
        row["name"] = json!("backend");
        (row["total"], row["idle"]) = (Value::Null, Value::Null);
        cost["tenants"] = json!([row]);
        let expected = "\
Since 1970-01-01T00:01:00Z (1h01m): 0.0212 ACU, of which
  used     0.0112  52.8 %
  wasted  0.00120   5.7 %  client_gone 0.00100, cut 0.000200
  idle    0.00880  41.5 %  0.00100 of it while replicas took no work
40 whole answers: 0.000530 ACU each, 0.000310 of it slot time
a million tokens: 0.620 ACU, 0.360 of it slot time (0.310 to read, - to write)

MODEL         TOTAL    USED   WASTED     IDLE  ANSWERS  PROMPT  WRITTEN  ACU/ANSWER  ACU/MTOKEN
small\\u{1b}  0.0212  0.0112  0.00120  0.00880       40   30000     4000    0.000530       0.620

TENANT     USED   WASTED  ANSWERS  PROMPT  WRITTEN  ACU/ANSWER  ACU/MTOKEN
backend  0.0112  0.00120       40   30000     4000    0.000310       0.360

The pool costs 0.500 ACU a day now: 1 replica with a price.
2 replicas have no price that counts: what that costs is in no number. Say it: huntgroup replicas patch NAME --cost-acu-per-day ACU
10.0 % of the slot time was on replicas without a price: costs per answer are too low.
This is all that the gateway has counted: the books begin anew with its start.
";
        assert_eq!(written(&cost), expected);
    }

    #[test]
    fn a_pool_without_prices_is_not_said_to_cost_nothing() {
        let mut cost = amounts();
        cost["replicas"] = json!({"priced": 0, "unpriced": 3});
        for field in ["total", "used", "wasted", "idle", "idle_away", "per_day"] {
            cost[field] = Value::Null;
        }
        (cost["from"], cost["slot_seconds"]) = (json!(90.0), json!(0.0));
        let text = written(&cost);
        assert!(
            text.starts_with("Since 1970-01-01T00:01:30Z (1h00m): no replica in the pool has a price that counts.\n"),
            "{text}"
        );
        assert!(!text.contains("ACU, of which"), "{text}");
        // How to state a price is said once, and that numbers are too low only where there are any.
        let how = "3 replicas have no price that counts: nothing can be said of costs. Say it: huntgroup replicas patch NAME --cost-acu-per-day ACU";
        assert_eq!((text.matches("price").count(), text.contains(how)), (2, true), "{text}");
        assert!(!text.contains("begin anew"), "{text}");
    }

    #[test]
    fn numbers_have_three_digits() {
        for (number, text) in
            [(0.0, "0"), (1234.56, "1235"), (12.345, "12.3"), (0.5, "0.500"), (0.000_012_34, "0.000012")]
        {
            assert_eq!(digits(number), text);
        }
    }
}
