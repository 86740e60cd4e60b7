//! The line that a terminal shows while a scenario is played.

use super::play::Play;
use std::{io::Write as _, sync::Arc, time::Duration};

const REDRAW: Duration = Duration::from_millis(250);

/// Draws until it is cancelled.
pub(super) async fn run(play: Arc<Play>) {
    let mut ticks = tokio::time::interval(REDRAW);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let (mut rate, mut before) = (0.0, (0.0, 0));
    loop {
        ticks.tick().await;
        let (now, tally) = (play.seconds(), play.ledger.tally());
        if now - before.0 >= 1.0 {
            rate = (tally.ended - before.1) as f64 / (now - before.0);
            before = (now, tally.ended);
        }
        let left = play.scenario.duration_s - now;
        let eta = if left > 0.0 { format!("{left:.0} s left") } else { "waiting for the last answers".to_owned() };
        let share = (now / play.scenario.duration_s).min(1.0);
        let filled = (share * 20.0) as usize;
        let bar: String = (0..20).map(|cell| if cell < filled { '█' } else { '░' }).collect();
        let line = format!(
            "{bar} {} answered, {} errors, {} in flight, {rate:.1}/s, {eta}",
            tally.ended - tally.failed.min(tally.ended),
            tally.failed,
            tally.in_flight()
        );
        // A terminal that can't be written to is no reason to stop a load test.
        write!(std::io::stderr(), "\r\x1b[K{line}").ok();
    }
}

/// Removes the line.
pub(super) fn clear(drawn: bool) {
    if drawn {
        write!(std::io::stderr(), "\r\x1b[K").ok();
    }
}
