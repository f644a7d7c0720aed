//! The grammar of the values that a person writes: sizes, durations, and the nearest valid word for a misspelt one.
//!
//! The daemon's configuration, the specifications of ports and the command line all read values by these functions, so that
//! `64KiB` means the same everywhere. The crate depends on no command-line library.
//!
//! | module | contents |
//! |---|---|
//! | [`quantity`] | sizes and durations: reading and printing |
//! | [`word`] | the nearest valid word; yes and no |
#![forbid(unsafe_code)]

pub mod quantity;
pub mod word;

pub use quantity::{bits_per_second, bytes, duration, parts_per_million, show_bytes, show_duration};
pub use word::{nearest, nearest_within, switch};
