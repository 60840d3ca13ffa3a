"""Where kernels come from: `run_ptx`, the Triton driver, pytest, torch."""
