"""What runs: launches that are tried, and what the TTGIR and the PTX execute in them."""
