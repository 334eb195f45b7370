# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Count the bytes of the collectives of a module at levels 4 and 5."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import ir, relax
from tvm.relax import Expr, Var

from tvm_distir.core.collectives import sent_bytes
from tvm_distir.core.ir import (
    is_private,
    mesh_axes,
    mesh_devices,
    mesh_index,
    mesh_shape,
    relax_functions,
)
from tvm_distir.core.ir.attributes import IO_ATTR
from tvm_distir.core.ir.operators import COLLECTIVES, call_axes, collective_op
from tvm_distir.core.passes import choices
from tvm_distir.core.redistribution import payload_bytes, terms_of
from tvm_distir.core.rewriting import bindings_in, branches_of
from tvm_distir.support import lists_by_key


@dataclass(frozen=True, order=True)
class TrafficKind:
    """Key of collectives that are counted together: op, axis names and group size."""

    op: str
    axes: str
    group_size: int


@dataclass(frozen=True)
class Traffic:
    """Collectives of a single device in a run, counted at every call.

    Attributes
    ----------
    counts, result_bytes, sent_bytes : Counter
        Counts by :class:`TrafficKind`: how many, bytes of results, bytes that a device sends by the
        ring formulae (:func:`~.volume.sent_bytes`). Transfers between meshes count at the
        ``send``, as the size of a device's tensor.
    """

    counts: Counter[TrafficKind] = field(default_factory=Counter)
    result_bytes: Counter[TrafficKind] = field(default_factory=Counter)
    sent_bytes: Counter[TrafficKind] = field(default_factory=Counter)

    @property
    def total_count(self) -> int:
        """Return the number of collectives that each device takes part in."""
        return sum(self.counts.values())

    @property
    def total_sent_bytes(self) -> int:
        """Return the bytes that each device sends."""
        return sum(self.sent_bytes.values())

    def add(self, kind: TrafficKind, size_bytes: int) -> None:
        """Count a collective with results of ``size_bytes``."""
        self.counts[kind] += 1
        self.result_bytes[kind] += size_bytes
        self.sent_bytes[kind] += sent_bytes(kind.op, size_bytes, kind.group_size)

    def include(self, other: Traffic) -> None:
        """Add the counts of another instance."""
        self.counts.update(other.counts)
        self.result_bytes.update(other.result_bytes)
        self.sent_bytes.update(other.sent_bytes)

    def to_text(self) -> str:
        """Return a line with the counts by kind and the total bytes sent."""
        words = [f"{number} {kind.op}({kind.axes})" for kind, number in sorted(self.counts.items())]
        return f"{', '.join(words) or 'no collectives'}: {self.total_sent_bytes:,} bytes sent"


def traffic(mod: ir.IRModule) -> Traffic:
    """Count the collectives that a device executes when each public function runs once.

    Parameters
    ----------
    mod : IRModule
        The module, at level 4 or 5. Of an ``If`` the branch that sends more bytes counts; functions
        that call each other in a circle count once, and so does what the entries of a shared mesh
        do together.

    Returns
    -------
    Traffic
    """
    functions = {str(gv.name_hint): fn for gv, fn in relax_functions(mod)}
    total = Traffic()
    for devices, names in _roots(functions).items():
        count = _Count(mod, devices)
        for name in names:
            total.include(count.function(name, functions[name]))
    return total


def _roots(functions: dict[str, relax.Function]) -> dict[tuple[int, ...], list[str]]:
    """Return the public functions, grouped by the devices that run them if meshes overlap."""
    public = {name: fn.attrs or {} for name, fn in functions.items() if not is_private(fn)}
    return lists_by_key(
        (tuple(int(d) for d in attrs.get(IO_ATTR, {}).get("devices", ())), name)
        for name, attrs in public.items()
    )


