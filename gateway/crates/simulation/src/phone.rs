//! The phone model.
