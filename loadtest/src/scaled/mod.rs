//! Scenarios of the simulator, played live: behind sockets, in a fraction of their time, beside what the simulator says.
//!
//! The simulator shows what a policy is worth if phones, sockets and gateway are as modelled; this shows that they are. The
//! same draw is played twice, so phones, failures and requests are the same, and the figures are taken by the same code.
//! All times are divided by the speedup, of phones, clients, failures and of the gateway's clock, and figures multiplied by
//! it. What does not shrink is the time that this machine takes for its work, so it is told whether that was too much
//! ([`cpu`]).
//!
//! | question | module |
//! |---|---|
//! | prompts with the scenario's tokens | [`texts`] |
//! | phones and gateway | [`stage`] |
//! | what befalls the phones | [`fortune`] |
//! | who asks what when | [`clients`] |
//! | what is sent as a file, and run as a batch | [`batch`] |
//! | the scenario's time | [`time`] |
//! | whether this machine kept up | [`cpu`] |
//! | how far live is from simulated | [`off`] |
//! | table, JSON, page | [`report`] |

mod batch;
mod clients;
mod cpu;
mod fortune;
mod off;
mod report;
mod stage;
mod texts;
mod time;

use crate::{
    cli::{self, GatewayPolicy},
    client::Pool,
    live::interrupted,
    report::{number, short_time},
    sim::{Figures, Measured, read_scenario},
};
use anyhow::{Context as _, bail};
use batch::Beside;
use clients::{Book, Clients, Prepared};
use cpu::{Cpu, Watch};
use report::{OfBatches, Report};
use simulation::{
    play::{Player, Progress, Run},
    scenario::{Arrivals, Class, Scenario},
};
use stage::Stage;
use std::{
    collections::BTreeMap,
    io::{self, IsTerminal as _, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use time::Time;
use tokio::task::JoinSet;

/// How much faster than the scenario it is played, if nothing is said.
const SPEEDUP: f64 = 20.0;

/// `loadtest live` with a scenario of the simulator: true if live and simulated are as near as they should be.
pub(crate) fn run(options: &cli::Live, program: &Path) -> anyhow::Result<bool> {
    let scenario = shortened(read_scenario(&options.scenario)?, options.duration);
    let speedup = options.scaled.speedup.unwrap_or(SPEEDUP);
    let (policy, player) = player(options.scaled.policy.unwrap_or(GatewayPolicy::LeastWork))?;
    let seeds = if options.scaled.seeds.is_empty() { vec![0] } else { cli::runs(&options.scaled.seeds) };
    raise_descriptor_limit(&scenario, options.scaled.batch_api)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.context("the runtime")?;
    let (mut live, mut simulated, mut cpu, mut batches) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut failures: BTreeMap<String, u64> = BTreeMap::new();
    for seed in seeds {
        let run = Run::new(&scenario, seed);
        let measured = |played| Measured { seed, played, bounds: run.bounds.clone() };
        let batch_api = options.scaled.batch_api;
        let plan = Plan { run: &run, speedup, policy, player: &player, program, batch_api };
        let served = runtime.block_on(plan.play(options.gateway_log.as_deref()))?;
        let played_simulated = run.play(&player);
        if let Some(mut figures) = served.batches {
            if let Some(alone) = batch::without_files(&scenario, figures.last_s()) {
                let alone = Run::new(&alone, seed);
                let plan = Plan { run: &alone, batch_api: false, ..plan };
                let served_alone = runtime.block_on(plan.play(None))?;
                let beside = Beside::new(&run, &player, &served.requests, &alone, &served_alone.played);
                figures.beside = Some(beside);
                cpu.push(served_alone.cpu);
            }
            let curve = |class: &Class| {
                let played = played_simulated.classes.iter().find(|played| played.name == class.name);
                played.map(|played| played.curve.clone()).unwrap_or_default()
            };
            let curves: Vec<Vec<f64>> = scenario.classes.iter().map(curve).collect();
            let plots = batch::plots(&figures, &run, &curves);
            batches.push(OfBatches { figures, plots });
        }
        live.push(measured(served.played));
        cpu.insert(0, served.cpu);
        for (kind, count) in served.failures {
            *failures.entry(kind).or_default() += count;
        }
        simulated.push(measured(played_simulated));
    }
    let live = seen(&scenario, Figures::mean(&scenario, &player, &live));
    let simulated = Figures::mean(&scenario, &player, &simulated);
    let within = options.scaled.within;
    let pairs = off::pairs(&scenario, &live, &simulated, within);
    let report = Report { scenario: &scenario, speedup, live, simulated, pairs, within, failures, cpu, batches };
    write_out(options, &report)?;
    Ok(report.holds())
}

/// Figures of a live play without what can't be seen in one: the first token of a plain answer, and what phones did for
/// whom, or in vain.
fn seen(scenario: &Scenario, mut figures: Figures) -> Figures {
    figures.waste = None;
    figures.classes.iter_mut().for_each(crate::sim::ClassMeans::leave_out_slot_time);
    for class in scenario.classes.iter().filter(|class| !class.objective_on_first_token) {
        let measured = figures.classes.iter_mut().find(|measured| measured.name == class.name);
        measured.into_iter().for_each(|measured| measured.leave_out("ttft_"));
    }
    figures
}

/// The player of the simulator that a gateway with this policy is compared with.
fn player(policy: GatewayPolicy) -> anyhow::Result<(&'static str, Player)> {
    let (policy, name) = match policy {
        GatewayPolicy::LeastWork => ("least_work", "default"),
        GatewayPolicy::LeastBusy => ("least_busy", "least_busy"),
        GatewayPolicy::RoundRobin => ("round_robin", "round_robin"),
    };
    Ok((policy, Player::named(name)?))
}

/// The scenario as if its work had stopped arriving earlier. What is drawn of it begins as that of the whole.
fn shortened(mut scenario: Scenario, length_s: Option<f64>) -> Scenario {
    if let Some(length_s) = length_s {
        scenario.horizon_s = scenario.horizon_s.min(length_s);
        scenario.warmup_s = scenario.warmup_s.min(scenario.horizon_s / 4.0);
    }
    scenario
}

/// Each client that waits takes a descriptor here and one of the gateway's, which inherits the limit: a batch of thousands
/// needs thousands, and the limit is often 1,024 until it is raised.
fn raise_descriptor_limit(scenario: &Scenario, batch_api: bool) -> anyhow::Result<()> {
    /// Of a phone: its port, twice, and what is connected to it.
    const PER_PHONE: u64 = 12;
    /// For everything else, and for requests that do not come all at once.
    const OTHERS: u64 = 500;
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    // With the old limit everything works, for smaller scenarios.
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).ok();
    let at_once = |class: &Class| match class.arrivals {
        Arrivals::Closed { n, .. } if !(batch_api && batch::goes_as_file(class)) => n as u64,
        _ => 0,
    };
    let phones: u64 = scenario.phones.classes.iter().map(|class| class.count as u64).sum();
    let needed = scenario.classes.iter().map(at_once).sum::<u64>() + PER_PHONE * phones + OTHERS;
    let allowed = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    if allowed.is_some_and(|allowed| allowed < needed) {
        bail!(
            "{} needs about {needed} open files, and this process may have {}: raise the limit (ulimit -n)",
            scenario.name,
            allowed.unwrap_or_default()
        );
    }
    Ok(())
}

/// One run to be played.
struct Plan<'p> {
    run: &'p Run<'p>,
    speedup: f64,
    policy: &'static str,
    player: &'p Player,
    program: &'p Path,
    /// Some classes are sent as files.
    batch_api: bool,
}

