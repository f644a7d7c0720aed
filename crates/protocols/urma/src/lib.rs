//! The second transport: transactions over shared channels.
#![forbid(unsafe_code)]
