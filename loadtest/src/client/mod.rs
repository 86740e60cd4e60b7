//! The client: connections that are kept, one exchange at a time on each, every answer checked.

mod answer;
mod body;
mod exchange;
mod failure;
mod pool;

pub(crate) use answer::check as check_answer;
pub(crate) use body::{call, transfer};
pub(crate) use exchange::{Ask, Check, Reply, exchange};
pub(crate) use failure::Failure;
pub(crate) use pool::{BadUrl, Pool};
