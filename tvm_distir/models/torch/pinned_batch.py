# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Change the batch that a program fixes.

Torch's metadata has the shapes at the old batch, and the translated values have those at the new
one: a dim carries the batch where the two differ. Sizes in the graph that fix the old batch are
rewritten. Tensors that do not depend on the inputs (masks, positions, class tokens) keep the old
batch; where they meet one that carries it, and all samples of them are equal, the first is used.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import fx
from tvm import relax
from tvm.relax import BlockBuilder, Expr

from tvm_distir.models.common.batch_position import batch_position
from tvm_distir.models.common.translation import shape_of
from tvm_distir.support import GenericConst, ModelError

from . import arithmetic, elementwise
from .aten_call import axis_of, constant, dtype_name
from .fx_nodes import different_dims, node_argument, old_shape, tensor_nodes
from .table import overload_name

_POINTWISE = frozenset((*arithmetic.CONVERTERS, *elementwise.CONVERTERS))
_COPIES = frozenset(("_to_copy.default", "to.dtype", "to.dtype_layout", "to.device",
                     "clone.default", "contiguous.default"))  # fmt: skip
_VIEWS = frozenset(("view.default", "_unsafe_view.default", "reshape.default"))
_ORDER_KEEPING = (*_VIEWS, "flatten.using_ints", "unsqueeze.default", "squeeze.dim")
_ATTENTION = "scaled_dot_product_attention.default"
_SCATTERS = ("index_put", "index_add", "index_copy", "index_fill", "scatter", "masked_scatter")
_WRITES = frozenset(("copy.default", "slice_scatter.default"))
_OF_ONE_VALUE = "empty new_empty full zeros ones new_full new_zeros new_ones scalar_tensor".split()
_WITHOUT_BATCH = ("new_", "histc.")
"""Beginnings of operators whose results need not have the batch of their operands."""
_MOST_ELEMENTS = 1 << 28
"""The largest tensor that is evaluated to see whether its samples are equal."""

Env = Mapping[fx.Node, Any]


