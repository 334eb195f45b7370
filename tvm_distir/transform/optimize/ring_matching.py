# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Finds attention whose keys and values are gathered along a mesh axis, at level 5.

``mixed = matmul(softmax(f(matmul(q, K))), V)`` with ``K`` gathered along its last dim and ``V``
along its last but one. ``f`` is any ops that work on each key by itself, as their rules say:
scales, masks, biases, casts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tvm import ir

from ...errors import LoweringError
from ...ir import call_axes, dist_op_name, known_shape
from ...ir.rewrite import op_name
from ...ops import rule_of
from .scan import Scan

SOFTMAX = "nn.softmax"
MATMUL = "matmul"
PRODUCTS = (MATMUL, "einsum", "nn.attention", "nn.attention_bias")
REMEDY = 'Use "context_parallel:form=all_to_all" or "form=gather".'


@dataclass(frozen=True)
class Gathered:
    """A tensor that is gathered along a mesh axis.

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
        """What a device holds before."""
        return self.call.args[0]

    @property
    def dim(self) -> int:
        """Which is gathered."""
        return int(self.call.attrs["dim"])

    @property
    def rows(self) -> int:
        """Extent of the dim on a device."""
        return int(self.block.ty.shape[self.dim])


@dataclass(frozen=True)
class Step:
    """An op between scores and softmax.

    Attributes
    ----------
    call : Call
    main : int
        Which operand the scores come in by.
    walks : tuple of int or None
        Per operand, the dim that runs over the keys.
    """

    call: ir.Call
    main: int
    walks: tuple[int | None, ...]


@dataclass(frozen=True)
class Attention:
    """Attention that can be done block by block.

    Attributes
    ----------
    scores, mixed : Call
        The products.
    steps : tuple of Step
        From the scores to the softmax.
    scores_dtype, weights_dtype, result_dtype : str
        Of what the softmax and the second product read, and of what this gives.
    keys, values : Gathered
    """

    scores: ir.Call
    mixed: ir.Call
    steps: tuple[Step, ...]
    scores_dtype: str
    weights_dtype: str
    result_dtype: str
    keys: Gathered
    values: Gathered


class AttentionFinder:
    """Finds the attention of one function.

    Parameters
    ----------
    name : str
        Of the function.
    scan : Scan
    axes : collection of int
        Mesh axes along which nothing may be gathered for attention, by the mesh's text.
    """

    def __init__(self, name: str, scan: Scan, axes: Mapping[str, Collection[int]]) -> None:
        self._name, self._axes = name, axes
        self._values, self._readers = scan.values, scan.readers

    def run(self) -> dict[Any, Attention]:
        """Attention by the variable of its result.

        Raises
        ------
        LoweringError
            DIST0511 where a product reads gathered rows otherwise.
        """
        found: dict[Any, Attention] = {}
        done: set[Any] = set()
        for var, value in self._values.items():
            if op_name(value) != SOFTMAX:
                continue
            match = self._around(var, value)
            if match is not None:
                result, attention = match
                found[result] = attention
                done.update((attention.scores, attention.mixed))
        for var, value in self._values.items():
            if op_name(value) in PRODUCTS and value not in done:
                for arg in value.args:
                    if self.gathered(arg) is not None:
                        raise self._refusal(var, arg)
        return found

    def _refusal(self, var: Any, arg: Any) -> LoweringError:
        return LoweringError(
            "DIST0511",
            f"it reads {arg.name}, gathered along an axis that is a ring, and is no product of "
            "attention that can be done in blocks: softmax of products over the last dim, "
            "each read once",
            place=f"{self._name}/{var.name}",
            remedy=REMEDY,
        )

    def _around(self, var: Any, softmax: ir.Call) -> tuple[Any, Attention] | None:
        """What stands around a softmax, where all of it is read once."""
        rank = len(var.ty.shape)
        if int(softmax.attrs.axis) % rank != rank - 1:
            return None
        path = self._up(softmax.args[0])
        below = self._only_reader(var)
        if path is None or below is None:
            return None
        (scores, steps), weights = path, var
        if op_name(self._values[below]) == "astype":
            weights, below = below, self._only_reader(below)
        mixed: Any = None if below is None else self._values[below]
        if op_name(mixed) != MATMUL or not mixed.args[0].same_as(weights):
            return None
        keys, values = self.gathered(scores.args[1]), self.gathered(mixed.args[1])
        if keys is None or values is None or not self._alike(keys, values):
            return None
        if keys.dim != len(keys.block.ty.shape) - 1 or values.dim != len(values.block.ty.shape) - 2:
            return None
        given, read, result = (str(one.ty.dtype) for one in (softmax.args[0], weights, below))
        return below, Attention(scores, mixed, steps, given, read, result, keys, values)

    def _up(self, var: Any) -> tuple[ir.Call, tuple[Step, ...]] | None:
        """The product that a value comes from, and the ops on single keys between."""
        value = self._values.get(var)
        if not isinstance(value, ir.Call) or self._only_reader(var) is None:
            return None
        if op_name(value) == MATMUL:
            return (value, ()) if self.gathered(value.args[1]) is not None else None
        walks = _walks(value, var)
        for i, dim in enumerate(walks or ()):
            if dim is None:
                continue
            found = self._up(value.args[i])
            if found is not None:
                return found[0], (*found[1], Step(value, i, walks or ()))
        return None

    def _only_reader(self, var: Any) -> Any:
        """The variable of what alone reads a variable, else None."""
        readers = self._readers.get(var, [])
        return readers[0] if len(readers) == 1 else None

    def gathered(self, var: Any) -> Gathered | None:
        """The gather along a ring that a value is, padding cut off; read once."""
        whole = known_shape(var.ty) if isinstance(var, ir.Var) else None
        value: Any = self._values.get(var)
        if whole is None or self._only_reader(var) is None or "float" not in str(var.ty.dtype):
            return None
        if op_name(value) == "strided_slice":
            if not _from_zero(value) or self._only_reader(value.args[0]) is None:
                return None
            value = self._values.get(value.args[0])
        if dist_op_name(value) != "all_gather" or len(call_axes(value)) != 1:
            return None
        if call_axes(value)[0] not in self._axes.get(str(value.attrs["device_mesh"]), ()):
            return None
        padded, dim = [int(n) for n in value.ty.shape], int(value.attrs["dim"])
        if any(a != b for d, (a, b) in enumerate(zip(padded, whole)) if d != dim):
            return None
        return Gathered(value, int(whole[dim]))

    @staticmethod
    def _alike(keys: Gathered, values: Gathered) -> bool:
        return (
            call_axes(keys.call) == call_axes(values.call)
            and str(keys.call.attrs["device_mesh"]) == str(values.call.attrs["device_mesh"])
            and (keys.whole, keys.rows) == (values.whole, values.rows)
        )


def _from_zero(call: ir.Call) -> bool:
    """Whether a ``strided_slice`` takes first elements, each of them."""
    begins, *strides = [[int(x) for x in call.args[i].fields] for i in range(2, len(call.args), 2)]
    return not any(begins) and all(n == 1 for row in strides for n in row)


def _walks(call: ir.Call, var: Any) -> tuple[int | None, ...] | None:
    """Per operand the dim that runs over the last dim of the result, None where an op mixes it."""
    plain = all(isinstance(arg, ir.Var | ir.GenericConst) for arg in call.args)
    if not plain or not isinstance(call.op, ir.Op) or dist_op_name(call) is not None:
        return None
    last = len(var.ty.shape) - 1
    found = [f for f in rule_of(call, None, var.ty).factors if f.outs[0] == last]
    return found[0].ins if found and found[0].kind == "map" else None


__all__ = ["Attention", "AttentionFinder", "Gathered", "Step"]
