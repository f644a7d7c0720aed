//! `cargo run -p burst-manual`: writes the manual pages and completions below `share`. See the library of this package.
#![forbid(unsafe_code)]

use std::path::Path;

fn main() -> std::io::Result<()> {
    let share = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../share");
    for path in burst_manual::write(&share)? {
        println!("{}", path.display());
    }
    Ok(())
}
