//! The promises of the crate, by what they are about.

mod answers;
mod chat_streams;
mod errors;
mod events;
mod named_streams;
mod prompts;
mod requests;
mod splitting;
