//! `huntgroup`: see `huntgroup --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    huntgroup::cli::main()
}
