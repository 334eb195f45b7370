# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Represent an ATen call during translation: arguments by name and emitted values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx
from tvm import relax
from tvm.relax import BlockBuilder, Expr

from tvm_distir.models.common.translation import HALVES, Unsupported, dtype_of, shape_of
from tvm_distir.support import GenericConst


@dataclass(frozen=True)
class Absent:
    """Result of a call that is not computed, whose readers are rejected."""

    what: str


def dtype_name(dtype: torch.dtype) -> str:
    """Return TVM's name of a torch dtype.

    Raises
    ------
    Unsupported
        For complex numbers and quantized integers.
    """
    name = str(dtype).removeprefix("torch.")
    if name.startswith(("complex", "q")):
        raise Unsupported(f"values of the type {name}")
    return name


def is_float(dtype: str) -> bool:
    """Return whether a dtype is a float."""
    return "float" in dtype


def translated(value: Any, env: Mapping[fx.Node, Expr]) -> Any:
    """Return an argument with all nodes in it replaced by their values."""
    if isinstance(value, fx.Node):
        return env[value]
    if isinstance(value, (list, tuple)):
        return [translated(item, env) for item in value]
    if isinstance(value, slice):
        return slice(*(translated(v, env) for v in (value.start, value.stop, value.step)))
    return value


class AtenCall:
    """Call of an ATen operator.

    ``call["dim"]`` is the argument that the operator's schema names so, translated: a Relax
    expression, a number, a list of either, or None; the schema's default where none is given.

    Parameters
    ----------
    node : torch.fx.Node
        A node whose target is an overload of an operator.
    env : mapping of Node to Any
        Values of the nodes before it.
    builder : relax.BlockBuilder
        A builder, inside a block.
    sizes : mapping of str to list of int
        Sizes that replace arguments, by name.
    """

    def __init__(
        self,
        node: fx.Node,
        env: Mapping[fx.Node, Expr],
        builder: BlockBuilder,
        sizes: Mapping[str, list[int]] | None = None,
    ) -> None:
        self.node = node
        self._sizes = sizes or {}
        self._env = env
        self.builder = builder
        self._hint = name_hint(node)

    @property
    def _schema(self) -> Any:
        target: Any = self.node.target
        return target._schema.arguments

    @property
    def names(self) -> list[str]:
        """Return the names of the overload's arguments, given or not."""
        return [spec.name for spec in self._schema]

    def argument(self, name: str) -> Any:
        """Return an argument by its schema name, without translating nodes."""
        for index, spec in enumerate(self._schema):
            if spec.name != name:
                continue
            if name in self.node.kwargs:
                return self.node.kwargs[name]
            if index < len(self.node.args):
                return self.node.args[index]
            return spec.default_value
        raise KeyError(name)

    def __getitem__(self, name: str) -> Any:
        return self._sizes[name] if name in self._sizes else self.value(self.argument(name))

    def value(self, argument: Any) -> Any:
        """Return a translated argument, including nodes in lists.

        Raises
        ------
        Unsupported
            Where it is a result that is not computed.
        """
        value = translated(argument, self._env)
        if isinstance(value, Absent):
            raise Unsupported(f"it reads {value.what}")
        return value

    @property
    def results(self) -> list[torch.Tensor]:
        """Return the result tensors of torch's metadata, without values."""
        value = self.node.meta["val"]
        return list(value) if isinstance(value, (list, tuple)) else [value]

    @property
    def dtype(self) -> str:
        """Return the element type of the (first) result."""
        return self.result_dtype(0)

    def result_dtype(self, index: int) -> str:
        """Return the element type of one of several results."""
        return dtype_name(self.results[index].dtype)

    def common_dtype(self, *names: str) -> str:
        """Return the type to which torch promotes two arguments for a comparison."""
        import torch

        values = [self.argument(name) for name in names]
        known = [v.meta["val"] if isinstance(v, fx.Node) else v for v in values]
        return dtype_name(torch.result_type(*known))

    def absent(self, index: int) -> Absent:
        """Return a marker for a result that is not computed."""
        return Absent(f"result {index} of {self.node.name}")

    def is_read(self, index: int) -> bool:
        """Return whether one of several results is read."""
        return any(len(user.args) > 1 and user.args[1] == index for user in self.node.users)

    def emit(self, value: Expr) -> Expr:
        """Bind an expression to a variable, named after the module that computes it."""
        return self.builder.emit(value, self._hint)

    def in_float32(self, make: Callable[..., Expr], *values: Expr) -> Expr:
        """Apply an op to tensors, in float32 if they are of half precision."""
        if dtype_of(values[0]) not in HALVES:
            return self.emit(make(*values))
        wide = self.emit(make(*(self.cast(value, "float32") for value in values)))
        return self.cast(wide, dtype_of(values[0]))

    @property
    def axis(self) -> int:
        """Return the argument ``dim`` as an axis of ``self``, counted from the front."""
        return axis_of(self["dim"], max(len(shape_of(self["self"])), 1))

    def operands(self, dtype: str | None = None) -> list[Expr]:
        """Return ``self``, and ``other`` if there is one, in a type or else that of the result."""
        names = [name for name in ("self", "other") if name in self.names]
        return [self.cast(self[name], dtype or self.dtype) for name in names]

    def cast(self, value: Expr, dtype: str) -> Expr:
        """Return a tensor or a number as a tensor of a type."""
        if not isinstance(value, Expr):
            return constant(value, dtype)
        if dtype_of(value) == dtype:
            return value
        return self.emit(relax.op.astype(value, dtype))

    def scaled(self, value: Expr, factor: float) -> Expr:
        """Multiply a tensor by a number."""
        if factor == 1:
            return value
        return self.emit(relax.op.multiply(value, constant(factor, dtype_of(value))))

    def broadcast(self, value: Expr, shape: Sequence[int]) -> Expr:
        """Broadcast a tensor to a shape."""
        if shape_of(value) == tuple(shape):
            return value
        return self.emit(relax.op.broadcast_to(value, list(shape)))

    def reshaped(self, value: Expr, shape: Sequence[int]) -> Expr:
        """Reshape a tensor."""
        if shape_of(value) == tuple(shape):
            return value
        if 0 in shape:  # in R.reshape, that stands for the size of the operand
            return self.emit(relax.op.zeros(list(shape), dtype_of(value)))
        return self.emit(relax.op.reshape(value, list(shape)))


