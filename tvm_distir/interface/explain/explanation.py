# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Represent an explanation as data and as a page of text."""

from __future__ import annotations

import html
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tvm_distir.core.rewriting import dims_remedy
from tvm_distir.support import Column, DataTable, Displayed, align

from .findings import AxisReason, ChainStep, Dim, ExplainedCollective, OtherPlacement, Resharding

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Explanation(Displayed):
    """The explanation of a value.

    Attributes
    ----------
    name : str
        ``specialisation/variable``.
    function : str
        The function in the module given.
    made_by : str
        The op, call or annotation that produces it, or ``parameter``.
    shape : tuple of str
    local_shape : tuple of str
        Of one (padded) shard.
    mesh : str
    mesh_axes : tuple of (str, int)
    placement : str
        One label per mesh axis, ``P`` for a partial sum. The order of the axes that shard a dim,
        from major to minor, follows as ``S[0]{tp,dp}`` where the mesh has another.
    open_dims : tuple of str
        Dims of the module's inputs whose sizes are not known. With any there are no bytes and no
        prices: these are None, and there are no alternatives.
    size_bytes, bytes_per_device : int or None
    axes : tuple of AxisReason
    dims : tuple of Dim
    users : tuple of (str, str)
        The users of the value, and the placement that each requires.
    moves : tuple of Resharding
    alternatives : tuple of OtherPlacement
    specialisations : tuple of (str, str)
        All specialisations of a private function, and the value's placement in each.
    price, cost : float or None
        Of the whole decision, in bytes on the wire, as in :class:`OtherPlacement`.
    wire_bytes : int or None
        Bytes that a device sends in an execution of the whole module.
    picture : str
    """

    name: str
    function: str
    made_by: str
    shape: tuple[str, ...]
    local_shape: tuple[str, ...]
    mesh: str
    mesh_axes: tuple[tuple[str, int], ...]
    placement: str
    open_dims: tuple[str, ...]
    size_bytes: int | None
    bytes_per_device: int | None
    axes: tuple[AxisReason, ...]
    dims: tuple[Dim, ...]
    users: tuple[tuple[str, str], ...]
    moves: tuple[Resharding, ...]
    alternatives: tuple[OtherPlacement, ...]
    specialisations: tuple[tuple[str, str], ...]
    price: float | None
    cost: float | None
    wire_bytes: int | None
    picture: str

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, with a ``schema_version``."""
        data = asdict(self)
        data["mesh_axes"] = dict(self.mesh_axes)
        for row, axis in zip(data["axes"], self.axes):
            row["claims"] = [{"label": x, "annotation": y} for x, y in axis.claims]
            row["conflict"] = axis.conflict
        data["users"] = [{"user": x, "placement": y} for x, y in self.users]
        data["specialisations"] = dict(self.specialisations)
        return {"schema_version": SCHEMA_VERSION, **data}

    def _repr_html_(self) -> str:
        """Return the tables, with the shards by device."""
        return f"{super()._repr_html_()}<pre>{html.escape(self.picture)}</pre>"

    def to_text(self) -> str:
        """Return a page of text, ending with a newline."""
        return "\n".join(_lines(self)) + "\n"

    def _headline(self) -> str:
        return "\n".join(itertools.takewhile(bool, _lines(self)))

    def _tables(self) -> list[DataTable]:
        """Return the costs of alternatives, and the reason for each axis."""
        reasons = [[x.axis, x.size, x.label, x.reason, x.annotation or None] for x in self.axes]
        costs = [
            [x.axis, x.label, x.becomes, x.price, x.wire_bytes, x.flops, x.memory_bytes,
             x.held_bytes, x.impossible or None]
            for x in self.alternatives
        ]  # fmt: skip
        return [
            DataTable("Alternative placements", _COSTS, costs),
            DataTable("Reasons", _REASON_COLUMNS, reasons),
        ]

    def _draw(self, axes: Axes) -> None:
        """Draw the cost of each alternative placement over that of the current."""
        costs = {f"{x.axis}: {x.label}": x.price for x in self.alternatives if x.price is not None}
        axes.barh([*costs], [*costs.values()])
        axes.axvline(0, color="black")
        axes.set(xlabel="added cost (wire bytes)", title=f"{self.name}: {self.placement}")
        axes.invert_yaxis()


_COSTS = (
    Column("axis", "axis"),
    Column("label", "label"),
    Column("becomes", "becomes"),
    Column("cost_wire_bytes", "cost", "{:+,.0f}".format),
    Column("wire_bytes", "wire bytes", "{:+,}".format),
    Column("flops", "FLOPs", "{:+,}".format),
    Column("memory_bytes", "memory bytes", "{:+,}".format),
    Column("parameter_bytes", "parameter bytes", "{:+,}".format),
    Column("infeasible", "infeasible"),
)
_REASON_COLUMNS = (
    Column("axis", "axis"),
    Column("size", "size", str),
    Column("label", "label"),
    Column("reason", "reason"),
    Column("annotation", "annotation"),
)
_REASONS = {
    "annotated": "annotated here",
    "followed": "from {annotation}",
    "tied": "dims tied to {annotation}",
    "summed": "partial sum over a dim sharded by {annotation}",
    "unreached": "not reached by an annotation along this axis",
    "cheapest": "replicated at the lowest cost, see below",
}
_LEGEND = (
    "requested: an annotation reaches the value with this label, or the label is R",
    "cost: wire bytes, plus collectives, FLOPs and memory bytes in equivalent wire bytes",
    "objective: the cost that propagation minimizes; resharding of annotated values counts twice",
    "parameter bytes: resident on a device; not part of cost and objective",
)
MOST_STEPS = 12

_HEAD = [
    *("axis", "label", "requested", "cost", "objective", "wire bytes", "FLOPs", "memory bytes"),
    *("parameter bytes", "collectives"),
]


def _lines(e: Explanation) -> Iterator[str]:
    axes = ", ".join(f"{name}={size}" for name, size in e.mesh_axes)
    yield f"{e.name}: {e.made_by}, shape {_shape(e.shape)}"
    yield f"  placement {e.placement} on {e.mesh} ({axes})"
    known = e.size_bytes is not None
    size_text = f"{e.bytes_per_device:,} of {e.size_bytes:,} bytes" if known else "bytes unknown"
    yield f"  {_shape(e.local_shape)} per device: {size_text}"
    if len(e.specialisations) > 1:
        each = "; ".join(f"{name}: {placement}" for name, placement in e.specialisations)
        yield f"  specialisations of {e.function}: {each}"
    for title, lines in _sections(e):
        if lines:
            yield from ("", title, *lines)


def _sections(e: Explanation) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the titles and the lines of sections; those without lines are left out."""
    yield "Shards by device", _indent(e.picture.split("\n"))
    yield "Reasons", _indent(line for axis in e.axes for line in _reason(axis, e.alternatives))
    yield "Used by", align(e.users[0], e.users[1:], "ll") if e.users else ()
    yield "Resharding", _indent(map(_move, e.moves))
    yield "Limits", _indent(f"dim {d.dim} ({d.size}): {x}" for d in e.dims for x in d.obstacles)
    if e.open_dims:
        sizes = ", ".join(f'"{name}"' for name in e.open_dims)
        sizes += ": bytes, costs and the cheapest placement depend on these sizes"
        yield "Unknown sizes", _indent([sizes, dims_remedy(list(e.open_dims))])
    if e.alternatives:
        title = "Alternative placements (as annotations): changes per device, for the whole module"
        now = f"cost {e.price:,.0f}, objective {e.cost:,.0f}, {e.wire_bytes:,} wire bytes"
        yield title, [f"  current: {now}", *_alternatives(e.alternatives)]


