# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the symbolic dims of a module and bind them to sizes.

Before::

    def layer(x: R.Tensor(("n", 8))):               # private
        ...
    def main(x: R.Tensor(("seq", 8))):
        y = cls.layer(x)

After ``bind_dims(mod, {"seq": 128})``::

    def layer(x: R.Tensor((128, 8))):
        ...
    def main(x: R.Tensor((128, 8))):
        y = cls.layer(x)

A private function or a kernel has the sizes of its calls; a function that is called at several
sizes becomes several functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import SupportsInt

from tvm import ir, tirx

from tvm_distir.core.ir.attributes.keys import IO_ATTR
from tvm_distir.core.ir.extents import extent_value
from tvm_distir.core.ir.handles import handle
from tvm_distir.core.ir.module_argument import check_module
from tvm_distir.core.ir.types import is_private, relax_functions
from tvm_distir.support import MAX_INT, ModelError, nearest

from .dim_binder import DimBinder, extents


@dataclass(frozen=True)
class OpenDim:
    """A dim of a parameter of a public function, whose size is a variable.

    Attributes
    ----------
    location : str
        ``function/parameter``.
    dim : int
    name : str
        The name of the variable, to which ``--dim`` and `bind_dims` give a size.
    """

    location: str
    dim: int
    name: str


def open_dims(mod: ir.IRModule) -> list[OpenDim]:
    """Return the symbolic dims of the parameters of public functions, in order, without sums."""
    dims, closed = list[OpenDim](), set[int]()  # by the handles of types
    for gv, fn in relax_functions(mod):
        for param in () if is_private(fn) else fn.params[:]:
            ty = param.ty
            if handle(ty) in closed:
                continue
            before = len(dims)
            for dim, extent in enumerate(extents(ty)):
                if isinstance(extent, tirx.Var):
                    dims.append(OpenDim(f"{gv.name_hint}/{param.name}", dim, str(extent.name)))
            if len(dims) == before:
                closed.add(handle(ty))
    return dims


def dims_remedy(names: list[str], call: str = "td.bind_dims(mod, {})") -> str:
    """Return the remedy for unbound dims; ``call`` is the Python call that takes them."""
    names = list(dict.fromkeys(names))
    options = " ".join(f"--dim {name}=N" for name in names)
    text = ", ".join(f'"{name}": N' for name in names)
    return f"Give the size: {options}; in Python {call.replace('{}', f'{{{text}}}')}."


def check_sizes(dims: Mapping[str, int | ir.Expr], location: str) -> None:
    """Refuse (ModelError DIST0313) sizes that are no positive integers."""
    for name, size in dims.items():
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MAX_INT:
            problem = f"{name}={size!r} is not a size"
            remedy = f"Give a positive integer of at most {MAX_INT}."
            raise ModelError("DIST0313", problem, location=location, remedy=remedy)


def unknown_dim(name: str, known: list[str], location: str) -> ModelError:
    """Return the error (DIST0313) for a size of an unknown dim name."""
    remedy = nearest(name, known) if known else "Remove it: all dims have sizes."
    return ModelError("DIST0313", f'there is no dim "{name}"', location=location, remedy=remedy)


def bind_dims(mod: ir.IRModule, dims: Mapping[str, int]) -> ir.IRModule:
    """Give symbolic dims their sizes, in public functions and in all that they call.

    Parameters
    ----------
    mod : IRModule
        The module, which is not changed; at level 5, where ``dist.io`` then has the sizes, all
        dims get theirs.
    dims : mapping of str to int
        Sizes by the names of variables in the types of public functions' parameters; of whole
        dims at level 5 too.

    Raises
    ------
    ModelError
        DIST0313 for a name that no dim has, for what is no size, or for sizes that contradict
        each other in the module.

    Examples
    --------
    >>> mod = td.from_tvmscript('''
    ... @I.ir_module
    ... class Module:
    ...     @R.function
    ...     def main(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
    ...         return R.nn.relu(x)
    ... ''')
    >>> td.bind_dims(mod, {"n": 8})["main"].params[0].ty
    R.Tensor((8, 4), dtype="float32")
    """
    check_module(mod, "td.bind_dims")
    if not dims:
        return mod
    check_sizes(dims, "module")
    known = list(dict.fromkeys(dim.name for dim in open_dims(mod)))
    for name in dims:
        if name not in known:
            raise unknown_dim(name, known, "module")
    parts = _parts_of_dims(mod)
    for name, count in parts.items():
        if dims.get(name, 0) % count:
            problem = f"{name}={dims[name]} cannot be divided into {count} equal parts"
            remedy = (
                f"Give a multiple of {count}, or bind the dims before the module is distributed."
            )
            raise ModelError("DIST0313", problem, location="module", remedy=remedy)
    bound = DimBinder(mod).run({name: size // parts.get(name, 1) for name, size in dims.items()})
    return _with_sizes_of_ports(bound, dims) if parts else bound


def _parts_of_dims(mod: ir.IRModule) -> dict[str, int]:
    """Return the numbers of equal parts of the dims of a module at level 5, by ``dist.io``."""
    return {
        str(name): int(count)
        for _, fn in relax_functions(mod)
        if fn.attrs is not None and IO_ATTR in fn.attrs and "dims" in fn.attrs[IO_ATTR]
        for name, count in fn.attrs[IO_ATTR]["dims"].items()
    }


def _with_sizes_of_ports(mod: ir.IRModule, dims: Mapping[str, int]) -> ir.IRModule:
    """Write sizes into the shapes of ``dist.io``."""
    functions = dict(mod.functions.items())
    for gv, fn in relax_functions(mod):
        if fn.attrs is None or IO_ATTR not in fn.attrs or "dims" not in fn.attrs[IO_ATTR]:
            continue
        io = dict(fn.attrs[IO_ATTR].items())
        left = {name: count for name, count in io.pop("dims").items() if str(name) not in dims}
        if left:
            problem = f"{', '.join(map(str, left))} would stay without a size"
            remedy = "Give the sizes of all dims of a distributed module."
            raise ModelError("DIST0313", problem, location=str(gv.name_hint), remedy=remedy)
        for side in ("inputs", "outputs"):
            ports = [dict(port.items()) for port in io[side]]
            for port in ports:
                port["shape"] = [extent_value(_number(n), dims) for n in port["shape"]]
            io[side] = ports
        functions[gv] = fn.with_attr(IO_ATTR, io)
    return ir.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _number(extent: str | SupportsInt) -> int | str:
    return str(extent) if isinstance(extent, str) else int(extent)
