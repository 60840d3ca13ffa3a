"""The cases of `benchmarks.microbenchmarks`, by what they measure."""
