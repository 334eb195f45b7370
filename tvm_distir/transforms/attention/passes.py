# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define FuseAttention, which replaces softmax attention that is written out by the op.

Before, with ``q, k, v`` of ``(batch, heads, positions, width)``::

    scores = R.matmul(q, R.permute_dims(k, [0, 1, 3, 2]))
    scaled = R.multiply(scores, R.const(0.125))
    masked = R.where(mask, scaled, R.const(-1e30))      # mask: columns <= rows
    mixed = R.matmul(R.nn.softmax(masked, -1), v)

After::

    pair = R.dist.attention(q_, k_, v_, scale=0.125, causal=True)   # heads behind positions
    mixed = R.permute_dims(pair[0], [0, 2, 1, 3])

The weights are those of the same softmax; half precision is rounded once, at the result. Scores are
in no memory any more, and a mask that only says "not later" is computed nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import ir, relax
from tvm.relax import Binding, Expr, Var

from tvm_distir.core.ir import is_private, relax_functions
from tvm_distir.core.passes import Rewrite, module_pass
from tvm_distir.core.plan import Plan
from tvm_distir.core.rewriting import all_bindings, callee_of, op_name, with_functions
from tvm_distir.core.rewriting.native import Readings
from tvm_distir.support import memoized
from tvm_distir.transforms.optimize.unused import removed

from .fuser import NN_ATTENTION, Fuser
from .mask_variants import divided_by_masks
from .masks import Fact, MaskReader
from .matching import HEADS_FIRST
from .normal_form import in_normal_form

_SOFTMAX = ("nn.softmax", "exp")
"""A softmax, and the exponential of one that is written out."""


@module_pass(("global", "annotated"))
def FuseAttention() -> Rewrite:
    """Replace softmax attention that is written out, and ``nn.attention``, by ``R.dist.attention``.

    Products, a scale before or behind the first, casts around the softmax, masks and addends,
    scores that are capped, a sink per head (one more column of the softmax, without a value) and
    heads that share keys are recognized in every function, and the forms into which PyTorch and
    JAX decompose attention (:mod:`.normal_form`). A mask that depends on positions only, also one
    that callers compute, becomes the attribute ``causal`` or ``window``, and a function that is
    called with several such masks becomes one function for each; others become a bias.
    What nothing reads any more is removed, parameters of private functions too. A softmax over
    four dims that stays is named, with the reason, in the log of this module.

    Returns
    -------
    pass : tvm.transform.Pass
    """
    return fused


def fused(mod: ir.IRModule, divides: bool = True) -> ir.IRModule:
    """Apply :func:`FuseAttention`.

    ``divides``: whether a function that is called with several masks becomes one for each;
    otherwise all functions keep their names, and such masks are biases.
    """
    if not any(may_attend(b) for _, fn in relax_functions(mod) for b in all_bindings(fn.body)):
        return mod
    normal = {gv: in_normal_form(fn) for gv, fn in relax_functions(mod)}
    divided = normal
    if divides:
        divided = divided_by_masks(normal, lambda functions: _Facts(functions).reader)
    facts = _Facts(divided)
    new = dict(mod.functions.items())
    for gv, fn in divided.items():
        name = str(gv.name_hint)
        with_op = Fuser(name, fn, facts.reader(name)).run()
        if gv not in normal or not with_op.same_as(normal[gv]):
            new[gv] = with_op
    result = with_functions(mod, new)
    return result if result is mod else removed(result, Readings())


def with_attention_op(mod: ir.IRModule) -> ir.IRModule:
    """Return a module of any level with softmax attention as an op, whose functions keep names."""
    return fused(mod, divides=False)


def fused_for(mod: ir.IRModule, plan: Plan) -> ir.IRModule:
    """Return the module that the rules of a plan are for: with attention as an op, or as it is."""
    return FuseAttention()(mod) if plan.attention else mod


def may_attend(binding: Binding) -> bool:
    """Return whether a binding may be of softmax attention that is no op."""
    name = op_name(binding.value)
    return name in NN_ATTENTION or (
        name in _SOFTMAX and len(binding.var.ty.shape or ()) in HEADS_FIRST
    )


def with_log_sum_exp(mod: ir.IRModule) -> ir.IRModule:
    """Replace ``nn.attention`` by the op that also returns what its gradient reads."""
    new = {
        gv: Fuser(str(gv.name_hint), fn).run() if isinstance(fn, relax.Function) else fn
        for gv, fn in mod.functions.items()
    }
    return with_functions(mod, new)


class _Facts:
    """Reader of what all calls of a private function say about its parameters."""

    def __init__(self, functions: Mapping[ir.GlobalVar, relax.Function]) -> None:
        self._functions = {str(gv.name_hint): fn for gv, fn in functions.items()}
        self._calls: dict[str, list[tuple[str, ir.Call]]] = {}
        self._values: dict[str, dict[Var, Expr]] = {}
        for name, fn in self._functions.items():
            self._values[name] = {b.var: b.value for b in all_bindings(fn.body)}
            for value in self._values[name].values():
                callee = callee_of(value)
                if callee is not None:
                    self._calls.setdefault(str(callee.name_hint), []).append((name, value))

    @memoized
    def reader(self, name: str) -> MaskReader:
        """Return the reader of a function's masks."""
        fn = self._functions[name]
        numbers = {param: i for i, param in enumerate(fn.params)}

        def of_param(var: Var) -> Fact | None:
            if var not in numbers or not is_private(fn):
                return None
            calls = self._calls.get(name, ())
            states = {self.reader(caller).of(c.args[numbers[var]]) for caller, c in calls}
            return states.pop() if len(states) == 1 else None

        return MaskReader(self._values[name], of_param, self._of_call)

    def _of_call(self, call: Any) -> Fact | None:
        """Return what is known of the result of a private function, by all of its calls."""
        name = str(call.op.name_hint)
        fn = self._functions.get(name)
        return None if fn is None or not is_private(fn) else self.reader(name).of(fn.body.body)