class PinnedBatch:
    """Change from a batch to another.

    Parameters
    ----------
    old, new : int
        Size of dim 0 of the data in the program, and the wanted size.
    location : str
        The program.
    """

    def __init__(self, old: int, new: int, location: str) -> None:
        self.old, self.new, self._location = old, new, location
        self._outer: dict[fx.Node, int] = {}
        self._values: dict[fx.Node, torch.Tensor | None] = {}

    def operands(self, node: fx.Node, env: Env, builder: BlockBuilder) -> Env:
        """Return the values of a call's operands, with the batch where others carry it.

        Raises
        ------
        ModelError
            DIST0314 an operand has another value for each sample of the old batch.
        """
        name, changed = overload_name(node.target), {}
        if name == "index.Tensor":
            changed = self._counted(node, env)
        elif name.startswith(_SCATTERS):
            self._check_scattered(node, env)
        elif name in ("cat.default", "gather.default"):
            nodes = list(tensor_nodes(node.args[0] if name == "cat.default" else node.args))
            axis = axis_of(node_argument(node, 1, "dim", 0), len(old_shape(node)))
            changed = self._stretched(node, nodes, env, builder, axis)
        elif name in _WRITES:
            nodes = list(tensor_nodes(node.args[:2]))
            changed = self._stretched(node, nodes, env, builder, len(old_shape(node)))
        elif name in _POINTWISE or name == _ATTENTION:
            nodes = list(tensor_nodes((node.args, node.kwargs)))
            changed = self._stretched(node, nodes, env, builder, None)
        return ChainMap(changed, dict(env)) if changed else env

    def sizes(self, node: fx.Node, env: Env) -> dict[str, list[int]]:
        """Return the sizes that replace those in a call, by the name of the argument.

        Raises
        ------
        ModelError
            DIST0314 no dim of the result can hold the batch.
        """
        name = overload_name(node.target)
        source = node.args[0] if node.args else None
        if not isinstance(source, fx.Node) or not (carried := self.carried(source, env)):
            return {}
        if name in _VIEWS:
            return {"shape" if name == "reshape.default" else "size": self._view(node, carried)}
        if name == "expand.default":
            sizes = [int(n) for n in node_argument(node, 1, "size", ())]
            shift = len(sizes) - len(old_shape(source))
            for dim in carried:
                if sizes[shift + dim] != -1:
                    sizes[shift + dim] = sizes[shift + dim] // self.old * self.new
            return {"size": sizes}
        return {}

    def check(self, node: fx.Node, env: Env, value: Any) -> None:
        """Refuse a call whose operands carry the batch and whose result does not (DIST0314)."""
        sources = [n for n in tensor_nodes((node.args, node.kwargs)) if self.carried(n, env)]
        tensor = node.meta.get("val")
        name = overload_name(node.target)
        if not sources or not isinstance(tensor, torch.Tensor) or name.startswith(_WITHOUT_BATCH):
            return
        carried = different_dims(tensor, value)
        if not carried and isinstance(value, Expr):
            raise self.fault(node, "the result does not have the batch")
        for dim in carried:
            if shape_of(value)[dim] * self.old != int(tensor.shape[dim]) * self.new:
                raise self.fault(node, f"dim {dim} of the result does not grow with the batch")
        if len(carried) == 1:
            outer = self._outer.get(sources[0], 1)
            if name in _ORDER_KEEPING:
                dim = self.carried(sources[0], env)[0]
                before = math.prod(old_shape(sources[0])[:dim]) * outer
                outer = max(before // math.prod(old_shape(node)[: carried[0]]), 1)
            self._outer[node] = outer

    def carried(self, node: fx.Node, env: Env) -> tuple[int, ...]:
        """Return the dims of a value that differ from those of the program."""
        return different_dims(node.meta.get("val"), env.get(node))

    def fault(self, node: fx.Node, problem: str) -> ModelError:
        """Return the error of a node that prevents another batch."""
        return ModelError(
            "DIST0314",
            f"the batch {self.old} cannot become {self.new}: {problem}",
            location=f"{self._location}: {node.name} ({overload_name(node.target)})",
            remedy="Export the model at this batch, or with dynamic_shapes for dim 0.",
        )

    def _view(self, node: fx.Node, carried: tuple[int, ...]) -> list[int]:
        source: fx.Node = node.args[0]
        shape, target = old_shape(source), list(old_shape(node))
        if len(carried) != 1:
            raise self.fault(node, f"dims {list(carried)} of its operand carry the batch")
        before = math.prod(shape[: carried[0]]) * self._outer.get(source, 1)
        behind = math.prod(shape) // max(before * self.old, 1)
        position = batch_position(tuple(target), self.old, before, behind)
        if position is None:
            raise self.fault(node, f"no dim of {target} can hold the batch of {list(shape)}")
        target[position] = target[position] // self.old * self.new
        return target

    def _stretched(
        self, node: fx.Node, nodes: list[fx.Node], env: Env, builder: BlockBuilder, axis: int | None
    ) -> dict[fx.Node, Any]:
        """Return operands without the batch, with a single sample of them, or repeated samples.

        ``axis`` is the dim of a concatenation, which broadcasts no operands.
        """
        rank = max((len(old_shape(n)) for n in nodes), default=0)
        targets = {
            dim - len(old_shape(n)): shape_of(env[n])[dim]
            for n in nodes
            for dim in self.carried(n, env)
            if axis is None or dim != axis
        }
        changed: dict[fx.Node, Any] = {}
        for n in nodes if targets else ():
            shape = old_shape(n)
            fixed = {
                len(shape) + dim: size
                for dim, size in targets.items()
                if len(shape) + dim >= 0 and not self.carried(n, env)
            }
            fixed = {d: size for d, size in fixed.items() if axis is not None or shape[d] != 1}
            for dim, size in fixed.items():
                value = changed.get(n, env[n])
                is_replaced = overload_name(node.target) == "copy.default"
                if not is_replaced and not self._is_repeated(n, dim, env):
                    problem = f'the samples of "{n.name}" of shape {list(shape)} differ'
                    raise self.fault(node, problem)
                if shape[dim] != 1:
                    value = builder.emit(relax.op.strided_slice(value, [dim], [0], [1]))
                if axis is not None or (rank == 4 and _is_operand_of_attention(node, n)):
                    full = list(shape_of(value))
                    full[dim] = size
                    value = builder.emit(relax.op.broadcast_to(value, full))
                changed[n] = value
        return changed

    def _counted(self, node: fx.Node, env: Env) -> dict[fx.Node, Any]:
        """Return indices that count the samples of the new batch, for those that count the old."""
        source: fx.Node = node.args[0]
        changed = {}
        for dim in self.carried(source, env):
            indices: Any = node.args[1]
            index = indices[dim] if dim < len(indices) else None
            if index is None or self.carried(index, env):
                continue
            value = self._evaluated(index, env)
            shape = old_shape(index)
            if value is None or not np.array_equal(value.flatten(), np.arange(self.old)):
                raise self.fault(node, f'"{index.name}" does not count the samples')
            sizes = [self.new if i == shape.index(self.old) else n for i, n in enumerate(shape)]
            kind = dtype_name(value.dtype)
            changed[index] = constant(np.arange(self.new, dtype=kind).reshape(sizes), kind)
        return changed

    def _check_scattered(self, node: fx.Node, env: Env) -> None:
        """Refuse operands of the old batch beside others, which scatters accept (DIST0314)."""
        nodes = list(tensor_nodes((node.args, node.kwargs)))
        if any(self.carried(n, env) for n in nodes):
            for n in nodes:
                if self.old in old_shape(n) and not self.carried(n, env):
                    raise self.fault(node, f'"{n.name}" has the old batch')

    def _is_repeated(self, node: fx.Node, dim: int, env: Env) -> bool:
        """Return whether a value that does not carry the batch is equal along a dim."""
        shape, name = old_shape(node), overload_name(node.target)
        if shape[dim] == 1 or name.partition(".")[0] in _OF_ONE_VALUE:
            return True
        if name in ("embedding.default", "index.Tensor") and not _is_carried_by_first(node, dim):
            indices = list(tensor_nodes(node.args[1]))
            rank = max(len(old_shape(n)) for n in indices)
            dims = [(n, dim - rank + len(old_shape(n))) for n in indices]
            return all(d < 0 or self._is_repeated(n, d, env) for n, d in dims)
        if name == "expand.default" or name in _POINTWISE or name in _COPIES:
            sources = list(tensor_nodes((node.args, node.kwargs)))
            dims = [(n, dim - len(shape) + len(old_shape(n))) for n in sources]
            if all(d < 0 or self._is_repeated(n, d, env) for n, d in dims):
                return True
        value = self._evaluated(node, env)
        return value is not None and bool((value == value.narrow(dim, 0, 1)).all())

    def _evaluated(self, node: fx.Node, env: Env) -> torch.Tensor | None:
        """Return the value of a node that depends on no input, or None."""
        if node not in self._values:
            self._values[node] = self._evaluate(node, env)
        return self._values[node]

    def _evaluate(self, node: fx.Node, env: Env) -> torch.Tensor | None:
        tensor = node.meta.get("val")
        if not isinstance(tensor, torch.Tensor) or tensor.numel() > _MOST_ELEMENTS:
            return None
        value = env.get(node)
        if node.op != "call_function":
            if isinstance(value, GenericConst):
                return torch.from_numpy(value.value.numpy())
            return None
        values = {n: self._evaluated(n, env) for n in node.all_input_nodes}
        if any(v is None for v in values.values()):
            return None
        args, kwargs = torch.utils._pytree.tree_map_only(
            fx.Node, values.__getitem__, (node.args, dict(node.kwargs))
        )
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        target: Any = node.target
        result = target(*args, **kwargs)
        return result if isinstance(result, torch.Tensor) else None


def _is_operand_of_attention(node: fx.Node, operand: fx.Node) -> bool:
    """Return whether an operand is the query, key or value of attention."""
    return overload_name(node.target) == _ATTENTION and operand in node.args[:3]


def _is_carried_by_first(node: fx.Node, dim: int) -> bool:
    """Return whether a dim of a lookup is one of the table, not of the leading indices."""
    indices: Any = node.args[1]
    parts = list(indices) if isinstance(indices, (list, tuple)) else [indices]
    leading = [part for part in parts if part is not None]
    if parts[: len(leading)] != leading:
        return True
    return dim >= max(len(old_shape(part)) for part in leading)
