# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What candidates are likely to take and to keep, before they are labelled: by tables of layers.

A step of which every layer is a stage of its own has few kinds of stage, whatever its depth: one
labelling of it, on a mesh without the axis of the batch, gives the time and the stash of every
layer. Candidates that differ only in stages, in micro-batches and in parts of the batch share it.
These are estimates, no bounds: they order candidates, and leave out what is far off.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from tvm import ir

from ..errors import DistIRError, InternalError
from ..ir import BACKWARD_PHASE, FORWARD_PHASE, PHASE_ATTR, WEIGHT_PHASE, static_shape, value_types
from ..ir.rewrite import all_bindings
from ..ops import size_bytes
from ..plan import MeshSpec, data_positions
from ..propagation import Instance
from ..schedules import Pipeline, Schedule
from ..system import PICOSECONDS, System
from .candidates import BATCH, Candidate
from .labelling import Labelling, label
from .prices import MeshPrices
from .sources import Source

ROUGH = 0.02
"""Gap of the labels of a table."""


class Outlook(NamedTuple):
    """What a candidate is likely to take.

    Attributes
    ----------
    time_s : float
        Of a step.
    peak_bytes : int
        That the device that keeps most keeps, leaving out what one micro-batch needs besides.
    """

    time_s: float
    peak_bytes: int

    def corrected(self, seen: Sequence[tuple[Outlook, Outlook]]) -> Outlook:
        """By how much others turned out to be longer and larger than was likely, at least."""
        longer = min((so.time_s / x.time_s for x, so in seen), default=1.0)
        larger = min((so.peak_bytes / x.peak_bytes for x, so in seen), default=1.0)
        return Outlook(longer * self.time_s, int(max(1.0, larger) * self.peak_bytes))


class Layers(NamedTuple):
    """A table: per layer, of one micro-batch on the devices of one part of the batch.

    Attributes
    ----------
    times_ps : tuple of int
        Forward, backward, and its part of what is done once.
    stashes_bytes : tuple of int
        What its forward part keeps for its backward part, on a device.
    """

    times_ps: tuple[int, ...]
    stashes_bytes: tuple[int, ...]


