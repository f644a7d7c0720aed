//! The program that `burst switch` executes.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    burst_switch::main()
}
