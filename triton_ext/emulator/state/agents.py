"""The agents of a block, whose events the clocks of its cluster count: warps and units."""

from __future__ import annotations

from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.clocks import Agents
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.hardware.tensor_memory import WARPGROUP_WARPS

TMA_CHANNELS = 20
UNITS = ("tensor core", *("tma" for _ in range(TMA_CHANNELS)))
"""The asynchronous units of a block: agents of their own. The TMA unit has several, so that who
waits for one barrier has not seen what another one tracks. Each warp's own asynchronous copies
(``cp.async``, ``st.async``) have an agent, too, its bulk copies out of shared memory have one, and
each warpgroup's products (``wgmma``)."""


def agents_of_block(warps: int) -> int:
    """How many agents a block has: warps, copies of each, units, products of each warpgroup."""
    return 3 * warps + len(UNITS) - (-warps // WARPGROUP_WARPS)


def agent_name(own: int, warps: int) -> str:
    """In words, from the agent's number in its block."""
    if own < warps:
        return f"warp {own}"
    if own < 2 * warps:
        return f"the asynchronous copies of warp {own - warps}"
    if own < 3 * warps:
        return f"the tma unit, for warp {own - 2 * warps}"
    own -= 3 * warps
    if own < len(UNITS):
        return f"the {UNITS[own]} unit"
    return f"a product of warpgroup {own - len(UNITS)}"


class BlockAgents:
    """The agents of one block; called with lanes, those of their warps.

    Attributes:
        first, each: their numbers begin here, and are so many.
        channels: of the TMA unit, by the mbarrier that has tracked its copies.
    """

    def __init__(self, rank: int, warps: int) -> None:
        self.warps, self.each = warps, agents_of_block(warps)
        self.first = rank * self.each
        self.channels: dict[int, int] = {}
        self._known: dict[tuple[int, int], Agents] = {}  # of lanes that follow each other

    def __call__(self, lanes: Lanes) -> Agents:
        """The agents that have a lane in the set."""
        if not isinstance(lanes, slice):
            return self.first + lane_sets.warps(lanes)
        found = self._known.get((lanes.start, lanes.stop))
        if found is None:
            found = self._known[lanes.start, lanes.stop] = self.first + lane_sets.warps(lanes)
            found.flags.writeable = False
        return found

    def of_lanes(self, lanes: Lanes) -> Agents:
        """The agent of each lane."""
        return self.first + lane_sets.indices(lanes) // WARP_THREADS

    def unit(self, name: str) -> int:
        """The agent of an asynchronous unit."""
        return self.first + 3 * self.warps + UNITS.index(name)

    def tma(self, barrier: int) -> int:
        """The agent of the TMA unit for the copies that a barrier tracks."""
        channel = self.channels.setdefault(barrier, len(self.channels) % TMA_CHANNELS)
        return self.unit("tma") + channel

    def warpgroup(self, warp: int) -> int:
        """The agent of the asynchronous products of a warp's warpgroup."""
        return self.first + 3 * self.warps + len(UNITS) + warp // WARPGROUP_WARPS

    def copies(self, agents: Agents) -> Agents:
        """The agents of these warps' asynchronous copies."""
        return agents + self.warps

    def bulk(self, warp: int) -> int:
        """The agent of a warp's bulk copies out of shared memory."""
        return self.first + 2 * self.warps + warp
