//! Plays load scenarios against huntgroup and reports what came of them.
//!
//! | question | module |
//! |---|---|
//! | what a scenario says | [`scenario`] |
//! | which requests that makes, and when | [`workload`], [`words`] |
//! | how a request is made and checked | [`client`] |
//! | how a scenario is played over HTTP | [`live`] |
//! | what is remembered of each request, and of the fleet | [`ledger`], [`observed`] |
//! | what comes of it: table, JSON, page | [`report`] |
//! | how a scenario is played in virtual time | [`sim`] |
//! | how such a scenario is played live, beside that | [`scaled`] |
//! | how policies are shown side by side | [`compare`] |
//! | what a gateway's record says | [`replay`] |
//! | whether capacity advice is right | [`advise`] |
//!
//! Scenario, records and report know nothing of HTTP. Scenarios of virtual time have a form of their own, that of
//! [`simulation::scenario`]: what they compare are policies on phones as they are, not a gateway's answers to faults.

mod advise;
mod cli;
mod client;
mod clock;
mod compare;
mod ledger;
mod live;
mod observed;
mod replay;
mod report;
mod scaled;
mod scenario;
mod sim;
mod tasks;
mod words;
mod workload;

use anyhow::{Context as _, bail};
use client::{Check, Pool};
use live::{Admin, Control, Fleet, KEY, Own, Play, Setting};
use report::Report;
use scenario::Scenario;
use std::{
    io::{IsTerminal as _, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

fn main() -> ExitCode {
    let command = match cli::Cli::read() {
        Ok(cli) => cli.command,
        Err(error) => {
            error.print().ok();
            return if error.use_stderr() { ExitCode::from(64) } else { ExitCode::SUCCESS };
        }
    };
    let well = match &command {
        cli::Command::Live(options) => live(options),
        cli::Command::Sim(options) => sim::run(options),
        cli::Command::Compare(options) => compare::run(options),
        cli::Command::Replay(options) => replay::run(options),
        cli::Command::Advise(options) => advise::run(options),
    };
    match well {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            writeln!(std::io::stderr(), "loadtest: {error:#}").ok();
            ExitCode::FAILURE
        }
    }
}

fn live(options: &cli::Live) -> anyhow::Result<bool> {
    if options.is_of_the_simulator() {
        return scaled::run(options, &gateway_program(options)?);
    }
    let mut scenario = read_scenario(&options.scenario)?;
    options.apply(&mut scenario);
    // Clients alone are cheapest on one thread; the phones of --self are work for a second.
    let runtime = if options.own {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()
    } else {
        tokio::runtime::Builder::new_current_thread().enable_all().build()
    };
    let report = runtime.context("the runtime")?.block_on(play(options, scenario))?;
    write_out(options, &report)?;
    Ok(report.passed)
}

fn read_scenario(path: &Path) -> anyhow::Result<Scenario> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    scenario::read(&text).map_err(|mistakes| {
        let lines: Vec<String> = mistakes.iter().map(|mistake| format!("  {mistake}")).collect();
        anyhow::anyhow!("{} has {} mistakes:\n{}", path.display(), mistakes.len(), lines.join("\n"))
    })
}

async fn play(options: &cli::Live, scenario: Scenario) -> anyhow::Result<Report> {
    let (own, fleet) = if options.own {
        let (own, fleet) = Own::start(&scenario, &gateway_program(options)?).await?;
        (Some(own), fleet)
    } else if let Some(control) = &options.control {
        (None, Fleet::Remote(Control::new(control).await?))
    } else {
        (None, Fleet::Unseen)
    };
    let admin = match (&own, &options.admin) {
        (Some(own), _) => Some(own.gateway.admin().await?),
        (None, Some(url)) => Some(Admin::new(url, options.token.as_deref()).await?),
        (None, None) => None,
    };
    let url = own.as_ref().map_or(options.gateway_url(), |own| own.gateway.url.as_str());
    let key = if own.is_some() { Some(KEY) } else { options.key.as_deref() };
    let setting = Setting {
        pool: Pool::new(url).await?,
        authorization: key.map(|key| format!("Bearer {key}")),
        admin,
        fleet,
        check: if options.any_answer { Check::Form } else { Check::EveryWord },
        progress: std::io::stderr().is_terminal(),
    };
    let target = if own.is_some() {
        "a gateway and fake phones of its own".to_owned()
    } else {
        options.gateway_url().to_owned()
    };
    let started_unix = clock::unix_seconds();
    let play = Play::new(scenario.clone(), setting);
    let played = play.run().await;
    drop(play);
    if let Some(own) = own {
        if let Some(path) = &options.gateway_log {
            own.gateway.keep_log(path)?;
        }
        if let Some(trouble) = own.gateway.stop().await {
            bail!("{trouble}");
        }
    }
    let meta = report::Meta { played: "live", target, started_unix, elapsed_s: played.elapsed_s };
    Ok(report::build(&scenario, &played.book, played.observed, meta))
}

fn gateway_program(options: &cli::Live) -> anyhow::Result<PathBuf> {
    if let Some(program) = &options.huntgroup {
        return Ok(program.clone());
    }
    let this = std::env::current_exe().context("where this program is")?;
    Ok(this.with_file_name("huntgroup"))
}

fn write_out(options: &cli::Live, report: &Report) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let json_only = options.json.as_deref() == Some(Path::new("-"));
    if json_only {
        serde_json::to_writer_pretty(&mut out, report)?;
        writeln!(out)?;
    } else {
        let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        report::print(&mut out, report, colour)?;
    }
    if let Some(path) = options.json.as_deref().filter(|_| !json_only) {
        let text = serde_json::to_string_pretty(report)?;
        std::fs::write(path, text + "\n").with_context(|| path.display().to_string())?;
    }
    if let Some(path) = &options.html {
        std::fs::write(path, report::page(report)).with_context(|| path.display().to_string())?;
    }
    Ok(())
}
