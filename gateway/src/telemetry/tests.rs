//! What one request leaves behind.
