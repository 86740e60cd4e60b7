//! `huntgroup top`: the gateway at a glance, live, in a terminal.
//!
//! | file | holds |
//! |---|---|
//! | `feed` | the live feed over HTTP |
//! | `state` | what it has told so far |
//! | `page` | that as lines for a screen; pure |
//! | `frame` | lines: tones, widths, columns, and the one place that takes the sting out of foreign text |
//! | `keyboard` | bytes of a terminal as keys |
//! | `terminal` | the terminal, taken and given back |
//!
//! Rejected: a library of widgets. A page of tables needs widths and tones, and the same lines are what `--once` prints; the widgets'
//! thirty crates would have been an eighth of what the gateway is made of. A library for terminals alone: of all that terminals
//! differ in, eleven keys and four commands are needed here, which all of them share.

mod feed;
mod frame;
mod keyboard;
mod page;
mod state;
mod terminal;
#[cfg(test)]
mod tests;

use std::{
    env,
    future::Future,
    io::{self, IsTerminal as _, Write},
    pin::Pin,
    time::Duration,
};

use serde_json::{Map, Value, json};
use tokio::signal::unix::{SignalKind, signal};

use self::{
    feed::{Feed, News},
    frame::{Style, Tone},
    keyboard::{Key, Keyboard},
    page::{Pane, Size, Sort, View},
    state::Glance,
    terminal::Terminal,
};
use super::client::{AdminClient, CliError, Common};
use crate::clock;

/// What is there at the start is told by then, or is not told at all.
const PATIENCE: Duration = Duration::from_secs(30);
/// The last of what is told at the start.
const LAST: &str = "events";
/// Ages go on also when nothing happens.
const REDRAW: Duration = Duration::from_secs(1);
/// Columns where there is no terminal.
const USUAL_WIDTH: usize = 140;

/// Flags of `huntgroup top`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  huntgroup top                           q quits, ? shows the keys
  huntgroup top --once                    one look, as plain text, for a script or a ticket
  huntgroup top --json                    the same as JSON
  huntgroup top --admin http://127.0.0.1:9191

It goes on by itself when the gateway is restarted. Where the output is no terminal it prints one
look and ends. NO_COLOR=1 in the environment turns colours off.")]
pub struct TopArgs {
    /// Print one look as plain text, and end
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    common: Common,
}

/// Shows the gateway until the operator has seen enough.
///
/// # Errors
/// The gateway can't be reached, or refuses; the terminal fails.
pub async fn run(args: TopArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let client = AdminClient::from_args(&args.common.admin)?;
    let address = args.common.admin.url.clone();
    let mut feed = Feed::open(client.clone()).await?;
    let style = style(&|name| env::var(name).ok());
    if args.common.json {
        let (_, told) = first_look(&mut feed).await?;
        return Ok(super::table::print_json(out, &Value::Object(told))?);
    }
    if args.once || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let (glance, _) = first_look(&mut feed).await?;
        for line in page::whole(&glance, width(), Style { colour: false, ..style }, now(), &address) {
            writeln!(out, "{}", line.text().trim_end())?;
        }
        return Ok(());
    }
    let mut top = Top { client, address, glance: Glance::default(), view: View::default(), asked: None, pending: None };
    top.watch(feed, Terminal::take(style)?).await
}

fn now() -> f64 {
    clock::unix().as_secs_f64()
}

/// Columns of one look.
fn width() -> usize {
    let columns = rustix::termios::tcgetwinsize(io::stdout()).ok().map(|size| usize::from(size.ws_col));
    let stated = || env::var("COLUMNS").ok()?.parse().ok();
    columns.filter(|columns| *columns > 0).or_else(stated).unwrap_or(USUAL_WIDTH)
}

/// What the environment says about the terminal.
fn style(env: &dyn Fn(&str) -> Option<String>) -> Style {
    let stated = |name: &str| env(name).filter(|value| !value.is_empty());
    let dumb = env("TERM").is_some_and(|name| name == "dumb");
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(|name| stated(name)).unwrap_or_default().to_lowercase();
    Style {
        colour: stated("NO_COLOR").is_none() && !dumb,
        unicode: !dumb && (locale.contains("utf-8") || locale.contains("utf8")),
    }
}

/// Everything that is told at the start, read and as it came.
async fn first_look(feed: &mut Feed) -> Result<(Glance, Map<String, Value>), CliError> {
    let (mut glance, mut told) = (Glance::default(), Map::new());
    let reading = async {
        loop {
            match feed.next().await {
                News::Event(name, data) => {
                    let is_last = name == LAST;
                    take_in(&mut glance, &name, data.clone())?;
                    told.insert(name, data);
                    if is_last {
                        return Ok(());
                    }
                }
                News::Lost(why) => return Err(strange(why)),
            }
        }
    };
    tokio::time::timeout(PATIENCE, reading).await.map_err(|_| CliError::Slow)??;
    Ok((glance, told))
}

fn strange(why: String) -> CliError {
    CliError::Strange { url: "its live feed".into(), why }
}

fn take_in(glance: &mut Glance, name: &str, data: Value) -> Result<(), CliError> {
    let known = glance.take_in(name, data);
    known
        .then_some(())
        .ok_or_else(|| strange(format!("{name:?} is not what this version knows; is it another version's?")))
}

/// A change that the gateway was asked for.
type Asked = Pin<Box<dyn Future<Output = (Tone, String)>>>;

