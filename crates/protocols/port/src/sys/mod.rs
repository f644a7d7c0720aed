//! The system calls of this crate, each behind a safe function. The only module with `unsafe`.
#![allow(unsafe_code)]

pub mod bpf;
pub mod control;
pub mod give_back;
pub mod lend;
pub mod packet;
pub mod recv;
pub mod send;
pub mod socket;