/// What came of one run.
struct Served {
    played: simulation::play::Played,
    /// By request.
    requests: Vec<Progress>,
    /// Of what was sent as files.
    batches: Option<batch::Figures>,
    failures: BTreeMap<String, u64>,
    cpu: Cpu,
}

impl Plan<'_> {
    async fn play(&self, log: Option<&Path>) -> anyhow::Result<Served> {
        let kept = if self.batch_api { usize::MAX } else { 0 };
        let stage = Stage::start(self.run, self.speedup, self.policy, self.program, kept).await?;
        let pool = Pool::new(&stage.gateway.url).await?;
        let prepared = Prepared::new(self.run, self.batch_api);
        let mut samples = batch::Samples::default();
        let uploads = tokio::select! {
            uploads = batch::upload(self.run, &prepared, &pool) => uploads?,
            () = samples.watch(self.run, &stage, None) => Vec::new(),
        };
        let time = Time::begin(self.speedup);
        let clients = Arc::new(Clients {
            run: Arc::new(prepared),
            pool,
            time,
            book: Book::new(self.run.workload.requests.len()),
        });
        let watch = Arc::new(Watch::begin(stage.gateway.id(), &time));
        let mut background = JoinSet::new();
        let watching = Arc::clone(&watch);
        background.spawn(async move { watching.run().await });
        background.spawn(progress(Arc::clone(&clients)));
        for (phone, timeline) in stage.phones.iter().zip(&self.run.workload.timelines) {
            background.spawn(fortune::run(phone.clone(), timeline.clone(), self.run.scenario.detect_s, time));
        }
        let all = async { tokio::join!(clients::run(&clients), batch::run(&clients, uploads)).1 };
        let ran = tokio::select! {
            ran = all => Some(ran),
            () = samples.watch(self.run, &stage, Some(&time)) => None,
            () = interrupted() => None,
        };
        let (end, cpu) = (time.now(), watch.end(&time));
        background.shutdown().await;
        clear_progress();
        if let Some(path) = log {
            stage.gateway.keep_log(path)?;
        }
        let batches = match ran {
            Some(ran) if self.batch_api => Some(batch::figures(&clients, &stage, &ran?, samples).await?),
            Some(_) => None,
            None => bail!("interrupted: figures of a part of a scenario are those of another one"),
        };
        let trouble = stage.gateway.stop().await;
        if let Some(trouble) = trouble {
            bail!("{trouble}");
        }
        let mut pages = clients.book.pages();
        let requests = std::mem::take(&mut pages.requests);
        let failures = std::mem::take(&mut pages.failures);
        let played = self.run.figures(self.player, requests.clone(), end);
        Ok(Served { played, requests, batches, failures, cpu })
    }
}

