# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define and gather the calls by which rules are validated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from tvm import ir, relax

from tvm_distir.core.ir import static_shape
from tvm_distir.core.ops import (
    Rule,
    load_entry_points,
    own_ops,
    registered_ops,
    registration_of,
    rule_of,
)
from tvm_distir.core.rewriting import leaves_of, tensor_args

from .draws import Draw, small


def var(*shape: int, dtype: str = "float32") -> relax.Var:
    """Make an operand of a case."""
    return relax.Var("x", relax.TensorType(list(shape), dtype))


def _operands(arg: Any) -> list[Any]:
    if isinstance(arg, relax.Tuple):
        return [x for f in arg.fields for x in _operands(f)]
    return [arg] if isinstance(arg, ir.Var) else []


@dataclass(frozen=True)
class Case:
    """A call on distinct variables, with the sampling of its operands.

    Attributes
    ----------
    name : str
    call : Call
    draws : mapping of int to Draw
        The distributions of operands that do not hold numbers from -2 to 2.
    tolerance : float
        0: results must be bit-equal.
    mod : IRModule, optional
        Holds the kernel of a ``call_tir``.
    fills : mapping of int to number
        The padding of an operand, when NaN (or 0) would not be harmless.
    numpy : callable, optional
        A NumPy function that computes the op, where TVM has no kernel for it.
    """

    name: str
    call: ir.Call
    draws: Mapping[int, Draw] = field(default_factory=dict)
    tolerance: float = 0.0
    mod: Any = None
    fills: Mapping[int, float] = field(default_factory=dict)
    numpy: Callable[..., np.ndarray] | None = None

    @property
    def op(self) -> str:
        """Return the name of the op."""
        return str(self.call.op.name)

    @property
    def operands(self) -> list[relax.Var]:
        """Return the variables of the call, in order."""
        return [v for a in self.call.args for v in _operands(a)]

    @property
    def slots(self) -> list[int]:
        """Return each variable's number among the flattened tensor operands, constants included."""
        leaves = [x for arg in tensor_args(self.call) for x, _, _ in leaves_of(arg)]
        return [i for i, x in enumerate(leaves) if isinstance(x, ir.Var)]

    def rule(self) -> Rule:
        """Look up the rule of the call."""
        return rule_of(self.call, self.mod)

    def inputs(self, seed: int) -> list[np.ndarray]:
        """Draw full operands."""
        rng = np.random.default_rng(seed)
        sampled = []
        for i, v in enumerate(self.operands):
            shape, dtype = static_shape(v.ty) or (), str(v.ty.dtype)
            draw: Draw = self.draws.get(i, small)
            sampled.append(np.asarray(draw(rng, shape)).astype(dtype))
        return sampled


def case(
    call: ir.Call,
    draws: Mapping[int, Draw] | None = None,
    tolerance: float = 0.0,
    fills: Mapping[int, float] | None = None,
    numpy: Callable[..., np.ndarray] | None = None,
) -> Case:
    """Make a case named after its op and the shapes of its operands."""
    shapes = " ".join(
        "x".join(map(str, static_shape(v.ty) or ())) or "()"
        for a in call.args
        for v in _operands(a)
    )
    name = f"{str(call.op.name).removeprefix('relax.')} {shapes or '-'}"
    return Case(name, call, draws or {}, tolerance, fills=fills or {}, numpy=numpy)


def numbered(cases: Iterable[Case]) -> list[Case]:
    """Return the same cases under distinct names."""
    seen: Counter[str] = Counter()
    result = []
    for c in cases:
        seen[c.name] += 1
        repeated = seen[c.name] > 1
        result.append(replace(c, name=f"{c.name} #{seen[c.name]}") if repeated else c)
    return result


def all_cases(
    shipped: Sequence[Case], unproved: Mapping[str, str]
) -> tuple[list[Case], dict[str, str]]:
    """Return the cases of shipped rules, and those that packages and users have registered.

    Parameters
    ----------
    shipped : sequence of Case
        Cases of the rules that ship. Without any, ops with such a rule are left out.
    unproved : mapping of str to str
        Ops that no case of these proves, and why not.

    Returns
    -------
    cases : list of Case
        The cases. Where a rule that ships is replaced, only those of its registration are returned.
    unproved : dict of str to str
        Ops with a hand-written rule that no case proves, and why not.
    """
    load_entry_points()
    shipped_ops = own_ops()
    cases = [c for c in shipped if c.op in shipped_ops or registration_of(c.op) is None]
    for name in registered_ops():
        registration = None if name in shipped_ops else registration_of(name)
        if registration is not None and registration.examples is not None:
            cases += [c for c in registration.examples() if c.op == name]
    named = {c.op for c in cases}
    reasons = {
        name: unproved.get(name, "its registration has no examples")
        for name in (*registered_ops(), *unproved)
        if name not in named and (shipped or name not in shipped_ops)
    }
    return numbered(cases), reasons
