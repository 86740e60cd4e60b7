//! How one value of the file becomes one value of a type.

use std::{
    hash::{DefaultHasher, Hash as _},
    net::SocketAddr,
    path::PathBuf,
    time::Duration,
};

use scheduler::{Class, Policy};
use toml::de::DeValue;

use super::{
    bytes::ByteSize,
    duration,
    hours::Hours,
    moment::Moment,
    secret::{self, Secret, Sources},
};

/// Written for an optional key that is off.
pub(super) const NONE: &str = "none";

/// Why a value was refused.
#[derive(Debug)]
pub struct Refused {
    /// For people.
    pub why: String,
    /// The value may be a secret: do not repeat it.
    pub secret: bool,
}

impl Refused {
    pub(super) fn because(why: impl Into<String>) -> Self {
        Self { why: why.into(), secret: false }
    }
}

/// A type that a key can have.
pub trait Value: Sized {
    /// What is accepted, for people.
    const ACCEPTED: &'static str;
    /// Reads what was written.
    ///
    /// # Errors
    /// It has another type, or is not a value of this one.
    fn read(raw: &DeValue<'_>, sources: &Sources<'_>) -> Result<Self, Refused>;
    /// As the file would have it, without quotes. Secrets stay hidden.
    fn show(&self) -> String;
    /// Feeds what tells this value from another, secrets included.
    fn feed(&self, hasher: &mut DefaultHasher) {
        self.show().hash(hasher);
    }
}

/// A value that can be compared with the ends of a range; an absent one is in every range.
pub trait Ranged: Value {
    /// What is compared.
    type Inner: Value + PartialOrd;
    /// It, if there.
    fn inner(&self) -> Option<&Self::Inner>;
}

/// What was written, for a message.
pub(super) fn written(raw: &DeValue<'_>) -> String {
    const LONGEST: usize = 80;
    match raw {
        DeValue::String(text) => {
            let short: String = text.chars().take(LONGEST).collect();
            let more = if short.len() < text.len() { "…" } else { "" };
            format!("\"{}{more}\"", short.escape_debug())
        }
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(truth) => truth.to_string(),
        DeValue::Datetime(moment) => moment.to_string(),
        DeValue::Array(_) => "[…]".into(),
        DeValue::Table(_) => "{…}".into(),
    }
}

fn wrong_type(raw: &DeValue<'_>) -> Refused {
    Refused::because(format!("{} is not expected here", kind(raw)))
}

