"""Who runs when: fibers, blocks, clusters, processes."""
