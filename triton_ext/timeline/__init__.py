"""Time without silicon: what a kernel's recorded run would take on a GPU.

- `trace`: what a recorded run is: for each warp, what it asked of the SM's units, in order.
- `gpus`: the parameters of each GPU, with their sources.
- `replay`: the discrete-event model of the SMs of a cluster.
- `timeline`: the model of the GPU, and what a user sees: seconds, what binds, stalls, what-if.
- `page`: Chrome's trace format, and one HTML page.

Nothing here imports the emulator, whose `triton_ext.emulator.schedule.recorder` writes the traces.
"""
