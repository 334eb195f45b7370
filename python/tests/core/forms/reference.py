# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compare distributed modules with what TVM compiles from the original."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import ir, relax

import tvm_distir as td
from tests.quick_compilation import quick_machine

Array = npt.NDArray[Any]


def drawn(mod: ir.IRModule, entry: str = "main", sizes: dict[str, int] | None = None) -> list[Any]:
    """Return inputs of the entry from {-2..2}; a parameter that is a tuple is a tuple of arrays."""
    random = np.random.default_rng(0)

    def draw(ty: ir.Type) -> Any:
        if isinstance(ty, relax.TupleType):
            return tuple(map(draw, ty.fields))
        shape = [(sizes or {}).get(str(getattr(n, "name", "")), n) for n in ty.shape]
        return random.integers(-2, 3, [int(n) for n in shape]).astype(str(ty.dtype))

    return [draw(param.ty) for param in mod[entry].params]


def flat(value: Any) -> list[Any]:
    """Return the leaves of nested tuples, lists and arrays of TVM."""
    if isinstance(value, np.ndarray | tvm.runtime.Tensor):
        return [value]
    return [leaf for item in value for leaf in flat(item)]


def compiled(mod: ir.IRModule, inputs: list[Any], entry: str = "main") -> list[Array]:
    """Run a module as TVM compiles it, without this package."""

    def tensor(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(tensor, value))
        return tvm.runtime.tensor(value)

    return [leaf.numpy() for leaf in flat(quick_machine(mod)[entry](*map(tensor, inputs)))]


def agrees_with_tvm(
    mod: ir.IRModule,
    plans: list[td.Plan],
    *,
    original: ir.IRModule | None = None,
    entry: str = "main",
    sizes: dict[str, int] | None = None,
    tolerance: float = 1e-5,
) -> None:
    """Assert that distributed modules compute what one device does, and what TVM compiles.

    Parameters
    ----------
    mod : IRModule
    plans : list of Plan
    original : IRModule, optional
        What TVM compiles in place of the module, which it cannot.
    entry : str
    sizes : dict of str to int, optional
        Sizes of symbolic dims; programs with them are not exported.
    tolerance : float
        Relative and absolute.
    """
    inputs = drawn(mod, entry, sizes)
    wanted = compiled(original or mod, inputs, entry)
    for plan in plans:
        assert td.verify(mod, plan, engine="virtual", entry=entry, dims=sizes).equal
        dist = td.distribute(mod, plan)
        results = td.run(dist, flat(inputs), engine="virtual", entry=entry, dispatch="tvm")
        for result, want in zip(results, wanted, strict=True):
            np.testing.assert_allclose(result, want, rtol=tolerance, atol=tolerance)
        if sizes is None:
            td.export(dist)
