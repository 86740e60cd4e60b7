//! What can go wrong with a phone.
//!
//! One enum holds every way a phone, its tunnel or its engine has been seen to fail, so that a test names the failure
//! and nothing else. A fault applies to the requests it makes sense for ([`Target`]) and for as long as a [`Scope`] says.

use crate::breach::{Breach, Inside, Moment, Way};
use serde::{Deserialize, Serialize};

/// A way to fail. Fields called `seconds` are real seconds, `chunks` counts text events.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(tag = "fault", rename_all = "snake_case")]
pub enum Fault {
    /// Behaves.
    #[default]
    None,

    // The connection. Running connections are treated as the situation would treat them.
    /// New connections are refused; running ones are reset. Behind a relay a refusal is a reset during the handshake.
    Refuse,
    /// New connections never come about, because no SYN is answered (own port only; behind a relay as `BlackHole`).
    ConnectHang,
    /// TCP connects, then nothing; running connections fall silent for good.
    BlackHole,
    /// The phone lost its network: new connections hang in the handshake and running ones are silent, until the
    /// tunnel notices (`PhoneConfig::stall`) and ends them.
    TlsStall,
    /// Two phones share the id and one is dead: every second new connection hangs as in `TlsStall`.
    EverySecondStalls,
    /// The tunnel does not know the id: reset during the handshake.
    UnknownId,
    /// The tunnel is up and the engine is not: the handshake completes, then end of file.
    AppClosed,
    /// The phone presents a certificate that must not be accepted.
    WrongCertificate {
        /// What is wrong with it.
        kind: WrongCertificate,
    },
    /// Dies and comes back in turn.
    Flap {
        /// Seconds alive (the mean, if `random`).
        up_s: f64,
        /// Seconds dead (the mean, if `random`).
        down_s: f64,
        /// Exponentially distributed instead of fixed.
        #[serde(default)]
        random: bool,
    },
    /// Closes idle connections early.
    StaleKeepAlive {
        /// Seconds idle before it closes.
        idle_s: f64,
        /// Answers on one connection before it closes.
        #[serde(default)]
        max_requests: Option<u32>,
        /// Reads the second request of a connection whole, then closes without a byte.
        #[serde(default)]
        close_after_reading_body_on_reused: bool,
    },

    // Instead of an answer.
    /// Reads the request, then resets.
    ResetBeforeHead,
    /// Reads the request, then closes.
    CloseBeforeHead,
    /// Reads the request, takes a slot, then nothing.
    FreezeBeforeHead,
    /// A tunnel's page instead of the phone's answer.
    Html {
        /// HTTP status of the page.
        status: u16,
    },
    /// A status with an error body in the engine's shape.
    Status {
        /// HTTP status.
        code: u16,
        /// `Retry-After`, seconds.
        #[serde(default)]
        retry_after: Option<u64>,
    },
    /// 200 with no body.
    Empty200,
    /// 200 with only an error object, also in a stream.
    ErrorIn200 {
        /// The code inside.
        code: u16,
    },
    /// 200 with JSON that ends in the middle.
    BrokenJson,
    /// A redirect to an address that must not be followed.
    Redirect {
        /// `Location`.
        location: String,
    },
    /// Every answer is 401.
    WrongKey,
    /// The model loads for this long from now on.
    Loading {
        /// Seconds.
        for_s: f64,
    },
    /// Probes are answered late, or never, while a request runs.
    Busy {
        /// Seconds until a probe is answered; never when absent.
        #[serde(default)]
        late_s: Option<f64>,
    },

    // Late or cut answers.
    /// Silent before the head, holding a slot, then a normal answer.
    Slow {
        /// Seconds.
        seconds: f64,
    },
    /// The head at once, then silence, then a normal answer.
    HeadThenSilence {
        /// Seconds.
        seconds: f64,
    },
    /// Some text, then end of file without a finish.
    CutAfter {
        /// Text events before the cut.
        chunks: u32,
        /// Cuts in the middle of the next word.
        #[serde(default)]
        mid_word: bool,
    },
    /// Some text, then a reset.
    ResetAfter {
        /// Text events before the reset.
        chunks: u32,
    },
    /// Some text, then silence with the socket open.
    HangAfter {
        /// Text events before the silence.
        chunks: u32,
    },
    /// Some text, then an error event, then the end.
    ErrorAfter {
        /// Text events before the error.
        chunks: u32,
        /// The code inside.
        code: u16,
    },
    /// Some text, then `[DONE]` without a finish reason.
    EarlyDone {
        /// Text events before `[DONE]`.
        chunks: u32,
    },
    /// A whole answer with finish reason, but without `[DONE]`.
    NoDone,
    /// The answer breaks off at a moment, in a way.
    Break {
        /// When.
        at: Moment,
        /// Inside what comes next, instead of before it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        inside: Option<Inside>,
        /// How.
        how: Way,
    },
    /// The prompt is read slowly: a pause before each batch.
    SlowReading {
        /// Seconds of each pause.
        seconds: f64,
    },
    /// The answer trickles.
    Drip {
        /// Bytes per second.
        bytes_per_s: u32,
    },

