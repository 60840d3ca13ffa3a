"""Clients of the engine: observers that make something of what it tells them.

- `trace`: events, in their order; `statistics`: counts; `breakpoints`: memories at a line.
- `triton_ext.timeline`, above the emulator, is one, too: predicted time.
"""
