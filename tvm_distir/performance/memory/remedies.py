# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Estimate the effect of each remedy for memory from the account of the peak.

Nothing is simulated: each remedy scales the bytes that the account has at the peak.

=================  =================================================================================
ZeRO stage 1       states that are replicated along the data axes: divided by their degree
ZeRO stage 2       and gradients
micro-batch / 2    stashes, communication, temporaries and data: halved, where stashes are there
recomputation      stashes: the inputs of layers, and the stash of a single layer
ZeRO stage 3       and replicated weights; those of the largest layer are gathered
tp x 2             the sharded part of weights, states, gradients and activations: halved
=================  =================================================================================

The cheapest remedy is the first, in the order of the table, that fits: ZeRO 1 and 2 send as much
as data parallelism sends anyway, recomputation repeats the forward pass, stage 3 gathers weights
twice more, and doubled tensor parallelism takes devices from other axes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tvm_distir.performance.program.parts import Value, reached
from tvm_distir.performance.program.program import Program

from .account import BufferGroup, MemoryAccount

NAMED = 5
"""The maximum number of holders that a verdict names."""


@dataclass(frozen=True)
class Remedy:
    """Remedy that takes less memory.

    Attributes
    ----------
    name : str
    peak_bytes : int
        The bytes at the peak, as the account predicts them.
    """

    name: str
    peak_bytes: int


@dataclass(frozen=True)
class Verdict:
    """Verdict on why a program does not fit and which remedy would help.

    Attributes
    ----------
    missing_bytes : int
    holders : tuple of BufferGroup
        The largest, at most :data:`NAMED`.
    remedies : tuple of Remedy
        The remedies that apply, the cheapest first.
    chosen : str
        The first of them that fits; empty: none of these is enough.
    """

    missing_bytes: int
    holders: tuple[BufferGroup, ...]
    remedies: tuple[Remedy, ...]
    chosen: str

    def to_dict(self) -> dict[str, Any]:
        """Give the fields by name."""
        holders, remedies = (list(map(asdict, x)) for x in (self.holders, self.remedies))
        return {**asdict(self), "holders": holders, "remedies": remedies}


def verdict(
    program: Program, number: int, account: MemoryAccount, capacity_bytes: int
) -> Verdict | None:
    """Judge the devices of an entry, or of a rank; None where they fit."""
    if account.peak_bytes <= capacity_bytes:
        return None
    remedies = tuple(_remedies(_Facts.of(program, number), account))
    chosen = next((remedy.name for remedy in remedies if remedy.peak_bytes <= capacity_bytes), "")
    missing = account.peak_bytes - capacity_bytes
    return Verdict(missing, account.holders[:NAMED], remedies, chosen)


@dataclass(frozen=True)
class _Facts:
    """Facts about how a program is sharded.

    Attributes
    ----------
    degree : int
        Devices among which the data are cut.
    unsharded : dict of str to float
        The share of the bytes of each role that is unsharded along those axes.
    cut : float
        Share of the weights' bytes that is cut along other axes; 1 where nothing is.
    given_share : float
        The bytes of the inputs of layers, as a fraction of what they stash; 1 without layers.
    layer_stash_bytes, layer_weight_bytes : int
        The most bytes of a single layer.
    """

    degree: int
    unsharded: Mapping[str, float]
    cut: float
    given_share: float
    layer_stash_bytes: int
    layer_weight_bytes: int

    @staticmethod
    def of(program: Program, number: int) -> _Facts:
        """Read an entry, or a rank."""
        values = [value for _, _, value in program.as_stages.inputs(number)]
        mesh = program.meshes[program.entries[number].mesh if program.entries else number]
        data = {a for v in values if v.role == "input" for a in _axes(v) if mesh.shape[a] > 1}
        other = {a for a, size in enumerate(mesh.shape) if size > 1} - data
        weights = [v for v in values if v.role in ("weight", "state")]
        cut = _share(weights, lambda v: bool(_axes(v) & other))
        stash, input_bytes, weight = _layers(program, program.as_stages.functions_of(number))
        return _Facts(
            math.prod(mesh.shape[a] for a in data),
            {
                category: _share(
                    [v for v in values if v.role == category], lambda v: not _axes(v) & data
                )
                for category in ("weight", "state")
            },
            cut or 1.0,
            input_bytes / sum(stash) if stash else 1.0,
            max(stash, default=0),
            weight,
        )


def _axes(value: Value) -> set[int]:
    """Return the mesh axes that a value is sharded along."""
    words = (value.placement or "").replace("(", "").replace(")", "").split(",")
    return {axis for axis, word in enumerate(words) if word.strip().startswith("S")}


def _share(values: Sequence[Value], holds: Any) -> float:
    total = sum(value.bytes for value in values)
    return sum(value.bytes for value in values if holds(value)) / total if total else 0.0


def _layers(program: Program, roots: Sequence[str]) -> tuple[list[int], int, int]:
    """Return the stash bytes of each layer, the input bytes of all, and the most weight bytes.

    A layer is a call of the forward pass of a function that calls no further function.
    """
    stash, input_bytes, weight = list[int](), 0, 0
    inner = {
        name
        for name, fn in program.functions.items()
        if name.partition("_mesh")[0].endswith("_forward")
        and not any(callee.endswith("_forward") for op in fn.ops for callee in op.callees)
    }
    for name in sorted(reached(program.functions, roots)):
        fn = program.functions[name]
        for op in fn.ops:
            if op.callee in inner and op.outputs:
                sizes = [fn.values[i].bytes for i in op.outputs]
                stash.append(sum(sizes[1:]))
                input_bytes += sizes[0]
                read = (fn.values[i] for i in op.inputs)
                weight = max(weight, sum(v.bytes for v in read if v.is_weight))
    return stash, input_bytes, weight


def _remedies(facts: _Facts, account: MemoryAccount) -> list[Remedy]:
    """Return the remedies that change anything, in order."""
    at = {category: float(size) for category, size in account.at_peak.items()}
    degree, remedies = facts.degree, list[Remedy]()

    def offer(name: str, changes: Mapping[str, float], more: float = 0) -> None:
        total = sum(size * changes.get(category, 1.0) for category, size in at.items()) + more
        if total < account.peak_bytes:
            remedies.append(Remedy(name, math.ceil(total)))

    def spread(share: float) -> float:
        return 1 - share + share / degree

    stashed = at.get("stashes", 0.0)
    if degree > 1:
        states = {"states": spread(facts.unsharded["state"])}
        offer("ZeRO stage 1", states)
        unreduced = account.most.get("gradients", 0) * degree > 1.5 * account.most.get("weights", 0)
        gradients = {**states, "gradients": 1 / degree if unreduced else 1.0}
        offer("ZeRO stage 2", gradients)
    if stashed:
        halved = ("stashes", "communication", "temporaries", "inputs")
        offer("micro-batch / 2", dict.fromkeys(halved, 0.5))
        offer("recomputation", {"stashes": min(1.0, facts.given_share)}, facts.layer_stash_bytes)
    if degree > 1:
        weights = {**gradients, "weights": spread(facts.unsharded["weight"])}
        offer("ZeRO stage 3", weights, facts.layer_weight_bytes)
    cut = ("weights", "states", "gradients", "stashes", "temporaries")
    offer("tp x 2", dict.fromkeys(cut, 1 - facts.cut / 2))
    return remedies
