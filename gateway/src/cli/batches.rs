//! `huntgroup batches`: the tenants' batches of a running gateway.

use std::{
    io::{self, IsTerminal as _, Write},
    time::Duration,
};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{
    batch::{self, Screen},
    client::{AdminClient, CliError, Common, escaped},
    table::{Align, Table, cell, print_json},
};
use crate::clock;

/// Between two looks while watching.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Looks in a row that may fail while watching: a gateway is restarted within a minute.
const MAX_FAILED_LOOKS: u32 = 60;
/// Columns of a bar in the list: as many as fit, within these; where there is no terminal the first.
const BARS: std::ops::RangeInclusive<usize> = 10..=24;
/// Most batches of one list.
const MAX_LISTED: u16 = 999;
/// Columns of the list.
const COLUMNS: [(&str, Align); 12] = [
    ("ID", Align::Left),
    ("TENANT", Align::Left),
    ("MODEL", Align::Left),
    ("STATE", Align::Left),
    ("PROGRESS", Align::Left),
    ("DONE", Align::Right),
    ("FAILED", Align::Right),
    ("LINES/S", Align::Right),
    ("LEFT", Align::Right),
    ("DONE AT", Align::Left),
    ("EXPIRES", Align::Right),
    ("NOTE", Align::Left),
];
/// Those that a narrow terminal does without, the first of them first.
const SPARED: [&str; 6] = ["NOTE", "LINES/S", "FAILED", "MODEL", "DONE AT", "TENANT"];

/// Flags of `huntgroup batches`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  huntgroup batches list
  huntgroup batches list --all --tenant backend
  huntgroup batches show batch_8f3k2n5q --watch
  huntgroup batches cancel batch_8f3k2n5q

Tenants make batches themselves, with the OpenAI Files and Batch API.")]
pub struct BatchesArgs {
    #[command(subcommand)]
    command: BatchesCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum BatchesCommand {
    /// List the batches that have not ended: how far each is, and when it will be done
    List(ListArgs),
    /// Show everything about one batch
    Show(ShowArgs),
    /// End a batch; what has results by now is kept for its tenant
    Cancel(CancelArgs),
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  huntgroup batches list
  huntgroup batches list --all --tenant backend
  huntgroup batches list --json

DONE: lines with results, of all. FAILED: those of them in the error file. LINES/S: over the last
minutes. LEFT: at that pace, or at the replicas' measured speeds; what nobody can say is unknown.
DONE AT: the clock time of that, in UTC. EXPIRES: its time is over then. A ! marks a batch that
will not make it.")]
struct ListArgs {
    /// Those that have ended too
    #[arg(long)]
    all: bool,
    /// Only this tenant's
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// At most so many, the newest
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_LISTED)))]
    limit: u16,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  huntgroup batches show batch_8f3k2n5q
  huntgroup batches show batch_8f3k2n5q --watch && echo done
  huntgroup batches show batch_8f3k2n5q --json

