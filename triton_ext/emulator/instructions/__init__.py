"""Decoders of PTX instructions: importing a module registers those that it has."""

from triton_ext.emulator.instructions import (
    arithmetic,
    barriers,
    control,
    moves,
)

__all__ = ["arithmetic", "barriers", "control", "moves"]
