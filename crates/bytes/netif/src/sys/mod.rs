//! The system calls of this crate, each behind a safe function. The only module with `unsafe`.
#![allow(unsafe_code)]

pub mod ifaddrs;
pub mod netlink;
pub mod socket;
