# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute tables of the time and memory of layers, from a step with a stage per layer."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from tvm import ir

from tvm_distir.core.ir.attributes import (
    BACKWARD_PHASE,
    FORWARD_PHASE,
    WEIGHT_PHASE,
    param_names,
    phase_of,
    training_notes,
)
from tvm_distir.core.plan import MeshSpec, Pipeline, Schedule
from tvm_distir.core.propagation import Instance
from tvm_distir.core.rewriting import module_calls
from tvm_distir.hardware import System, shard_bytes
from tvm_distir.performance import Profile
from tvm_distir.support import REFUSALS

from .auto_sharding import ShardedCandidate, auto_shard
from .candidates import BATCH, Candidate
from .modules import Source

ROUGH = 0.02
"""Gap of the labels of a table."""

SUM_ITEM_BYTES = 4
"""The bytes of an element of the sums of gradients over micro-batches, which are float32."""


class Layers(NamedTuple):
    """Table of layers for a micro-batch on the devices of a part of the batch.

    Attributes
    ----------
    times_ps : tuple of int
        Forward, backward, and its part of what is done once.
    stashes_bytes : tuple of int
        The bytes that the forward pass of each layer saves for its backward pass, on a device.
        Where operands are quantized, as if all that it saves were: not more than in simulation.
    weights_bytes, sums_bytes, states_bytes : tuple of int
        The bytes of each layer's weights, of the sums of their gradients, and of the states of the
        optimizer, on a device.
    """

    times_ps: tuple[int, ...]
    stashes_bytes: tuple[int, ...]
    weights_bytes: tuple[int, ...]
    sums_bytes: tuple[int, ...]
    states_bytes: tuple[int, ...]


class LayerTables:
    """Tables of candidates; each is made once.

    Parameters
    ----------
    source : Source
    system : System
    """

    def __init__(self, source: Source, system: System) -> None:
        self.source, self.system = source, system
        self._cache: dict[tuple[object, ...], Layers | None] = {}
        self._functions: dict[tuple[object, ...], list[str]] = {}
        self.ends = layer_ends(source.forward(1))
        """Names of the values of ``main`` that the layers give."""

    @property
    def depth(self) -> int:
        """Return the number of layers."""
        return len(self.ends)

    def of(self, candidate: Candidate, *, at_layers: bool = False) -> Layers | None:
        """Return the table of a candidate; None where its layers cannot be distinguished.

        Parameters
        ----------
        candidate : Candidate
        at_layers : bool
            Whether a row is what ends with a layer, as cuts by name are; else what makes as many
            stages even.
        """
        batch, mesh = self.source.batch, dict(candidate.axes)
        parts = mesh.pop(BATCH, 1) * candidate.micro_batches
        if self.depth < 2 or batch is None or self.source.train is None:
            return None
        rows, most = max(1, batch // parts), -(-batch // parts)
        axes = tuple(mesh.items()) or ((BATCH, 1),)
        cuts = tuple(self.ends[:-1]) if at_layers else ()
        key = (axes, rows, candidate.recompute, cuts)
        if key not in self._cache:
            self._cache[key] = self._made(dict(axes), batch // rows, candidate.recompute, cuts)
        table = self._cache[key]
        if table is None or rows == most:
            return table
        times, stashes = [tuple([x * most // rows for x in column]) for column in table[:2]]
        return table._replace(times_ps=times, stashes_bytes=stashes)

    def _made(
        self, mesh: dict[str, int], micro_batches: int, recompute: str, cuts: tuple[str, ...]
    ) -> Layers | None:
        schedule = Schedule("1f1b", self.depth, micro_batches, cuts=cuts)
        try:
            step = self.source.module(schedule, recompute)
            labelled = auto_shard(step, MeshSpec("mesh0", mesh), self.system, gap=ROUGH)
        except REFUSALS:  # what cannot be cut so, or refuses these devices, has no table
            return None
        key = (micro_batches, recompute, cuts)
        if key not in self._functions:
            pipeline = Pipeline.of(step)
            assert pipeline is not None
            self._functions[key] = [stage.function for stage in pipeline.stages]
        profile = Profile.resolve(self.system.kernels)
        bits = profile.quantization.bits if profile.quantization and profile.stores_copies else 16
        share = Fraction(bits) / 16
        kinds = {name: _stage_bytes(labelled, name, share) for name in labelled.entries_ps}
        rows = [
            (labelled.entries_ps[name] // micro_batches, *kinds[name])
            for name in self._functions[key]
        ]
        return Layers(*zip(*rows, strict=True))


def _stage_bytes(
    labelled: ShardedCandidate, entry: str, share: Fraction
) -> tuple[int, int, int, int]:
    """Return the bytes of a stage on a device: its stash, its weights, their sums, their states.

    ``share`` is that of the stash which is at least stored.
    """
    inst = labelled.decision.entries[entry]
    g = inst.graph
    notes = training_notes(g.fn, "states")
    states = {str(name) for names in notes.values() for name in names}
    weights = set(training_notes(g.fn, "updated")) - states
    stored_bytes, sums, weight_bytes = 0, 0, 0
    for k, name in zip(g.params, param_names(g.fn), strict=True):
        v = g.nodes[k].results[0]
        if name in weights:
            size = _local_bytes(labelled, inst, v)
            stored_bytes += size
            sums += size // g.values[v].item_bytes * SUM_ITEM_BYTES
        elif name in states:
            weight_bytes += _local_bytes(labelled, inst, v)
    return int(stash_bytes(labelled, entry) * share), stored_bytes, sums, weight_bytes


def _local_bytes(labelled: ShardedCandidate, inst: Instance, v: int) -> int:
    """Return the bytes of a device's part of a value as it is produced."""
    layout = labelled.decision.value_layout(inst, v)
    return shard_bytes(inst.graph.values[v].size_bytes, labelled.meshes[0].shape, layout)


def stash_bytes(labelled: ShardedCandidate, entry: str) -> int:
    """Return the bytes that a device stores of a micro-batch between its passes."""
    inst = labelled.decision.entries[entry]
    g, total = inst.graph, 0
    for k in g.calls:
        if phase_of(inst.kids[k].graph.fn) != FORWARD_PHASE:
            continue
        for v in g.nodes[k].results:
            readers = {phase_of(inst.kids[r].graph.fn) for r, _ in g.uses[v] if r in inst.kids}
            if readers & {BACKWARD_PHASE, WEIGHT_PHASE}:
                total += _local_bytes(labelled, inst, v)
    return total


def layer_ends(model: ir.IRModule) -> list[str]:
    """Return the names of the results of the calls of the repeated layer, in order."""
    calls: dict[str, list[str]] = {}
    for binding, callee in module_calls(model["main"]):
        calls.setdefault(callee.name_hint, []).append(str(binding.var.name))
    layers = max(calls.values(), key=len, default=[])
    return layers if len(layers) > 1 else []
