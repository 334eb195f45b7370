# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the sequence dims of a model's values, and where queries meet keys.

Sharding rules tie the dims that belong together (:func:`~.tied_dims.tied_dims`). A
value with a tied dim has rows that are positions of the sequence. Two tied dims mean pairs of
positions: the scores of attention. An op that needs a tied dim unsharded is attention too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir

from tvm_distir.core.ir import R
from tvm_distir.core.ir.operators import ATTENTION_OP
from tvm_distir.core.plan import MeshSpec, PlanRule, data_positions, faults_of_plan
from tvm_distir.core.propagation import TiedDims
from tvm_distir.support import PlanError

from .model_info import (
    Parameter,
    entries,
    flat_positions,
    mesh_axis,
    names_of,
    parameter_rule,
    same_size,
    tensor_parameters,
)

LOOK_UP = "relax.take"

SEQUENCE_DIM = 1
"""The position of the sequence in (batch, sequence), where nothing else is given."""


def cut_inputs(
    mod: ir.IRModule, mesh: MeshSpec, axis: str, dim: int, strategy: str
) -> tuple[dict[str, dict[int, int]], list[PlanRule]]:
    """Cut the data inputs of a module along the sequence; weights are replicated and stationary.

    Parameters
    ----------
    mod : IRModule
    mesh, axis
        The mesh and the axis that shards them.
    dim : int
        The number of the dim that is the sequence.
    strategy : str
        The strategy that messages name.

    Returns
    -------
    dict
        The flat numbers of the parameters that are sharded, with the dim, per entry.
    list of PlanRule
        A rule per parameter.

    Raises
    ------
    MeshError
        DIST0206 when the mesh has no such axis.
    PlanError
        DIST0233 no data input has the dim; DIST0234 it is shorter than the axis.
    """
    number = mesh_axis(mesh, axis, strategy)
    seeds: dict[str, dict[int, int]] = {}
    rules: list[PlanRule] = []
    faults = faults_of_plan(f'strategy "{strategy}"')
    for name, fn, rule_name in entries(mod):
        data = data_positions(fn, name)
        parameters = tensor_parameters(name, fn, rule_name)
        chosen = [p for p in parameters if p.position in data]
        cut: list[int] = []
        with faults.gathered():
            cut = _sequence_inputs(chosen, mesh, axis, dim, name, strategy)
        flat = flat_positions(fn)
        seeds[name] = {flat[position]: dim for position in cut}
        for parameter in parameters:
            label = dim if parameter.position in cut else R
            is_weight = parameter.position not in data
            rules.append(parameter_rule(parameter, mesh, {number: label}, stationary=is_weight))
    faults.raise_all()
    return seeds, rules


def _sequence_inputs(
    data: Sequence[Parameter], mesh: MeshSpec, axis: str, dim: int, name: str, strategy: str
) -> list[int]:
    """Return the positions of data inputs with the sequence: ``dim`` of the first with it."""
    location = f"{name} ({strategy})"
    able = [p for p in data if p.shape is not None and 0 <= dim < len(p.shape)]
    if not able:
        raise PlanError(
            "DIST0233", f"no data input has a dim {dim}: {names_of(data) or 'there is none'}",
            location=location, remedy=f'Set the sequence dim with "{strategy}:dim=0".',
        )  # fmt: skip
    size = (able[0].shape or ())[dim]
    if isinstance(size, int) and size < mesh.axes[axis]:
        problem = f'the sequence {size} is shorter than the mesh axis "{axis}" ({mesh.axes[axis]})'
        remedy = "Use fewer devices along it."
        raise PlanError("DIST0234", problem, location=able[0].location, remedy=remedy)
    return [p.position for p in able if same_size((p.shape or ())[dim], size)]


@dataclass(frozen=True)
class Product:
    """Product: an op that multiplies or looks up activations, or needs the full sequence.

    Attributes
    ----------
    tied : TiedDims
        The function that contains it.
    node : int
        The number of the node in the graph.
    meeting : bool
        Whether positions meet in it: it reads or gives pairs of them, or takes the sequence whole.
    """

    tied: TiedDims
    node: int
    meeting: bool

    @property
    def location(self) -> str:
        """Return the place for messages."""
        return self.tied.graph.location(self.node)

    @property
    def shape(self) -> tuple[Any, ...]:
        """Return the shape of the result."""
        g = self.tied.graph
        return g.values[g.nodes[self.node].results[0]].shape

    def shared_dims(self, count: int) -> tuple[int, ...] | None:
        """Return the first dim shared by all operands and the result that divides.

        None of the sequence; the batch comes last. None where there is no such dim.
        """
        rule = self.tied.graph.nodes[self.node].rule
        dims = [
            (out == 0, out, *operands)
            for *operands, out in self._kept(
                3 if rule is not None and rule.op == ATTENTION_OP else 2
            )
            if isinstance(self.shape[out], int) and self.shape[out] % count == 0
        ]
        return None if not dims else (*min(dims)[2:], min(dims)[1])

    def kept_dim(self, count: int) -> int | None:
        """Return the last dim that a result shares with its only operand and that divides.

        None for numbers of tokens: to gather them costs next to nothing.
        """
        g = self.tied.graph
        if "float" not in str(g.values[g.nodes[self.node].results[0]].ty.dtype):
            return None
        dims = [
            d for _, d in self._kept(1) if isinstance(self.shape[d], int) and self.shape[d] >= count
        ]
        return max(dims, default=None)

    def _kept(self, operands: int) -> list[tuple[int, ...]]:
        """Return the dims that the first operands and the result share, without sequence dims."""
        node = self.tied.graph.nodes[self.node]
        seq = self.tied.dims(node.results[0])
        return [
            tuple(d for d in (*f.ins[:operands], f.outs[0]) if d is not None)
            for f in (node.rule.factors if node.rule is not None else ())
            if f.kind == "map" and f.outs[0] is not None and f.outs[0] not in seq
            if all(d is not None for d in f.ins[:operands])
        ]


def products(tied: TiedDims) -> Iterator[Product]:
    """Yield the products and look-ups of a function whose result has the sequence.

    And ops that take it whole: with a result that has it, they are attention.
    """
    for k, node in enumerate(tied.graph.nodes):
        rule = node.rule
        single = len(node.results) == 1 or (rule is not None and rule.op == ATTENTION_OP)
        if rule is None or not single or k not in tied.names:
            continue
        walked = {(i, d) for f in rule.factors for i, d in enumerate(f.ins)}
        unsharded = any(
            (i, d) not in walked for i, v in enumerate(node.operands) for d in tied.dims(v)
        )
        sums = rule.op == LOOK_UP or any(f.kind == "sum" for f in rule.factors)
        product = sums and len(node.operands) > 1 and tied.dims(node.results[0])
        if unsharded or product:
            pairs = any(len(tied.dims(v)) > 1 for v in (*node.operands, *node.results))
            yield Product(tied, k, pairs or unsharded)
