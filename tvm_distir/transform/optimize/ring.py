# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Attention block by block around a ring, at level 5: no device ever holds all keys.

Liu et al. 2023, "Ring Attention with Blockwise Transformers"; the running maximum and sum are those
of Milakov and Gimelshein 2018, "Online normalizer calculation for softmax".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import ir, relax

from ...errors import LoweringError, MeshError, nearest
from ...ir import call_axes, mesh_axes, meshes, ops, relax_functions
from ...ir.rewrite import rebuild, scalar
from ..declaration import Rewrite, module_pass
from .editing import Editor, FunctionStep, stepped
from .ring_attention_op import AttentionAsProducts
from .ring_matching import REMEDY, Attention, AttentionFinder
from .scan import Scan

WIDE = "float32"
NARROW = ("float16", "bfloat16")


@module_pass("local")
def RingAttention(axes: Sequence[str] = ()) -> Rewrite:
    """Let keys and values of attention travel around a ring instead of gathering them.

    Where keys and values are gathered along a mesh axis of ``n`` devices, for ``nn.attention`` or a
    softmax of products that is not read otherwise, each device starts with its own block of them
    and hands what it has to the next one, ``n - 1`` times, by ``collective_permute``. Of each block
    it computes the scores of its queries, with masks and biases cut to the block, and keeps a
    running maximum, sum and result, in float32 at least. As many bytes are sent as by the gathers;
    one block is held besides the own one. Sums are in another order.

    Parameters
    ----------
    axes : sequence of str
        Names of the mesh axes; none: nothing changes.

    Returns
    -------
    pass : tvm.transform.Pass
        It raises MeshError DIST0206 where no mesh has such an axis, LoweringError DIST0511 where
        a product reads rows gathered along one that cannot be read by blocks, or there is none.
    """

    def ring_attention(mod: ir.IRModule) -> ir.IRModule:
        numbers = _numbers(mod, axes)
        kinds = ("all_gather",)
        steps = [FunctionStep(one, kinds, axes=numbers) for one in (AttentionAsProducts, _Ring)]
        new = stepped(mod, steps, 5)
        if new is mod and axes:
            raise LoweringError(
                "DIST0511",
                f"no attention gathers keys and values along {' or '.join(axes)}",
                place=", ".join(str(gv.name_hint) for gv, _ in relax_functions(mod)),
                remedy=REMEDY,
            )
        return new

    return ring_attention


