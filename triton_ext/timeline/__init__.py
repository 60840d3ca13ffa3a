"""Time without silicon: what a kernel's recorded run would take on a GPU.

- `client`: the emulator's observer that predicts the time of each launch.
- `recorder`, `costs`, `sass`: what a launch asks of an SM, and what ptxas made of its PTX.
- `trace`: what a recorded run is: for each warp, what it asked of the SM's units, in order.
- `gpus`, `accuracy`: the parameters of each GPU, with their sources; how far off it is.
- `replay`: the discrete-event model of the SMs of a cluster.
- `demand`, `model`: what a launch asks of a GPU, and how long that takes.
- `timeline`: what a user sees: seconds, what binds, stalls, what-if.
- `page`, `difference`: Chrome's trace format, one HTML page; two runs side by side.

Nothing in the emulator imports this.
"""
