//! The glance as lines for a screen of a given size. Pure: what is shown depends on nothing but its arguments.

use std::collections::BTreeMap;

use super::{
    super::{cost::digits, replicas::length, show, table::Align},
    frame::{Column, Line, Style, Tone, bar, curve, grid},
    state::{Change, Glance, Replica, Waiting},
};

/// Columns of the bar of busy slots.
const BAR: usize = 20;
/// For so many seconds refused announcements of phones are told.
const REFUSED_LATELY: f64 = 3600.0;
/// Phones that are out are told on top if they are one in so many, as in the console.
const MANY_ONE_IN: usize = 5;
/// Columns of the curve of the last hour.
const CURVE: usize = 36;

/// What the lower part shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pane {
    #[default]
    Replicas,
    Requests,
    Queue,
    Batches,
    Events,
}

impl Pane {
    pub const ALL: [Self; 5] = [Self::Replicas, Self::Requests, Self::Queue, Self::Batches, Self::Events];

    const fn title(self) -> &'static str {
        match self {
            Self::Replicas => "Replicas",
            Self::Requests => "Requests",
            Self::Queue => "Queue",
            Self::Batches => "Batches",
            Self::Events => "Events",
        }
    }
}

/// The order of replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// Those with a problem first.
    #[default]
    Problem,
    Name,
    Busy,
    Speed,
    Failures,
}

impl Sort {
    pub const ALL: [Self; 5] = [Self::Problem, Self::Name, Self::Busy, Self::Speed, Self::Failures];

    const fn words(self) -> &'static str {
        match self {
            Self::Problem => "problems first",
            Self::Name => "by name",
            Self::Busy => "busiest first",
            Self::Speed => "fastest first",
            Self::Failures => "most failures first",
        }
    }
}

/// How the operator looks at it.
#[derive(Clone, Debug, Default)]
pub struct View {
    pub pane: Pane,
    pub sort: Sort,
    /// Only replicas with a problem.
    pub filter: bool,
    /// The row that the operator is on.
    pub chosen: usize,
    /// The first row that is shown.
    pub top: usize,
    pub help: bool,
    /// A question that waits for y or n.
    pub question: Option<String>,
    /// What became of the last action.
    pub remark: Option<(Tone, String)>,
    /// Why there is no connection, while there is none.
    pub lost: Option<String>,
}

/// Size of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub columns: usize,
    pub rows: usize,
}

/// The whole screen: as many lines as it has rows at most, none wider than it is.
pub fn page(glance: &Glance, view: &mut View, size: Size, style: Style, now: f64, address: &str) -> Vec<Line> {
    let mut lines = header(glance, view, style, now, address);
    if view.help {
        lines.truncate(1);
        lines.extend(help());
    } else {
        // The rows are what it is about: on a small screen what is above makes room.
        let footer = usize::from(view.question.is_some() || view.remark.is_some() || size.rows >= 16);
        lines.truncate(if size.rows >= 16 { lines.len() } else { size.rows.saturating_sub(footer + 5).max(2) });
        lines.push(panes(glance, view));
        let mut body = body(glance, view, size.columns, now);
        let heading = body.remove(0);
        lines.push(heading);
        let room = size.rows.saturating_sub(lines.len() + footer).max(1);
        scroll(view, body.len(), room);
        if let Some(line) = body.get_mut(view.chosen) {
            line.chosen = true;
        }
        lines.extend(body.into_iter().skip(view.top).take(room));
        if footer > 0 {
            lines.truncate(size.rows.saturating_sub(1));
            while lines.len() + 1 < size.rows {
                lines.push(Line::default());
            }
            lines.push(bottom(view));
        }
    }
    lines.truncate(size.rows);
    lines.into_iter().map(|line| line.cut(size.columns, style)).collect()
}

/// Header and replicas, all of them, for those who do not look at a screen.
pub fn whole(glance: &Glance, columns: usize, style: Style, now: f64, address: &str) -> Vec<Line> {
    let view = View::default();
    let mut lines = header(glance, &view, style, now, address);
    lines.push(Line::default());
    lines.extend(body(glance, &view, columns, now));
    lines.into_iter().map(|line| line.cut(columns, style)).collect()
}

/// The row under the heading of the replica that the operator is on.
pub fn chosen<'a>(glance: &'a Glance, view: &View) -> Option<&'a Replica> {
    if view.pane != Pane::Replicas {
        return None;
    }
    sorted(glance, view).get(view.chosen).copied()
}

