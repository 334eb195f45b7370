# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Collect the functions that exported functions call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm import ir, relax

from .function_exporter import FunctionExporter
from .parts import Function


def with_callees(
    mod: ir.IRModule, known: Mapping[str, Function], calling: Sequence[FunctionExporter]
) -> dict[str, Function]:
    """Add all functions that exported ones call, directly or not, on the mesh of the first."""
    out = dict(known)
    branches: dict[str, relax.Function] = {}
    for first in calling:
        mesh = known[first.name].mesh
        branches.update(first.branches)
        todo = list(reversed(first.callees))
        while todo:
            here = todo.pop()
            if here in out:
                continue
            body = branches[here] if here in branches else mod[here]
            exporter = FunctionExporter(mod, here, body)
            out[here] = exporter.run(mesh, None)
            branches.update(exporter.branches)
            todo.extend(reversed(exporter.callees))
    return out
