//! `huntgroup replicas`: the phones of a running gateway.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, IsTerminal as _, Read as _, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, Subcommand};
use scheduler::ReplicaState;
use serde_json::{Map, Value, json};

use super::{
    client::{AdminClient, CliError, Common, escaped},
    show,
    table::{Align, Table, cell, names, print_json, printable},
};
use crate::{
    config::{
        Moment,
        secret::{self, Secret, Sources},
    },
    fleet::Dialect,
};

/// Between two looks while waiting for a drain. 500 ms: an operator watches.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Refused announcements of phones are told of with a list for so many seconds, and of at most so many kinds, the most frequent first.
const REFUSED_LATELY: f64 = 3600.0;
const REFUSED_TOLD: usize = 3;

/// Flags of `huntgroup replicas`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
A replica is named by its number, its name or its URL.

Examples:
  huntgroup replicas list
  huntgroup replicas show 0123456789abcdef
  huntgroup replicas add https://0123456789abcdef.acu.run --slots 2 --label room=4
  huntgroup replicas drain 0123456789abcdef --wait
  huntgroup replicas patch 0123456789abcdef --expires-at 2027-01-31T18:00:00Z
  huntgroup replicas list --json > pool.json && huntgroup replicas import pool.json")]
pub struct ReplicasArgs {
    #[command(subcommand)]
    command: ReplicasCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum ReplicasCommand {
    /// List the replicas
    List(ListArgs),
    /// Show everything about one replica: why it gets no work, how its requests ended, what happened to it
    Show(ShowArgs),
    /// Add a replica; what is not said is found by probing
    Add(AddArgs),
    /// Change what is said about a replica
    Patch(PatchArgs),
    /// Give a replica no new work; what runs there may end
    Drain(DrainArgs),
    /// Give a drained replica work again
    Undrain(UndrainArgs),
    /// Let a replica out of quarantine that has not shown what it can do, after looking at it
    Release(ReleaseArgs),
    /// Remove a replica, drained first
    Remove(RemoveArgs),
    /// Add many: a list made with `replicas list --json`, or by the Laya app's deploy script
    Import(ImportArgs),
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  huntgroup replicas list
  huntgroup replicas list --state out
  huntgroup replicas list --model qwen3.5-4b --json

BUSY: requests that run there, of the slots that are usable now. READ/S, WRITE/S: tokens a second,
measured from traffic; ~: not yet, but stated, measured in quarantine or before a restart, or usual
for its model. GOOD, BAD: whole answers, and failed attempts, since it came up.")]
struct ListArgs {
    /// Only replicas in this state
    #[arg(long, value_name = "STATE", value_parser = ReplicaState::ALL.map(ReplicaState::name))]
    state: Option<String>,
    /// Only replicas of this model
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    #[command(flatten)]
    common: Common,
}

/// What can be said about a replica.
#[derive(Clone, Debug, Default, Args)]
struct StatedArgs {
    /// A name for people and metrics [default: the host's first label]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// A model it serves, or MODEL=NAME-ON-THE-REPLICA; may be given more than once
    #[arg(long = "model", value_name = "MODEL", value_parser = pair)]
    models: Vec<(String, Option<String>)>,
    /// Concurrent requests it takes
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1024))]
    slots: Option<u16>,
    /// Tokens that prompt and answer of one slot must fit
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    context_tokens: Option<u32>,
    /// The key it wants, by reference: env:NAME or file:PATH
    #[arg(long, value_name = "REF")]
    api_key: Option<String>,
    /// The engine
    #[arg(long, value_name = "NAME", value_parser = Dialect::ALL.map(Dialect::name))]
    dialect: Option<String>,
    /// A word for operators; may be given more than once. Of patch: others stay, NAME= takes one away
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = pair)]
    labels: Vec<(String, Option<String>)>,
    /// The end of its deployment, such as 2027-01-31T18:00:00Z
    #[arg(long, value_name = "TIME", value_parser = moment)]
    expires_at: Option<u64>,
    /// What it costs
    #[arg(long, value_name = "ACU", value_parser = finite)]
    cost_acu_per_day: Option<f64>,
    /// Prompt tokens a second that it reads; believed until it is measured
    #[arg(long, value_name = "TOKENS", value_parser = finite)]
    prefill_rate: Option<f64>,
    /// Answer tokens a second that it writes; believed until it is measured
    #[arg(long, value_name = "TOKENS", value_parser = finite)]
    decode_rate: Option<f64>,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  huntgroup replicas add https://0123456789abcdef.acu.run
  huntgroup replicas add https://0123456789abcdef.acu.run --name pixel-7 --slots 2 --label room=4
  huntgroup replicas add https://0123456789abcdef.acu.run --model qwen3.5-4b=/models/q.gguf

