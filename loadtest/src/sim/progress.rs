//! The line that a terminal shows while scenarios are played.

use std::io::{self, IsTerminal as _, Write as _};

/// Draws on a terminal, and nowhere else.
pub(crate) struct Progress {
    terminal: bool,
    drawn: bool,
}

impl Progress {
    /// Nothing is shown yet.
    pub(crate) fn new() -> Self {
        Self { terminal: io::stderr().is_terminal(), drawn: false }
    }

    /// `done` of `all` plays are made.
    pub(crate) fn show(&mut self, done: usize, all: usize) {
        if !self.terminal {
            return;
        }
        let filled = 20 * done / all.max(1);
        let bar: String = (0..20).map(|cell| if cell < filled { '█' } else { '░' }).collect();
        // A terminal that can't be written to is no reason to stop.
        write!(io::stderr(), "\r\x1b[K{bar} {done} of {all} plays").ok();
        self.drawn = true;
        if done == all {
            self.clear();
        }
    }

    /// Removes the line, so that something else can be written.
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.drawn) {
            write!(io::stderr(), "\r\x1b[K").ok();
        }
    }
}
