"""Whose the memory of several emulated GPUs is: one device's own, or open to all."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from triton_ext.emulator.errors import LaunchError, MemoryFault
from triton_ext.emulator.host.reachable import tensor_memory
from triton_ext.emulator.host.run import allocation
from triton_ext.emulator.state.memory import Allocation, Bytes, GlobalMemory
from triton_ext.emulator.units.history import History


class DeviceMemory:
    """The memory that launches and copies have been given so far.

    Args:
        history: remembers the accesses of all devices to it.
    """

    def __init__(self, history: History) -> None:
        self._history, self._made = history, 0
        self._open: list[Allocation] = []
        # By the address of its storage: the tensor that a launch was given, and whose it is.
        self._claims: dict[int, tuple[weakref.ref[Any], int]] = {}

    def open(self, tensors: Sequence[Any]) -> None:
        """Let all devices access these tensors, one of each device."""
        self._made += 1
        for number, tensor in enumerate(tensors):
            found = tensor_memory(tensor, f"device {number}'s symmetric {self._made}")
            if found is not None:
                self._open.append(found)
                self._history.watch(found, always=True)

    def admit(self, device: int, memory: GlobalMemory) -> None:
        """Let a launch reach what is open to all; and its arguments, if they are its device's.
        Raises MemoryFault: an argument is another device's."""
        for found in memory.allocations:
            self._claim(found, device)
        for each in self._open:
            memory.add(each)
        find = memory.find
        if find is None:
            return

        def mine(memory: GlobalMemory, address: int) -> list[Allocation]:
            reached = list(find(memory, address))
            for each in reached:
                if each.start <= address < each.end:
                    self._claim(each, device)
            return [each for each in reached if self._owner(each) in (None, device)]

        memory.find = mine

    def flag(self, device: int, flag: Any, value: int) -> tuple[Allocation, int, Bytes]:
        """Where a flag is, and the bytes of a value of it."""
        memory, first, size = self.operand(device, "flag", flag)
        if flag.numel() != 1 or flag.dtype.is_floating_point or size < 4:
            raise LaunchError("flag: must be a tensor of one integer of 32 or 64 bits")
        return memory, first, np.frombuffer(value.to_bytes(size, "little", signed=True), np.uint8)

    def operand(self, device: int, name: str, tensor: Any) -> tuple[Allocation, int, int]:
        """The memory that a tensor is in, from now on remembered, where in it, and its bytes.
        Raises LaunchError, MemoryFault: see `EmulatedGpus.copy`."""
        found = allocation(tensor, name)
        if found is None or not hasattr(tensor, "untyped_storage") or not tensor.is_contiguous():
            raise LaunchError(f"{name}: must be a contiguous tensor")
        self._claim(found, device)
        watched = self._history.find(found.start)
        memory = found if watched is None else watched[0]
        if watched is None:
            import torch

            whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
            if whole.numel() != tensor.numel():
                memory = tensor_memory(whole, name) or found
            self._history.watch(memory)
        return memory, found.start - memory.start, found.size

    def _owner(self, of: Allocation) -> int | None:
        """The device of a tensor that is not open; None if no launch has used it yet."""
        if not hasattr(of.owner, "untyped_storage"):
            return None
        tensor, device = self._claims.get(of.owner.untyped_storage().data_ptr(), (None, 0))
        return device if tensor is not None and tensor() is not None else None

    def _claim(self, of: Allocation, device: int) -> None:
        if any(each.start < of.end and of.start < each.end for each in self._open):
            return
        owner = self._owner(of)
        if owner is None and hasattr(of.owner, "untyped_storage"):
            storage = of.owner.untyped_storage().data_ptr()
            self._claims[storage] = weakref.ref(of.owner), device
        elif owner not in (None, device):
            raise MemoryFault(
                f"{of.name or 'a tensor'} at {of.start:#x} is memory of device {owner}, and device"
                f" {device} would access it: only what `symmetric` makes is open to all devices"
            )
