# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Factors executed as the product does: the sharded call lowered, run on virtual devices.

A second proof beside :mod:`~.execution.rule_validation`, with the engine's own collectives.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import ir, relax

from tests.core.passes import lower_harness as lowering
from tvm_distir.core.ops.factor import Factor
from tvm_distir.core.passes.legalize.passes import LegalizeRedistribute
from tvm_distir.core.passes.lower.passes import LowerDistIR
from tvm_distir.execution.rule_validation.cases import Case
from tvm_distir.execution.rule_validation.proof import close, counts_of

#: Cases that cannot be run lowered, and why not.
NOT_LOWERED = {
    "mean 4x6": "TVM computes int64 where its type says int32",
}


def _module(case: Case) -> tuple[list[tuple[str, tuple[int, ...], str]], ir.IRModule, ir.Call]:
    """Operands by name, the call as a module of its own, and the call in it."""
    specs = []

    def fresh(arg: Any, params: Any) -> Any:
        if isinstance(arg, relax.Tuple):
            return relax.Tuple([fresh(f, params) for f in arg.fields])
        return next(params) if isinstance(arg, ir.Var) else arg

    for i, v in enumerate(case.operands):
        shape = tuple(int(n) for n in v.ty.shape)
        specs.append((f"x{i}", shape, str(v.ty.dtype)))

    def make(*params: relax.Var) -> ir.Call:
        inputs = iter(params)
        args = [fresh(a, inputs) for a in case.call.args]
        return ir.Call(case.call.op, args, case.call.attrs, case.call.ty_args)

    return specs, *lowering.whole_module(specs, make)


def exchanges(factor: Factor) -> bool:
    """Whether devices exchange data inside the op, which the op alone cannot show."""
    return factor.kind in ("stat", "halo") or factor.comm_bytes > 0


def check_lowered(case: Case, only_inside: bool = False) -> tuple[int, list[str]]:
    """Run the factors of a case; return how many placements ran, and what differed.

    Parameters
    ----------
    only_inside : bool
        Only the factors that the op alone cannot show.
    """
    rule, inputs = case.rule(), case.inputs(0)
    targets = [f for f in rule.factors if exchanges(f) or not only_inside]
    if not targets:
        return 0, []
    specs, whole, call = _module(case)
    expected = lowering.reference(whole, inputs)
    ran, wrong = 0, []
    for number, factor in enumerate(targets):
        for count in counts_of(factor)[:1] if not only_inside else counts_of(factor):
            ran += 1
            try:
                mod = lowering.distributed(specs, call, lowering.mesh_of(count), [factor])
                mod = LowerDistIR()(LegalizeRedistribute()(mod))
                got = lowering.run_virtual(mod, inputs)
            except Exception as error:
                text = str(error).strip().splitlines() or [type(error).__name__]
                wrong.append(f"lowered factor {number} over {count}: {text[-1][:200]}")
                continue
            if not all(close(np.asarray(a), b, case.tolerance) for a, b in zip(got, expected)):
                wrong.append(f"lowered factor {number} over {count}: differs")
    return ran, wrong
