//! Whole scenarios, played.

mod binding;
mod files;
mod ranges;
mod reference;
