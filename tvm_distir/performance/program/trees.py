# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Hold numbers of tensors in the structure of a Relax type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvm import relax

from tvm_distir.core.ir import tensor_type, unpack

Tree = Any
"""A number, a tuple of trees, or None for what is no tensor."""


def leaves(tree: Tree) -> list[int]:
    """Numbers of a tree, in order."""
    if isinstance(tree, tuple):
        return [leaf for field in tree for leaf in leaves(field)]
    return [] if tree is None else [tree]


def shaped(ty: Any, numbers: Iterator[int]) -> Tree:
    """Return the tree of a type, from numbers of its tensors."""
    if isinstance(ty, relax.TupleType):
        return tuple(shaped(field, numbers) for field in unpack(ty.fields))
    return None if tensor_type(ty) is None else next(numbers)
