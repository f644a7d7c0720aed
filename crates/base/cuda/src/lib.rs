//! The CUDA driver library (`libcuda.so.1`) of a program that has loaded it.
//!
//! It is never loaded here: a program without it has no memory of a GPU, and its registrations cost one question to the loader.
//! Types and numbers are those of cuda.h.
//!
//! | module | contents |
//! |---|---|
//! | [`driver`] | [`CudaDriver`]: whether the library is there, what it knows of an address |
//! | [`copies`] | [`CudaCopies`]: copies between host and device, on streams of their own |

pub mod copies;
pub mod driver;

pub use copies::{CopyState, CudaCopies, CudaError};
pub use driver::{CudaDriver, DeviceContext};
