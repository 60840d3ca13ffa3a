"""All exhibits, and the page that shows them."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from operator import attrgetter

from museum import barriers, buffers, copies, tensor_maps, tensor_memory, threads
from museum.exhibit import Exhibit, WrongResult

FAMILIES = {
    "Buffers": buffers.EXHIBITS,
    "Barriers and clusters": barriers.EXHIBITS,
    "Bulk copies": copies.EXHIBITS,
    "Tensor maps": tensor_maps.EXHIBITS,
    "Tensor memory": tensor_memory.EXHIBITS,
    "Threads and scopes": threads.EXHIBITS,
}
EXHIBITS: list[Exhibit] = [one for exhibits in FAMILIES.values() for one in exhibits]

_HEAD = """\
# The museum

Bugs of published kernels and compilers for Hopper and Blackwell, each as a minimal kernel of our \
own: what the hardware did, what the emulator says to it, and the lines that mend it. The text is \
written from `tests/support/museum` (`make docs`); `tests/museum` runs each exhibit, broken and \
mended, under three schedules, and compares this page with what happened.

All sources are public threads and files that were read; what the hardware did is their authors' \
report. *Latent* says that nobody has seen a wrong number yet. Of {count} exhibits the emulator \
names {named}, reproduces {reproduced} without a fault, and does not notice {silent}. {both} are \
kernels of both architectures, and end alike on both emulated GPUs; {hopper} are of Hopper alone, \
{blackwell} of Blackwell.
"""
_BEYOND = """
## What cannot be shown here

Bugs that lie between two kernels, in time alone, or in what is not modelled, have no exhibit:

- dependent launches that start before the data is there: \
[flashinfer#3361](https://github.com/flashinfer-ai/flashinfer/issues/3361) (GB200, NaN in 373 of \
400 iterations), [cutlass#2760](https://github.com/NVIDIA/cutlass/issues/2760) (H200): \
`griddepcontrol` has no effect on the emulator;
- spin locks between blocks that starve: \
[stickbreaking-attention#7](https://github.com/shawntan/stickbreaking-attention/issues/7) (H200): \
the emulator's schedule is fair;
- bugs of ptxas, below PTX: [triton#9433](https://github.com/triton-lang/triton/issues/9433), \
[triton#11781](https://github.com/triton-lang/triton/issues/11781) (H100: 61 instead of 64; A's \
registers are used again while wgmma reads them; ptxas 12.9, mended in 13.3), which \
[`triton-ext compile --sass`](../guide/passes.md#below-ptx) shows in \
[a matmul of Triton 3.8](upstream.md), \
[flash-linear-attention#1262](https://github.com/fla-org/flash-linear-attention/issues/1262) (H20);
- sparse products: [tilelang#2603](https://github.com/tile-ai/tilelang/issues/2603) (H100): refused;
- kernels whose arithmetic or indices are wrong on any machine, such as \
[tilelang#2593](https://github.com/tile-ai/tilelang/issues/2593) and \
[tilelang#2522](https://github.com/tile-ai/tilelang/issues/2522) (H100): they run, and give the \
wrong numbers.
"""


def _link(source: str) -> str:
    repository, _, file = source.partition(":")
    if file:
        url = f"https://github.com/{repository}/blob/HEAD/{file}"
        return f"[{repository}, {file.rpartition('/')[2]}]({url})"
    repository, _, number = source.partition("#")
    return f"[{source}](https://github.com/{repository}/issues/{number})"


def _changes(exhibit: Exhibit) -> Iterator[str]:
    """The lines that the broken kernel has (-), and the mended one (+)."""
    lines = difflib.unified_diff(exhibit.wrong.splitlines(), exhibit.right.splitlines(), n=1)
    for line in list(lines)[2:]:
        yield "..." if line.startswith("@@") else line


def _shown(exhibit: Exhibit) -> str:
    said = exhibit.message() or "nothing: the kernel runs to its end, with the right result."
    return f"""
### {exhibit.title}

{", ".join(map(_link, exhibit.sources))}

*Hardware:* {exhibit.hardware}

*The bug:* {exhibit.bug}

```diff
{chr(10).join(list(_changes(exhibit))[1:])}
```

*The emulator:* {f"`{said}`" if exhibit.fault else said}
"""


def page() -> str:
    """``docs/reference/museum.md``."""
    faults = list(map(attrgetter("fault"), EXHIBITS))
    head = _HEAD.format(
        count=len(EXHIBITS),
        named=sum(fault not in (None, WrongResult) for fault in faults),
        reproduced=faults.count(WrongResult),
        silent=faults.count(None),
        both=sum(exhibit.is_of_both for exhibit in EXHIBITS),
        hopper=sum("wgmma" in exhibit.right for exhibit in EXHIBITS),
        blackwell=sum(".target sm_100a" in exhibit.right for exhibit in EXHIBITS),
    )
    parts = [head]
    for name, exhibits in FAMILIES.items():
        parts += [f"\n## {name}\n", *map(_shown, exhibits)]
    return "".join([*parts, _BEYOND])
