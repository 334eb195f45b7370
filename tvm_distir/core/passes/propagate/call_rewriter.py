# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rewrite calls with redistributed operands and DTensor types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import ir, relax
from tvm.relax.op.distributed import redistribute
from tvm.relax.script.builder.distributed.ir import call_tir as dist_call_tir

from tvm_distir.core.ir.handles import handle
from tvm_distir.core.ir.placement import R, placement_of
from tvm_distir.core.propagation.graph.packed_rules import PACKED_HANDLES, distributed_name
from tvm_distir.core.rewriting.dims import dims_remedy
from tvm_distir.core.rewriting.nodes import make_call, scalar_of
from tvm_distir.support import GenericConst, PropagationError

from .operands import Operands
from .placed_values import PlacedValues
from .result_types import CallResults

CALL_TIR = ir.Op.get("relax.call_tir")
CREATED = {"relax.zeros": 0, "relax.ones": 1}
"""Ops without a tensor operand, and what they fill with."""


@dataclass(eq=False)
class Calls:
    """A writer of calls of ops and of functions of the module.

    Parameters
    ----------
    values : PlacedValues
        The values of the specialization.
    operands : Operands
        The operands of the specialization.
    results : CallResults
        The results of the specialization.
    callees : mapping of node number to GlobalVar
        The specializations that it calls.
    """

    values: PlacedValues
    operands: Operands
    results: CallResults
    callees: Mapping[int, ir.GlobalVar]

    def function_call(self, k: int, old: ir.Call, ty: ir.Type) -> ir.Call:
        """Rewrite node k, a call of a function of the module; ``ty`` is its result type."""
        return make_call(self.callees[k], self.operands.arguments(k, old.args), old.attrs, [], ty)

    def op_call(self, k: int, old: ir.Call, ty: ir.Type) -> ir.Call:
        """Rewrite node k, a call of an op; ``ty`` is the type of its result."""
        args, op, results = self.operands.arguments(k, old.args), old.op, self.results
        if type(op) is relax.ExternFunc or handle(op) in PACKED_HANDLES:
            types = [results.field_type(k, j, t) for j, t in enumerate(old.ty_args)]
            return make_call(distributed_name(op), args, old.attrs, types, ty)
        node = self.values.g.nodes[k]
        if not node.operands:
            return self._created(k, old)
        if CALL_TIR.same_as(op):
            types = [results.raw_type(k, j) for j in range(len(node.results))]
            return dist_call_tir(args[0], args[1], types)
        return make_call(op, args, old.attrs, old.ty_args, ty)

    def _created(self, k: int, old: ir.Call) -> Any:
        """Create a tensor from a placed constant.

        TVM gives a call without a tensor operand a plain type: as a DTensor it could not be
        parsed back. ``zeros`` and ``ones`` become ``full``, the others constants.
        """
        values = self.values
        name, mesh = str(old.op.name), values.g.nodes[k].mesh
        if name in CREATED:
            scalar = np.array(CREATED[name], dtype=str(old.attrs.dtype))
            placed = values.constant(scalar_of(scalar), mesh)
            return ir.Call(ir.Op.get("relax.full"), [old.args[0], placed], old.attrs)
        sizes = [str(v.name) for v in relax.analysis.free_symbolic_vars(old)]
        value = None if sizes else _evaluated(old)
        if value is None:
            unknown = "of a size that is" if sizes else "whose values are"
            raise PropagationError(
                "DIST0417",
                f"{name} creates a tensor {unknown} not known",
                location=values.g.location(k),
                remedy=dims_remedy(sizes) if sizes else "Pass its result in as an argument.",
            )
        placed = values.constant(value, mesh)
        layout = values.decision.gives(values.inst, k, 0, mesh)
        if all(x == R for x in layout):
            return placed
        return redistribute(placed, values.meshes[mesh], placement_of(layout))


def _evaluated(call: ir.Call) -> Any:
    """Return the constant that a call without tensor operands creates; None if it cannot run."""
    bounds: list[Any] = [getattr(a, "value", None) for a in call.args]
    if str(call.op.name) == "relax.arange" and all(isinstance(b, int | float) for b in bounds):
        dtype = str(call.attrs.dtype)
        return relax.const(np.arange(*bounds).astype(dtype), dtype)  # compiles nothing
    builder = relax.BlockBuilder()
    with builder.function("main", []):
        builder.emit_func_output(builder.emit(call))
    mod = relax.transform.FoldConstant()(relax.transform.LegalizeOps()(builder.get()))
    value = mod["main"].body.body
    return value if isinstance(value, GenericConst) else None
