//! OpenAI bodies and the one SSE codec. Bytes in, types out: no I/O, no clock, no async.
//!
//! Problem: a gateway reads every request and every streamed event, changes a few fields and passes the rest on. A tree
//! of values per body costs more than the relaying itself, and two parses of one body can disagree about what it says.
//!
//! Choice: one strict scanner (`json`) walks the text once, notes what the gateway must know and *where* it stands,
//! and a splice (`edits`) writes the original bytes with the few pieces changed. What was not understood is passed on
//! as it came.
//!
//! Rejected: serde structs with `flatten` (copies everything, loses key order and number text); `RawValue` (no depth
//! limit while it skips, no positions for commas); a DOM per event (about ten times slower).
//!
//! | question | module |
//! |---|---|
//! | which path, which name | [`route`] |
//! | what does the client want, what does the replica get | [`request`] |
//! | what does the model read, in which order | [`Piece`] |
//! | what does a replica's plain answer say | [`answer`] |
//! | what does its failure mean | [`upstream_error`] |
//! | what does the client see of a failure | [`error_body`] |
//! | where does an event begin and end | [`sse`] |
//! | what does one replica leave to another | [`carry`] |
//! | what does one client get of one or more replicas' streams | [`stream`] |

pub mod answer;
pub mod carry;
mod decode_error;
mod edits;
pub mod error_body;
mod json;
mod outline;
mod prompt;
pub mod request;
pub mod route;
pub mod segments;
pub mod sse;
pub mod stream;
pub mod upstream_error;
pub mod usage;

pub use answer::{Answer, decode_answer};
pub use carry::{CarryOn, Engine, Leg, Obstacle};
pub use decode_error::DecodeError;
pub use error_body::ErrorBody;
pub use json::{Flaw, MAX_DEPTH};
pub use outline::Piece;
pub use request::{Request, ServiceTier, UpstreamRewrite};
pub use route::Route;
pub use segments::Segments;
pub use sse::{SseDecoder, SseError, SseEvent};
pub use stream::{AnswerStream, Step, StreamError, StreamOptions};
pub use upstream_error::{Fault, UpstreamError, classify_error};
pub use usage::{EngineTimings, PromptProgress, Usage};
