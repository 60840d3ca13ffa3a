"""Which threads run when, and when asynchronous work is done: fibers, the machine, processes."""
