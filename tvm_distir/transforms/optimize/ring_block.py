# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute the contribution of a key block in a step around a ring (level 5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import ir, relax

from tvm_distir.core.ir import known_shape
from tvm_distir.core.rewriting import rebuild, scalar, variables
from tvm_distir.support import LoweringError

from .ring_nodes import Region, RegionNode
from .ring_sources import REMEDY

WIDE = "float32"
NARROW = ("float16", "bfloat16")

Emit = Callable[[Any, str], Any]
Stats = dict[Any, tuple[Any, Any]]
"""The maximum of the scores of each softmax and the sum of their exponentials below it."""


class RingBlock:
    """Contribution of a key block in a step of a phase."""

    def __init__(
        self, region: Region, emit: Emit, me: Any, step: int, env: dict[Any, Any], stats: Stats
    ) -> None:
        self._region, self._emit, self._me, self._step = region, emit, me, step
        self._env, self._stats = env, stats
        self._positions: Any = None
        self._masks: dict[tuple[int, ...], Any] = {}
        self.unfinished: dict[Any, Any] = {}

    def clone(self, node: RegionNode) -> Any:
        """Compute a node on the block."""
        if node.kind in ("same", "pad"):
            return self._env[variables(node.value)[0]]
        softmax = self._region.softmaxes.get(node.var)
        if softmax is not None:
            return self._weights(node, softmax.scores)
        return self._again(node, self._env)

    def ended(self, node: RegionNode, path: Sequence[RegionNode]) -> Any:
        """Return the contribution to a sum over the keys, in the wide type."""
        env = dict(self._env)
        if node.online is not None:
            env[node.online] = self._narrowed(self.unfinished[node.online], node.online)
            for step in path:
                plain = step.kind == "same"
                arg = variables(step.value)[0]
                env[step.var] = env[arg] if plain else self._again(step, env)
        elif self._region.padded:
            for arg, dim in zip(node.value.args[:], node.walks, strict=True):
                if dim is not None and isinstance(arg, ir.Var) and arg in env:
                    env[arg] = self._kept(env[arg], dim)
        return self._wide(self._again(node, env), f"{node.var.name}_terms")

    def own_keys(self, node: RegionNode) -> Any:
        """Return the block's contribution to a scatter, in the wide type."""
        value = self._env[node.value.args[0]]
        if self._region.padded:
            value = self._kept(value, int(node.value.attrs["dim"]))
        return self._wide(value, f"{node.var.name}_terms")

    def scores(self, var: Any) -> Any:
        """Return the scores of the block in the wide type, masked to the minimum without a key."""
        value = self._wide(self._env[var], f"{var.name}_wide")
        if not self._region.padded:
            return value
        dtype = str(value.ty.dtype)
        least = scalar(float(np.finfo(dtype).min), dtype)
        valid = self._valid(len(value.ty.shape), len(value.ty.shape) - 1)
        return self._emit(relax.op.where(valid, value, least), f"{var.name}_valid")

    def below(self, scores: Any, top: Any, name: str) -> Any:
        """Return exponentials of scores minus a maximum, zero where there is no key."""
        shifted = self._emit(relax.op.subtract(scores, top), f"{name}_shifted")
        raised = self._emit(relax.op.exp(shifted), f"{name}_exp")
        return self._kept(raised, len(raised.ty.shape) - 1) if self._region.padded else raised

    def _weights(self, node: RegionNode, scores: Any) -> Any:
        """Return the normalized weights of the block."""
        top, total = self._stats[node.var]
        raised = self.below(self.scores(scores), top, str(node.var.name))
        value = self._emit(relax.op.divide(raised, total), str(node.var.name))
        return self._narrowed(value, node.var)

    def _narrowed(self, value: Any, var: Any) -> Any:
        dtype = str(var.ty.dtype)
        if str(value.ty.dtype) == dtype:
            return value
        return self._emit(relax.op.astype(value, dtype), str(var.name))

    def _wide(self, value: Any, name: str) -> Any:
        if str(value.ty.dtype) not in NARROW:
            return value
        return self._emit(relax.op.astype(value, WIDE), name)

    def _kept(self, value: Any, dim: int) -> Any:
        """Return a value of the block, zeroed where there is no key."""
        valid = self._valid(len(value.ty.shape), dim)
        zero = scalar(0.0, str(value.ty.dtype))
        return self._emit(relax.op.where(valid, value, zero), "kept")

    def _valid(self, ndim: int, dim: int) -> Any:
        """Return which rows of the block are keys, along a dim."""
        shape = tuple(self._region.rows if d == dim else 1 for d in range(dim, ndim))
        if shape not in self._masks:
            valid = relax.op.less(self._places(), int64(self._region.whole))
            valid = self._emit(valid, "valid")
            if len(shape) > 1:
                valid = self._emit(relax.op.reshape(valid, shape), "valid")
            self._masks[shape] = valid
        return self._masks[shape]

    def _places(self) -> Any:
        """Return the positions of the keys held after some steps: those of rank ``me - step``."""
        if self._positions is None:
            region, owner = self._region, self._me
            if self._step:
                owner = relax.op.add(owner, int64(region.count - self._step))
                owner = self._emit(owner, "owner")
                owner = self._emit(relax.op.floor_mod(owner, int64(region.count)), "owner")
            first = self._emit(relax.op.multiply(owner, int64(region.rows)), "first")
            offsets = self._emit(relax.op.arange(0, region.rows, 1, "int64"), "places")
            self._positions = self._emit(relax.op.add(offsets, first), "places")
        return self._positions

    def _again(self, node: RegionNode, env: Mapping[Any, Any]) -> Any:
        """Rewrite a call on the block, with other operands over the keys sliced to it."""
        args = list(node.value.args)
        for i, dim in enumerate(node.walks):
            cached = env.get(args[i]) if isinstance(args[i], ir.Var) else None
            if cached is not None:
                args[i] = cached
            elif dim is not None:
                block = relax.op.take(args[i], self._places(), axis=dim, mode="clip")
                args[i] = self._emit(block, "block")
            elif isinstance(args[i], relax.ShapeExpr) and node.dim is not None:
                sizes = [int(n) for n in args[i].values]
                sizes[node.dim] = self._region.rows
                args[i] = relax.ShapeExpr(sizes)
        value = self._emit(rebuild(node.value, node.value.op, args, None), str(node.var.name))
        shape = known_shape(value.ty) or ()
        if node.dim is not None and shape[node.dim : node.dim + 1] != (self._region.rows,):
            raise LoweringError(
                "DIST0511",
                "on a block of keys it does not compute a block",
                place=str(node.var.name),
                remedy=REMEDY,
            )
        return value


def int64(value: Any) -> Any:
    """Return integers as a constant."""
    return relax.const(np.asarray(value, "int64"), "int64")