def _shape(dims: Sequence[str]) -> str:
    return f"({', '.join(dims)}{',' if len(dims) == 1 else ''})"


def _indent(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _move(move: Resharding) -> str:
    how = ", ".join(_collective(c) for c in move.collectives)
    users = f", for {', '.join(move.users)}" if move.users else ""
    return f"{move.source} -> {move.target}: {how}{users}"


def _reason(reason: AxisReason, alternatives: Sequence[OtherPlacement]) -> Iterator[str]:
    costs = {x.label: x.price for x in alternatives if x.axis == reason.axis}
    words = _REASONS[reason.reason].format(annotation=reason.annotation or "a constant")
    if reason.produced != reason.label:
        words += f" (produced as {reason.produced}, reduced immediately)"
    yield f"{reason.axis} ({reason.size}): {reason.label}, {words}"
    steps = reason.steps
    if len(steps) > MOST_STEPS:
        half = MOST_STEPS // 2
        yield from (f"    {_step(step)}" for step in steps[:half])
        yield f"    ... {len(steps) - 2 * half} steps ..."
        steps = steps[-half:]
    yield from (f"    {_step(step)}" for step in steps)
    if reason.also:
        yield f"    also tied to {', '.join(reason.also)}"
    for label, annotation in reason.claims:
        if label != reason.label:
            cost = costs.get(label)
            tail = f", cost {cost:+,.0f}" if cost is not None else ""
            yield f"    conflict: {annotation} requests {label}{tail}"


def _step(step: ChainStep) -> str:
    source = _dim(step.source, step.source_dim)
    target = _dim(step.target, step.target_dim)
    factor = f" ({step.kind}: {step.factor})" if step.factor else ""
    return f"{step.place} = {step.op}: {source} -> {target}{factor}"


def _dim(name: str, dim: int | None) -> str:
    return f"{name} partial" if dim is None else f"{name} dim {dim}"


def _collective(c: ExplainedCollective) -> str:
    sent = "" if c.wire_bytes is None else f", {c.wire_bytes:,} bytes"
    return f"{c.kind} along {c.axis}{sent}"


def _alternatives(alternatives: Sequence[OtherPlacement]) -> Iterator[str]:
    rows, notes = list[list[str]](), list[str]()
    for x in alternatives:
        label = x.label if x.becomes == x.label else f"{x.label} (becomes {x.becomes})"
        if x.cost is None:
            notes.append(f"{x.axis} {label}: {x.impossible}")
            continue
        changes = "; ".join(
            f"{f'{c.count:+,} ' if c.count else ''}{c.kind} {c.axis} ({c.wire_bytes:+,} bytes)"
            for c in x.collectives
        )
        costs = [f"{cost:+,.0f}" for cost in (x.price, x.cost)]
        sizes = [f"{n:+,}" for n in (x.wire_bytes, x.flops, x.memory_bytes, x.held_bytes)]
        requested = "yes" if x.asked else "no"
        rows.append([x.axis, label, requested, *costs, *sizes, changes or "unchanged"])
    if rows:
        yield from align(_HEAD, rows, "l" * len(_HEAD))
        yield from _indent(_LEGEND)
    if notes:
        yield "  Infeasible"
        yield from _indent([f"  {note}" for note in notes])