/// What a key leads to.
#[derive(Debug, PartialEq, Eq)]
enum Act {
    Quit,
    /// A change of the replica with this number: `drain` or `undrain`, and its name.
    Change(&'static str, u32, String),
}

struct Top {
    client: AdminClient,
    address: String,
    glance: Glance,
    view: View,
    asked: Option<Asked>,
    /// What is done at a yes.
    pending: Option<Act>,
}

impl Top {
    async fn watch(&mut self, mut feed: Feed, mut terminal: Terminal) -> Result<(), CliError> {
        let (mut typed, mut keyboard) = (terminal::typed(), Keyboard::default());
        let mut ends = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()].map(signal);
        let mut resized = signal(SignalKind::window_change())?;
        let mut redraw = tokio::time::interval(REDRAW);
        loop {
            tokio::select! {
                biased;
                () = any_of(&mut ends) => return Ok(()),
                Some(()) = resized.recv() => terminal.resized(),
                piece = typed.recv() => {
                    let Some(piece) = piece else { return Ok(()) };
                    for key in keyboard.typed(&piece?) {
                        match self.key(key, terminal.size()) {
                            Some(Act::Quit) => return Ok(()),
                            Some(Act::Change(action, id, name)) => {
                                self.asked = Some(change(self.client.clone(), action, id, name));
                            }
                            None => {}
                        }
                    }
                }
                news = feed.next() => {
                    self.hear(news);
                    if feed.has_more() {
                        continue;
                    }
                }
                remark = outcome(&mut self.asked) => {
                    self.asked = None;
                    self.view.remark = Some(remark);
                }
                _ = redraw.tick() => {}
            }
            let lines =
                page::page(&self.glance, &mut self.view, terminal.size(), terminal.style(), now(), &self.address);
            terminal.draw(lines)?;
        }
    }

    fn hear(&mut self, news: News) {
        match news {
            News::Event(name, data) => {
                self.view.lost = None;
                if let Err(error) = take_in(&mut self.glance, &name, data) {
                    self.view.remark = Some((Tone::Bad, error.to_string()));
                }
            }
            News::Lost(why) => self.view.lost = Some(why),
        }
    }

    /// What a key does.
    fn key(&mut self, key: Key, size: Size) -> Option<Act> {
        let view = &mut self.view;
        if key == Key::Interrupt {
            return Some(Act::Quit);
        }
        view.remark = None;
        if view.question.take().is_some() {
            return self.pending.take().filter(|_| key == Key::Letter('y'));
        }
        if std::mem::take(&mut view.help) {
            return None;
        }
        let (last, leap) = (page::rows(&self.glance, view).saturating_sub(1), size.rows.saturating_sub(9).max(1));
        match key {
            Key::Letter('q') => return Some(Act::Quit),
            Key::Letter('?') => view.help = true,
            Key::Down | Key::Letter('j') => view.chosen = (view.chosen + 1).min(last),
            Key::Up | Key::Letter('k') => view.chosen = view.chosen.saturating_sub(1),
            Key::PageDown => view.chosen = (view.chosen + leap).min(last),
            Key::PageUp => view.chosen = view.chosen.saturating_sub(leap),
            Key::Home => view.chosen = 0,
            Key::End => view.chosen = last,
            Key::Tab => self.turn(1),
            Key::BackTab => self.turn(Pane::ALL.len() - 1),
            Key::Letter(number @ '1'..='5') => {
                let place = number as usize - '1' as usize;
                (view.pane, view.chosen, view.top) = (Pane::ALL[place], 0, 0);
            }
            Key::Letter('s') => view.sort = after(&Sort::ALL, view.sort, 1),
            Key::Letter('f') => (view.filter, view.chosen) = (!view.filter, 0),
            Key::Letter('d') => self.ask("drain", "Drain"),
            Key::Letter('u') => self.ask("undrain", "Give work again to"),
            _ => {}
        }
        None
    }

    fn turn(&mut self, by: usize) {
        let view = &mut self.view;
        (view.pane, view.chosen, view.top) = (after(&Pane::ALL, view.pane, by), 0, 0);
    }

    fn ask(&mut self, action: &'static str, words: &str) {
        let Some(replica) = page::chosen(&self.glance, &self.view) else {
            self.view.remark = Some((Tone::Warn, "choose a replica first: tab, then the arrows".into()));
            return;
        };
        self.view.question = Some(format!("{words} {}?", replica.name));
        self.pending = Some(Act::Change(action, replica.id, replica.name.clone()));
    }
}

/// The one that stands so many places behind.
fn after<T: Copy + PartialEq>(all: &[T], one: T, by: usize) -> T {
    let place = all.iter().position(|other| *other == one).unwrap_or_default();
    all[(place + by) % all.len()]
}

/// Asks the gateway for a change.
fn change(client: AdminClient, action: &'static str, id: u32, name: String) -> Asked {
    Box::pin(async move {
        match client.post(&format!("/admin/replicas/{id}/{action}"), &json!({})).await {
            Ok(_) if action == "drain" => (Tone::Good, format!("{name} gets no new work; what runs there may end")),
            Ok(_) => (Tone::Good, format!("{name} takes work again")),
            Err(error) => (Tone::Bad, format!("{name}: {error}")),
        }
    })
}

/// What became of the change that was asked for; never, if none was.
async fn outcome(asked: &mut Option<Asked>) -> (Tone, String) {
    match asked {
        Some(asked) => asked.await,
        None => std::future::pending().await,
    }
}

/// Resolves at the first of these signals.
async fn any_of(ends: &mut [io::Result<tokio::signal::unix::Signal>; 3]) {
    let [first, second, third] = ends;
    let one = async |end: &mut io::Result<tokio::signal::unix::Signal>| match end {
        Ok(end) => drop(end.recv().await),
        Err(_) => std::future::pending().await,
    };
    tokio::select! {
        () = one(first) => {}
        () = one(second) => {}
        () = one(third) => {}
    }
}
