"""The pass widen-swizzle: memory with a narrower swizzle than its shape allows gets the widest."""