Converter = Callable[[AtenCall], Any]
"""Writes what a call computes: an expression, or a list of what its results are."""


def constant(value: Any, dtype: str) -> GenericConst:
    """Return a scalar or an array as a constant, cast from float to integer as torch does."""
    if isinstance(value, float) and not is_float(dtype):
        if not math.isfinite(value):
            raise Unsupported(f"{value} as {dtype}")
        value = bool(value) if dtype == "bool" else int(value)
    if isinstance(value, float) and not math.isfinite(value):
        value = np.asarray(value, "float32" if dtype in ("bfloat16", "float16") else dtype)
    return relax.const(value, dtype)


def scope_of(node: fx.Node) -> str:
    """Return the path of the module that an operator is in."""
    stack = node.meta.get("nn_module_stack") or {}
    return str(next(reversed(list(stack.values())))[0]) if stack else ""


def name_hint(node: fx.Node) -> str:
    """Name a node by its module and operator, such as ``layers_0_attn_q_proj_linear``."""
    operator = str(getattr(node.target, "__name__", "value")).partition(".")[0].strip("_")
    return re.sub(r"\W+", "_", f"{scope_of(node)}.{operator}".strip("."))


def axis_of(axis: int, rank: int) -> int:
    """Return an axis counted from the front."""
    return axis + rank if axis < 0 else axis


def axes_of(axes: int | Sequence[int] | None, rank: int) -> list[int]:
    """Return axes counted from the front, or all if none is given."""
    if axes is None or (isinstance(axes, (list, tuple)) and not axes):
        return list(range(rank))
    listed = [axes] if isinstance(axes, int) else axes
    return [axis_of(axis, rank) for axis in listed]
