//! The backend suite on every instruction set of this machine, with one thread and with several.

use rsllm_cpu::{CpuBackend, Isa};

#[expect(
    clippy::print_stdout,
    reason = "says which instruction sets were skipped"
)]
#[test]
fn every_instruction_set_passes_the_backend_suite() {
    for isa in Isa::ALL {
        if !isa.is_available() {
            println!(
                "skipped {isa}: this processor lacks one of {}",
                isa.required_features().join(", ")
            );
            continue;
        }
        for n_threads in [1, 3] {
            println!("{isa} with {n_threads} threads");
            rsllm_tensor::testing::run_suite(|| CpuBackend::new(isa, n_threads).unwrap());
        }
    }
}
