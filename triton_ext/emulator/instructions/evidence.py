"""What each instruction's behaviour rests on: a GPU, kernels of others, or documents alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["silicon", "silicon (kernels)", "kernels", "document", "no effect", "refused"]

MEANINGS: dict[Kind, str] = {
    "silicon": "the same PTX gave the same bits on an H100 and here",
    "silicon (kernels)": "compiled kernels that use it gave the same results on an H100 and here",
    "kernels": "kernels of others that are known to be good come out right: NVIDIA's CuTe DSL,"
    " liger-kernel, fla-core, Triton's Gluon tutorials",
    "document": "the PTX ISA and CUTLASS alone",
    "no effect": "its operands are checked, and it changes no values",
    "refused": "it is refused, with a reason",
}
"""The kinds of evidence, from the strongest to none, in words."""


@dataclass(frozen=True)
class Evidence:
    """The evidence that some opcodes share.

    Attributes:
        family: what the instructions are about.
        opcodes: the bases of `OPCODES`, separated by blanks.
        kind: a key of `MEANINGS`.
        but: what holds of some of their forms alone, or "".
    """

    family: str
    opcodes: str
    kind: Kind
    but: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The bases of the opcodes."""
        return tuple(self.opcodes.split())


EVIDENCE: tuple[Evidence, ...] = (
    Evidence(
        "integer arithmetic",
        "abs add addc sub subc mul mul24 mad mad24 madc div rem neg min max sad dp4a dp2a",
        "silicon",
    ),
    Evidence(
        "floating point",
        "fma rcp sqrt rsqrt sin cos ex2 lg2 tanh copysign testp",
        "silicon",
        "approximations are within the documented error, not bit for bit; f32x2 and mixed"
        " precision: document",
    ),
    Evidence(
        "logic, shifts and comparison",
        "and or xor not cnot shl shr shf lop3 prmt popc clz bfind fns brev bfe bfi bmsk szext"
        " selp slct setp set",
        "silicon",
    ),
    Evidence("conversion", "cvt cvt.pack", "silicon", "e2m1, e2m3, e3m2, ue8m0: document"),
    Evidence("moves, loads and stores", "mov cvta isspacep ld ldu st", "silicon (kernels)"),
    Evidence("atomics", "atom red", "silicon", "128 bits: document"),
    Evidence(
        "warps",
        "shfl.sync vote.sync match.any.sync match.all.sync elect.sync redux.sync activemask"
        " bar.warp.sync barrier.warp.sync",
        "silicon",
        "`redux.sync` of f32: document",
    ),
    Evidence(
        "control flow",
        "bra brx.idx ret exit trap call",
        "silicon (kernels)",
        "`call` takes functions of the module, `vprintf` and `__assertfail`",
    ),
    Evidence(
        "barriers of a block",
        "bar.sync bar.arrive bar.cta.sync bar.cta.arrive barrier.sync barrier.arrive"
        " barrier.cta.sync barrier.cta.arrive",
        "silicon (kernels)",
    ),
    Evidence(
        "mbarriers",
        "mbarrier.init mbarrier.inval mbarrier.arrive mbarrier.arrive_drop mbarrier.expect_tx"
        " mbarrier.complete_tx mbarrier.pending_count mbarrier.test_wait mbarrier.try_wait",
        "silicon",
    ),
    Evidence(
        "asynchronous copies of threads",
        "cp.async cp.async.commit_group cp.async.wait_group cp.async.wait_all"
        " cp.async.mbarrier.arrive st.async red.async",
        "silicon",
        "`st.async` and `red.async` are refused in a launch that asks for no clusters, where an"
        " H200 says illegal instruction of `st.async`",
    ),
    Evidence(
        "bulk and TMA copies",
        "cp.async.bulk cp.reduce.async.bulk cp.async.bulk.tensor cp.reduce.async.bulk.tensor"
        " cp.async.bulk.commit_group cp.async.bulk.wait_group cp.async.bulk.prefetch"
        " cp.async.bulk.prefetch.tensor",
        "silicon",
        "multicast, too; gather4, scatter4, `cta_group::2`: kernels; im2col: document, and"
        " Triton's own test of it",
    ),
    Evidence(
        "tensor maps",
        "tensormap.replace.tile tensormap.cp_fenceproxy.global prefetch.tensormap"
        " prefetch.param.tensormap prefetch.const.tensormap",
        "silicon",
    ),
    Evidence(
        "fences",
        "fence membar fence.mbarrier_init fence.proxy.async fence.proxy.async::generic"
        " fence.proxy.alias fence.proxy.tensormap::generic",
        "silicon (kernels)",
        "what they forbid: document",
    ),
    Evidence(
        "clusters",
        "mapa getctarank barrier.cluster.arrive barrier.cluster.arrive.aligned"
        " barrier.cluster.arrive.relaxed.aligned barrier.cluster.arrive.release.aligned"
        " barrier.cluster.wait barrier.cluster.wait.aligned barrier.cluster.wait.acquire.aligned",
        "silicon",
    ),
    Evidence(
        "cluster launch control",
        "clusterlaunchcontrol.try_cancel.async clusterlaunchcontrol.query_cancel.is_canceled"
        " clusterlaunchcontrol.query_cancel.get_first_ctaid"
        " clusterlaunchcontrol.query_cancel.get_first_ctaid::x"
        " clusterlaunchcontrol.query_cancel.get_first_ctaid::y"
        " clusterlaunchcontrol.query_cancel.get_first_ctaid::z",
        "kernels",
    ),
    Evidence(
        "matrices of a warp",
        "ldmatrix stmatrix movmatrix mma.sync",
        "silicon",
        "the rounding of random numbers, too; the 8-, 6- and 4-bit forms of sm_100: document",
    ),
    Evidence(
        "wgmma",
        "wgmma.mma_async wgmma.fence wgmma.commit_group wgmma.wait_group",
        "silicon",
        "the rounding of random numbers, and 400 descriptors that no compiler would choose, too",
    ),
    Evidence(
        "tcgen05",
        "tcgen05.alloc tcgen05.dealloc tcgen05.relinquish_alloc_permit tcgen05.ld tcgen05.st"
        " tcgen05.wait::ld tcgen05.wait::st tcgen05.fence::before_thread_sync"
        " tcgen05.fence::after_thread_sync tcgen05.commit tcgen05.mma tcgen05.cp",
        "kernels",
        "one CTA and pairs, every kind and major-ness; the rarer shapes: document",
    ),
    Evidence("tcgen05", "tcgen05.shift", "document"),
    Evidence(
        "hints and scheduling",
        "griddepcontrol.launch_dependents griddepcontrol.wait setmaxnreg.dec.sync"
        " setmaxnreg.inc.sync nanosleep prefetch prefetchu applypriority discard"
        " createpolicy.cvt createpolicy.fractional createpolicy.range pmevent brkpt",
        "no effect",
    ),
    Evidence("older and sparse products", "wmma mma.sp mma.sync.sp", "refused"),
)
"""The evidence of every opcode in `OPCODES`; a test holds that each is named here exactly once."""