    // Odd but correct answers.
    /// A correct stream in small packets, with comments, blank events, and `data:` with and without a space.
    SplitEverywhere {
        /// How lines end.
        line_ending: LineEnding,
        /// Bytes in a packet.
        #[serde(default = "one")]
        bytes: u32,
    },
    /// No usage anywhere.
    NoUsage,
    /// Usage in the chunk with the finish reason instead of one without choices.
    UsageInDelta,
    /// Usage numbers no engine can mean.
    SillyUsage,
    /// Tool calls without `index`.
    NoIndexToolCalls,
    /// Tool calls whose first delta has empty `arguments`, and one more with nothing new.
    EmptyArguments,
    /// `Set-Cookie`, `Location` and CORS headers on every answer.
    ExtraHeaders,

    // Hostile answers.
    /// A stream whose text never ends.
    EndlessStream,
    /// A stream with one line that never ends.
    EndlessLine,
    /// A head with one header of this size.
    HugeHeaders {
        /// Bytes.
        bytes: u32,
    },
    /// A head with this many headers.
    ManyHeaders {
        /// Header lines.
        lines: u32,
    },
    /// `Content-Length` that is off.
    WrongContentLength {
        /// Bytes promised beyond those sent; negative: fewer.
        by: i64,
    },
    /// `Content-Length` and `Transfer-Encoding` together.
    OddFraming,
    /// Interim answers before the real one.
    Flood1xx {
        /// How many.
        count: u32,
    },
    /// A small body that says it is gzip and grows to this size.
    GzipBomb {
        /// Uncompressed size, MiB.
        mebibytes: u32,
    },
    /// Answers the previous prompt instead of the present one.
    SwappedAnswers,
    /// Terminal escapes in the model's name, the text and error messages.
    TerminalEscapes,

    // Cancelling.
    /// Goes on after the client has left, holding the slot, from wherever it is to the end of the answer.
    IgnoreCancel,
    /// Stops when the client has left, but holds the slot for some time more.
    LateRelease {
        /// Seconds.
        seconds: f64,
    },
    /// Dies when a client leaves.
    CrashOnAbort,
}

const fn one() -> u32 {
    1
}

/// What is wrong with a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WrongCertificate {
    /// It ended years ago.
    Expired,
    /// It is for another host.
    OtherName,
    /// Nobody trusts its issuer.
    Untrusted,
}

/// How the lines of an event stream end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LineEnding {
    /// `\n`
    Lf,
    /// `\r\n`
    CrLf,
    /// `\r`
    Cr,
}

impl LineEnding {
    /// The bytes.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Lf => "\n",
            Self::CrLf => "\r\n",
            Self::Cr => "\r",
        }
    }
}

/// Which requests a fault applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// Requests that make the model work.
    Work,
    /// Everything else: health, models, slots, props.
    Probes,
    /// Both.
    All,
}

/// For how long a fault applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Until it is replaced.
    Always,
    /// For this many requests (or connections, for a fault of the connection).
    Next(u32),
}

impl Fault {
    /// Whether the fault is one of the connection, not of a request.
    pub fn is_of_connection(&self) -> bool {
        matches!(
            self,
            Self::Refuse
                | Self::ConnectHang
                | Self::BlackHole
                | Self::TlsStall
                | Self::EverySecondStalls
                | Self::UnknownId
                | Self::AppClosed
                | Self::WrongCertificate { .. }
                | Self::Flap { .. }
        )
    }

    /// The requests it applies to unless told otherwise.
    pub fn usual_target(&self) -> Target {
        match self {
            Self::Html { .. } | Self::WrongKey | Self::Loading { .. } | Self::ExtraHeaders | Self::TerminalEscapes => {
                Target::All
            }
            Self::Busy { .. } => Target::Probes,
            _ => Target::Work,
        }
    }