/// How many rows there are.
pub fn rows(glance: &Glance, view: &View) -> usize {
    match view.pane {
        Pane::Replicas => sorted(glance, view).len(),
        Pane::Requests => glance.requests.data.len(),
        Pane::Queue => queue_rows(glance).len(),
        Pane::Batches => glance.batches.len(),
        Pane::Events => glance.events.len(),
    }
}

/// Keeps the row that the operator is on in sight.
fn scroll(view: &mut View, rows: usize, room: usize) {
    view.chosen = view.chosen.min(rows.saturating_sub(1));
    view.top = view.top.min(rows.saturating_sub(room)).min(view.chosen);
    view.top = view.top.max((view.chosen + 1).saturating_sub(room));
}

fn header(glance: &Glance, view: &View, style: Style, now: f64, address: &str) -> Vec<Line> {
    let mut lines = vec![title(glance, view, now, address)];
    if let Some(why) = &view.lost {
        lines.push(
            Line::default()
                .with(Tone::Bad, &format!("no connection: {why}; trying again. Below is what was last seen.")),
        );
    }
    for relay in &glance.totals.relays_down {
        lines.push(
            Line::default().with(Tone::Bad, &format!("the relay {relay} is down: none of its phones can be reached")),
        );
    }
    if glance.totals.store_ok == Some(false) {
        lines.push(Line::default().with(Tone::Bad, "the database fails: changes of the pool are refused; see the log"));
    }
    lines.extend(chain_line(glance, now));
    lines.extend(missing_line(glance, now));
    lines.extend(out_line(glance));
    lines.extend(refused_line(glance, now));
    lines.push(replicas_line(glance, style));
    lines.push(requests_line(glance));
    lines.push(waits_line(glance));
    lines.extend(hour_lines(glance, style));
    lines.extend(cost_line(glance));
    lines.extend(advice_line(glance));
    lines
}

/// The chain, where it cannot be read.
fn chain_line(glance: &Glance, now: f64) -> Option<Line> {
    let trouble = glance.totals.chain.as_ref()?;
    let how = match trouble.seen_at {
        _ if trouble.partial => "is read only in part".to_owned(),
        Some(at) => format!("has not been read for {}", age(now, at)),
        None => "was never read".to_owned(),
    };
    let text = format!("the chain {how}: {}; its new phones, moves and ends are not seen", trouble.why);
    Some(Line::default().with(Tone::Warn, &text))
}

/// Phones that served before the gateway was started anew, and do not answer it.
fn missing_line(glance: &Glance, now: f64) -> Option<Line> {
    let missing: Vec<_> = glance
        .replicas
        .values()
        .filter(|replica| is_missing(replica) && !is_behind_a_relay_that_is_down(replica))
        .collect();
    let first = missing.first()?;
    let (count, verb) = (missing.len(), if missing.len() == 1 { "phone has" } else { "phones have" });
    let since = age(now, glance.hello.started_at);
    let problem = first.problem.as_deref().unwrap_or_default();
    let text = format!("{count} {verb} not come back since the restart {since} ago; {}: {problem}", first.name);
    Some(Line::default().with(Tone::Bad, &text))
}

/// What most phones of those have that are out, where they are many. What a relay or a restart explains is told there.
fn out_line(glance: &Glance) -> Option<Line> {
    let is_told = |replica: &&Replica| is_missing(replica) || is_behind_a_relay_that_is_down(replica);
    let out: Vec<_> =
        glance.replicas.values().filter(|replica| replica.state == "out").filter(|replica| !is_told(replica)).collect();
    let all = glance.replicas.len();
    if out.len() < 2 || out.len() * MANY_ONE_IN < all {
        return None;
    }
    let mut problems: BTreeMap<&str, usize> = BTreeMap::new();
    for problem in out.iter().filter_map(|replica| replica.problem.as_deref()) {
        *problems.entry(problem).or_default() += 1;
    }
    let why = problems.iter().max_by_key(|(_, count)| **count).map(|(problem, count)| format!("; {count}: {problem}"));
    let text = format!("{} of {all} phones are out{}", out.len(), why.unwrap_or_default());
    Some(Line::default().with(Tone::Bad, &text))
}