With --watch it exits with 0 when the batch is completed, and with 1 when it failed, expired or
was cancelled. Where the output is no terminal it prints a line for each change.")]
struct ShowArgs {
    /// batch_…
    batch: String,
    /// Look again each second, until it has ended
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  huntgroup batches cancel batch_8f3k2n5q
  huntgroup batches cancel batch_8f3k2n5q --yes")]
struct CancelArgs {
    /// batch_…
    batch: String,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    common: Common,
}

/// Runs a command. Results go to `out`, remarks to `err`. What to exit with.
///
/// # Errors
/// The gateway can't be reached, or refuses.
pub async fn run(args: BatchesArgs, out: &mut dyn Write, err: &mut dyn Write) -> Result<u8, CliError> {
    let client = |common: &Common| AdminClient::from_args(&common.admin);
    let screen = Screen::stdout();
    match args.command {
        BatchesCommand::List(args) => list(&client(&args.common)?, &args, screen, now(), out).await.map(|()| 0),
        BatchesCommand::Show(args) if args.watch => {
            watch(&client(&args.common)?, &args, screen, LOOK_EVERY, out, err).await
        }
        BatchesCommand::Show(args) => {
            let shown = client(&args.common)?.get(&path(&args.batch, "")).await?;
            if args.common.json {
                print_json(out, &shown)?
            } else {
                batch::write(&shown, screen, now(), out)?
            }
            Ok(0)
        }
        BatchesCommand::Cancel(args) => {
            let client = client(&args.common)?;
            if !args.yes && !is_wanted(&client, &args, err).await? {
                writeln!(err, "Nothing was changed.")?;
                return Ok(1);
            }
            cancel(&client, &args, out).await.map(|()| 0)
        }
    }
}

fn now() -> u64 {
    clock::unix().as_secs()
}

fn path(batch: &str, action: &str) -> String {
    format!("/admin/batches/{}{action}", escaped(batch))
}

async fn list(
    client: &AdminClient,
    args: &ListArgs,
    screen: Screen,
    now: u64,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    let state = if args.all { "all" } else { "open" };
    let tenant = args.tenant.as_deref().map(|tenant| format!("&tenant={}", escaped(tenant))).unwrap_or_default();
    let answer = client.get(&format!("/admin/batches?state={state}&limit={}{tenant}", args.limit)).await?;
    let batches = answer["data"].as_array().cloned().unwrap_or_default();
    if args.common.json {
        return Ok(print_json(out, &json!({ "object": "list", "data": batches }))?);
    }
    if batches.is_empty() {
        let what = if args.all { "No batches." } else { "No batch is open. Those that have ended: --all" };
        writeln!(out, "{what}")?;
        return Ok(());
    }
    out.write_all(fitted(&batches, screen, now)?.as_bytes())?;
    if answer["has_more"] == true {
        writeln!(out, "There are more: see --limit (at most {MAX_LISTED}) and --tenant.")?;
    } else if batches.len() > 1 {
        writeln!(out, "{}", summary(&batches))?;
    }
    Ok(())
}

/// The table as the terminal has room for it: columns are left out until the rest fits, and the bar takes what is over.
fn fitted(batches: &[Value], screen: Screen, now: u64) -> io::Result<String> {
    let widest = |text: &str| text.lines().map(|line| line.chars().count()).max().unwrap_or_default();
    let (least, most, room) = (*BARS.start(), *BARS.end(), screen.width.unwrap_or(usize::MAX));
    let mut without = 0;
    let mut text = written(batches, screen, least, now, &[])?;
    while widest(&text) > room && without < SPARED.len() {
        without += 1;
        text = written(batches, screen, least, now, &SPARED[..without])?;
    }
    let over = screen.width.map_or(0, |width| width.saturating_sub(widest(&text)));
    if over > 0 {
        text = written(batches, screen, (least + over).min(most), now, &SPARED[..without])?;
    }
    if without > 0 {
        // What no column has room for stands below.
        let noted = batches.iter().map(|one| (cell(one, "id"), batch::note(one, now)));
        text.extend(noted.filter(|(_, note)| !note.is_empty()).map(|(id, note)| format!("{id}: {note}\n")));
    }
    Ok(text)
}

fn written(batches: &[Value], screen: Screen, bar: usize, now: u64, without: &[&str]) -> io::Result<String> {
    let shown = |column: &usize| !without.contains(&COLUMNS[*column].0);
    let columns: Vec<usize> = (0..COLUMNS.len()).filter(shown).collect();
    let mut table = Table::new(&columns.iter().map(|column| COLUMNS[*column]).collect::<Vec<_>>());
    for one in batches {
        let cells = [
            cell(one, "id"),
            cell(one, "tenant"),
            cell(one, "model"),
            cell(one, "status"),
            screen.bar(batch::share(one), bar),
            batch::counted(one),
            cell(&one["request_counts"], "failed"),
            batch::rate(one),
            batch::left(one),
            batch::end(one, now),
            batch::expires(one, now),
            batch::note(one, now),
        ];
        table.row(columns.iter().map(|column| cells[*column].clone()));
    }
    let mut text = Vec::new();
    table.write(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// `3 batches: 2 in_progress, 1 validating; 81000 lines to go`.
fn summary(batches: &[Value]) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for state in batches.iter().filter_map(|one| one["status"].as_str()) {
        match counts.iter_mut().find(|(known, _)| *known == state) {
            Some((_, count)) => *count += 1,
            None => counts.push((state, 1)),
        }
    }
    let open = batches.iter().filter(|one| !batch::has_ended(one));
    let to_go: u64 = open.map(|one| batch::total(one).saturating_sub(batch::done(one))).sum();
    let counts: Vec<String> = counts.into_iter().map(|(state, count)| format!("{count} {state}")).collect();
    format!("{} batches: {}; {to_go} lines to go", batches.len(), counts.join(", "))
}

/// Shows a batch until it has ended: drawn over and over on a terminal, elsewhere a line for each change.
async fn watch(
    client: &AdminClient,
    args: &ShowArgs,
    screen: Screen,
    look_every: Duration,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<u8, CliError> {
    let path = path(&args.batch, "");
    let (mut drawn, mut last, mut failed) = (0, String::new(), 0);
    loop {
        match client.get(&path).await {
            Ok(shown) => {
                failed = 0;
                if args.common.json {
                    print_change(&shown.to_string(), &mut last, out)?;
                } else if screen.can_draw {
                    drawn = redraw(&shown, screen, drawn, out)?;
                } else {
                    print_change(&batch::line(&shown, now()), &mut last, out)?;
                }
                if batch::has_ended(&shown) {
                    return Ok(u8::from(shown["status"] != "completed"));
                }
            }
            Err(error @ (CliError::Unreachable { .. } | CliError::Slow)) if failed < MAX_FAILED_LOOKS => {
                if failed == 0 {
                    writeln!(err, "{error}; looking again")?;
                    drawn = 0;
                }
                failed += 1;
            }
            Err(error) => return Err(error),
        }
        tokio::time::sleep(look_every).await;
    }
}

fn print_change(text: &str, last: &mut String, out: &mut dyn Write) -> io::Result<()> {
    if text != last {
        writeln!(out, "{text}")?;
        out.flush()?;
        text.clone_into(last);
    }
    Ok(())
}

/// Draws over the `drawn` lines of the last time. Lines are cut at the terminal's edge: what wraps would be two. How many
/// lines there are now.
fn redraw(shown: &Value, screen: Screen, drawn: usize, out: &mut dyn Write) -> io::Result<usize> {
    let mut text = Vec::new();
    batch::write(shown, screen, now(), &mut text)?;
    let text = String::from_utf8_lossy(&text);
    if drawn > 0 {
        // Up to the first of them, and everything from there on away.
        write!(out, "\x1b[{drawn}F\x1b[J")?;
    }
    let width = screen.width.unwrap_or(usize::MAX);
    for line in text.lines() {
        writeln!(out, "{}", line.chars().take(width).collect::<String>())?;
    }
    out.flush()?;
    Ok(text.lines().count())
}

/// Asks the operator, who has to be there.
async fn is_wanted(client: &AdminClient, args: &CancelArgs, err: &mut dyn Write) -> Result<bool, CliError> {
    if !io::stdin().is_terminal() {
        return Err(CliError::Usage("nobody is there to be asked: say --yes".into()));
    }
    let shown = client.get(&path(&args.batch, "")).await?;
    let [id, tenant] = ["id", "tenant"].map(|field| cell(&shown, field));
    let (done, total) = (batch::done(&shown), batch::total(&shown));
    write!(err, "{id} of tenant {tenant}: {done} of {total} lines have results and are kept. Cancel it? [y/N] ")?;
    err.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(is_yes(&answer))
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

async fn cancel(client: &AdminClient, args: &CancelArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let ended = client.post(&path(&args.batch, "/cancel"), &json!({})).await?;
    if args.common.json {
        return Ok(print_json(out, &ended)?);
    }
    let [id, state] = ["id", "status"].map(|field| cell(&ended, field));
    let (done, total) = (batch::done(&ended), batch::total(&ended));
    writeln!(out, "{id} is {state}: {done} of {total} lines have results, which its tenant gets.")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::{
        super::{
            batch::tests::{NOW, PLAIN, batch, with},
            client::tests::OneAnswer,
        },
        *,
    };

    #[derive(clap::Parser)]
    struct Shell {
        #[command(flatten)]
        batches: BatchesArgs,
    }

    fn parse(words: &[&str]) -> Result<BatchesCommand, clap::Error> {
        Shell::try_parse_from([&["batches"], words].concat()).map(|shell| shell.batches.command)
    }

    async fn listed(words: &[&str], screen: Screen, batches: &[Value]) -> (String, String) {
        let answer = json!({ "object": "list", "data": batches, "has_more": false }).to_string();
        let gateway = OneAnswer::new(&[("200 OK", &answer)]);
        let BatchesCommand::List(args) = parse(words).unwrap() else { panic!("list") };
        let mut out = Vec::new();
        list(&gateway.client, &args, screen, NOW, &mut out).await.unwrap();
        (String::from_utf8(out).unwrap(), gateway.asked().remove(0))
    }

    #[tokio::test]
    async fn batches_are_listed_with_how_far_they_are_and_whether_they_will_make_it() {
        let late = with(&[("/id", json!("batch_b")), ("/progress/seconds_left", json!(90_000))]);
        let waiting = with(&[
            ("/id", json!("batch_c")),
            ("/progress/waiting_for", json!("replica")),
            ("/progress/lines_per_second", Value::Null),
        ]);
        let expected = "\
ID       TENANT  MODEL  STATE        PROGRESS        DONE  FAILED  LINES/S                 LEFT  DONE AT       EXPIRES  NOTE
batch_a  bank    tiny   in_progress  #####-----  500/1000      10     0.14                1h00m  13:00Z         23h00m
batch_b  bank    tiny   in_progress  #####-----  500/1000      10     0.14                1d01h  12-01 13:00Z   23h00m  ! will not make it, 2h00m short
batch_c  bank    tiny   in_progress  #####-----  500/1000      10        -  waits for a replica  unknown        23h00m
3 batches: 3 in_progress; 1500 lines to go
";
        let (text, asked) = listed(&["list"], PLAIN, &[batch(), late, waiting]).await;
        assert_eq!(text, expected);
        assert!(asked.starts_with("GET /admin/batches?state=open&limit=100 "), "{asked}");
        let (text, asked) = listed(&["list", "--all", "--tenant", "a b", "--limit", "5"], PLAIN, &[]).await;
        assert_eq!(text, "No batches.\n");
        assert!(asked.starts_with("GET /admin/batches?state=all&limit=5&tenant=a%20b "), "{asked}");
        let (text, _) = listed(&["list", "--json"], PLAIN, &[batch()]).await;
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["data"][0], batch());
    }

    #[tokio::test]
    async fn a_bar_takes_what_the_terminal_has_to_spare() {
        let at = async |width| {
            let (text, _) = listed(&["list"], Screen { width: Some(width), can_draw: true }, &[batch()]).await;
            let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
            (text.chars().filter(|letter| "▇▁".contains(*letter)).count(), widest)
        };
        let (_, most) = at(1_000).await;
        assert_eq!(at(1_000).await.0, 24);
        assert_eq!(at(most - 12).await, (12, most - 12));
    }

    #[tokio::test]
    async fn a_narrow_terminal_gets_the_columns_that_fit_and_notes_below() {
        let late = with(&[("/progress/seconds_left", json!(90_000))]);
        let expected = "\
ID       TENANT  MODEL  STATE        PROGRESS        DONE   LEFT  DONE AT       EXPIRES
batch_a  bank    tiny   in_progress  #####-----  500/1000  1d01h  12-01 13:00Z   23h00m
batch_a: ! will not make it, 2h00m short
";
        let narrow = |width| Screen { width: Some(width), can_draw: false };
        let (text, _) = listed(&["list"], narrow(87), std::slice::from_ref(&late)).await;
        assert_eq!(text, expected);
        let (text, _) = listed(&["list"], narrow(20), &[late]).await;
        assert_eq!(text.lines().next(), Some("ID       STATE        PROGRESS        DONE   LEFT  EXPIRES"));
    }

    #[tokio::test]
    async fn a_watched_batch_is_shown_until_its_end_which_is_the_exit_code() {
        let further = with(&[("/request_counts/completed", json!(600))]).to_string();
        let before = batch().to_string();
        for (end, code) in [("completed", 0), ("expired", 1)] {
            let ended = with(&[("/status", json!(end)), ("/progress", Value::Null)]).to_string();
            let answers = [&before, &before, &further, &ended].map(|body| ("200 OK", body.as_str()));
            let gateway = OneAnswer::new(&answers);
            let BatchesCommand::Show(args) = parse(&["show", "batch_a", "--watch"]).unwrap() else { panic!("show") };
            let (mut out, mut err) = (Vec::new(), Vec::new());
            let exit = watch(&gateway.client, &args, PLAIN, Duration::ZERO, &mut out, &mut err).await.unwrap();
            let text = String::from_utf8(out).unwrap();
            assert_eq!((exit, text.lines().count(), err.as_slice()), (code, 3, &b""[..]), "{text}");
            assert!(text.lines().nth(1).unwrap().starts_with("in_progress, 610/1000, 10 failed"), "{text}");
            assert!(text.lines().nth(2).unwrap().starts_with(&format!("{end}, 500/1000")), "{text}");
            assert!(gateway.asked()[3].starts_with("GET /admin/batches/batch_a "));
        }
    }

    #[tokio::test]
    async fn on_a_terminal_a_watched_batch_is_drawn_over() {
        let ended = with(&[("/status", json!("completed")), ("/progress", Value::Null)]).to_string();
        let gateway = OneAnswer::new(&[("200 OK", &batch().to_string()), ("200 OK", &ended)]);
        let BatchesCommand::Show(args) = parse(&["show", "batch_a", "--watch"]).unwrap() else { panic!("show") };
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let screen = Screen { width: Some(40), can_draw: true };
        watch(&gateway.client, &args, screen, Duration::ZERO, &mut out, &mut err).await.unwrap();
        let text = String::from_utf8(out).unwrap();
        let (first, second) = text.split_once("\x1b[").unwrap();
        let lines = first.lines().count();
        assert!(second.starts_with(&format!("{lines}F\x1b[J")), "{text:?}");
        assert!(first.lines().all(|line| line.chars().count() <= 40) && first.contains('▇'), "{first}");
        gateway.asked();
    }

    #[tokio::test]
    async fn a_cancelled_batch_says_what_its_tenant_gets_and_a_refusal_is_the_gateways_own_words() {
        let refusal = r#"{"error":{"message":"it is completed","type":"invalid_request_error"}}"#;
        let ending = with(&[("/status", json!("cancelling"))]).to_string();
        let gateway = OneAnswer::new(&[("200 OK", &ending), ("409 Conflict", refusal)]);
        let BatchesCommand::Cancel(args) = parse(&["cancel", "batch_a", "--yes"]).unwrap() else { panic!("cancel") };
        let mut out = Vec::new();
        cancel(&gateway.client, &args, &mut out).await.unwrap();
        assert_eq!(out, b"batch_a is cancelling: 500 of 1000 lines have results, which its tenant gets.\n");
        let refused = cancel(&gateway.client, &args, &mut out).await.unwrap_err();
        assert_eq!((refused.to_string().as_str(), refused.exit_code()), ("it is completed", 1));
        assert!(gateway.asked()[0].starts_with("POST /admin/batches/batch_a/cancel "));
        assert!(is_yes("Y\n") && is_yes("yes") && !is_yes("\n") && !is_yes("no"));
    }

    #[test]
    fn wrong_flags_are_refused_before_anything_is_sent() {
        for words in [&["list", "--limit", "0"][..], &["list", "--limit", "1000"], &["show"], &["cancel"], &["frob"]] {
            assert!(parse(words).is_err(), "{words:?}");
        }
    }
}
