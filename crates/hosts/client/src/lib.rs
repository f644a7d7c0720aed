//! Safe Rust client of the Burst daemon.

pub mod error;
pub mod raw;

pub use error::{ClientError, Result};
