//! Ends with success when the seeds of the target `abi` reach every function of the C interface.

use std::process::ExitCode;

fn main() -> ExitCode {
    let reached = nervix_fuzz::abi::reach_every_function(&nervix_fuzz::seeds::of("abi"));
    if reached {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
