//! The pooled bound: all phones are one server whose speed is the sum of their priced speeds, which serves the shortest
//! remaining work first and loses nothing by switching. No policy has a lower mean on that server, and no set of phones is
//! better than that server.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::{Fleet, prices::Prices};
use crate::workload::Request;

/// Below this the server stands still; what is left of a sum of changes.
const STANDSTILL: f64 = 1e-12;

/// Mean time from arrival to answer, seconds.
pub(super) fn bound(fleet: &Fleet<'_>, prices: &Prices<'_>, requests: &[&Request]) -> f64 {
    let mut arriving: Vec<(f64, f64)> =
        requests.iter().filter_map(|request| Some((request.arrival()?, prices.of(fleet, request)))).collect();
    arriving.sort_by(|a, b| a.0.total_cmp(&b.0));
    let count = arriving.len();
    let mut server =
        Server { arriving, next: 0, changes: changes(fleet, prices), waiting: BinaryHeap::new(), speed: 0.0, now: 0.0 };
    server.serve() / count as f64
}

/// When the server's speed changes, and by how much.
fn changes(fleet: &Fleet<'_>, prices: &Prices<'_>) -> std::vec::IntoIter<(f64, f64)> {
    let mut changes = Vec::new();
    for (timeline, price) in fleet.timelines.iter().zip(&prices.of_phones) {
        let mut before = 0.0;
        for phase in timeline.phases() {
            changes.push((phase.start, (phase.factor - before) * price));
            before = phase.factor;
        }
    }
    changes.sort_by(|a, b| a.0.total_cmp(&b.0));
    changes.into_iter()
}

struct Server {
    /// Arrival and work, by arrival.
    arriving: Vec<(f64, f64)>,
    next: usize,
    changes: std::vec::IntoIter<(f64, f64)>,
    /// Remaining work and number in `arriving`, the least first.
    waiting: BinaryHeap<Reverse<(Work, usize)>>,
    speed: f64,
    now: f64,
}

impl Server {
    /// The sum of all times from arrival to answer.
    fn serve(&mut self) -> f64 {
        let mut sum = 0.0;
        while self.next < self.arriving.len() || !self.waiting.is_empty() {
            let change = self.changes.as_slice().first().map_or(f64::INFINITY, |(time, _)| *time);
            let arrival = self.arriving.get(self.next).map_or(f64::INFINITY, |(time, _)| *time);
            let done = self.done_at();
            let moment = change.min(arrival).min(done);
            if moment.is_infinite() {
                break;
            }
            if let Some(number) = self.work_until(moment, done <= moment) {
                sum += moment - self.arriving.get(number).map_or(moment, |(time, _)| *time);
            }
            if change <= moment {
                self.speed += self.changes.next().map_or(0.0, |(_, step)| step);
            } else if arrival <= moment && done > moment {
                self.admit();
            }
        }
        sum
    }

    fn done_at(&self) -> f64 {
        let shortest = self.waiting.peek().filter(|_| self.speed > STANDSTILL);
        shortest.map_or(f64::INFINITY, |Reverse((work, _))| self.now + work.0 / self.speed)
    }

    /// Serves the shortest until then; its number, if it is answered with that.
    fn work_until(&mut self, moment: f64, done: bool) -> Option<usize> {
        let length = moment - self.now;
        self.now = moment;
        let Reverse((work, number)) = self.waiting.pop()?;
        if done {
            return Some(number);
        }
        self.waiting.push(Reverse((Work(work.0 - self.speed * length), number)));
        None
    }

    fn admit(&mut self) {
        let Some((_, work)) = self.arriving.get(self.next) else { return };
        self.waiting.push(Reverse((Work(*work), self.next)));
        self.next += 1;
    }
}

/// Remaining work, ordered.
#[derive(Clone, Copy, PartialEq)]
struct Work(f64);

impl Eq for Work {}

impl PartialOrd for Work {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Work {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}