fn is_behind_a_relay_that_is_down(replica: &Replica) -> bool {
    replica.reason == "relay_down"
}

fn is_missing(replica: &Replica) -> bool {
    replica.missing && replica.problem.is_some() && matches!(&*replica.state, "joining" | "out" | "suspect")
}

/// Phones that announced themselves within the last hour, and were refused.
fn refused_line(glance: &Glance, now: f64) -> Option<Line> {
    let last = glance.refused.iter().find(|refused| now - refused.last_at < REFUSED_LATELY)?;
    let times = if last.count == 1 { "once".to_owned() } else { format!("{} times", last.count) };
    let text = format!(
        "phones that announce themselves are refused: {} ({times}, the last {} ago from {})",
        last.message,
        age(now, last.last_at),
        last.peer,
    );
    Some(Line::default().with(Tone::Warn, &text))
}

/// What the pool costs; nothing where no replica states a price.
fn cost_line(glance: &Glance) -> Option<Line> {
    let cost = &glance.cost;
    let parts = [
        cost.per_day.map(|day| format!("{} ACU a day", digits(day))),
        cost.total.map(|total| format!("{} in the last 24 h", digits(total))),
        cost.per_million_tokens.total.map(|million| format!("{} per million tokens", digits(million))),
    ];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| heading("cost").with(Tone::Plain, &parts.join(", ")))
}

/// How many phones there should be, of models of which that can be said; those that lack some first.
fn advice_line(glance: &Glance) -> Option<Line> {
    let mut known: Vec<_> = glance.advice.iter().filter_map(|one| Some((one, one.wanted?))).collect();
    known.sort_by_key(|(one, wanted)| *wanted <= one.now.phones);
    let mut line = heading("wanted");
    for (place, (one, wanted)) in known.iter().enumerate() {
        let (there, serving) = (one.now.phones, serving(glance, &one.model));
        let tone = if *wanted > serving.min(there) { Tone::Warn } else { Tone::Plain };
        line.push(Tone::Dim, if place == 0 { "" } else { " · " });
        let phones = if *wanted == 1 { "phone" } else { "phones" };
        let of_them = match serving {
            serving if serving >= there => String::new(),
            0 => ", none serving".into(),
            serving => format!(", {serving} serving"),
        };
        line.push(tone, &format!("{} {wanted} {phones}, {there} there{of_them}", one.model));
    }
    (!known.is_empty()).then_some(line)
}

/// Phones of a model that take work.
fn serving(glance: &Glance, model: &str) -> u64 {
    let serves = |replica: &&Replica| replica.takes_work && replica.models.iter().any(|name| name == model);
    glance.replicas.values().filter(serves).count() as u64
}

fn title(glance: &Glance, view: &View, now: f64, address: &str) -> Line {
    let hello = &glance.hello;
    let mut line = Line::default().with(Tone::Bold, "huntgroup").with(Tone::Plain, &format!(" {}", hello.version));
    line.push(Tone::Dim, &format!("  {address}  up {}", length((now - hello.started_at).max(0.0))));
    if let Some(memory) = glance.totals.memory {
        line.push(Tone::Dim, &format!("  {} of {} MiB", memory.used >> 20, memory.limit >> 20));
    }
    if view.lost.is_some() {
        line.push(Tone::Bad, "  lost");
    } else if glance.totals.draining {
        line.push(Tone::Warn, "  draining");
    } else if glance.restarted {
        line.push(Tone::Warn, "  it was restarted");
    }
    line
}

fn replicas_line(glance: &Glance, style: Style) -> Line {
    let mut line = heading("replicas");
    let states: Vec<_> = STATES
        .iter()
        .filter_map(|(name, tone)| {
            let count = glance.totals.replicas.get(*name).copied().filter(|count| *count > 0)?;
            Some((*tone, format!("{count} {name}")))
        })
        .collect();
    let unknown = glance
        .totals
        .replicas
        .iter()
        .filter(|(name, count)| **count > 0 && STATES.iter().all(|(known, _)| known != name));
    let unknown = unknown.map(|(name, count)| (Tone::Plain, format!("{count} {name}")));
    let all: Vec<_> = states.into_iter().chain(unknown).collect();
    if all.is_empty() {
        line.push(Tone::Warn, "none yet: huntgroup replicas add URL");
        return line;
    }
    for (place, (tone, text)) in all.iter().enumerate() {
        line.push(Tone::Dim, if place == 0 { "" } else { ", " });
        line.push(*tone, text);
    }
    let (busy, slots) = (glance.totals.busy, glance.totals.slots);
    if slots > 0 {
        line.push(
            Tone::Plain,
            &format!("   {} {busy} of {slots} slots busy", bar(busy as f64 / slots as f64, BAR, style)),
        );
    } else {
        line.push(Tone::Bad, &format!("   no phone takes work: {}", refusal(glance)));
    }
    line
}

