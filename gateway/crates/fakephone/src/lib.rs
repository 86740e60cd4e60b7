//! The phone model behind a real socket.
//!
//! Tests, demonstrations and load tests need phones that behave and misbehave as real ones do, by the hundred, on one
//! machine. A [`PhoneConfig`] says what a phone is: the server it runs ([`Dialect`]), its model, its speed, its slots.
//! [`spawn`] starts one on its own port; a [`Relay`] puts any number of them behind one port, routed by name, as the
//! tunnel does. A [`PhoneHandle`] makes a running phone fail in any way that has been seen ([`Fault`]) and tells what
//! it has been through ([`PhoneStats`], [`SeenRequest`]).
//!
//! Answers are a function of model, prompt and engine build ([`answer_text`]), so that a test can tell whether an answer is
//! whole and belongs to its request, also one that several phones have written in turn. A message may ask for the kind of
//! its answer: `[fake think=6 tokens=20 calls=2]` stands for so many tokens of thinking and of text and so many tool calls.
//! Time passes as `simulation::phone` says, `time_scale` times faster than life.
//!
//! Where is what: connections come in at `porch`, live in `visit`, are refused at `door`, are understood in `dialect`,
//! work in `work` on the `engine`, and are spoken in a `shape`.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use fakephone::{Fault, PhoneConfig, Scope, spawn};
//! let phone = spawn(PhoneConfig::default().with_slots(4)).await?;
//! phone.set_fault_within(Fault::CutAfter { chunks: 3, mid_word: false }, Scope::Next(1));
//! println!("{} has served {}", phone.url(), phone.stats().completed);
//! # Ok(())
//! # }
//! ```

mod answer;
mod ask;
mod authority;
mod breach;
mod clock;
mod config;
mod control;
mod decide;
mod dialect;
mod digest;
mod door;
mod engine;
mod events;
mod fault;
mod fleet;
mod handle;
mod hostile;
mod http;
mod link;
mod marks;
mod phone;
mod porch;
mod prompt;
mod register;
mod relay;
mod schema;
mod shape;
mod stats;
mod streams;
mod tasks;
mod visit;
mod voice;
mod wire;
mod work;

pub use authority::CertificateError;
pub use breach::{Inside, Moment, Way};
pub use config::{
    Continuation, Dialect, Features, HeadTiming, ModelFile, PhoneConfig, UnknownContinuation, UnknownDialect,
};
pub use control::Control;
pub use digest::{message_digest, sha256_hex};
pub use fault::{Fault, FaultOrder, LineEnding, Scope, Target, WrongCertificate};
pub use fleet::{BadSpec, Fleet, PhoneSpec, Place, as_in_the_market};
pub use handle::{PhoneHandle, SpawnError, WaitTimeout, spawn, spawn_at};
pub use register::{RegisterError, Reply, SigningKey, announce, call};
pub use relay::Relay;
pub use stats::{CancelSeen, Phase, PhoneStats, SeenRequest};
pub use voice::{answer_text, answer_text_by};
