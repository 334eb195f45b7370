# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read the arguments and shapes of nodes of a program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from tvm.relax import Expr

from tvm_distir.core.ir import known_shape

from .aten_call import Absent


def tensor_nodes(value: object) -> Iterator[fx.Node]:
    """Return the nodes of tensors in arguments."""
    for leaf in torch.utils._pytree.tree_leaves(value):
        if isinstance(leaf, fx.Node) and isinstance(leaf.meta.get("val"), torch.Tensor):
            yield leaf


def node_argument(node: fx.Node, index: int, name: str, default: Any) -> Any:
    """Return an argument by its position or name."""
    return node.args[index] if index < len(node.args) else node.kwargs.get(name, default)


def old_shape(node: fx.Node) -> tuple[int, ...]:
    """Return the shape of a tensor in the program."""
    return tuple(int(n) for n in node.meta["val"].shape)


def different_dims(tensor: object, value: object) -> tuple[int, ...]:
    """Return the dims in which a tensor of the program and its translation differ."""
    if not isinstance(tensor, torch.Tensor) or isinstance(value, Absent):
        return ()
    new = known_shape(value.ty) if isinstance(value, Expr) else None
    if new is None or len(new) != tensor.ndim:
        return ()
    return tuple(i for i, (m, n) in enumerate(zip(tensor.shape, new, strict=True)) if int(m) != n)
