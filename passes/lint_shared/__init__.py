"""The pass lint-shared: conflicts and waste in shared memory, known at compile time."""
