# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Create many IR nodes in a single native call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tvm_distir.core.ir.arrays import unpack
from tvm_distir.support import native_function

if TYPE_CHECKING:
    from tvm.ir import Expr, Type


def make_variables(names: Sequence[str], types: Sequence[Type], which: Sequence[int]) -> list[Expr]:
    """Make Relax variables.

    Parameters
    ----------
    names : sequence of str
        The name of each variable.
    types : sequence of Type
    which : sequence of int
        The number of the type of each variable among ``types``.
    """
    return unpack(native_function("make_variables")(_join_names(names), list(types), tuple(which)))


def make_ports(
    names: Sequence[str],
    index: Sequence[int],
    described: Sequence[Mapping[str, Any]],
    which: Sequence[int],
) -> Any:
    """Make an array of entries of ``dist.io``, as TVM keeps them in attributes.

    Parameters
    ----------
    names, index : sequence of str, of int
        The name and index of each entry.
    described : sequence of mapping
        The remaining fields of some entries.
    which : sequence of int
        The number of the remaining fields of each entry among ``described``.
    """
    names_text = _join_names(names)
    return native_function("make_ports")(names_text, tuple(index), list(described), tuple(which))


def _join_names(names: Sequence[str]) -> str:
    """Return names joined into a text, each followed by a NUL."""
    return "".join([f"{name}\0" for name in names])
