//! The clock of limits: the process' own, or one that a test moves by hand.

use std::time::Duration;

use governor::{
    clock::{Clock, FakeRelativeClock},
    nanos::Nanos,
};

/// A clock for [`governor`].
#[derive(Clone, Debug)]
pub enum Ticks {
    /// The process' monotonic clock.
    Process,
    /// Stands still until [`Ticks::advance`].
    Manual(FakeRelativeClock),
}

impl Ticks {
    /// A clock that is moved by hand; clones show the same time.
    pub fn manual() -> Self {
        Self::Manual(FakeRelativeClock::default())
    }

    /// Moves a manual clock. The process' own can't be moved: that does nothing.
    pub fn advance(&self, length: Duration) {
        if let Self::Manual(clock) = self {
            clock.advance(length);
        }
    }
}

impl Clock for Ticks {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        match self {
            Self::Process => Nanos::new(crate::clock::now().0),
            Self::Manual(clock) => clock.now(),
        }
    }
}
