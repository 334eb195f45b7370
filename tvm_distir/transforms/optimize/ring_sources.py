# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find gathers along a ring, the source of keys and values of attention (level 5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir

from tvm_distir.core.ir import known_shape
from tvm_distir.core.ir.operators import call_axes, dist_op_name
from tvm_distir.core.rewriting import op_name

from .function_facts import Row

ATTENTION = ("nn.attention", "nn.attention_bias")
PRODUCTS = ("matmul", "einsum", *ATTENTION)
REMEDY = 'Use "context_parallel:form=all_to_all" or "form=gather".'


@dataclass(frozen=True)
class GatheredTensor:
    """Tensor that is gathered along a mesh axis.

    Attributes
    ----------
    call : Call
        The ``all_gather``.
    whole : int
        Extent of the dim without padding.
    """

    call: ir.Call
    whole: int

    @property
    def block(self) -> Any:
        """Return the block that a device holds before the gather."""
        return self.call.args[0]

    @property
    def dim(self) -> int:
        """Return the dim that is gathered."""
        return int(self.call.attrs["dim"])

    @property
    def rows(self) -> int:
        """Return the extent of the dim on a device."""
        return int(self.block.ty.shape[self.dim])

    @property
    def mesh(self) -> Any:
        """Return the mesh of the gather."""
        return self.call.attrs["device_mesh"]

    @property
    def axis(self) -> int:
        """Return the mesh axis of the gather."""
        return call_axes(self.call)[0]

    @property
    def count(self) -> int:
        """Return the number of devices along the axis."""
        return int(self.mesh.shape[self.axis])


def match_ring_gather(
    var: Any, values: Mapping[Any, Any], axes: Mapping[str, Collection[int]]
) -> GatheredTensor | None:
    """Return the gather along a ring that a value is, with padding sliced off.

    Parameters
    ----------
    var : expression
    values : mapping of Var to expression
        The values that variables are bound to.
    axes : mapping of str to collection of int
        The axes that are rings, by the mesh's text.
    """
    whole = known_shape(var.ty) if isinstance(var, ir.Var) else None
    value: Any = values.get(var) if whole is not None else None
    if whole is None or "float" not in str(var.ty.dtype):
        return None
    if op_name(value) == "strided_slice":
        if not _from_zero(value):
            return None
        value = values.get(value.args[0])
    if dist_op_name(value) != "all_gather" or len(call_axes(value)) != 1:
        return None
    if call_axes(value)[0] not in axes.get(str(value.attrs["device_mesh"]), ()):
        return None
    padded, dim = [int(n) for n in value.ty.shape], int(value.attrs["dim"])
    if any(a != b for d, (a, b) in enumerate(zip(padded, whole, strict=True)) if d != dim):
        return None
    return GatheredTensor(value, int(whole[dim]))


def gathered_values(
    rows: Iterable[Row],
    values: Mapping[Any, Any],
    readers: Mapping[Any, Sequence[Any]],
    axes: Mapping[str, Collection[int]],
) -> dict[Any, GatheredTensor]:
    """Return the gathered values of a block by variable; a sliced value hides its source."""
    result = {}
    for _, var, _, _ in rows:
        known = match_ring_gather(var, values, axes)
        if known is not None:
            result[var] = known
    for var in list(result):
        inner = [r for r in readers.get(var, ()) if r in result]
        if inner and len(inner) == len(readers[var]):
            del result[var]
    return result


def travelling(
    sources: Mapping[Any, GatheredTensor], values: Mapping[Any, Any]
) -> dict[Any, tuple[Any, list[Any]]]:
    """Return, per gathered value, the travelling block and the transpositions from it.

    Two that are gathered of a block, one of them transposed, travel once.
    """
    bare = {var: _untransposed(source.block, values) for var, source in sources.items()}
    count = Counter(root for root, _ in bare.values())
    known = {var: key if count[key[0]] > 1 else None for var, key in bare.items()}
    return {var: known[var] or (sources[var].block, []) for var in sources}


def _untransposed(var: Any, values: Mapping[Any, Any]) -> tuple[Any, list[Any]]:
    views: list[Any] = []
    while op_name(values.get(var)) == "permute_dims":
        views.insert(0, values[var])
        var = values[var].args[0]
    return var, views


def _from_zero(call: ir.Call) -> bool:
    """Return whether a ``strided_slice`` takes a contiguous range from 0."""
    begins, *strides = [[int(x) for x in call.args[i].fields] for i in range(2, len(call.args), 2)]
    return not any(begins) and all(n == 1 for row in strides for n in row)
