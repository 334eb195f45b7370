# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of a step, and the time that it takes at least."""

from __future__ import annotations

from collections.abc import Mapping

from tvm import ir

from ..propagation import PlacedModule
from ..propagation.graph import Graph, Node
from ..system import System


def arithmetic(mod: ir.IRModule) -> dict[tuple[str, str], int]:
    """Operations of one run of a module's public functions, by kernel class and type."""
    module = PlacedModule.of(mod, ())
    found: dict[tuple[str, str], int] = {}
    calls = dict.fromkeys(module.graphs, 0)
    calls.update(dict.fromkeys(module.entries.values(), 1))
    for key in reversed(module.order):
        g = module.graphs[key]
        for k in g.calls:
            calls[g.nodes[k].callee] += calls[key]
        for node in g.nodes:
            rule = node.rule
            if rule is None or not rule.work.flops:
                continue
            at = (rule.work.kernel_class, arithmetic_type(g, node))
            found[at] = found.get(at, 0) + calls[key] * rule.work.flops
    return found


def least_work_s(flops: Mapping[tuple[str, str], int], system: System) -> float:
    """Seconds that the arithmetic of a step takes on one device at its peak, and no less.

    Parameters
    ----------
    flops : mapping of (str, str) to int
        By kernel class and type.
    system : System
    """
    return sum(
        system.roofline(count, 0, kind, dtype).time_s for (kind, dtype), count in flops.items()
    )


def arithmetic_type(g: Graph, node: Node) -> str:
    """Type of a node's arithmetic: of its first floating operand or result."""
    for v in (*node.operands, *node.results):
        if v >= 0 and g.values[v].ty is not None:
            dtype = str(g.values[v].ty.dtype)
            if dtype.startswith(("float", "bfloat")):
                return dtype
    return "float32"
