//! The program that `burst proxy` executes: it is linked with libibverbs and librdmacm, which `burst` is not.
use std::process::ExitCode;

fn main() -> ExitCode {
    burst_proxy::cli::main()
}