/// Shows how far it is, on a terminal, until it is cancelled.
async fn progress(clients: Arc<Clients>) {
    const REDRAW: Duration = Duration::from_millis(250);
    if !io::stderr().is_terminal() {
        return;
    }
    loop {
        tokio::time::sleep(REDRAW).await;
        let (now, horizon_s) = (clients.time.now(), clients.run.horizon_s);
        let (answered, waiting) = {
            let pages = clients.book.pages();
            (pages.answered, pages.waiting)
        };
        let filled = (20.0 * (now / horizon_s).min(1.0)) as usize;
        let bar: String = (0..20).map(|cell| if cell < filled { '█' } else { '░' }).collect();
        let line = format!(
            "{bar} {} of {}, {} answered, {waiting} waiting",
            short_time(now),
            short_time(horizon_s),
            number(answered as f64)
        );
        // A terminal that can't be written to is no reason to stop.
        write!(io::stderr(), "\r\x1b[K{line}").ok();
    }
}

fn clear_progress() {
    if io::stderr().is_terminal() {
        write!(io::stderr(), "\r\x1b[K").ok();
    }
}

fn write_out(options: &cli::Live, report: &Report<'_>) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let json_only = options.json.as_deref() == Some(Path::new("-"));
    let text = || -> anyhow::Result<String> { Ok(serde_json::to_string_pretty(&report.json()?)? + "\n") };
    if json_only {
        write!(out, "{}", text()?)?;
    } else {
        report.print(&mut out)?;
    }
    let write = |path: &PathBuf, text: String| std::fs::write(path, text).with_context(|| path.display().to_string());
    if let Some(path) = options.json.as_ref().filter(|_| !json_only) {
        write(path, text()?)?;
    }
    if let Some(path) = &options.html {
        write(path, report.page())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortened_scenario_begins_like_the_whole() {
        let text = include_str!("../../scenarios/sim/dev-review-10-50.json");
        let whole = Scenario::from_json(text).expect("a scenario");
        let part = shortened(whole.clone(), Some(900.0));
        assert_eq!((part.horizon_s, part.warmup_s), (900.0, 225.0));
        let (whole, part) = (Run::new(&whole, 0), Run::new(&part, 0));
        let count = part.workload.requests.len();
        assert!(count > 20 && part.workload.requests[..] == whole.workload.requests[..count]);
        assert_eq!(part.workload.timelines[3].phases()[0], whole.workload.timelines[3].phases()[0]);
    }

    #[test]
    fn every_policy_of_the_gateway_has_its_player() {
        for policy in [GatewayPolicy::LeastWork, GatewayPolicy::LeastBusy, GatewayPolicy::RoundRobin] {
            assert!(player(policy).is_ok(), "{policy:?}");
        }
    }
}