/// What becomes of requests while no phone takes work.
fn refusal(glance: &Glance) -> String {
    let after = glance.queue.refused_after_s;
    after.map_or_else(|| "requests fail".into(), |seconds| format!("requests fail after {}", length(seconds)))
}

/// The states with their tones, the good ones first.
const STATES: [(&str, Tone); 10] = [
    ("ready", Tone::Good),
    ("probation", Tone::Good),
    ("suspect", Tone::Warn),
    ("paused", Tone::Warn),
    ("joining", Tone::Plain),
    ("loading", Tone::Plain),
    ("quarantine", Tone::Plain),
    ("draining", Tone::Plain),
    ("out", Tone::Bad),
    ("misconfigured", Tone::Bad),
];

fn tone(state: &str) -> Tone {
    STATES.iter().find(|(name, _)| *name == state).map_or(Tone::Plain, |(_, tone)| *tone)
}

fn requests_line(glance: &Glance) -> Line {
    let mut line = heading("requests");
    let (running, waiting) = (glance.totals.busy, glance.totals.queued);
    line.push(Tone::Plain, &format!("{running} on phones, "));
    let waits = if waiting > 0 { Tone::Warn } else { Tone::Plain };
    line.push(waits, &format!("{waiting} waiting"));
    if let Some(point) = glance.points.back() {
        let rate = point.requests as f64 / 10.0;
        line.push(
            Tone::Dim,
            &format!("   last 10 s: {rate:.1} done/s, {:.0} tokens/s", point.completion_tokens as f64 / 10.0),
        );
        if point.failed > 0 {
            line.push(Tone::Bad, &format!(", {} failed", point.failed));
        }
    }
    line
}

fn waits_line(glance: &Glance) -> Line {
    let mut line = heading("a new one");
    let estimate = |class: &Waiting| Some(format!("{} {}", class.name, wait(class.estimate_s?)));
    let waits: Vec<_> = glance.queue.by_class.iter().filter_map(estimate).collect();
    if !waits.is_empty() {
        line.push(Tone::Plain, &format!("would wait: {}", waits.join(" · ")));
    } else if glance.queue.refused_after_s.is_some() {
        line.push(Tone::Bad, &format!("has no phone: {}", refusal(glance)));
    } else {
        line.push(Tone::Plain, "nobody can say how long it would wait");
    }
    line
}

fn wait(seconds: f64) -> String {
    if seconds < 1.0 { "not".into() } else { format!("about {}", length(seconds.ceil())) }
}

fn hour_lines(glance: &Glance, style: Style) -> Option<Line> {
    let done: Vec<f64> = glance.points.iter().map(|point| point.requests as f64).collect();
    if done.is_empty() {
        return None;
    }
    let mut line = heading("last hour").with(Tone::Good, &curve(&done, CURVE, style));
    line.push(Tone::Dim, &format!(" {:.0} done", done.iter().sum::<f64>()));
    let failed: u64 = glance.points.iter().map(|point| point.failed).sum();
    if failed > 0 {
        line.push(Tone::Bad, &format!(", {failed} failed"));
    }
    for class in ["interactive", "standard", "batch"] {
        let last = glance.points.iter().rev().take(30).find_map(|point| point.ttft.get(class).copied().flatten());
        if let Some([median, late]) = last {
            line.push(Tone::Dim, &format!("   first token {class} {}, 95 % within {}", short(median), short(late)));
        }
    }
    Some(line)
}

fn short(seconds: f64) -> String {
    match seconds {
        ..0.0995 => format!("{:.0}ms", seconds.max(0.0) * 1e3),
        ..9.95 => format!("{seconds:.1}s"),
        _ => length(seconds.round()),
    }
}

fn heading(name: &str) -> Line {
    Line::default().with(Tone::Dim, &format!("{name:<10}"))
}

