# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the values that may share the memory of a function's parameters."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from tvm import ir, relax
from tvm.relax import Expr, Var

from tvm_distir.core.ir.operators.async_ops import started_op
from tvm_distir.core.ir.operators.names import relax_names
from tvm_distir.core.ir.operators.paged_attention_ops import KV_APPEND_OP, overwrites_cache
from tvm_distir.core.rewriting.calls import called_name
from tvm_distir.core.rewriting.functions import callee_of, callees_first
from tvm_distir.core.rewriting.scopes import all_bindings
from tvm_distir.core.rewriting.substitute import variables

Params = frozenset[int]
"""Numbers of parameters."""

_VIEWS = frozenset(
    relax_names(
        "reshape flatten squeeze expand_dims permute_dims broadcast_to strided_slice astype repeat"
        " tile flip concat layout_transform"
    )
)
"""Ops that move elements: TVM makes a view of the operand where all stay where they are, and
kernels of libraries read what a ``permute_dims`` permutes."""
_KERNEL, _PACKED = "relax.call_tir", "relax.call_dps_packed"


class ParamAliases:
    """Values of a function that may share memory with its parameters, and when these are read.

    A value may share memory with all that it is computed from, unless a kernel computes it.

    Parameters
    ----------
    fn : Function
    results : mapping of GlobalVar to frozenset of int
        Of the functions that it calls: the parameters that the result may share memory with.
    computing : collection of GlobalVar
        Kernels of a single operand that do not merely move it, of which TVM would make a view.

    Attributes
    ----------
    of : dict of Var to frozenset of int
        The parameters that a value may share memory with.
    numbers : dict of Var to int
        The numbers of the bindings, by their variables.
    call_numbers : dict of Call to int
        The same by the calls that they bind, of those that are bound once.
    last_read : dict of int to int
        The number of the last binding that reads a parameter, or what may share its memory. A
        parameter that the function may return is not in it.
    result : frozenset of int
        The parameters that the result may share memory with.
    """

    def __init__(
        self,
        fn: relax.Function,
        results: Mapping[ir.GlobalVar, Params],
        computing: Collection[ir.GlobalVar] = (),
    ) -> None:
        self._results, self._computing = results, computing
        self.of: dict[Var, Params] = {param: Params([i]) for i, param in enumerate(fn.params)}
        self.numbers: dict[Var, int] = {}
        self.call_numbers: dict[Expr, int] = {}
        self.last_read: dict[int, int] = {}
        for number, binding in enumerate(all_bindings(fn.body)):
            self.numbers[binding.var] = number
            self.call_numbers[binding.value] = -1 if binding.value in self.call_numbers else number
            used = self.union(variables(binding.value))
            self.last_read.update(dict.fromkeys(used, number))
            self.of[binding.var] = self._shared(binding.value, used)
        self.result = self.union(variables(fn.body.body))
        for param in self.result:
            self.last_read.pop(param, None)

    def union(self, values: Iterable[Var]) -> Params:
        """Return the parameters that some values may share memory with."""
        return Params().union(*(self.of.get(value, Params()) for value in values))

    def _shared(self, value: Expr, used: Params) -> Params:
        if not used or not isinstance(value, ir.Call):
            return used
        callee = callee_of(value)
        if callee is not None:
            shared = [value.args[i] for i in self._results.get(callee, range(len(value.args)))]
            return self.union(v for arg in shared for v in variables(arg))
        name = called_name(value)
        if name == _KERNEL:
            operands = value.args[1].fields if isinstance(value.args[1], relax.Tuple) else ()
            is_view = len(operands) == 1 and value.args[0] not in self._computing
            return used if is_view else Params()
        is_append = name == KV_APPEND_OP and overwrites_cache(value)
        if is_append or started_op(value) is not None:
            return used  # a collective reads its operand until it is done
        is_kernel = name == _PACKED or (
            isinstance(value.op, ir.Op) and value.op.get_attr("FLegalize") is not None
        )
        return Params() if is_kernel and name not in _VIEWS else used


def param_aliases(
    mod: ir.IRModule, computing: Collection[ir.GlobalVar] = ()
) -> dict[ir.GlobalVar, ParamAliases]:
    """Return the aliases of the parameters of all Relax functions of a module."""
    aliases: dict[ir.GlobalVar, ParamAliases] = {}
    results: dict[ir.GlobalVar, Params] = {}
    for gv, fn in callees_first(mod):
        aliases[gv] = ParamAliases(fn, results, computing)
        results[gv] = aliases[gv].result
    return aliases
