# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Represents a Relax function as flat arrays of values and nodes, the input of propagation."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tvm import ir, relax, tirx

from tvm_distir.core.ir.handles import handle
from tvm_distir.core.ir.operators.names import relax_names
from tvm_distir.core.ir.placement import P
from tvm_distir.core.ops.dims import nominal
from tvm_distir.core.ops.factor import Rule
from tvm_distir.support import PropagationError, lists_by_key

CONST = -1
"""Operand number of a constant: it has no node and is at hand in every placement."""

KINDS = ("param", "op", "pin", "move", "call", "ret")
"""Kinds of nodes, see :class:`Node`."""

ALONE = (0,)
"""The operand numbers of a value that is the only operand of a node."""

PinLabels = tuple[int | None, ...]

Uses = Sequence[tuple[int, tuple[int, ...]]]
"""Nodes that read a value, each with its operands that the value is."""

HANDED = ("param", "pin")
"""Kinds of nodes whose values may be pinned or stationary."""

LAYOUT_OPS = tuple(relax_names("permute_dims reshape expand_dims squeeze flatten astype"))
"""Ops whose result is their operand in another layout: what a plan says of the operand holds."""


def divisible(size: int | ir.Expr, count: int) -> bool:
    """Return whether a dim can be split evenly; a symbolic dim is assumed to be divisible."""
    if isinstance(size, int | tirx.IntImm):
        return int(size) % count == 0
    return True


def has_size(extent: int | ir.Expr) -> bool:
    """Return whether a dim has a size; only annotations shard dims that have none."""
    return isinstance(extent, int | tirx.IntImm)


@dataclass(frozen=True)
class Axis:
    """An axis of a mesh of the module."""

    mesh: int
    index: int
    size: int
    name: str


class FlatValue(NamedTuple):
    """A flat tensor (or opaque) value.

    ``shape`` holds ints or symbolic sizes; an opaque value may carry the dims of the tensor it
    holds (a cache), so that its users agree. ``size_bytes`` are those of the full value, symbols
    taken as nominal; ``ty`` is its type in the module, None for an opaque value.
    """

    name: str
    shape: tuple[Any, ...]
    item_bytes: int
    size_bytes: int
    mesh: int = -1
    ty: ir.Type = None


class Node(NamedTuple):
    """A producer or consumer of values.

    ``kind``: ``param``, ``op`` (a rule), ``pin`` (an annotation), ``move`` (to another mesh),
    ``call`` (of a private function) or ``ret``. ``pin`` holds a label per axis of ``mesh``, None
    where the axis is open.
    """

    kind: str
    operands: tuple[int, ...] = ()
    results: tuple[int, ...] = ()
    rule: Rule | None = None
    mesh: int = -1
    pin: PinLabels | None = None
    stationary: bool = False
    callee: str = ""
    label: str = ""

    def pin_on(self, axis: Axis) -> bool:
        """Return whether the node's annotation names a dim or R along the axis."""
        on_mesh = self.pin is not None and self.mesh == axis.mesh
        return on_mesh and self.pin is not None and self.pin[axis.index] not in (None, P)


class Link(NamedTuple):
    """A value with its readers.

    ``maker`` is the node that produces it, as its ``result``-th result; ``handed`` tells whether
    its origin is one of :data:`HANDED`. Where it is an operand, or a single op reads it, ``reader``
    is the node and ``reads`` the operands; else they are -1 and empty.
    """

    value: int
    maker: int
    result: int
    handed: bool
    uses: Uses
    reader: int
    reads: tuple[int, ...]


