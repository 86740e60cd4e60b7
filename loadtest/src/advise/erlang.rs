//! What the formula of the telephone exchange would advise, for comparison: Erlang's of a queue before equal servers.
//!
//! A phone is a server, as fast as the typical one that was measured, for as much of the time as it is there; all work of the model
//! waits in one queue, in its order. A class meets its objective if no more than the share that may be late waits longer than the
//! objective leaves beside the class's own work.

use simulation::advice::Advice;

/// No more servers are tried.
const MOST: usize = 10_000;

/// Phones for the work that was measured. `None`: nothing came, or a class has an objective that no phone can meet.
pub(super) fn wanted(advice: &Advice, up: f64) -> Option<usize> {
    let load: f64 = advice.classes.iter().map(|class| class.load).sum();
    if advice.classes.iter().any(|class| class.at_best.is_some()) || load <= 0.0 {
        return None;
    }
    let promised = || advice.classes.iter().filter(|class| class.requests > 0);
    let arrivals: f64 = promised().map(|class| class.arrivals_per_s.0).sum();
    let service_s = if arrivals > 0.0 { load / arrivals } else { 1.0 };
    let meets = |servers: usize| {
        promised().all(|class| {
            let Some(objective) = class.objective else { return true };
            let own_s = class.load / class.arrivals_per_s.0.max(f64::MIN_POSITIVE);
            let left_s = (objective.ttft_s - own_s).max(0.0);
            let late = waits(servers, load) * (-(servers as f64 - load) * left_s / service_s).exp();
            late <= 1.0 - objective.share
        })
    };
    let servers = (load.floor() as usize + 1..MOST).find(|servers| meets(*servers))?;
    Some((servers as f64 / up).ceil() as usize)
}

/// The share of requests that wait at all: Erlang C, for a load that the servers can take.
fn waits(servers: usize, load: f64) -> f64 {
    // Erlang B, by its recursion, which does not overflow.
    let blocked = (1..=servers).fold(1.0, |blocked, server| load * blocked / (server as f64 + load * blocked));
    let free = 1.0 - load / servers as f64;
    blocked / (free + (1.0 - free) * blocked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_wait_as_the_tables_say() {
        // Of one server that is busy half of the time, half; the others from published tables of Erlang C.
        for (servers, load, share) in [(1, 0.5, 0.5), (2, 1.0, 0.3333), (10, 8.0, 0.4092), (20, 15.0, 0.1604)] {
            assert!((waits(servers, load) - share).abs() < 0.0005, "{servers} {load}: {}", waits(servers, load));
        }
    }
}