An address that is there already is stated anew.")]
struct AddArgs {
    /// https://HOST[:PORT], nothing more
    url: String,
    #[command(flatten)]
    stated: StatedArgs,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  huntgroup replicas patch pixel-7 --api-key env:PHONE_KEY
  huntgroup replicas patch pixel-7 --model qwen3.5-9b
  huntgroup replicas patch pixel-7 --label room=4 --label shelf=   other labels stay; shelf goes
  huntgroup replicas patch 3 --expires-at 2027-01-31T18:00:00Z --clear slots")]
struct PatchArgs {
    /// Number, name or URL
    replica: String,
    #[command(flatten)]
    stated: StatedArgs,
    /// Take a statement back, so that probing finds it; may be given more than once
    #[arg(long = "clear", value_name = "FIELD", value_parser = CLEARABLE)]
    clear: Vec<String>,
    #[command(flatten)]
    common: Common,
}

const CLEARABLE: [&str; 10] = [
    "models",
    "slots",
    "context_tokens",
    "api_key",
    "dialect",
    "labels",
    "expires_at",
    "cost_acu_per_day",
    "prefill_rate",
    "decode_rate",
];

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  huntgroup replicas drain pixel-7 --wait
  huntgroup replicas drain 3 --deadline 60 --wait")]
struct DrainArgs {
    /// Number, name or URL
    replica: String,
    /// Cancel after so many seconds what still runs; it fails over if its client has seen nothing yet
    #[arg(long, value_name = "SECONDS", value_parser = finite)]
    deadline: Option<f64>,
    /// Wait until nothing runs there any more
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  huntgroup replicas show pixel-7
  huntgroup replicas show 3 --json")]
struct ShowArgs {
    /// Number, name or URL
    replica: String,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  huntgroup replicas undrain pixel-7")]
struct UndrainArgs {
    /// Number, name or URL
    replica: String,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  huntgroup replicas show pixel-7
  huntgroup replicas release pixel-7")]
struct ReleaseArgs {
    /// Number, name or URL
    replica: String,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  huntgroup replicas remove pixel-7
  huntgroup replicas remove 3 --force")]
struct RemoveArgs {
    /// Number, name or URL
    replica: String,
    /// At once: what runs there fails over or ends with an error
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  huntgroup replicas import pool.json
  huntgroup replicas list --json | huntgroup replicas import - --admin http://127.0.0.1:9191

Takes what `replicas list --json` prints, or the list of the Laya app's deploy script. Keys of
replicas are in no list. What can't be taken is told, and the rest is.")]
struct ImportArgs {
    /// The list; - reads standard input
    file: PathBuf,
    #[command(flatten)]
    common: Common,
}

/// What [`finite`] does not take.
#[derive(Debug, thiserror::Error)]
#[error("must be a number")]
struct NoNumber;

/// A number. JSON has no other ones: `nan` would be sent as `null`, which takes a statement back.
fn finite(text: &str) -> Result<f64, NoNumber> {
    text.parse().ok().filter(|number: &f64| number.is_finite()).ok_or(NoNumber)
}

/// `NAME` or `NAME=VALUE`.
fn pair(text: &str) -> Result<(String, Option<String>), std::convert::Infallible> {
    Ok(match text.split_once('=') {
        Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
        None => (text.to_owned(), None),
    })
}

/// Not a moment.
#[derive(Debug, thiserror::Error)]
#[error("a date with time and offset, such as 2027-01-31T18:00:00Z, or Unix seconds")]
struct NoMoment;

fn moment(text: &str) -> Result<u64, NoMoment> {
    let seconds = || Moment::from_unix_seconds(text.parse().ok()?);
    Moment::parse(text).or_else(seconds).map(Moment::unix_seconds).ok_or(NoMoment)
}

/// Runs a command. Results go to `out`, remarks to `err`.
///
/// # Errors
/// The gateway can't be reached, or refuses.
pub async fn run(args: ReplicasArgs, out: &mut dyn Write, err: &mut dyn Write) -> Result<(), CliError> {
    match args.command {
        ReplicasCommand::List(args) => list(&client(&args.common)?, &args, out, err).await,
        ReplicasCommand::Show(args) => {
            let replica = client(&args.common)?.get(&path(&args.replica, "")).await?;
            if args.common.json {
                print_json(out, &replica)?
            } else {
                show::write(&replica, out)?
            }
            Ok(())
        }
        ReplicasCommand::Add(args) => {
            let mut body = stated(&args.stated)?;
            body.insert("url".into(), json!(args.url));
            let replica = client(&args.common)?.post("/admin/replicas", &Value::Object(body)).await?;
            tell(out, &args.common, &replica, "is in the pool")
        }
        ReplicasCommand::Patch(args) => {
            let replica = patch(&client(&args.common)?, &args).await?;
            tell_change(out, &args.common, &replica, "is changed", "is so already")
        }
        ReplicasCommand::Drain(args) => drain(&client(&args.common)?, &args, LOOK_EVERY, out, err).await,
        ReplicasCommand::Undrain(args) => {
            let replica = client(&args.common)?.post(&path(&args.replica, "/undrain"), &json!({})).await?;
            tell_change(out, &args.common, &replica, "takes work again", "is not drained")
        }
        ReplicasCommand::Release(args) => {
            let replica = client(&args.common)?.post(&path(&args.replica, "/release"), &json!({})).await?;
            tell_change(out, &args.common, &replica, "is out of quarantine", "is not in quarantine")
        }
        ReplicasCommand::Remove(args) => remove(&client(&args.common)?, &args, out).await,
        ReplicasCommand::Import(args) => import(&client(&args.common)?, &args, out, err).await,
    }
}

fn client(common: &Common) -> Result<AdminClient, CliError> {
    AdminClient::from_args(&common.admin)
}

fn stated(args: &StatedArgs) -> Result<Map<String, Value>, CliError> {
    let mut body = Map::new();
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            body.insert(name.to_owned(), value);
        }
    };
    set("name", args.name.as_ref().map(|name| json!(name)));
    let models: BTreeMap<_, _> = args.models.iter().cloned().collect();
    set("models", (!models.is_empty()).then(|| json!(models)));
    set("slots", args.slots.map(Value::from));
    set("context_tokens", args.context_tokens.map(Value::from));
    set("api_key", args.api_key.as_deref().map(look_up).transpose()?.map(|key| json!(key.reveal())));
    set("dialect", args.dialect.as_ref().map(|name| json!(name)));
    let labels: BTreeMap<_, _> =
        args.labels.iter().map(|(name, value)| (name, value.as_deref().unwrap_or_default())).collect();
    set("labels", (!labels.is_empty()).then(|| json!(labels)));
    set("expires_at", args.expires_at.map(Value::from));
    set("cost_acu_per_day", args.cost_acu_per_day.map(Value::from));
    set("prefill_rate", args.prefill_rate.map(Value::from));
    set("decode_rate", args.decode_rate.map(Value::from));
    Ok(body)
}

fn look_up(reference: &str) -> Result<Secret, CliError> {
    let env = |name: &str| std::env::var(name).ok();
    let sources = Sources { env: &env, base: Path::new("") };
    secret::resolve(reference, &sources).map_err(|error| CliError::Usage(format!("--api-key: {error}")))
}

/// The admin API's path of a replica.
fn path(replica: &str, action: &str) -> String {
    format!("/admin/replicas/{}{action}", escaped(replica))
}

fn tell(out: &mut dyn Write, common: &Common, replica: &Value, what: &str) -> Result<(), CliError> {
    if common.json {
        return Ok(print_json(out, replica)?);
    }
    let state = cell(replica, "state");
    let state = if state == "draining" { String::new() } else { format!("; state: {state}") };
    let [name, id, url] = ["name", "id", "url"].map(|field| cell(replica, field));
    writeln!(out, "{name} (number {id}, {url}) {what}{state}.")?;
    Ok(())
}

/// Tells what a change did, or why there was nothing to do.
fn tell_change(out: &mut dyn Write, common: &Common, replica: &Value, done: &str, so: &str) -> Result<(), CliError> {
    let nothing = format!("{so}: nothing is changed");
    tell(out, common, replica, if replica["changed"] == false { &nothing } else { done })
}

/// Changes what is stated. Labels that are not named stay: the gateway merges them, so that of changes at once none is lost.
async fn patch(client: &AdminClient, args: &PatchArgs) -> Result<Value, CliError> {
    let mut body: Map<String, Value> = args.clear.iter().map(|field| (field.clone(), Value::Null)).collect();
    let clears = body.contains_key("labels");
    body.extend(stated(&args.stated)?);
    if body.is_empty() {
        return Err(CliError::Usage("nothing to change: say what, or what to --clear".into()));
    }
    if !args.stated.labels.is_empty() {
        let known = if clears { client.get(&path(&args.replica, "")).await?["labels"].take() } else { Value::Null };
        body.insert("labels".into(), Value::Object(label_changes(&known, &args.stated.labels)));
    }
    client.patch(&path(&args.replica, ""), &Value::Object(body)).await
}

/// Those that were given; one given as `NAME=` goes, and so do all of `cleared`.
fn label_changes(cleared: &Value, given: &[(String, Option<String>)]) -> Map<String, Value> {
    let cleared = cleared.as_object().into_iter().flat_map(Map::keys).map(|name| (name.clone(), Value::Null));
    let given = given.iter().map(|(name, value)| match value.as_deref() {
        Some("") => (name.clone(), Value::Null),
        value => (name.clone(), json!(value.unwrap_or_default())),
    });
    cleared.chain(given).collect()
}

/// Tells of phones that announced themselves lately and were refused: they are in no list.
async fn tell_refused(client: &AdminClient, err: &mut dyn Write) -> Result<(), CliError> {
    // A gateway of before knows no such thing.
    let Ok(refused) = client.get("/admin/registrations/refused").await else { return Ok(()) };
    let now = crate::clock::unix().as_secs_f64();
    let age = |one: &Value| one["last_at"].as_f64().map(|at| (now - at).max(0.0)).filter(|age| *age < REFUSED_LATELY);
    let lately = refused["data"].as_array().into_iter().flatten().filter_map(|one| Some((one, age(one)?)));
    let mut lately: Vec<_> = lately.collect();
    lately.sort_by_key(|(one, _)| std::cmp::Reverse(one["count"].as_u64()));
    for (one, age) in lately.into_iter().take(REFUSED_TOLD) {
        let times = if one["count"] == 1 { "once".to_owned() } else { format!("{} times", cell(one, "count")) };
        let [message, peer] = ["message", "peer"].map(|field| cell(one, field));
        let last = length(age);
        writeln!(
            err,
            "Phones that announced themselves were refused {times}: {message} (last {last} ago, from {peer})."
        )?;
    }
    Ok(())
}

async fn list(client: &AdminClient, args: &ListArgs, out: &mut dyn Write, err: &mut dyn Write) -> Result<(), CliError> {
    let answer = client.get("/admin/replicas").await?;
    let all = answer["data"].as_array().cloned().unwrap_or_default();
    let wanted = |replica: &Value| {
        let model = |wanted: &str| replica["models"].as_array().is_some_and(|all| all.iter().any(|one| one == wanted));
        args.state.as_deref().is_none_or(|state| replica["state"] == state) && args.model.as_deref().is_none_or(model)
    };
    let count = all.len();
    let replicas: Vec<Value> = all.into_iter().filter(wanted).collect();
    if args.common.json {
        return Ok(print_json(out, &json!({ "object": "list", "data": replicas }))?);
    }
    if replicas.is_empty() {
        match count {
            0 => writeln!(out, "No replicas. Add one: huntgroup replicas add https://HOST")?,
            _ => writeln!(out, "No such replica among {count}.")?,
        }
        return tell_refused(client, err).await;
    }
    let mut table = Table::new(&[
        ("ID", Align::Right),
        ("NAME", Align::Left),
        ("STATE", Align::Left),
        ("FOR", Align::Right),
        ("BUSY", Align::Right),
        ("MODELS", Align::Left),
        ("ENGINE", Align::Left),
        ("READ/S", Align::Right),
        ("WRITE/S", Align::Right),
        ("GOOD", Align::Right),
        ("BAD", Align::Right),
        ("NOTE", Align::Left),
    ]);
    for replica in &replicas {
        table.row(row(replica));
    }
    table.write(out)?;
    if replicas.len() > 1 {
        writeln!(out, "{}", summary(&replicas))?;
    }
    tell_refused(client, err).await
}

/// What replicas are called that would take work, but are spared for what their phones say.
const PAUSED: &str = "paused";

/// What a replica is counted as: its state, or that it is spared.
fn standing(replica: &Value) -> &str {
    let state = replica["state"].as_str().unwrap_or("-");
    let serves = ReplicaState::ALL.iter().any(|known| known.name() == state && known.takes_work());
    if serves && replica["limit"]["level"] == PAUSED { PAUSED } else { state }
}

/// `21 replicas: 9 ready, 3 out`.
fn summary(replicas: &[Value]) -> String {
    let count = |name: &str| replicas.iter().filter(|replica| standing(replica) == name).count();
    let names = ReplicaState::ALL.iter().map(|state| state.name()).chain([PAUSED]);
    let parts = names
        .map(|name| (count(name), name))
        .filter(|(count, _)| *count > 0)
        .map(|(count, state)| format!("{count} {state}"));
    format!("{} replicas: {}", replicas.len(), parts.collect::<Vec<_>>().join(", "))
}

/// What to know about a replica besides numbers: why it gets no work, and what comes next.
pub(super) fn note(replica: &Value) -> String {
    let problem = replica["problem"].as_str().unwrap_or_default();
    let next = if replica["removing"] == true {
        "is removed once it is empty".into()
    } else if replica["drained"] == true {
        "drained: nothing runs there".into()
    } else if let Some(seconds) = replica["rests_s"].as_f64() {
        format!("says that it is full; gets work again in {}", length(seconds.ceil()))
    } else if let (Some(seconds), "out") = (replica["penalty_s"].as_f64(), cell(replica, "state").as_str()) {
        format!("tried again in {}", length(seconds.ceil()))
    } else if let (Some(left), "ending") = (replica["ends_in_s"].as_f64(), cell(replica, "state_reason").as_str()) {
        format!(
            "its deployment ended {} ago: state a later end (replicas patch --expires-at) if it goes on",
            length(-left.min(0.0))
        )
    } else {
        String::new()
    };
    match (problem, next.as_str()) {
        ("", next) => next.to_owned(),
        (problem, "") => problem.to_owned(),
        (problem, next) => format!("{problem} ({next})"),
    }
}

fn row(replica: &Value) -> [String; 12] {
    let rate = |field: &str| match (replica[field].as_f64(), replica["assumed"][field].as_f64()) {
        (Some(rate), _) => format!("{rate:.1}"),
        (None, Some(rate)) => format!("~{rate:.1}"),
        (None, None) => "-".into(),
    };
    [
        cell(replica, "id"),
        cell(replica, "name"),
        standing(replica).to_owned(),
        replica["state_for_s"].as_f64().map_or_else(|| "-".into(), length),
        format!("{}/{}", cell(replica, "in_flight"), cell(replica, "usable_slots")),
        names(&replica["models"]),
        cell(replica, "dialect"),
        rate("prefill_tokens_per_second"),
        rate("decode_tokens_per_second"),
        cell(replica, "answers"),
        cell(replica, "failures"),
        note(replica),
    ]
}

/// A length of time in its two largest units.
pub(super) fn length(seconds: f64) -> String {
    let seconds = seconds as u64;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{:02}m", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

async fn drain(
    client: &AdminClient,
    args: &DrainArgs,
    look_every: Duration,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<(), CliError> {
    let body = args.deadline.map_or_else(|| json!({}), |seconds| json!({ "deadline_s": seconds }));
    let mut replica = client.post(&path(&args.replica, "/drain"), &body).await?;
    // From here on by number: that never means another one.
    let path = path(&cell(&replica, "id"), "");
    let mut shown = None;
    while args.wait && replica["drained"] != true {
        let running = replica["in_flight"].as_u64();
        if running != shown {
            writeln!(err, "{}: {} still running", cell(&replica, "name"), cell(&replica, "in_flight"))?;
            shown = running;
        }
        tokio::time::sleep(look_every).await;
        replica = client.get(&path).await?;
        if replica["draining"] != true {
            return Err(CliError::Refused { status: 409, message: "somebody took the drain back".into() });
        }
    }
    let what = if replica["drained"] == true { "is drained: nothing runs there" } else { "is draining" };
    tell(out, &args.common, &replica, what)
}

async fn remove(client: &AdminClient, args: &RemoveArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let query = if args.force { "?force=true" } else { "" };
    let removed = client.delete(&path(&args.replica, query)).await?;
    if args.common.json {
        return Ok(print_json(out, &removed)?);
    }
    let what = if removed["deleted"] == true { "is removed" } else { "is draining and goes once it is empty" };
    writeln!(out, "{} {what}.", printable(&args.replica))?;
    if let Some(note) = removed["note"].as_str() {
        writeln!(out, "Note: {}.", printable(note))?;
    }
    Ok(())
}

async fn import(
    client: &AdminClient,
    args: &ImportArgs,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<(), CliError> {
    let shown = args.file.display();
    let text = if args.file.as_os_str() == "-" {
        if io::stdin().is_terminal() {
            writeln!(err, "reading a list from the terminal; end it with Ctrl-D")?;
        }
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        fs::read_to_string(&args.file)
    };
    let text = text.map_err(|error| CliError::Usage(format!("{shown} can't be read: {error}")))?;
    let list: Value =
        serde_json::from_str(&text).map_err(|error| CliError::Usage(format!("{shown} is not JSON: {error}")))?;
    let done = client.post("/admin/replicas/import", &list).await?;
    if args.common.json {
        print_json(out, &done)?;
    } else {
        let count = |field: &str| done[field].as_u64().unwrap_or_default();
        writeln!(out, "{} added, {} changed, {} as they were.", count("added"), count("changed"), count("unchanged"))?;
    }
    let refused = done["refused"].as_array().map_or(&[][..], Vec::as_slice);
    for item in refused {
        writeln!(
            err,
            "number {} of the list: {}",
            item["index"].as_u64().unwrap_or_default() + 1,
            cell(item, "reason")
        )?;
    }
    match refused.len() {
        0 => Ok(()),
        count => Err(CliError::Refused { status: 400, message: format!("{count} of the list could not be taken") }),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::{super::client::tests::OneAnswer, *};

    #[derive(clap::Parser)]
    struct Shell {
        #[command(flatten)]
        replicas: ReplicasArgs,
    }

    fn parse(words: &[&str]) -> Result<ReplicasCommand, clap::Error> {
        Shell::try_parse_from([&["replicas"], words].concat()).map(|shell| shell.replicas.command)
    }

    #[test]
    fn what_json_can_not_say_is_no_number() {
        for flag in ["--cost-acu-per-day", "--prefill-rate", "--decode-rate"] {
            assert!(parse(&["patch", "abc", flag, "0.5"]).is_ok(), "{flag}");
            for text in ["nan", "inf", "-inf", "1e999", "x"] {
                assert!(parse(&["patch", "abc", &format!("{flag}={text}")]).is_err(), "{flag} {text}");
            }
        }
        assert!(parse(&["drain", "abc", "--deadline", "inf"]).is_err(), "it would be none at all");
    }

    const REPLICA: &str = r#"{"id":3,"name":"abc","url":"https://abc.acu.run","state":"ready","state_for_s":3725.5,
        "in_flight":1,"slots":2,"usable_slots":2,"models":["tiny"],"dialect":"llama","prefill_tokens_per_second":85.24,
        "decode_tokens_per_second":null,"assumed":{"prefill_tokens_per_second":9.0,"decode_tokens_per_second":18.44},"answers":7,"failures":1,"problem":null,"draining":false,"drained":false}"#;

    #[tokio::test]
    async fn replicas_are_listed_as_a_table() {
        let list_of = format!(r#"{{"object":"list","data":[{REPLICA}]}}"#);
        let none = r#"{"object":"list","data":[]}"#;
        let gateway =
            OneAnswer::new(&[("200 OK", &list_of), ("404 Not Found", "{}"), ("200 OK", &list_of), ("200 OK", none)]);
        let listed = async |words: &[&str]| {
            let ReplicasCommand::List(args) = parse(words).unwrap() else { panic!("list") };
            let (mut out, mut err) = (Vec::new(), Vec::new());
            list(&gateway.client, &args, &mut out, &mut err).await.unwrap();
            assert_eq!(err, b"");
            String::from_utf8(out).unwrap()
        };
        let expected = "\
ID  NAME  STATE    FOR  BUSY  MODELS  ENGINE  READ/S  WRITE/S  GOOD  BAD  NOTE
 3  abc   ready  1h02m   1/2  tiny    llama     85.2    ~18.4     7    1
";
        assert_eq!(listed(&["list"]).await, expected);
        assert!(listed(&["list", "--state", "out"]).await.starts_with("No such replica among 1."));
        gateway.asked();
    }

    #[tokio::test]
    async fn phones_that_are_refused_are_told_of_beside_the_list() {
        let now = crate::clock::unix().as_secs_f64();
        let refused = format!(
            r#"{{"data":[{{"message":"the token is wrong\u001b","peer":"10.0.0.7","count":3,"last_at":{}}},{{"message":"old","count":1,"last_at":1.0}}]}}"#,
            now - 120.5
        );
        let gateway = OneAnswer::new(&[("200 OK", r#"{"data":[]}"#), ("200 OK", &refused)]);
        let ReplicasCommand::List(args) = parse(&["list"]).unwrap() else { panic!("list") };
        let (mut out, mut err) = (Vec::new(), Vec::new());
        list(&gateway.client, &args, &mut out, &mut err).await.unwrap();
        let told = String::from_utf8(err).unwrap();
        assert!(
            told.starts_with(
                r"Phones that announced themselves were refused 3 times: the token is wrong\u{1b} (last 2m"
            ),
            "{told}"
        );
        assert!(told.ends_with("from 10.0.0.7).\n") && !told.contains("old"), "{told}");
        gateway.asked();
    }

    #[tokio::test]
    async fn labels_that_are_not_named_stay_and_one_goes_when_it_is_given_as_nothing() {
        let known = r#"{"id":3,"labels":{"room":"3","shelf":"upper","owner":"ann"}}"#;
        let gateway =
            OneAnswer::new(&[("200 OK", REPLICA), ("200 OK", known), ("200 OK", REPLICA), ("200 OK", REPLICA)]);
        for words in [
            &["patch", "abc", "--label", "room=4", "--label", "shelf=", "--label", "new"][..],
            &["patch", "abc", "--label", "room=4", "--clear", "labels"],
            &["patch", "abc", "--slots", "2"],
        ] {
            let ReplicasCommand::Patch(args) = parse(words).unwrap() else { panic!("patch") };
            patch(&gateway.client, &args).await.unwrap();
        }
        let asked = gateway.asked();
        let sent = |at: usize| asked[at].rsplit_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap();
        assert_eq!(
            sent(0),
            r#"{"labels":{"new":"","room":"4","shelf":null}}"#,
            "only the change, and nothing is read before"
        );
        assert!(asked[1].starts_with("GET /admin/replicas/abc "));
        assert_eq!(sent(2), r#"{"labels":{"owner":null,"room":"4","shelf":null}}"#);
        assert_eq!(sent(3), r#"{"slots":2}"#);
    }

    #[tokio::test]
    async fn what_was_so_already_is_not_said_to_have_been_done() {
        let unchanged = REPLICA.replace("\"id\"", "\"changed\":false,\"id\"");
        let done = REPLICA.replace("\"id\"", "\"changed\":true,\"id\"");
        let gateway = OneAnswer::new(&[("200 OK", &unchanged), ("200 OK", &done)]);
        let mut out = Vec::new();
        for _ in 0..2 {
            let replica = gateway.client.post("/admin/replicas/abc/release", &json!({})).await.unwrap();
            let ReplicasCommand::Release(args) = parse(&["release", "abc"]).unwrap() else { panic!("release") };
            tell_change(&mut out, &args.common, &replica, "is out of quarantine", "is not in quarantine").unwrap();
        }
        let expected = "\
abc (number 3, https://abc.acu.run) is not in quarantine: nothing is changed; state: ready.
abc (number 3, https://abc.acu.run) is out of quarantine; state: ready.
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        gateway.asked();
    }

    #[test]
    fn a_phone_that_rests_is_counted_as_such() {
        let resting = json!({"state": "ready", "limit": {"level": "paused"}});
        let fewer = json!({"state": "ready", "limit": {"level": "fewer"}});
        let out = json!({"state": "out", "limit": {"level": "paused"}});
        assert_eq!(summary(&[resting, fewer, out]), "3 replicas: 1 ready, 1 out, 1 paused");
    }

    #[test]
    fn a_note_says_why_and_what_comes_next_and_the_summary_counts_states() {
        let out = json!({"state": "out", "problem": "nobody accepts the connection", "penalty_s": 75.2});
        let drained = json!({"state": "draining", "draining": true, "drained": true, "problem": null});
        let leaving = json!({"state": "draining", "draining": true, "removing": true});
        let full = json!({"state": "ready", "rests_s": 3.2});
        assert_eq!(note(&out), "nobody accepts the connection (tried again in 1m16s)");
        assert_eq!(note(&full), "says that it is full; gets work again in 4s");
        assert_eq!(note(&drained), "drained: nothing runs there");
        let ended = json!({"state": "draining", "state_reason": "ending", "ends_in_s": -264.0, "problem": null});
        assert_eq!(
            note(&ended),
            "its deployment ended 4m24s ago: state a later end (replicas patch --expires-at) if it goes on"
        );
        assert_eq!(note(&leaving), "is removed once it is empty");
        assert_eq!(note(&json!({"state": "ready", "penalty_s": null})), "");
        assert_eq!(summary(&[out, drained, leaving]), "3 replicas: 1 out, 2 draining");
    }

    #[tokio::test]
    async fn a_drain_waits_until_nothing_runs_and_tells_how_far_it_is() {
        let draining = REPLICA.replace("\"draining\":false", "\"draining\":true");
        let drained =
            draining.replace("\"drained\":false", "\"drained\":true").replace("\"in_flight\":1", "\"in_flight\":0");
        let gateway = OneAnswer::new(&[("200 OK", &draining), ("200 OK", &draining), ("200 OK", &drained)]);
        let ReplicasCommand::Drain(args) =
            parse(&["drain", "https://abc.acu.run", "--wait", "--deadline", "60"]).unwrap()
        else {
            panic!("drain")
        };
        let (mut out, mut err) = (Vec::new(), Vec::new());
        drain(&gateway.client, &args, Duration::ZERO, &mut out, &mut err).await.unwrap();
        assert_eq!(err, b"abc: 1 still running\n");
        assert!(String::from_utf8(out).unwrap().contains("is drained: nothing runs there"));
        let asked = gateway.asked();
        assert!(asked[0].starts_with("POST /admin/replicas/https%3A%2F%2Fabc.acu.run/drain "));
        assert!(asked[0].ends_with("{\"deadline_s\":60.0}"));
        assert!(asked[1].starts_with("GET /admin/replicas/3 "));
    }

    #[tokio::test]
    async fn what_an_import_refuses_makes_it_fail_after_the_rest_is_taken() {
        let done = r#"{"added":1,"changed":0,"unchanged":2,"refused":[{"index":3,"reason":"it has no url (yet)"}]}"#;
        let gateway = OneAnswer::new(&[("200 OK", done)]);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "[]").unwrap();
        let ReplicasCommand::Import(args) = parse(&["import", file.path().to_str().unwrap()]).unwrap() else {
            panic!("import")
        };
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let failed = import(&gateway.client, &args, &mut out, &mut err).await.unwrap_err();
        assert_eq!(failed.exit_code(), 1);
        assert_eq!(out, b"1 added, 0 changed, 2 as they were.\n");
        assert_eq!(err, b"number 4 of the list: it has no url (yet)\n");
        gateway.asked();
    }

    #[test]
    fn flags_become_fields_and_nothing_else_is_sent() {
        let words = [
            "add",
            "https://a",
            "--slots",
            "2",
            "--model",
            "a=/x.gguf",
            "--model",
            "b",
            "--label",
            "room=4",
            "--expires-at",
            "2000-02-29T12:00:00Z",
        ];
        let ReplicasCommand::Add(args) = parse(&words).unwrap() else { panic!("add") };
        let expected = json!({"slots": 2, "models": {"a": "/x.gguf", "b": null}, "labels": {"room": "4"}, "expires_at": 951_825_600});
        assert_eq!(Value::Object(stated(&args.stated).unwrap()), expected);
    }

    #[test]
    fn wrong_flags_are_refused_before_anything_is_sent() {
        for words in [
            &["add"][..],
            &["add", "https://a", "--slots", "0"],
            &["add", "https://a", "--expires-at", "tomorrow"],
            &["patch", "a", "--clear", "name"],
            &["drain"],
            &["frob"],
        ] {
            assert!(parse(words).is_err(), "{words:?}");
        }
    }
}
