//! The program `burst`: see the library of this package.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    burst_cli::main()
}
