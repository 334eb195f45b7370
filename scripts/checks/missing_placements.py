# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find placements that are valid although no factor of the rule has them.

Along a single mesh axis of two devices every placement of the operands is tried: each is
replicated, or sharded evenly along a dim. The op itself is run on the shards; where the devices'
results, joined along a dim, or reduced, equal the full result for several draws, the placement is
valid. ``check_rules.py --missing`` prints them.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import ir, relax

from tvm_distir.core.ir import static_shape
from tvm_distir.core.ops import Factor, describe_factor
from tvm_distir.execution.rule_validation.cases import Case
from tvm_distir.execution.rule_validation.collective_results import reduced
from tvm_distir.execution.rule_validation.machine import Machine
from tvm_distir.execution.rule_validation.program import reference_function
from tvm_distir.execution.rule_validation.proof import blocks, close

RANKS = 2
SEEDS = (0, 1, 2)
#: Cases with more placements of their operands than this are not searched.
MOST = 256

Dims = tuple[int | None, ...]


@dataclass(frozen=True)
class Missing:
    """A placement that is valid and that no factor has.

    Attributes
    ----------
    case : str
    factor : Factor
        The factor that would allow it.
    """

    case: str
    factor: Factor

    def __str__(self) -> str:
        return f"{self.case}: {describe_factor(self.factor)}"


def missing(cases: Sequence[Case]) -> list[Missing]:
    """Search the placements of cases (those without a kernel, or with too many, are left out)."""
    machine = Machine()
    tried: list[tuple[Case, Dims]] = []
    for case in cases:
        if case.numpy is not None or case.mod is not None or len(case.slots) < _count(case):
            continue
        machine.add((case.name, None), reference_function(machine, case))
        for dims in _placements(case):
            try:
                function = _on_blocks(case, dims)
                _legalize(function)
            except Exception:  # the op's checks refuse such blocks: not a right placement
                continue
            machine.add((case.name, dims), function)
            tried.append((case, dims))
    machine.compile()
    return [factor for case, dims in tried for factor in _right(machine, case, dims)]


def _legalize(function: relax.Function) -> None:
    """Let the op's kernel check its operands: some are refused there only."""
    with warnings.catch_warnings():
        # TVM warns of a tag that a refused kernel did not use; as an error it would leave it set.
        warnings.simplefilter("ignore")
        relax.transform.LegalizeOps()(ir.IRModule({"f": function.with_attr("global_symbol", "f")}))


def _count(case: Case) -> int:
    return len(case.rule().in_bytes)


def _shapes(case: Case) -> list[tuple[int, ...]]:
    return [tuple(int(n) for n in static_shape(v.ty) or ()) for v in case.operands]


def _placements(case: Case) -> Iterator[Dims]:
    options = [
        [None, *(d for d, n in enumerate(shape) if n > 1 and n % RANKS == 0)]
        for shape in _shapes(case)
    ]
    if np.prod([len(o) for o in options], initial=1) > MOST:
        return
    for dims in itertools.product(*options):
        if any(d is not None for d in dims):
            yield dims


def _on_blocks(case: Case, dims: Dims) -> relax.Function:
    """Return the call on blocks, with the same attributes."""
    params: list[relax.Var] = []

    def cut(arg: object) -> object:
        if isinstance(arg, relax.Tuple):
            return relax.Tuple([cut(f) for f in arg.fields])
        if not isinstance(arg, ir.Var):
            return arg
        shape, dim = list(static_shape(arg.ty) or ()), dims[len(params)]
        if dim is not None:
            shape[dim] //= RANKS
        params.append(relax.Var("x", relax.TensorType(shape, str(arg.ty.dtype))))
        return params[-1]

    args = [cut(a) for a in case.call.args]
    call = ir.Call(case.call.op, args, case.call.attrs, case.call.ty_args)
    value = relax.BlockBuilder().normalize(call)
    result = relax.Var("result", value.ty)
    block = relax.BindingBlock([relax.VarBinding(result, value)])
    return relax.Function(params, relax.SeqExpr([block], result), value.ty)


def _right(machine: Machine, case: Case, dims: Dims) -> Iterator[Missing]:
    """Yield the factors that the results show to be right and the rule does not have."""
    runs = []
    for seed in SEEDS:
        inputs = case.inputs(seed)
        parts = [blocks(x, d, RANKS, 0) for x, d in zip(inputs, dims, strict=True)]
        ranks = [
            machine.run((case.name, dims), [column[rank] for column in parts])
            for rank in range(RANKS)
        ]
        runs.append((machine.run((case.name, None), inputs), ranks))
    results = len(runs[0][0])
    options = [_joins(case, runs, j) for j in range(results)]
    if not all(options):
        return
    known = {(f.ins, f.outs if not f.leaves_terms(0) else f.kind) for f in case.rule().factors}
    kinds = {k for k in options[0] if isinstance(k, str) and all(k in o for o in options)}
    for kind in sorted(kinds):
        if (dims, kind) not in known:
            yield Missing(case.name, Factor(RANKS, dims, (None,) * results, kind))
    for outs in itertools.product(
        *([o for o in column if isinstance(o, int)] for column in options)
    ):
        if not kinds and (dims, outs) not in known:
            yield Missing(case.name, Factor(RANKS, dims, outs))


def _joins(case: Case, runs: Sequence[Any], j: int) -> list[int | str]:
    """Return the ways in which the devices' results make the full result, for every draw."""
    joins: list[int | str] = [*range(runs[0][0][j].ndim), "sum", "max", "min"]
    for reference, ranks in runs:
        parts = [r[j] for r in ranks]
        joins = [join for join in joins if _is_joined(case, parts, reference[j], join)]
    return joins


def _is_joined(
    case: Case, parts: Sequence[np.ndarray], reference: np.ndarray, join: int | str
) -> bool:
    if isinstance(join, int):
        if parts[0].ndim <= join:
            return False
        try:
            return close(np.concatenate(list(parts), axis=join), reference, case.tolerance)
        except ValueError:  # other dims differ
            return False
    if reference.dtype.kind == "b" or parts[0].shape != reference.shape:
        return False
    with np.errstate(all="ignore"):
        return close(reduced(join, parts), reference, case.tolerance)