fn panes(glance: &Glance, view: &View) -> Line {
    let mut line = Line::default();
    for pane in Pane::ALL {
        let count = match pane {
            Pane::Replicas => glance.replicas.len() as u64,
            Pane::Requests => glance.requests.total,
            Pane::Queue => glance.totals.queued,
            Pane::Batches => glance.batches.len() as u64,
            Pane::Events => glance.events.len() as u64,
        };
        let (tone, text) = if pane == view.pane {
            (Tone::Bold, format!("[{} {count}] ", pane.title()))
        } else {
            (Tone::Dim, format!(" {} {count}  ", pane.title()))
        };
        line.push(tone, &text);
    }
    if view.pane == Pane::Replicas {
        let only = if view.filter { ", problems only" } else { "" };
        line.push(Tone::Dim, &format!(" {}{only}", view.sort.words()));
    }
    line
}

fn bottom(view: &View) -> Line {
    if let Some(question) = &view.question {
        return Line::default().with(Tone::Warn, &format!("{question} y or n"));
    }
    if let Some((tone, remark)) = &view.remark {
        return Line::default().with(*tone, remark);
    }
    Line::default()
        .with(Tone::Dim, "q quit · tab panes · arrows · s sort · f problems only · d drain · u undrain · ? help")
}

fn help() -> Vec<Line> {
    [
        "",
        "  q, ctrl-c        quit",
        "  tab, 1 to 5      replicas, requests, queue, batches, events",
        "  arrows, j, k     up and down; page up, page down, home, end",
        "  s                sort the replicas: problems, name, busy, speed, failures",
        "  f                only replicas with a problem",
        "  d                drain the replica of this row: nothing new starts there",
        "  u                give it work again",
        "  ?                this; any key closes it",
        "",
        "SLOTS: busy, of those usable now; + those that work for nobody or for others. READ, WRITE:",
        "tokens a second, measured from traffic; ~: not yet, but stated, measured in quarantine or before",
        "a restart, or usual. GOOD, BAD: whole answers, and failed attempts, since it came up.",
    ]
    .map(|text| Line::default().with(Tone::Plain, text))
    .into()
}

const fn column(heading: &'static str, align: Align, spared: u8) -> Column {
    Column { heading, align, spared }
}

/// The rows of the pane, after their heading.
fn body(glance: &Glance, view: &View, columns: usize, now: f64) -> Vec<Line> {
    use Align::{Left, Right};
    match view.pane {
        Pane::Replicas => {
            let shown = [
                column("NAME", Left, 0),
                column("STATE", Left, 0),
                column("FOR", Right, 2),
                column("SLOTS", Right, 0),
                column("MODEL", Left, 5),
                column("READ", Right, 4),
                column("WRITE", Right, 3),
                column("GOOD", Right, 6),
                column("BAD", Right, 6),
                column("NOTE", Left, 0),
            ];
            let rows: Vec<_> = sorted(glance, view).into_iter().map(|replica| replica_row(replica, now)).collect();
            empty(
                grid(&shown, &rows, columns),
                if view.filter { "no replica has a problem" } else { "no replicas yet: huntgroup replicas add URL" },
            )
        }
        Pane::Requests => {
            let shown = [
                column("SINCE", Right, 0),
                column("CLASS", Left, 3),
                column("TENANT", Left, 0),
                column("MODEL", Left, 2),
                column("PHASE", Left, 0),
                column("REPLICA", Left, 0),
                column("TRIES", Right, 4),
                column("PIECES", Right, 5),
                column("ID", Left, 6),
            ];
            let rows: Vec<_> = glance
                .requests
                .data
                .iter()
                .map(|request| {
                    let text = [
                        age(now, request.since),
                        request.class.clone(),
                        request.tenant.clone(),
                        request.model.clone(),
                        request.phase.clone(),
                        request.replica.clone().unwrap_or_else(|| "-".into()),
                        request.attempts.to_string(),
                        request.content_events.to_string(),
                        request.id.clone(),
                    ];
                    plain(text)
                })
                .collect();
            empty(grid(&shown, &rows, columns), "nothing is being answered")
        }
        Pane::Queue => {
            let shown = [
                column("OF", Left, 0),
                column("NAME", Left, 0),
                column("WAITING", Right, 0),
                column("OLDEST", Right, 0),
                column("A NEW ONE", Left, 1),
                column("READY", Right, 2),
                column("SLOTS", Right, 2),
            ];
            empty(grid(&shown, &queue_rows(glance), columns), "nothing waits")
        }
        Pane::Batches => {
            let shown = [
                column("ID", Left, 4),
                column("TENANT", Left, 0),
                column("MODEL", Left, 3),
                column("STATE", Left, 0),
                column("DONE", Right, 0),
                column("FAILED", Right, 2),
                column("RUNNING", Right, 2),
                column("LEFT", Right, 0),
                column("EXPIRES", Right, 1),
                column("WAITS FOR", Left, 0),
            ];
            let rows: Vec<_> = glance
                .batches
                .iter()
                .map(|batch| {
                    let text = [
                        batch.id.clone(),
                        batch.tenant.clone(),
                        batch.model.clone().unwrap_or_else(|| "-".into()),
                        batch.state.clone(),
                        format!("{}/{}", batch.completed + batch.failed, batch.total),
                        batch.failed.to_string(),
                        batch.running.to_string(),
                        batch.eta_s.map_or("unknown".into(), length),
                        length(batch.expires_in_s),
                        batch.waits_for.clone().unwrap_or_default(),
                    ];
                    let late = batch.eta_s.is_some_and(|left| left > batch.expires_in_s);
                    text.map(|text| (if late { Tone::Warn } else { Tone::Plain }, text)).to_vec()
                })
                .collect();
            empty(grid(&shown, &rows, columns), "no batch is open")
        }
        Pane::Events => {
            let shown = [column("WHEN", Left, 0), column("REPLICA", Left, 0), column("WHAT", Left, 0)];
            let rows: Vec<_> = glance.events.iter().rev().map(event_row).collect();
            empty(grid(&shown, &rows, columns), "nothing has happened yet")
        }
    }
}

