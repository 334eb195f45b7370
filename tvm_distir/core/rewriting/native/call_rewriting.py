# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rewrite bindings of calls in bulk through the native library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tvm_distir.core.ir.arrays import unpack
from tvm_distir.support import native_function

if TYPE_CHECKING:
    from tvm import ir, relax


class CallWriter:
    """A writer of calls of ops with replaced variables and types.

    Ops, attributes and names stay. It leaves to others the calls that read variables that it does
    not know, tuples or functions.

    Parameters
    ----------
    constant : callable
        ``constant(old, number)`` gives what stands for a constant in a call of the type of a
        number.
    """

    def __init__(self, constant: Callable[[Any, int], Any]) -> None:
        self._know, self._open, self._write = native_function("rewriter")(constant)

    def know(self, handles: Sequence[int], expressions: Sequence[ir.Expr]) -> None:
        """Replace later reads of variables, given by their handles."""
        self._know(tuple(handles), list(expressions))

    def open(
        self,
        bindings: Sequence[relax.Binding],
        types: Sequence[ir.Type],
        which: Sequence[int],
        dataflow: bool,
        inside: Sequence[int] = (),
    ) -> None:
        """Begin a block.

        Parameters
        ----------
        bindings : array of Binding
        types : sequence of Type
        which : sequence of int
            The number of the type of each binding, -1 where it is left to others.
        dataflow : bool
            Whether it is a dataflow block. What it hid stays hidden.
        inside : sequence of int
            Handles of variables that it shall hide beside these.
        """
        self._open(bindings, list(types), tuple(which), dataflow, tuple(inside))

    def write(self, first: int) -> tuple[list[Any], list[Any]]:
        """Write bindings from a given binding on, up to the first that is left to others.

        Returns
        -------
        variables, bindings : lists
            The variables and bindings that were written, as many of each.
        """
        pairs = unpack(self._write(first))
        return pairs[::2], pairs[1::2]