@dataclass(eq=False)
class Graph:
    """A function: values, nodes in program order (parameters first), and its variables.

    Relax variables of ``fn`` go by their :func:`~.handles.handle`: ``bound`` has those of its
    ``bindings`` in order, ``tensors`` those that are tensors of known dims, ``env`` maps each to
    its flat value numbers, ``node_of`` those bound to a node to that node, ``pinned`` those bound
    to the one annotation of a parameter to the parameter; ``block_reads`` has, per binding block,
    those bound in it that it reads itself and does not hide. ``key`` is the function's name plus,
    after placing, its meshes. ``origin[k]`` is the node whose result a chain of layout ops ending
    at node k hands on. ``repeat`` is how often a step runs each call of the function, ``repeats``
    has that of what its call nodes call, and of annotations between such calls, where it is more
    than once.
    """

    key: str
    name: str
    fn: relax.Function = None
    values: list[FlatValue] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    env: dict[int, tuple[int, ...]] = field(default_factory=dict)
    node_of: dict[int, int] = field(default_factory=dict)
    bindings: Sequence[relax.Binding] = ()
    bound: Sequence[int] = ()
    tensors: Set[int] = frozenset()
    pinned: dict[int, int] = field(default_factory=dict)
    block_reads: list[list[int]] = field(default_factory=list)
    public: bool = False
    params: list[int] = field(default_factory=list)
    param_values: list[int] = field(default_factory=list)
    result_values: list[int] = field(default_factory=list)
    rets: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    uses: list[list[tuple[int, tuple[int, ...]]]] = field(default_factory=list)
    producer: list[tuple[int, int]] = field(default_factory=list)
    offset: list[int] = field(default_factory=list)
    origin: list[int] = field(default_factory=list)
    repeat: int = 1
    repeats: dict[int, int] = field(default_factory=dict)
    _links: dict[int, list[Link]] = field(default_factory=dict)

    @functools.cached_property
    def variables(self) -> dict[int, ir.Expr]:
        """Return the variables themselves, by handle."""
        return {handle(var): var for var in (*self.fn.params[:], *[b.var for b in self.bindings])}

    @functools.cached_property
    def nominal_shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of all values, where symbols count nominally; of a finished graph."""
        return [tuple(map(nominal, value.shape)) for value in self.values]

    @functools.cached_property
    def passes(self) -> list[int]:
        """Return how often a step reshards each value; of a finished graph."""
        return list(map(self.times, range(len(self.values))))

    def add_value(
        self, name: str, shape: Sequence[int | ir.Expr], item_bytes: int, mesh: int = -1
    ) -> int:
        """Append a value and return its number."""
        size_bytes = math.prod(map(nominal, shape)) * item_bytes
        self.values.append(FlatValue(name, tuple(shape), item_bytes, size_bytes, mesh))
        return len(self.values) - 1

    def add_node(self, node: Node) -> int:
        """Append a node and return its number."""
        self.nodes.append(node)
        return len(self.nodes) - 1

    def finish(self) -> Graph:
        """Fill the indices: uses, producers, dim offsets. Call again after any change."""
        by_kind: dict[str, list[int]] = {kind: [] for kind in KINDS}
        self.uses = [[] for _ in self.values]
        self.producer = [(-1, -1)] * len(self.values)
        uses, producer = self.uses, self.producer
        for k, (kind, operands, results, *_) in enumerate(self.nodes):
            by_kind[kind].append(k)
            if len(operands) == 1:
                if operands[0] >= 0:
                    uses[operands[0]].append((k, ALONE))
            elif operands:
                self._note_uses(k, operands)
            if len(results) == 1:
                producer[results[0]] = (k, 0)
            else:
                for j, v in enumerate(results):
                    producer[v] = (k, j)
        self.params, self.rets, self.calls = by_kind["param"], by_kind["ret"], by_kind["call"]
        self.param_values = [self.nodes[k].results[0] for k in self.params]
        self.result_values = [self.nodes[k].operands[0] for k in self.rets]
        self.origin = list(range(len(self.nodes)))
        for k in by_kind["op"]:
            node = self.nodes[k]
            if len(node.operands) == 1 and node.operands[0] >= 0:
                if node.rule is not None and node.rule.op in LAYOUT_OPS:
                    self.origin[k] = self.origin[producer[node.operands[0]][0]]
        self.offset = [0, *itertools.accumulate([len(value.shape) for value in self.values])]
        self._links.clear()
        return self

    def links(self, mesh: int) -> list[Link]:
        """Return the values on a mesh that have a reader, in order."""
        result = self._links.get(mesh)
        if result is None:
            result, nodes = list[Link](), self.nodes
            of_calls, handed = set(self.calls), [node.kind in HANDED for node in nodes]
            for v, (uses, (k, j), value) in enumerate(zip(self.uses, self.producer, self.values)):
                if uses and value.mesh == mesh:
                    reader, reads = uses[0]
                    if len(uses) > 1 or (len(reads) > 1 and reader in of_calls):
                        reader, reads = -1, ()
                    result.append(Link(v, k, j, handed[self.origin[k]], uses, reader, reads))
            self._links[mesh] = result
        return result

    def _note_uses(self, k: int, operands: tuple[int, ...]) -> None:
        if len(set(operands)) == len(operands):
            for i, v in enumerate(operands):
                if v >= 0:
                    self.uses[v].append((k, (i,)))
            return
        for v, where in lists_by_key((v, i) for i, v in enumerate(operands)).items():
            if v >= 0:
                self.uses[v].append((k, tuple(where)))

    def times(self, v: int) -> int:
        """Return how often a step reshards a value where some consumer needs another placement."""
        if self.repeat > 1 or not self.repeats:
            return self.repeat
        read = max((self.repeats.get(k, 1) for k, _ in self.uses[v]), default=1)
        return min(self.repeats.get(self.producer[v][0], 1), read)

    def error(self, code: str, label: str, problem: str, remedy: str) -> PropagationError:
        """Build an error about a variable, or about an object with another label."""
        return PropagationError(code, problem, location=f"{self.name}/{label}", remedy=remedy)

    def location(self, node: int) -> str:
        """Return the position of a node, for messages."""
        return f"{self.name}/{self.nodes[node].label}"