/// A word where no row is.
fn empty(mut lines: Vec<Line>, words: &str) -> Vec<Line> {
    if lines.len() == 1 {
        lines.push(Line::default().with(Tone::Dim, words));
    }
    lines
}

fn plain<const N: usize>(cells: [String; N]) -> Vec<(Tone, String)> {
    cells.map(|text| (Tone::Plain, text)).into()
}

fn age(now: f64, since: f64) -> String {
    length((now - since).max(0.0).floor())
}

fn has_problem(replica: &Replica) -> bool {
    replica.state != "ready" || !replica.takes_work || replica.problem.is_some() || limited(replica).is_some()
}

/// Whether it would take work, but is spared.
fn is_paused(replica: &Replica) -> bool {
    let serves = matches!(&*replica.state, "ready" | "suspect" | "probation");
    serves && limited(replica).is_some_and(|limit| limit.level == "paused")
}

/// What holds it back, if something does.
fn limited(replica: &Replica) -> Option<&super::state::Limit> {
    replica.limit.as_ref().filter(|limit| limit.level != "none")
}

fn sorted<'a>(glance: &'a Glance, view: &View) -> Vec<&'a Replica> {
    let mut all: Vec<&Replica> =
        glance.replicas.values().filter(|replica| !view.filter || has_problem(replica)).collect();
    let badness = |replica: &Replica| match (tone(&replica.state), has_problem(replica)) {
        (Tone::Bad, _) => 0,
        (Tone::Warn, _) => 1,
        (_, true) => 2,
        _ => 3,
    };
    match view.sort {
        Sort::Problem => all.sort_by_key(|replica| badness(replica)),
        Sort::Name => {}
        Sort::Busy => all.sort_by_key(|replica| std::cmp::Reverse(replica.busy)),
        Sort::Speed => all.sort_by(|a, b| speed(b).total_cmp(&speed(a))),
        Sort::Failures => all.sort_by_key(|replica| std::cmp::Reverse(replica.failures)),
    }
    if view.sort == Sort::Name {
        all.sort_by(|a, b| a.name.cmp(&b.name));
    }
    all
}

/// Answer tokens a second, as far as is known.
fn speed(replica: &Replica) -> f64 {
    replica.decode.or(replica.decode_assumed).unwrap_or_default()
}

