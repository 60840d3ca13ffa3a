"""Notes on how asynchronous work completes: mbarriers, commits and groups."""

from __future__ import annotations

from triton_ext.ptx.forms import BulkGroup, MbarrierOperation, TensorCoreCommit, WgmmaGroup
from triton_ext.ptx.notes import Notes, add_cluster_mask, add_notes


@add_notes.register
def _mbarrier(form: MbarrierOperation, notes: Notes) -> None:
    what, text = form.operation, form.barrier
    if what == "pending_count":
        notes.add(f"how many arrivals the phase of the token {notes.root(form.phase)} lacks")
        return
    at = notes.address_values("mbarrier", text)
    where = f"the mbarrier at {notes.shared(text)}"
    if form.space == "shared::cluster":
        where += " (of a CTA of the cluster)"
    if what == "init":
        shown = f"mbarrier at {notes.shared(text)}: a phase takes {_arrivals(notes, form.count)}"
        notes.add(shown, count=notes.known(form.count), **at)
    elif what == "inval":
        notes.add(f"mbarrier at {notes.shared(text)}", **at)
    elif form.bytes:
        verb = "completes" if what == "complete_tx" else "expects"
        verb = "arrives and expects" if form.expects else verb
        shown = f"{verb} {notes.amount(form.bytes)} bytes, at {where}"
        notes.add(shown, bytes=notes.known(form.bytes), **at)
    elif what in ("arrive", "arrive_drop"):
        count = form.count or "1"
        drop = ", and will not again" if what == "arrive_drop" else ""
        shown = f"{_arrivals(notes, count)} at {where}{drop}"
        notes.add(shown, count=notes.known(count), **at)
    else:
        phase = f"the phase of the token {notes.root(form.phase)}"
        if form.by_parity:
            at["parity"] = notes.known(form.phase)
            phase = f"the phase of parity {notes.amount(form.phase)}"
        notes.add(f"{'waits for' if what == 'try_wait' else 'asks'} {where}: {phase}", **at)


def _arrivals(notes: Notes, text: str) -> str:
    return f"{notes.amount(text)} arrival{'s' if notes.number(text) != 1 else ''}"


@add_notes.register
def _commit(form: TensorCoreCommit, notes: Notes) -> None:
    notes.values["cta_group"] = form.cta_group
    notes.add(
        f"the mbarrier at {notes.shared(form.mbarrier)} is arrived at when the tcgen05.mma, cp"
        " and shift so far are done",
        **notes.address_values("mbarrier", form.mbarrier),
    )
    if form.cta_mask:
        add_cluster_mask(notes, form.cta_mask)


@add_notes.register
def _group(form: WgmmaGroup | BulkGroup, notes: Notes) -> None:
    name = "wgmma" if isinstance(form, WgmmaGroup) else "bulk copies"
    if not form.pending:
        if form.base.endswith("commit_group"):
            notes.add(f"the {name} so far, which are in no group, become one")
        else:
            notes.add("registers and shared memory written so far are seen by later wgmma")
        return
    which = "all but the last " + notes.amount(form.pending)
    which = "all" if notes.number(form.pending) == 0 else which
    until = f"{which} groups of {name} are done"
    if isinstance(form, BulkGroup) and form.reads_only:
        until = f"{which} groups of {name} have read shared memory, so that it may be overwritten"
    notes.add(f"waits until {until}", pending=notes.known(form.pending))
