//! Plays scenarios on all cores.
//!
//! A play is a function of its scenario, its seed and its player, so plays are shared out to threads as they come free,
//! and the results put back in order. What the players of one seed have in common, the drawn work and its bounds, is made
//! once, by whoever needs it first, and dropped after the last.

use super::figures::{Figures, Measured};
use simulation::{
    play::{Player, Run},
    scenario::Scenario,
};
use std::{
    collections::BTreeMap,
    num::NonZero,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};

/// One scenario, who serves it, and in which runs.
pub(crate) struct Order<'s> {
    /// The scenario.
    pub(crate) scenario: &'s Scenario,
    /// Who serves it.
    pub(crate) players: Vec<Player>,
    /// The runs.
    pub(crate) seeds: Vec<u64>,
}

/// What the players of one seed have in common.
struct Draw<'s> {
    scenario: &'s Scenario,
    seed: u64,
    run: Mutex<Option<Arc<Run<'s>>>>,
    left: AtomicUsize,
}

impl<'s> Draw<'s> {
    fn get(&self) -> Arc<Run<'s>> {
        let mut run = self.run.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(run.get_or_insert_with(|| Arc::new(Run::new(self.scenario, self.seed))))
    }

    /// A player is done with it.
    fn leave(&self) {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.run.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
    }
}

/// One play to be made.
struct Job<'d, 's> {
    draw: &'d Draw<'s>,
    player: Player,
    /// Number of the result that it is part of.
    result: usize,
}

/// Who is told how far the plays are.
pub(crate) trait Watcher {
    /// `done` of `all` plays are made.
    fn played(&mut self, done: usize, all: usize);
    /// A scenario was served by a player in all its runs. In the order of the orders and their players.
    ///
    /// # Errors
    /// It can't go on.
    fn finished(&mut self, figures: Figures) -> anyhow::Result<()>;
}

/// Plays everything.
///
/// # Errors
/// The watcher's.
pub(crate) fn play_all(orders: &[Order<'_>], watcher: &mut dyn Watcher) -> anyhow::Result<()> {
    let draws: Vec<Vec<Draw<'_>>> = orders.iter().map(draws).collect();
    let mut results: Vec<Series<'_>> = Vec::new();
    let mut jobs = Vec::new();
    for (order, draws) in orders.iter().zip(&draws) {
        let first = results.len();
        results.extend(order.players.iter().map(|player| Series::new(order, *player)));
        let numbered = || order.players.iter().enumerate();
        jobs.extend(draws.iter().flat_map(|draw| {
            numbered().map(move |(index, player)| Job { draw, player: *player, result: first + index })
        }));
    }
    let next = AtomicUsize::new(0);
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(jobs.len());
    let (sender, receiver) = mpsc::sync_channel(2 * threads.max(1));
    thread::scope(|scope| {
        for _ in 0..threads {
            let (jobs, next, sender) = (&jobs, &next, sender.clone());
            scope.spawn(move || {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let measured = job.play();
                    // Nobody listens any more once the watcher gave up.
                    if sender.send((job.result, measured)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        collect(&mut results, receiver, jobs.len(), watcher)
    })
}

fn draws<'s>(order: &Order<'s>) -> Vec<Draw<'s>> {
    let draw = |seed: &u64| Draw {
        scenario: order.scenario,
        seed: *seed,
        run: Mutex::new(None),
        left: AtomicUsize::new(order.players.len()),
    };
    order.seeds.iter().map(draw).collect()
}

impl Job<'_, '_> {
    fn play(&self) -> Measured {
        let run = self.draw.get();
        let played = run.play(&self.player);
        let measured = Measured { seed: run.number, played, bounds: run.bounds.clone() };
        drop(run);
        self.draw.leave();
        measured
    }
}

/// The plays of one scenario by one player.
struct Series<'s> {
    scenario: &'s Scenario,
    player: Player,
    runs: usize,
    measured: BTreeMap<u64, Measured>,
}

impl<'s> Series<'s> {
    fn new(order: &Order<'s>, player: Player) -> Self {
        Self { scenario: order.scenario, player, runs: order.seeds.len(), measured: BTreeMap::new() }
    }
}

fn collect(
    results: &mut [Series<'_>],
    receiver: mpsc::Receiver<(usize, Measured)>,
    all: usize,
    watcher: &mut dyn Watcher,
) -> anyhow::Result<()> {
    let mut shown = 0;
    for (done, (index, measured)) in receiver.iter().enumerate() {
        if let Some(result) = results.get_mut(index) {
            result.measured.insert(measured.seed, measured);
        }
        while let Some(result) = results.get_mut(shown).filter(|result| result.measured.len() == result.runs) {
            let measured: Vec<Measured> = std::mem::take(&mut result.measured).into_values().collect();
            watcher.finished(Figures::mean(result.scenario, &result.player, &measured))?;
            shown += 1;
        }
        watcher.played(done + 1, all);
    }
    Ok(())
}
