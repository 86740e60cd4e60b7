//! `huntgroup advice`: how many phones each model of a running gateway should have.

use std::io::{self, Write};

use clap::Args;
use serde_json::Value;

use super::{
    client::{AdminClient, CliError, Common},
    replicas::length,
    table::{Align, Table, cell, print_json, printable},
};

/// Columns of the list.
const COLUMNS: [(&str, Align); 8] = [
    ("MODEL", Align::Left),
    ("PHONES", Align::Right),
    ("SLOTS", Align::Right),
    ("WANTED", Align::Right),
    ("CHANGE", Align::Right),
    ("VERDICT", Align::Left),
    ("IN TIME", Align::Left),
    ("SURE", Align::Left),
];

/// Flags of `huntgroup advice`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  huntgroup advice
  huntgroup advice --model qwen3.5-9b
  huntgroup advice --json

WANTED: phones that there should be, of the kinds that there are, for all that [capacity] of the
configuration promises. IN TIME: the share of the requests of the window whose first token came
in time. SURE: good, low (few requests) or none (too few to say anything). The sentences below
the table say why.")]
pub struct AdviceArgs {
    /// Only this model
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    #[command(flatten)]
    common: Common,
}

/// Runs the command.
///
/// # Errors
/// The gateway can't be reached, or refuses.
pub async fn run(args: AdviceArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let mut answer = AdminClient::from_args(&args.common.admin)?.get("/admin/advice").await?;
    if let (Some(model), Some(data)) = (&args.model, answer["data"].as_array_mut()) {
        data.retain(|one| one["model"] == **model);
    }
    if args.common.json {
        print_json(out, &answer)?
    } else {
        write(&answer, args.model.as_deref(), out)?
    }
    Ok(())
}

fn write(answer: &Value, model: Option<&str>, out: &mut dyn Write) -> io::Result<()> {
    let models = answer["data"].as_array().map_or(&[][..], Vec::as_slice);
    if models.is_empty() {
        return match (model, answer["at"].is_null()) {
            (_, true) => writeln!(out, "The gateway has not looked yet: it does so within a minute of its start."),
            (Some(model), _) => writeln!(out, "No model {}: see GET /v1/models.", printable(model)),
            (None, _) => writeln!(out, "No model is known yet."),
        };
    }
    let mut table = Table::new(&COLUMNS);
    for one in models {
        table.row([
            cell(one, "model"),
            cell(&one["now"], "phones"),
            cell(&one["now"], "slots"),
            cell(one, "wanted"),
            change(one),
            cell(one, "verdict"),
            in_time(one),
            cell(one, "confidence"),
        ]);
    }
    table.write(out)?;
    writeln!(out, "\n{}", looked(answer))?;
    for one in models {
        writeln!(out, "\n{}", cell(one, "model"))?;
        for reason in one["reasons"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            writeln!(out, "  {}", printable(reason))?;
        }
    }
    Ok(())
}

/// `Worked out 12s ago, from the requests of the last 1h00m.`
fn looked(answer: &Value) -> String {
    let [age, window] = ["age_s", "window_s"].map(|key| length(answer[key].as_f64().unwrap_or(0.0)));
    format!("Worked out {age} ago, from the requests of the last {window}; phones are counted now.")
}

fn change(one: &Value) -> String {
    one["change"].as_i64().map_or("-".into(), |change| if change == 0 { "0".into() } else { format!("{change:+}") })
}

/// `interactive 87 % of 95 %, standard 99 % of 95 %`.
fn in_time(one: &Value) -> String {
    let classes = one["classes"].as_array().into_iter().flatten();
    let shares = classes.filter_map(|class| {
        let (attained, promised) = (class["attained"].as_f64()?, class["objective"]["share"].as_f64()?);
        Some(format!("{} {:.0} % of {:.0} %", cell(class, "class"), 100.0 * attained, 100.0 * promised))
    });
    let shares: Vec<String> = shares.collect();
    if shares.is_empty() { "-".into() } else { shares.join(", ") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn written(answer: &Value, model: Option<&str>) -> String {
        let mut out = Vec::new();
        write(answer, model, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn it_shows_what_is_wanted_and_why() {
        let class = |class: &str, attained| json!({"class": class, "attained": attained, "objective": {"ttft_s": 2.0, "share": 0.95}});
        let one = json!({
            "model": "small", "verdict": "more", "confidence": "good", "now": {"phones": 3, "slots": 6}, "wanted": 5, "change": 2,
            "classes": [class("interactive", 0.871), class("standard", 1.0), {"class": "batch", "attained": null, "objective": null}],
            "reasons": ["5 phones like these are needed\u{1b}[2J."],
        });
        let text = written(&json!({"at": 7, "age_s": 75, "window_s": 3600.0, "data": [one]}), None);
        let row: Vec<&str> = text.lines().nth(1).unwrap_or_default().split_whitespace().collect();
        assert_eq!(row[..6], ["small", "3", "6", "5", "+2", "more"], "{text}");
        assert!(text.contains("Worked out 1m15s ago, from the requests of the last 1h00m;"), "{text}");
        assert!(text.contains("interactive 87 % of 95 %, standard 100 % of 95 %"), "{text}");
        assert!(text.contains("\n  5 phones like these are needed\\u{1b}[2J.\n"), "{text}");
    }

    #[test]
    fn it_says_why_there_is_nothing_to_show() {
        assert!(written(&json!({"at": null, "data": []}), None).starts_with("The gateway has not looked yet"));
        assert_eq!(written(&json!({"at": 7, "data": []}), None), "No model is known yet.\n");
        assert_eq!(written(&json!({"at": 7, "data": []}), Some("huge")), "No model huge: see GET /v1/models.\n");
    }

    #[test]
    fn what_can_not_be_said_is_a_dash() {
        let one = json!({"model": "small", "verdict": "unknown", "confidence": "none", "now": {"phones": 1, "slots": 1},
            "wanted": null, "change": null, "classes": [], "reasons": ["Too little traffic yet."]});
        let text = written(&json!({"at": 7, "data": [one]}), None);
        let row: Vec<&str> = text.lines().nth(1).unwrap_or_default().split_whitespace().collect();
        assert_eq!(row, ["small", "1", "1", "-", "-", "unknown", "-", "none"]);
    }
}
