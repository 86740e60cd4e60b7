//! Whole scenarios, played.

mod files;
mod ranges;
mod reference;
