# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write symbolic dims that are sharded as multiples of the size of a shard.

Before, where ``x`` is sharded along its dim 0 on two devices::

    def main(x: R.DTensor(("n", 8), placement="S[0]")):
        ...

After, so that each device computes with ``n`` rows::

    def main(x: R.DTensor(("n * 2", 8), placement="S[0]")):
        ...

That 2 divides the number of rows is checked when the program runs (DIST0624).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from tvm import ir, relax, tirx
from tvm.relax.distributed import DTensorType

from tvm_distir.core.analysis.levels import has_dtensor
from tvm_distir.core.ir.mesh import mesh_shape
from tvm_distir.core.ir.operators.names import free_name
from tvm_distir.core.ir.placement import labels_of, shard_counts
from tvm_distir.core.ir.types import flat_types, known_shape, static_shape
from tvm_distir.core.ops.dims import symbols
from tvm_distir.core.rewriting.calls import location_of
from tvm_distir.core.rewriting.dims import dims_remedy
from tvm_distir.core.rewriting.functions import callees_first
from tvm_distir.core.rewriting.resizing import with_extents
from tvm_distir.core.rewriting.scopes import all_bindings
from tvm_distir.support import Analyzer, LoweringError

Dims = Mapping[str, tuple[Any, int]]
"""The variable of a dim of a public function's inputs by its name, and the number of equal parts
into which devices divide the dim."""