def _numbers(mod: ir.IRModule, axes: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Per mesh, by its text, the numbers of the axes of these names."""
    names = mesh_axes(mod)
    known = {name for row in names for name in row}
    for axis in axes:
        if axis not in known:
            raise MeshError(
                "DIST0206",
                f'no mesh has an axis "{axis}"',
                place="RingAttention",
                remedy=nearest(axis, known),
            )
    return {
        str(mesh): tuple(i for i, name in enumerate(row) if name in axes)
        for mesh, row in zip(meshes(mod), names, strict=True)
    }


class _Ring(Editor):
    """Writes attention found around a ring where its result was bound."""

    def __init__(
        self,
        mod: ir.IRModule,
        name: str,
        fn: relax.Function,
        scan: Scan,
        axes: dict[str, tuple[int, ...]],
    ) -> None:
        super().__init__(mod, name, fn, scan)
        self._found = AttentionFinder(name, scan, axes).run()
        self.watched.update(self._found)

    def visit(self, var: Any, value: Any, kind: str | None) -> Any:
        """Replace the second product of attention."""
        attention = self._found.get(var)
        return value if attention is None else _Blocks(self, attention, str(var.name)).run()


class _Blocks:
    """Writes attention as a sequence of blocks."""

    def __init__(self, editor: _Ring, attention: Attention, name: str) -> None:
        self._editor, self._a, self._name = editor, attention, name
        call = attention.keys.call
        self._mesh, (self._axis,) = call.attrs["device_mesh"], call_axes(call)
        self._count = int(self._mesh.shape[self._axis])
        self._rows, self._whole = attention.keys.rows, attention.keys.whole
        given = attention.scores_dtype
        self._dtype = WIDE if given in NARROW else given

    def _emit(self, value: Any, hint: str) -> Any:
        return self._editor.emit(value, f"{self._name}_{hint}")

    def run(self) -> Any:
        """Write the blocks; return the value of the result."""
        a = self._a
        keys, values = a.keys.block, a.values.block
        me = self._emit(ops.axis_index(self._mesh, self._axis), "rank")
        top = total = mixed = None
        for step in range(self._count):
            following = None
            if step + 1 < self._count:
                following = tuple(self._handed_on(x) for x in (keys, values))
            scores, valid = self._scores(keys, me, step)
            highest = self._emit(relax.op.max(scores, [-1], keepdims=True), "max")
            least = scalar(float(np.finfo(self._dtype).min), self._dtype)
            before = least if top is None else top
            highest = self._emit(relax.op.maximum(highest, before), "max")
            shifted = self._emit(relax.op.subtract(scores, highest), "shifted")
            weights = self._emit(relax.op.exp(shifted), "exp")
            if valid is not None:
                zero = scalar(0.0, self._dtype)
                weights = self._emit(relax.op.where(valid, weights, zero), "exp")
            part = self._emit(relax.op.sum(weights, [-1], keepdims=True), "sum")
            product = self._product(weights, values)
            if top is None:
                total, mixed = part, product
            else:
                moved = self._emit(relax.op.subtract(top, highest), "moved")
                factor = self._emit(relax.op.exp(moved), "factor")
                total = self._added(total, factor, part, "sum")
                mixed = self._added(mixed, factor, product, "terms")
            top = highest
            if following is not None:
                keys, values = following
        wide = relax.op.divide(mixed, total)
        if a.result_dtype != self._dtype:
            wide = relax.op.astype(self._emit(wide, "wide"), a.result_dtype)
        return self._editor.normalize(wide)

    def _handed_on(self, block: Any) -> Any:
        """What the rank before me has."""
        moved = ops.collective_permute(block, self._mesh, self._axis, 1, wrap=True)
        return self._emit(moved, "handed_on")

    def _added(self, old: Any, factor: Any, part: Any, hint: str) -> Any:
        scaled = self._emit(relax.op.multiply(old, factor), hint)
        return self._emit(relax.op.add(scaled, part), hint)

    def _scores(self, keys: Any, me: Any, step: int) -> tuple[Any, Any]:
        """Scores of my queries and a block of keys, and which of them are no padding."""
        a = self._a
        scores = rebuild(a.scores, a.scores.op, [a.scores.args[0], keys, *a.scores.args[2:]], None)
        value = self._emit(scores, "scores")
        places = None
        padded = self._rows * self._count > self._whole
        if padded or any(_walked(s.walks, s.main) for s in a.steps):
            places = self._places(me, step)
        for one in a.steps:
            args = list(one.call.args)
            args[one.main] = value
            for i in _walked(one.walks, one.main):
                block = relax.op.take(args[i], places, axis=one.walks[i], mode="clip")
                args[i] = self._emit(block, "block")
            value = self._emit(rebuild(one.call, one.call.op, args, None), "scores")
        if str(value.ty.dtype) != self._dtype:
            value = self._emit(relax.op.astype(value, self._dtype), "scores")
        if not padded:
            return value, None
        valid = self._emit(relax.op.less(places, relax.const(self._whole, "int64")), "valid")
        least = scalar(float(np.finfo(self._dtype).min), self._dtype)
        return self._emit(relax.op.where(valid, value, least), "scores"), valid

    def _places(self, me: Any, step: int) -> Any:
        """Positions of the keys that I have after so many steps: those of rank ``me - step``."""
        count, rows = (relax.const(n, "int64") for n in (self._count, self._rows))
        if step:
            me = self._emit(relax.op.add(me, relax.const(self._count - step, "int64")), "owner")
            me = self._emit(relax.op.floor_mod(me, count), "owner")
        first = self._emit(relax.op.multiply(me, rows), "first")
        own = self._emit(relax.op.arange(0, self._rows, 1, "int64"), "places")
        return self._emit(relax.op.add(own, first), "places")

    def _product(self, weights: Any, values: Any) -> Any:
        """Weights times a block of values, in the wide type."""
        a = self._a
        if a.weights_dtype != self._dtype:
            weights = self._emit(relax.op.astype(weights, a.weights_dtype), "weights")
        call = rebuild(a.mixed, a.mixed.op, [weights, values, *a.mixed.args[2:]], None)
        product = self._emit(call, "terms")
        if str(product.ty.dtype) != self._dtype:
            product = self._emit(relax.op.astype(product, self._dtype), "terms")
        return product


def _walked(walks: Sequence[int | None], main: int) -> list[int]:
    """Operands other than the scores that run over the keys."""
    return [i for i, dim in enumerate(walks) if dim is not None and i != main]


__all__ = ["RingAttention"]
