# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Determine sizes for the dynamic dims of a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram

from tvm_distir.support import ModelError, nearest


class OpenDims:
    """Symbols of a program, and the requested sizes.

    Parameters
    ----------
    program : ExportedProgram
    inputs : mapping of str to Tensor
        The data by name, as tensors without values.
    batch : int, optional
        Size of dim 0 of the data.
    dims : mapping of str to int
        Sizes by the symbol that torch prints, or as ``INPUT.INDEX``.
    location : str

    Attributes
    ----------
    pinned : int or None
        The batch that the program fixes, where another is wanted.

    Raises
    ------
    ModelError
        DIST0313 a size is asked for no open dim, or out of the range that torch proved; DIST0314
        the batch is no size, or inputs fix several sizes.
    """

    def __init__(
        self,
        program: ExportedProgram,
        inputs: Mapping[str, torch.Tensor],
        batch: int | None,
        dims: Mapping[str, int],
        location: str,
    ) -> None:
        self._location = location
        self.pinned: int | None = None
        self._names: dict[str, str] = {}
        for name, value in inputs.items():
            for index, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt) and _expression(size).is_symbol:
                    self._names.setdefault(f"{name}.{index}", str(_expression(size)))
        self._sizes: dict[str, int] = {}
        for name, size in dims.items():
            self._sizes[self._symbol(name)] = _checked(name, size, location, "DIST0313")
        if batch is not None:
            self._set_batch(_checked("batch", batch, location, "DIST0314"), inputs)
        for symbol, allowed in program.range_constraints.items():
            size_of = self._sizes.get(str(symbol))
            if size_of is not None and not allowed.lower <= size_of <= allowed.upper:
                problem = f"{symbol}={size_of} is outside {allowed.lower} to {allowed.upper}"
                remedy = "Export the model with a wider range of this dim."
                raise ModelError("DIST0313", problem, location=location, remedy=remedy)

    def _symbol(self, name: str) -> str:
        symbols = set(self._names.values())
        if name not in self._names and name not in symbols:
            known = [*self._names, *sorted(symbols)]
            close = nearest(name, known)
            remedy = f'Did you mean "{close}"?' if close else f"Open: {', '.join(known)}."
            raise ModelError(
                "DIST0313",
                f'no input has a symbolic dim "{name}"',
                location=self._location,
                remedy=remedy if known else "Remove it: all dims of this program have sizes.",
            )
        return self._names.get(name, name)

    def _set_batch(self, batch: int, inputs: Mapping[str, torch.Tensor]) -> None:
        """Set the symbols of dim 0, or note the batch that all inputs fix."""
        sizes = {name: value.shape[0] for name, value in inputs.items() if value.ndim}
        fixed: dict[str, int] = {}
        for name, size in sizes.items():
            if not isinstance(size, torch.SymInt):
                fixed[name] = int(size)
            elif _expression(size).is_symbol:
                self._sizes.setdefault(str(_expression(size)), batch)
        others = {name: size for name, size in fixed.items() if size != batch}
        if not others:
            return
        name, old = next(iter(others.items()))
        if len(fixed) < len(sizes) or set(fixed.values()) != {old}:
            has = ", ".join(f"{n} {size}" for n, size in sizes.items())
            raise ModelError(
                "DIST0314",
                f'dim 0 of the input "{name}" is {old} in the program, and others differ ({has})',
                location=self._location,
                remedy="Remove the batch, or export with dynamic_shapes for dim 0.",
            )
        self.pinned = old

    def shape(self, sizes: Sequence[int | torch.SymInt], name: str) -> tuple[int, ...]:
        """Return the static shape of an input.

        Raises
        ------
        ModelError
            DIST0313 if a dim has no size.
        """
        return tuple(self._size(size, name, index) for index, size in enumerate(sizes))

    def _size(self, size: int | torch.SymInt, name: str, index: int) -> int:
        if not isinstance(size, torch.SymInt):
            return int(size)
        expression = _expression(size)
        missing = sorted(str(s) for s in expression.free_symbols if str(s) not in self._sizes)
        if missing:
            batch = "--batch N, or " if index == 0 else ""
            problem = f'dim {index} ("{expression}") of the input "{name}" is unknown'
            remedy = f"Give its size: {batch}--dim {missing[0]}=N (dims= in Python)."
            raise ModelError("DIST0313", problem, location=self._location, remedy=remedy)
        return int(expression.subs({s: self._sizes[str(s)] for s in expression.free_symbols}))


def _expression(size: torch.SymInt) -> Any:
    """Return the SymPy expression of a symbolic size."""
    return size.node.expr


def _checked(name: str, size: object, location: str, code: str) -> int:
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        remedy = "Give a positive integer."
        raise ModelError(code, f"{name}={size!r} is not a size", location=location, remedy=remedy)
    return size
