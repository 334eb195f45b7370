# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Represent the bindings of a region of attention, and follow them to their softmax."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tvm_distir.core.rewriting import op_name, variables

from .ring_softmax import Softmax
from .ring_sources import GatheredTensor

LINEAR = ("astype", "multiply")
"""Ops whose result is a multiple of the softmax that they read."""


@dataclass(frozen=True)
class RegionNode:
    """Binding of a region.

    Attributes
    ----------
    var, value : Var, expression
    kind : str
        The kind of binding: ``map`` works on each key, ``same`` passes on, ``pad`` adds rows for a
        scatter, ``sum`` sums over keys, ``scatter`` leaves a device its part, ``softmax`` is a
        softmax, ``stat`` is part of a softmax.
    walks : tuple of int or None
        The dim of each argument that runs over the keys.
    dim : int or None
        The dim of the result that runs over the keys.
    phase : int
        The phase in which it can be computed.
    online : Var or None
        The softmax of the same phase that a sum is taken with, as long as it is not finished.
    """

    var: Any
    value: Any
    kind: str
    walks: tuple[int | None, ...]
    dim: int | None
    phase: int
    online: Any = None


@dataclass
class Region:
    """Region of bindings over the same keys.

    Attributes
    ----------
    mesh, axis, count, rows, whole : DeviceMesh, int, int, int, int
        The owners of the keys: ``rows`` on each of the ``count`` devices along the axis, ``whole``
        in all.
    sources : dict of Var to GatheredTensor
    nodes : dict of Var to RegionNode
        The bindings, in order.
    softmaxes : dict of Var to Softmax
    whole_softmaxes : set of Var
        The softmaxes that are read beyond the region.
    roots : dict of Var to (Var, list of Call)
        The block of each source that travels, and the transpositions that compute the source's
        block of it.
    """

    mesh: Any
    axis: int
    count: int
    rows: int
    whole: int
    sources: dict[Any, GatheredTensor] = field(default_factory=dict)
    nodes: dict[Any, RegionNode] = field(default_factory=dict)
    softmaxes: dict[Any, Softmax] = field(default_factory=dict)
    whole_softmaxes: set[Any] = field(default_factory=set)
    roots: dict[Any, tuple[Any, list[Any]]] = field(default_factory=dict)

    @property
    def padded(self) -> bool:
        """Return whether the last device's block has padding rows."""
        return self.rows * self.count > self.whole


def weights_of(nodes: Mapping[Any, RegionNode], var: Any) -> Any:
    """Return the softmax that a value is a multiple of, or None."""
    node = nodes.get(var)
    if node is None or node.kind == "softmax":
        return None if node is None else node.var
    if not _linear(node):
        return None
    candidates = [weights_of(nodes, arg) for arg in variables(node.value)]
    known = [weights for weights in candidates if weights is not None]
    return known[0] if len(known) == 1 else None


def handed_on(nodes: Mapping[Any, RegionNode], var: Any) -> Any:
    """Return the softmax that a value equals up to its type, or None."""
    node = nodes.get(var)
    while node is not None and node.kind != "softmax":
        if node.kind != "same" and op_name(node.value) != "astype":
            return None
        node = nodes.get(variables(node.value)[0])
    return None if node is None else node.var


def path_between(nodes: Mapping[Any, RegionNode], var: Any, weights: Any) -> list[RegionNode]:
    """Return the nodes from a softmax to a multiple of it, in order."""
    path: list[RegionNode] = []
    while not var.same_as(weights):
        node = nodes[var]
        path.insert(0, node)
        of_weights = (v for v in variables(node.value) if weights_of(nodes, v) is not None)
        var = next(of_weights)
    return path


def path_to(region: Region, node: RegionNode) -> list[RegionNode]:
    """Return the nodes between a softmax and a sum over unnormalized weights, in order."""
    return path_between(region.nodes, node.value.args[0], node.online)


def _linear(node: RegionNode) -> bool:
    return node.kind == "same" or (node.kind == "map" and op_name(node.value) in LINEAR)
