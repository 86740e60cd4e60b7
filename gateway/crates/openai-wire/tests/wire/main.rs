//! The promises of the crate, by what they are about.

mod answers;
mod carried;
mod carried_chats;
mod carried_named;
mod chat_streams;
mod choices;
mod disobedient;
mod errors;
mod events;
mod held_calls;
mod named_ends;
mod named_streams;
mod plain_chats;
mod plain_named;
mod prompts;
mod requests;
mod seams;
mod splitting;
