//! Who asks: API keys.

pub mod key;
