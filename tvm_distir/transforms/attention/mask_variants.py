# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Divide a function that is called with several masks into one function for each mask.

Layers with and without a window are calls of the same function with another mask (Gemma, GPT-OSS).
Attention has its mask as an attribute, so that each mask needs a function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm import ir, relax
from tvm.relax import Var

from tvm_distir.core.ir import is_private
from tvm_distir.core.ir.operators import new_name
from tvm_distir.core.rewriting import (
    all_bindings,
    op_name,
    substitute,
    typed,
    with_values,
)

from .masks import Fact, MaskReader

Functions = dict[Any, relax.Function]


def divided_by_masks(
    functions: Functions, reader_of: Callable[[Functions], Callable[[str], MaskReader]]
) -> Functions:
    """Return the functions, of which none is called with several masks.

    Parameters
    ----------
    functions : mapping of GlobalVar to Function
    reader_of : callable
        Returns, for functions, what returns the reader of the masks of a function by its name.

    Returns
    -------
    functions : mapping of GlobalVar to Function
        The given functions where nothing changes. The first call keeps the function.
    """
    result = dict(functions)
    names = {str(gv.name_hint) for gv in functions}
    for gv, fn in functions.items():
        softmaxes = any(op_name(b.value) == "nn.softmax" for b in all_bindings(fn.body))
        if not softmaxes or not is_private(fn):
            continue
        calls = _calls(result, gv)
        reader = reader_of(result)
        masks = [tuple(reader(caller).of(arg) for arg in call.args) for caller, _, call in calls]
        positions = [n for n, several in enumerate(zip(*masks, strict=True)) if len({*several}) > 1]
        variants: dict[tuple[Fact | None, ...], ir.GlobalVar] = {}
        targets: dict[Var, ir.GlobalVar] = {}
        for (_, var, _call), known in zip(calls, masks, strict=True):
            key = tuple(known[n] for n in positions)
            if key not in variants:
                variants[key] = gv if not variants else _variant(gv, names)
            targets[var] = variants[key]
        for variant in variants.values():
            if variant is not gv:
                result[variant] = relax.utils.copy_with_new_vars(fn)
        if len(variants) > 1:
            result = {g: _redirected(f, gv, targets) for g, f in result.items()}
    return result


def _calls(
    functions: Mapping[ir.GlobalVar, relax.Function], callee: ir.GlobalVar
) -> list[tuple[str, Any, ir.Call]]:
    """Return the calls of a function, each with the name of its caller and its variable."""
    return [
        (str(gv.name_hint), binding.var, binding.value)
        for gv, fn in functions.items()
        for binding in all_bindings(fn.body)
        if isinstance(binding.value, ir.Call) and callee.same_as(binding.value.op)
    ]


def _variant(gv: ir.GlobalVar, names: set[str]) -> Any:
    return typed(ir.GlobalVar(new_name(str(gv.name_hint), names)), gv.ty)


def _redirected(fn: relax.Function, callee: Any, targets: Mapping[Any, Any]) -> relax.Function:
    """Return a function whose calls of a function go to the targets of their variables."""

    def redirected(var: Var, value: ir.Expr) -> ir.Expr:
        return substitute(value, {callee: targets[var]}) if var in targets else value

    return with_values(fn, redirected)