/// The type of what was written, with its article.
pub(super) fn kind(raw: &DeValue<'_>) -> &'static str {
    match raw {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date or time",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    }
}

fn text<'a>(raw: &'a DeValue<'_>) -> Result<&'a str, Refused> {
    match raw {
        DeValue::String(text) => Ok(text),
        other => Err(wrong_type(other)),
    }
}

macro_rules! whole_numbers {
    ($($type:ty),*) => {$(
        impl Value for $type {
            const ACCEPTED: &'static str = "a whole number";
            fn read(raw: &DeValue<'_>, _: &Sources<'_>) -> Result<Self, Refused> {
                let DeValue::Integer(number) = raw else { return Err(wrong_type(raw)) };
                <$type>::from_str_radix(number.as_str(), number.radix()).map_err(|_| {
                    let negative = number.as_str().starts_with('-');
                    Refused::because(if negative { "must not be negative" } else { "too large" })
                })
            }
            fn show(&self) -> String {
                self.to_string()
            }
        }
    )*};
}

macro_rules! ranged {
    ($($type:ty),*) => {$(
        impl Ranged for $type {
            type Inner = Self;
            fn inner(&self) -> Option<&Self> {
                Some(self)
            }
        }
    )*};
}

macro_rules! named {
    ($type:ty, $accepted:literal, $($name:literal => $value:expr),* $(,)?) => {
        impl $crate::config::value::Value for $type {
            const ACCEPTED: &'static str = $accepted;
            fn read(
                raw: &toml::de::DeValue<'_>,
                _: &$crate::config::secret::Sources<'_>,
            ) -> Result<Self, $crate::config::value::Refused> {
                match raw {
                    $(toml::de::DeValue::String(text) if text == $name => Ok($value),)*
                    _ => Err($crate::config::value::Refused::because("not one of the choices")),
                }
            }
            fn show(&self) -> String {
                $(if *self == $value { return $name.into(); })*
                String::new()
            }
        }
    };
}
pub(super) use named;

whole_numbers!(u16, u32, u64, usize);
ranged!(u16, u32, u64, usize, f64, Duration, ByteSize);
named!(Class, "\"interactive\", \"standard\" or \"batch\"",
    "interactive" => Class::Interactive, "standard" => Class::Standard, "batch" => Class::Batch);
named!(Policy, "\"least_work\", \"least_busy\" or \"round_robin\"",
    "least_work" => Policy::LeastWork, "least_busy" => Policy::LeastBusy, "round_robin" => Policy::RoundRobin);

impl Value for f64 {
    const ACCEPTED: &'static str = "a number";
    fn read(raw: &DeValue<'_>, _: &Sources<'_>) -> Result<Self, Refused> {
        let number = match raw {
            DeValue::Float(number) => number.as_str().parse().ok(),
            DeValue::Integer(number) if number.radix() == 10 => number.as_str().parse().ok(),
            other => return Err(wrong_type(other)),
        };
        number.filter(|number: &f64| number.is_finite()).ok_or_else(|| Refused::because("not a finite number"))
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for bool {
    const ACCEPTED: &'static str = "true or false";
    fn read(raw: &DeValue<'_>, _: &Sources<'_>) -> Result<Self, Refused> {
        match raw {
            DeValue::Boolean(truth) => Ok(*truth),
            other => Err(wrong_type(other)),
        }
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for String {
    const ACCEPTED: &'static str = "a string that is not empty";
    fn read(raw: &DeValue<'_>, _: &Sources<'_>) -> Result<Self, Refused> {
        match text(raw)? {
            text if text.trim().is_empty() => Err(Refused::because("empty")),
            text if text.chars().any(char::is_control) => Err(Refused::because("has a control character inside")),
            text => Ok(text.into()),
        }
    }
    fn show(&self) -> String {
        self.clone()
    }
}

impl Value for PathBuf {
    const ACCEPTED: &'static str = "a path";
    fn read(raw: &DeValue<'_>, sources: &Sources<'_>) -> Result<Self, Refused> {
        String::read(raw, sources).map(Self::from)
    }
    fn show(&self) -> String {
        self.display().to_string()
    }
}

impl Value for SocketAddr {
    const ACCEPTED: &'static str = "ADDRESS:PORT, such as \"0.0.0.0:8080\" or \"[::]:8080\"";
    fn read(raw: &DeValue<'_>, _: &Sources<'_>) -> Result<Self, Refused> {
        let text = match raw {
            // As where several may stand.
            DeValue::Array(array) => match &array[..] {
                [one] => text(one.get_ref())?,
                more => return Err(Refused::because(format!("one address is expected here, not {}", more.len()))),
            },
            one => text(one)?,
        };
        text.parse().map_err(|_| {
            let bare = text.parse::<std::net::IpAddr>().is_ok();
            Refused::because(if bare { "the port is missing" } else { "not an address with a port" })
        })
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for Duration {
    const ACCEPTED: &'static str = "a length of time, such as \"500ms\", \"30s\", \"5m\", \"1h30m\"";
    fn read(raw: &DeValue<'_>, _: &Sources<'_>) -> Result<Self, Refused> {
        if let DeValue::Integer(number) = raw {
            return Err(Refused::because(format!("a length of time needs a unit, such as \"{number}s\"")));
        }
        duration::parse(text(raw)?).map_err(|error| Refused::because(error.to_string()))
    }
    fn show(&self) -> String {
        duration::show(*self)
    }
}

impl Value for ByteSize {
    const ACCEPTED: &'static str = "a size, such as \"512B\", \"64KiB\", \"16MiB\", \"1GiB\"";
    fn read(raw: &DeValue<'_>, _: &Sources<'_>) -> Result<Self, Refused> {
        if let DeValue::Integer(number) = raw {
            return Err(Refused::because(format!("a size needs a unit, such as \"{number}MiB\"")));
        }
        Self::parse(text(raw)?).map_err(|error| Refused::because(error.to_string()))
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for Moment {
    const ACCEPTED: &'static str = "a date with time and offset, such as 2027-01-31T18:00:00Z, or Unix seconds";
    fn read(raw: &DeValue<'_>, _: &Sources<'_>) -> Result<Self, Refused> {
        let malformed = || Refused::because("not a date with time and offset");
        match raw {
            DeValue::Integer(number) => {
                number.as_str().parse().ok().and_then(Self::from_unix_seconds).ok_or_else(malformed)
            }
            DeValue::Datetime(moment) => Self::parse(&moment.to_string()).ok_or_else(malformed),
            other => Self::parse(text(other)?).ok_or_else(malformed),
        }
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for Hours {
    const ACCEPTED: &'static str = "hours of the day in UTC, such as \"22:00-06:00\"";
    fn read(raw: &DeValue<'_>, _: &Sources<'_>) -> Result<Self, Refused> {
        Self::parse(text(raw)?).ok_or_else(|| Refused::because(format!("{} is not a stretch of a day", written(raw))))
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for Secret {
    const ACCEPTED: &'static str = "\"env:NAME\" or \"file:PATH\"";
    fn read(raw: &DeValue<'_>, sources: &Sources<'_>) -> Result<Self, Refused> {
        let refuse = |error: secret::SecretError| Refused { why: error.to_string(), secret: true };
        match raw {
            DeValue::String(reference) => secret::resolve(reference, sources).map_err(refuse),
            other => Err(Refused { secret: true, ..wrong_type(other) }),
        }
    }
    fn show(&self) -> String {
        "***".into()
    }
    fn feed(&self, hasher: &mut DefaultHasher) {
        self.reveal().hash(hasher);
    }
}

impl<T: Value> Value for Option<T> {
    const ACCEPTED: &'static str = T::ACCEPTED;
    fn read(raw: &DeValue<'_>, sources: &Sources<'_>) -> Result<Self, Refused> {
        match raw {
            DeValue::String(text) if text == NONE => Ok(None),
            other => T::read(other, sources).map(Some),
        }
    }
    fn show(&self) -> String {
        self.as_ref().map_or_else(|| NONE.into(), T::show)
    }
    fn feed(&self, hasher: &mut DefaultHasher) {
        self.is_some().hash(hasher);
        if let Some(value) = self {
            value.feed(hasher);
        }
    }
}

impl<T: Ranged<Inner = T> + PartialOrd> Ranged for Option<T> {
    type Inner = T;
    fn inner(&self) -> Option<&T> {
        self.as_ref()
    }
}