fn replica_row(replica: &Replica, now: f64) -> Vec<(Tone, String)> {
    let state = tone(if is_paused(replica) { "paused" } else { &replica.state });
    let beside = replica.lingering + replica.foreign;
    let beside = if beside > 0 { format!("+{beside}") } else { String::new() };
    let rate = |measured: Option<f64>, assumed: Option<f64>| match (measured, assumed) {
        (Some(rate), _) => format!("{rate:.0}"),
        (None, Some(rate)) => format!("~{rate:.0}"),
        (None, None) => "-".into(),
    };
    let standing = if is_paused(replica) { "paused" } else { &replica.state };
    let failures = if replica.failures > 0 { Tone::Warn } else { Tone::Plain };
    let (note_tone, note) = note(replica, now);
    vec![
        (Tone::Plain, replica.name.clone()),
        (state, standing.to_owned()),
        (Tone::Dim, age(now, replica.since_s)),
        (Tone::Plain, format!("{}{beside}/{}", replica.busy, replica.usable)),
        (Tone::Plain, replica.models.join(",")),
        (Tone::Plain, rate(replica.prefill, replica.prefill_assumed)),
        (Tone::Plain, rate(replica.decode, replica.decode_assumed)),
        (Tone::Plain, replica.answers.to_string()),
        (failures, replica.failures.to_string()),
        (note_tone, note),
    ]
}

/// What is wrong with it; else what it does.
fn note(replica: &Replica, now: f64) -> (Tone, String) {
    let again = replica.penalty_until.filter(|until| *until > now);
    let again = again.map(|until| format!("tried again in {}", length((until - now).ceil())));
    if let Some(problem) = &replica.problem {
        let again = again.map(|again| format!("; {again}")).unwrap_or_default();
        return (if tone(&replica.state) == Tone::Bad { Tone::Bad } else { Tone::Warn }, format!("{problem}{again}"));
    }
    if let Some(again) = again {
        return (Tone::Warn, again);
    }
    if let Some(limit) = limited(replica) {
        return (Tone::Warn, format!("{}: {}", limit.level, limit.reason));
    }
    if replica.removing {
        return (Tone::Dim, "goes once it is empty".into());
    }
    if replica.drained {
        return (Tone::Dim, "drained: nothing runs there".into());
    }
    let doing =
        replica.doing.iter().map(|one| format!("{} {} {} {}", one.phase, age(now, one.since), one.class, one.tenant));
    (Tone::Dim, doing.collect::<Vec<_>>().join(", "))
}

fn queue_rows(glance: &Glance) -> Vec<Vec<(Tone, String)>> {
    let refused = glance.queue.refused_after_s;
    let row = |of: &str, one: &Waiting, serves: bool| {
        let estimate = match (one.estimate_s, refused) {
            (Some(seconds), _) => format!("waits {}", wait(seconds)),
            (None, Some(after)) if serves => format!("none: refused after {}", length(after)),
            _ => "-".into(),
        };
        let tone = if one.waiting > 0 { Tone::Warn } else { Tone::Plain };
        vec![
            (Tone::Dim, of.to_owned()),
            (Tone::Plain, one.name.clone()),
            (tone, one.waiting.to_string()),
            (Tone::Plain, one.oldest_s.map_or("-".into(), length)),
            (if serves && one.estimate_s.is_none() { Tone::Bad } else { Tone::Plain }, estimate),
            (Tone::Plain, if serves { one.ready.to_string() } else { String::new() }),
            (Tone::Plain, if serves { one.slots.to_string() } else { String::new() }),
        ]
    };
    let queue = &glance.queue;
    let classes = queue.by_class.iter().map(|one| row("class", one, false));
    let models = queue.by_model.iter().map(|one| row("model", one, true));
    let tenants = queue.by_tenant.iter().map(|one| row("tenant", one, false));
    let others = Waiting { name: "all others".into(), waiting: queue.others, ..Waiting::default() };
    let others = (queue.others > 0).then(|| row("tenant", &others, false));
    classes.chain(models).chain(tenants).chain(others).collect()
}

fn event_row(change: &Change) -> Vec<(Tone, String)> {
    let mut what = change.event.clone();
    let mut meant = Tone::Plain;
    if let (Some(from), Some(to)) = (&change.from, &change.to) {
        meant = tone(to);
        what = format!("{from} -> {to}, {}", change.reason.as_deref().unwrap_or_default());
    }
    if let Some(detail) = &change.detail {
        what = format!("{what}: {detail}");
    }
    vec![(Tone::Dim, show::moment(&change.at.into())), (Tone::Plain, change.name.clone()), (meant, what)]
}
