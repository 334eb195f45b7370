# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Place the rows of tokens on their way to experts, where devices share the tokens of a sample."""

from __future__ import annotations

import glob
from collections.abc import Collection, Iterator, Sequence

from tvm import ir, relax

from tvm_distir.core.ir import known_shape, relax_functions, tensor_type
from tvm_distir.core.plan import MeshSpec, PlanRule
from tvm_distir.core.rewriting import all_bindings, op_name, tensor_args

from .data_parallelism import BATCH_DIM
from .model_info import entries, some_axes

_LOOKUPS = ("gather_nd", "scatter_elements")
_ROWS_NDIM, _GROUPED_NDIM, _EXPERTS_DIM = 3, 4, 2
"""Dims of the rows of experts, and of tokens in several groups of a sample; the number of the dim
of experts in (batch, groups, experts, slots, hidden)."""


def rows_of_groups(
    mod: ir.IRModule, mesh: MeshSpec, batch: Collection[int], others: Collection[int]
) -> Iterator[PlanRule]:
    """Yield rules by which devices that have some groups of tokens look up their rows themselves.

    Tokens in groups are (batch, groups, tokens, hidden). Their rows, and the gradients of these,
    are placed as the groups are, so that an all-to-all brings them to their experts. Otherwise all
    tokens could be gathered, which is less traffic where a token has more experts than devices.
    What experts return, (experts, batch, groups, slots, hidden), leaves them along all axes at
    once.

    Parameters
    ----------
    mod : IRModule
    mesh : MeshSpec
    batch, others : collection of int
        The axes of experts that shard the batch, and those that other strategies use.
    """
    if not others:
        return
    grouped = {**dict.fromkeys(batch, BATCH_DIM), **dict.fromkeys(others, BATCH_DIM + 1)}
    by_expert = dict.fromkeys(grouped, 0)
    public = {name: rule_name for name, _, rule_name in entries(mod)}
    for gv, fn in relax_functions(mod):
        name = str(gv.name_hint)
        bindings = [b for b in all_bindings(fn.body) if _is_float(b.var.ty)]
        rows = [
            b.var for b in bindings
            if op_name(b.value) in _LOOKUPS and len(_shape(b.var)) == _GROUPED_NDIM
        ]  # fmt: skip
        slots = _slots_of_experts(bindings, {_shape(var)[:2] for var in rows})
        for chosen, labels in ((rows, grouped), (slots, by_expert)):
            for var in chosen:
                title, placement = glob.escape(str(var.name)), some_axes(mesh, labels)
                where = public.get(name, name)
                yield PlanRule("value", title, placement, mesh.name, function=where)


def _slots_of_experts(
    bindings: Sequence[relax.Binding], groups: Collection[tuple[int, ...]]
) -> list[relax.Var]:
    """Return the rows in slots of experts, and all that experts compute of them.

    They are (experts, *groups, slots, hidden), or with joined dims; ``groups`` are the numbers of
    samples and of groups of each.
    """
    rows: dict[relax.Var, None] = {}
    for binding in bindings:
        op, shape = op_name(binding.value), _shape(binding.var)
        read = tensor_args(binding.value) if isinstance(binding.value, ir.Call) else []
        if shape[1:3] in groups and len(shape) == _GROUPED_NDIM + 1:
            moved = op == "permute_dims" and int(binding.value.attrs.axes[0]) == _EXPERTS_DIM
            if moved or (op == "reshape" and len(_shape(read[0])) == _ROWS_NDIM):
                rows[binding.var] = None
        elif len(shape) == _ROWS_NDIM and any(
            operand in rows and _shape(operand)[0] == shape[0] for operand in read
        ):
            rows[binding.var] = None
    return [*rows]


def _shape(value: relax.Expr) -> tuple[int, ...]:
    return known_shape(value.ty) or ()


def _is_float(ty: ir.Type) -> bool:
    tensor = tensor_type(ty)
    return tensor is not None and "float" in str(tensor.dtype)
