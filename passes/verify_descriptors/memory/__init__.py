"""What memory holds while it runs: allocations, and the bytes and cells that are moved."""
