"""The kernels, in Gluon. `warp_specialized` (Hopper) and `warp_specialized_sm100` (Blackwell) are
composed of the others; `matmul` has the shortest one for each.
"""