class _Count:
    """Counter of the collectives of a module's functions, each visited once.

    Attributes
    ----------
    devices : tuple of int
        The devices that run the entry, where other entries share its meshes: work on such a mesh
        counts for its first device. Empty: all work counts.
    """

    def __init__(self, mod: ir.IRModule, devices: tuple[int, ...]) -> None:
        self.mod, self.devices = mod, devices
        self.known: dict[str, Traffic] = {}

    def function(self, name: str, fn: relax.Function) -> Traffic:
        """Return the traffic of a call of a function, or nothing for a recursive call."""
        if name not in self.known:
            self.known[name] = Traffic()
            sides = [choice.calls for choice in choices(self.mod, fn)]
            self.known[name] = self.body(fn.body, sides)
        return self.known[name]

    def body(self, seq: relax.SeqExpr, sides: Sequence[tuple[Any, Any]] = ()) -> Traffic:
        """Return the traffic of a body, with the more expensive branch of an ``If``."""
        total = Traffic()
        chosen = {call.var for calls in sides for call in calls}
        for var, value in bindings_in(seq):
            if isinstance(value, relax.If):
                total.include(_more_expensive(*map(self.body, branches_of(value))))
            elif var not in chosen:
                total.include(self.value(var, value))
        for calls in sides:
            total.include(_more_expensive(*(self.value(call.var, call.value) for call in calls)))
        return total

    def value(self, var: Var, value: Expr) -> Traffic:
        """Return the traffic of a binding."""
        total = Traffic()
        if not isinstance(value, ir.Call):
            return total
        if isinstance(value.op, ir.GlobalVar):
            fn = self.mod[value.op]
            if isinstance(fn, relax.Function):
                total.include(self.function(str(value.op.name_hint), fn))
            return total
        for kind in _kinds(self.mod, value):
            first = int(mesh_devices(value.attrs["device_mesh"]).flat[0])
            if not self.devices or first in self.devices:
                total.add(kind, payload_bytes(kind.op, value, var.ty))
        return total


def _more_expensive(first: Traffic, other: Traffic) -> Traffic:
    """Return the traffic with more bytes, or else with more collectives."""
    sizes = [(t.total_sent_bytes, t.total_count) for t in (first, other)]
    return first if sizes[0] >= sizes[1] else other


def _kinds(mod: ir.IRModule, value: ir.Call) -> Iterator[TrafficKind]:
    op = collective_op(value)
    if op == "send":
        source, target = (value.attrs[key] for key in ("device_mesh", "peer_mesh"))
        pair = f"{mesh_index(mod, source)}->{mesh_index(mod, target)}"
        yield TrafficKind(op, pair, math.prod(mesh_shape(target)))
    elif op in COLLECTIVES:
        mesh, axes = value.attrs["device_mesh"], call_axes(value)
        size = math.prod(mesh_shape(mesh)[a] for a in axes)
        if size > 1:
            names = mesh_axes(mod)[mesh_index(mod, mesh)]
            op = "exchange" if terms_of(value) is not None else op
            yield TrafficKind(op, ",".join(names[a] for a in axes), size)


@dataclass(frozen=True)
class TrafficChange:
    """Collectives before and after a pass."""

    pass_name: str
    before: Traffic
    after: Traffic

    def to_text(self) -> str:
        """Return two lines: before and after."""
        return (
            f"{self.pass_name}\n  before: {self.before.to_text()}\n  after:  {self.after.to_text()}"
        )


@tvm.instrument.pass_instrument
class TrafficInstrument:
    """TVM pass instrument that counts collectives before and after each pass of this package.

    ``with tvm.transform.PassContext(instruments=[TrafficInstrument()])`` around the passes;
    ``changes`` then holds a :class:`TrafficChange` per pass that began at level 4 or 5.
    """

    def __init__(self) -> None:
        self.changes: list[TrafficChange] = []
        self._before: list[Traffic | None] = []

    def run_before_pass(self, mod: ir.IRModule, info: Any) -> None:
        """Count the collectives before a pass."""
        ours = str(info.name).startswith("tvm_distir.")
        self._before.append(traffic(mod) if ours else None)

    def run_after_pass(self, mod: ir.IRModule, info: Any) -> None:
        """Count the collectives after a pass."""
        before = self._before.pop()
        after = traffic(mod) if before is not None else None
        if before is not None and after is not None and (before.counts or after.counts):
            self.changes.append(TrafficChange(str(info.name), before, after))