class Outlooks:
    """Gives the outlook of candidates; each table is made once.

    Parameters
    ----------
    source : Source
    system : System
    limit : int
        Bytes that a device may keep.
    """

    def __init__(self, source: Source, system: System, limit: int) -> None:
        self.source, self.system, self.limit = source, system, limit
        self._tables: dict[tuple[object, ...], Layers | None] = {}
        self._functions: dict[tuple[int, str], list[str]] = {}
        self._prices: dict[tuple[tuple[str, int], ...], MeshPrices] = {}
        model = source.forward(1)
        self._depth = _depth(model)
        self._weights, self._sums = _bytes(model)
        self._states = _bytes(source.module(None, "none"))[0] - self._weights

    def of(self, one: Candidate) -> Outlook | None:
        """The outlook of a candidate; None where its layers cannot be told apart."""
        table = self._table(one)
        if table is None:
            return None
        groups = evenly(table.times_ps, one.stages * one.chunks)
        times = [sum(table.times_ps[i] for i in group) for group in groups]
        units = one.micro_batches * one.chunks
        if one.chunks == 1:
            step_ps = (one.micro_batches - 1) * max(times) + sum(times)
        else:
            step_ps = (units + one.stages - 1) * max(times)
        first = [i for group in groups[:: one.stages] for i in group]
        stash = sum(table.stashes_bytes[i] for i in first) * _in_flight(one) // one.chunks
        whole = self._with_weights(one, step_ps, stash, cut=False)
        if whole.peak_bytes <= self.limit or dict(one.axes).get(BATCH, 1) == 1:
            return whole
        return self._with_weights(one, step_ps, stash, cut=True)

    def _with_weights(self, one: Candidate, step_ps: int, stash: int, *, cut: bool) -> Outlook:
        """Add weights, gradients and states, which lie cut along the batch's axis or not.

        States do; where weights and gradients do too, every micro-batch gathers the ones, before
        both its parts, and reduces the others (ZeRO, Rajbhandari et al. 2020, section 5).
        """
        mesh = dict(one.axes)
        parts = mesh.get(BATCH, 1)
        own = one.stages * math.prod(mesh.values()) // parts
        sums = self._weights if one.schedule is None else self._sums
        kept = self._states // (own * parts) + (self._weights + sums) // (
            own * parts if cut else own
        )
        if parts > 1:
            if one.axes not in self._prices:
                self._prices[one.axes] = MeshPrices(self.system, one.mesh.device_mesh())
            price, axis = self._prices[one.axes].collective_ps, list(mesh).index(BATCH)
            weights = self._weights // own
            if cut:  # beside the work, as far as there is some
                gather = 2 * price("all_gather", weights, axis)
                reduce = price("reduce_scatter", weights // parts, axis)
                step_ps = max(step_ps, one.micro_batches * (gather + reduce))
            else:
                step_ps += price("all_reduce", weights, axis)
        return Outlook(step_ps / PICOSECONDS, kept + stash)

    def _table(self, one: Candidate) -> Layers | None:
        batch, mesh = self.source.batch, dict(one.axes)
        parts = mesh.pop(BATCH, 1) * one.micro_batches
        if self._depth < 2 or batch is None or self.source.train is None:
            return None
        rows, most = max(1, batch // parts), -(-batch // parts)
        axes = tuple(mesh.items()) or ((BATCH, 1),)
        key = (axes, rows, one.recompute)
        if key not in self._tables:
            self._tables[key] = self._made(dict(axes), batch // rows, one.recompute)
        table = self._tables[key]
        if table is None or rows == most:
            return table
        return Layers(*[tuple([x * most // rows for x in column]) for column in table])

    def _made(self, mesh: dict[str, int], micro_batches: int, recompute: str) -> Layers | None:
        schedule = Schedule("1f1b", self._depth, micro_batches)
        try:
            step = self.source.module(schedule, recompute)
            labelled = label(step, MeshSpec("mesh0", mesh), self.system, gap=ROUGH)
        except InternalError:
            raise
        except DistIRError:  # what cannot be cut so, or refuses these devices, has no table
            return None
        key = (micro_batches, recompute)
        if key not in self._functions:
            pipeline = Pipeline.of(step)
            assert pipeline is not None
            self._functions[key] = [stage.function for stage in pipeline.stages]
        functions = self._functions[key]
        kept = {name: stash_bytes(labelled, name) for name in labelled.entries_ps}
        return Layers(
            tuple([labelled.entries_ps[name] // micro_batches for name in functions]),
            tuple([kept[name] for name in functions]),
        )


def stash_bytes(labelled: Labelling, entry: str) -> int:
    """What a device keeps of one micro-batch between its forward and its backward part."""
    inst = labelled.decision.entries[entry]
    g, found = inst.graph, 0
    for k in g.calls:
        if _phase(inst, k) != FORWARD_PHASE:
            continue
        for v in g.nodes[k].results:
            readers = {_phase(inst, r) for r, _ in g.uses[v] if r in inst.kids}
            if readers & {BACKWARD_PHASE, WEIGHT_PHASE}:
                size = g.values[v].size_bytes
                form = labelled.decision.value_form(inst, v)
                for parts, x in zip(labelled.mesh.shape, form, strict=True):
                    size = -(-size // parts) if x >= 0 else size
                found += size
    return found


def _phase(inst: Instance, k: int) -> str:
    attrs = inst.kids[k].graph.fn.attrs
    return str(attrs[PHASE_ATTR]) if attrs and PHASE_ATTR in attrs else ""


def _depth(model: ir.IRModule) -> int:
    """How often the function is called that is called most."""
    calls = Counter(
        str(b.value.op.name_hint)
        for b in all_bindings(model["main"].body)
        if isinstance(getattr(b, "value", None), ir.Call) and isinstance(b.value.op, ir.GlobalVar)
    )
    return max(calls.values(), default=0)


def _bytes(mod: ir.IRModule) -> tuple[int, int]:
    """Bytes of the parameters of ``main`` that are no data, and of as many of float32."""
    main, found, sums = mod["main"], 0, 0
    data = set(data_positions(main))
    for i, param in enumerate(main.params):
        for ty in value_types(param.ty) if i not in data else ():
            shape = static_shape(ty) or ()
            found += size_bytes(shape, str(ty.dtype))
            sums += size_bytes(shape, "float32")
    return found, sums


def _in_flight(one: Candidate) -> int:
    """Units forward of which the first rank keeps stashes (Narayanan et al. 2021, section 2.2)."""
    if one.chunks == 1:
        return min(one.micro_batches, one.stages)
    most = 2 * (one.stages - 1) + (one.chunks - 1) * one.stages + 1
    return min(one.micro_batches * one.chunks, most)


def evenly(times: Sequence[int], parts: int) -> list[range]:
    """Cut a sequence into parts of which the dearest is as cheap as can be.

    Some parts are empty where there are more than items.
    """
    low, high = max(times), sum(times)
    while low < high:
        most = (low + high) // 2
        if len(_filled(times, most)) <= parts:
            high = most
        else:
            low = most + 1
    found = _filled(times, low)
    return found + [range(0)] * (parts - len(found))


def _filled(times: Sequence[int], most: int) -> list[range]:
    """Parts of at most so much, each as long as can be."""
    found, begin, spent = [], 0, 0
    for i, time in enumerate(times):
        if spent + time > most:
            found.append(range(begin, i))
            begin, spent = i, 0
        spent += time
    return [*found, range(begin, len(times))]
