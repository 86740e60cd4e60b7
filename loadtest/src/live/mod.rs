//! A scenario played over HTTP against a running gateway.
//!
//! | question | module |
//! |---|---|
//! | who sends what when | [`play`] |
//! | what happens to the phones meanwhile | [`steps`] |
//! | which phones can be seen and made to fail | [`fleet`] |
//! | what an operator asks of the gateway | [`admin`] |
//! | how phones of another process are asked | [`control`] |
//! | how the fleet is observed | [`sample`] |
//! | where phones and gateway come from with `--self` | [`own`], [`process`] |
//! | what the terminal shows meanwhile | [`progress`] |

mod admin;
mod control;
mod fleet;
mod own;
mod play;
mod process;
mod progress;
mod sample;
mod steps;

pub(crate) use admin::{Admin, Metrics};
pub(crate) use control::Control;
pub(crate) use fleet::Fleet;
pub(crate) use own::{KEY, Own};
pub(crate) use play::{Play, Setting, interrupted};
pub(crate) use process::{OwnError, Process, Site};
