//! The program that `burst sim` executes.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    burst_simulator::main()
}