    /// Where and how the answer breaks off, if it does.
    pub(crate) fn breach(&self) -> Option<Breach> {
        let after = |chunks: &u32, how: Way| Some(Breach { at: Moment::Tokens(*chunks), inside: None, how });
        match self {
            Self::CutAfter { chunks, mid_word } => {
                Some(Breach { inside: mid_word.then_some(Inside::Word), ..after(chunks, Way::Cut)? })
            }
            Self::ResetAfter { chunks } => after(chunks, Way::Reset),
            Self::HangAfter { chunks } => after(chunks, Way::Hang),
            Self::ErrorAfter { chunks, code } => after(chunks, Way::Error(*code)),
            Self::EarlyDone { chunks } => after(chunks, Way::EarlyDone),
            Self::NoDone => Some(Breach { at: Moment::Done, inside: None, how: Way::Cut }),
            Self::Break { at, inside, how } => Some(Breach { at: *at, inside: *inside, how: *how }),
            _ => None,
        }
    }
}

/// A fault with its scope and target: what the control port and [`crate::PhoneHandle`] set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FaultOrder {
    /// What goes wrong.
    #[serde(flatten)]
    pub fault: Fault,
    /// For how many requests; for good when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u32>,
    /// Which requests; the fault's usual ones when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<Target>,
}

impl From<Fault> for FaultOrder {
    fn from(fault: Fault) -> Self {
        Self { fault, next: None, on: None }
    }
}

impl FaultOrder {
    /// This order limited by `scope`.
    #[must_use]
    pub fn within(mut self, scope: Scope) -> Self {
        self.next = match scope {
            Scope::Always => None,
            Scope::Next(count) => Some(count),
        };
        self
    }

    /// This order for other requests than the fault's usual ones.
    #[must_use]
    pub fn on(mut self, target: Target) -> Self {
        self.on = Some(target);
        self
    }

    /// The fault for one more request or connection, if the order applies to it; counts it.
    pub(crate) fn take(&mut self, of_connection: bool, is_work: bool) -> Option<Fault> {
        if self.fault == Fault::None || self.fault.is_of_connection() != of_connection {
            return None;
        }
        let applies = of_connection
            || match self.on.unwrap_or_else(|| self.fault.usual_target()) {
                Target::Work => is_work,
                Target::Probes => !is_work,
                Target::All => true,
            };
        if !applies {
            return None;
        }
        match &mut self.next {
            None => Some(self.fault.clone()),
            Some(0) => None,
            Some(left) => {
                *left -= 1;
                Some(self.fault.clone())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_read_from_the_json_of_the_control_port() {
        let order: FaultOrder =
            serde_json::from_str(r#"{"fault":"cut_after","chunks":3,"next":1}"#).expect("a valid order");
        assert_eq!(order.fault, Fault::CutAfter { chunks: 3, mid_word: false });
        assert_eq!((order.next, order.on), (Some(1), None));
        let order: FaultOrder = serde_json::from_str(r#"{"fault":"refuse","on":"all"}"#).expect("a valid order");
        assert_eq!((order.fault, order.on), (Fault::Refuse, Some(Target::All)));
        assert!(serde_json::from_str::<FaultOrder>(r#"{"fault":"explode"}"#).is_err());
        let order: FaultOrder = serde_json::from_str(
            r#"{"fault":"break","at":{"thoughts":2},"inside":"event","how":{"die":{"down_s":0.5}},"next":1}"#,
        )
        .expect("a valid order");
        let how = Way::Die { down_s: Some(0.5) };
        assert_eq!(order.fault, Fault::Break { at: Moment::Thoughts(2), inside: Some(Inside::Event), how });
        let order: FaultOrder =
            serde_json::from_str(r#"{"fault":"break","at":"finish","how":"tunnel"}"#).expect("a valid order");
        assert_eq!(order.fault, Fault::Break { at: Moment::Finish, inside: None, how: Way::Tunnel });
    }

    #[test]
    fn a_limited_order_applies_to_that_many_requests_of_its_target() {
        let mut order = FaultOrder::from(Fault::Status { code: 500, retry_after: None }).within(Scope::Next(2));
        assert!(order.take(false, false).is_none(), "probes are not its target");
        assert!(order.take(true, true).is_none(), "connections are not its target");
        assert!(order.take(false, true).is_some());
        assert!(order.take(false, true).is_some());
        assert!(order.take(false, true).is_none());
    }
}