class DivisibleDims:
    """The variables of a function's dims, with the numbers of parts that must divide them.

    Parameters
    ----------
    name : str
        Name of the function.
    fn : relax.Function
        The function, at level 4.
    """

    def __init__(self, name: str, fn: relax.Function) -> None:
        self.name, self.fn = name, fn
        self.parts: dict[Any, int] = {}
        self._locations: dict[Any, str] = {}  # of the first value that a variable has to divide
        extents = [extent for param in fn.params for extent in _extents(param.ty)]
        self.local: dict[Any, Any] = {
            extent: tirx.Var(str(extent.name), extent.ty.dtype)
            for extent in extents
            if isinstance(extent, tirx.Var)
        }

    def global_extent(self, extent: Any) -> Any:
        """Return an extent in the sizes of shards."""
        analyzer = Analyzer()
        for variable in symbols(extent):
            if variable in self.local:
                analyzer.bind(variable, self.local[variable] * self.parts.get(variable, 1))
        return analyzer.simplify(extent)

    def part(self, extent: Any, count: int) -> Any:
        """Return the extent of a shard; None if the requirements do not make it divisible."""
        if isinstance(extent, int):
            return -(-extent // count)
        global_extent, analyzer = self.global_extent(extent), Analyzer()
        rest = analyzer.simplify(tirx.floormod(global_extent, count))
        if not isinstance(rest, tirx.IntImm) or int(rest):
            return None
        return analyzer.simplify(tirx.floordiv(global_extent, count))

    def require(self, extent: Any, count: int, location: str) -> None:
        """Require sizes of the variables of an extent that make it divisible.

        Raises
        ------
        LoweringError
            DIST0502 where no sizes of its variables do, for ``n + 1`` for example.
        """
        for variable in symbols(extent):
            if self.part(extent, count) is not None:
                return
            self.parts[variable] = math.lcm(self.parts.get(variable, 1), count)
            self._locations.setdefault(variable, location)
        if self.part(extent, count) is None:
            raise _needs_size(
                f"a dim of size {extent} is divided into {count} parts", extent, location
            )

    def read(self, callees: Mapping[str, DivisibleDims]) -> None:
        """Require what the placements of the function's values and its callees require."""
        for location, ty in self._types():
            for extent, count in _sharded_extents(ty):
                self.require(extent, count, location)
        for binding in all_bindings(self.fn.body):
            value = binding.value
            if not isinstance(value, ir.Call) or not isinstance(value.op, ir.GlobalVar):
                continue
            callee = callees.get(str(value.op.name_hint))
            if callee is None:
                continue
            location = location_of(self.name, binding.var, value)
            for param, arg in zip(callee.fn.params, value.args, strict=True):
                for declared, actual in zip(_extents(param.ty), _extents(arg.ty), strict=True):
                    count = callee.parts.get(declared, 1) if isinstance(declared, tirx.Var) else 1
                    if count > 1:
                        self.require(actual, count, location)

    def check_defined(self) -> None:
        """Refuse (DIST0502) a size of shards that no shard of a parameter has."""
        shards = [
            self.part(extent, count)
            for param in self.fn.params
            for ty in flat_types(param.ty)
            for extent, count in _parts(ty)
        ]
        for variable, count in self.parts.items():
            if not any(self.local[variable].same_as(size) for size in shards):
                raise self._undefined(variable, count)

    def _undefined(self, variable: relax.Var, count: int) -> LoweringError:
        """Return the error for a dim that values divide and no parameter does."""
        name = str(variable.name)
        params = [
            f'"{param.name}"'
            for param in self.fn.params
            if any(variable.same_as(size) for size in _extents(param.ty))
        ]
        what = f'the symbolic dim "{name}" of this value is divided into {count} parts'
        placement = f"every device has the whole of {' and '.join(params)}"
        problem = f"{what}, and {placement}: the size of a part is that of no input"
        remedy = f'Shard {params[0]} along "{name}" too, or replicate this dim.'
        remedy = f"{remedy} {dims_remedy([name])}"
        return LoweringError("DIST0502", problem, location=self._locations[variable], remedy=remedy)

    def _types(self) -> Iterator[tuple[str, Any]]:
        for param in self.fn.params:
            yield f"{self.name}/{param.name}", param.ty
        for binding in all_bindings(self.fn.body):
            yield location_of(self.name, binding.var, binding.value), binding.var.ty

    def written(self) -> relax.Function:
        """Return the function with its dims in the sizes of shards."""
        return with_extents(self.fn, self.global_extent)

    def named(self) -> dict[str, tuple[Any, int]]:
        """Return the variables of shards by the names of the dims (see :data:`Dims`)."""
        dims: dict[str, tuple[Any, int]] = {}
        for variable, local in self.local.items():
            dims[free_name(str(variable.name), dims)] = local, self.parts.get(variable, 1)
        return dims


def _needs_size(problem: str, extent: Any, location: str) -> LoweringError:
    names = [str(variable.name) for variable in symbols(extent)]
    return LoweringError("DIST0502", problem, location=location, remedy=dims_remedy(names))


def _parts(ty: ir.Type) -> Iterator[tuple[Any, int]]:
    """Yield the dims of a DTensor and the number of shards of each."""
    shape = static_shape(ty) if isinstance(ty, DTensorType) else None
    if shape is not None:
        counts = shard_counts(labels_of(ty.placement), mesh_shape(ty.device_mesh), len(shape))
        yield from zip(shape, counts, strict=True)


def _sharded_extents(ty: ir.Type) -> Iterator[tuple[Any, int]]:
    """Yield the symbolic dims of the DTensors of a type that several devices divide."""
    for leaf in flat_types(ty):
        if isinstance(leaf, DTensorType) and known_shape(leaf) is None:
            for extent, count in _parts(leaf):
                if count > 1 and not isinstance(extent, int):
                    yield extent, count


def _extents(ty: ir.Type) -> list[Any]:
    return [extent for leaf in flat_types(ty) for extent in static_shape(leaf) or ()]


def dim_text(extent: Any, dims: Dims, location: str) -> str:
    """Return an extent in the sizes of shards as text in the sizes of whole dims.

    Parameters
    ----------
    extent : expression
    dims : Dims
        The dims of the function.
    location : str
        The place of the tensor, for messages.

    Returns
    -------
    text : str
        A sum of products such as ``past + 2*batch*seq - 1``.

    Raises
    ------
    LoweringError
        DIST0502 for another expression.
    """
    terms = _polynomial(extent, {local: (name, parts) for name, (local, parts) in dims.items()})
    if terms is None or any(number.denominator > 1 for number in terms.values()):
        raise _needs_size(
            f"the size {extent} is no sum of products of the dims of the inputs", extent, location
        )
    text = ""
    for factors, number in terms.items():
        if not number:
            continue
        digits = [str(abs(number))] if abs(number) != 1 or not factors else []
        sign = " - " if number < 0 else " + "
        text += (sign if text or number < 0 else "") + "*".join([*digits, *factors])
    return text.strip() or "0"


def _polynomial(
    extent: Any, names: Mapping[Any, tuple[str, int]]
) -> dict[tuple[str, ...], Fraction] | None:
    """Return the coefficients of a polynomial in the sizes of whole dims; None for others."""
    if isinstance(extent, int | tirx.IntImm):
        return {(): Fraction(int(extent))}
    if isinstance(extent, tirx.Var):
        name, parts = names.get(extent, ("", 0))
        return {(name,): Fraction(1, parts)} if parts else None
    if not isinstance(extent, tirx.Add | tirx.Sub | tirx.Mul):
        return None
    left, right = _polynomial(extent.a, names), _polynomial(extent.b, names)
    if left is None or right is None:
        return None
    terms: dict[tuple[str, ...], Fraction] = {}
    if isinstance(extent, tirx.Mul):
        for (a, x), (b, y) in itertools.product(left.items(), right.items()):
            key = tuple(sorted((*a, *b)))
            terms[key] = terms.get(key, Fraction(0)) + x * y
        return terms
    sign = -1 if isinstance(extent, tirx.Sub) else 1
    for part, factor in ((left, 1), (right, sign)):
        for key, number in part.items():
            terms[key] = terms.get(key, Fraction(0)) + factor * number
    return terms


def write_divisible_dims(mod: ir.IRModule) -> tuple[ir.IRModule, dict[str, Dims]]:
    """Write the symbolic dims of a module at level 4 in the sizes of shards.

    Parameters
    ----------
    mod : IRModule

    Returns
    -------
    mod : IRModule
        Not well formed in TVM's sense, since no parameter defines ``n`` of ``n * 2``; lowering
        makes shards of it.
    dims : dict of str to Dims
        By the name of the function.

    Raises
    ------
    LoweringError
        DIST0502 where a size must be known: the error names the dim and why.
    """
    dims: dict[str, DivisibleDims] = {}
    for gv, fn in callees_first(mod):
        if has_dtensor(fn):
            dims[str(gv.name_hint)] = reading = DivisibleDims(str(gv.name_hint), fn)
            reading.read(dims)
            reading.check_defined()
    # The variables of functions stay, since calls refer to them.
    functions = {
        gv: dims[str(gv.name_hint)].written() if str(gv.name_hint) in dims else fn
        for gv, fn in mod.functions.items()
    }
    named: dict[str, Dims] = {name: reading.named() for name, reading in dims.items()}
    return ir.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos), named
