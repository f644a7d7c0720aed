//! Tries seeds and shows the smallest failing scenario of each: `hunt FROM TO`.
use burst_sim::hunt::Draft;

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>().expect("a number"));
    let (from, to) = (args.next().unwrap_or(0), args.next().unwrap_or(100));
    let mut found = 0;
    for seed in from..to {
        if let Some(violation) = Draft::of_seed(seed).hunt() {
            found += 1;
            println!("seed {seed}: {}\nin {} tries smaller:\n{}", violation.error, violation.tried, violation.draft);
        }
    }
    println!("{} seeds, {found} violations", to - from);
}
