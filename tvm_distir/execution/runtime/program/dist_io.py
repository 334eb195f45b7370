# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read the entry functions of a level-5 module and their attribute ``dist.io``."""

from __future__ import annotations

from tvm import ir, relax

from tvm_distir.core.ir import mesh_devices, mesh_shape, meshes
from tvm_distir.core.ir.attributes import IO_ATTR
from tvm_distir.core.rewriting import entry_family, no_single_entry

from .io_layout import EntryFunction, check_entries, read_port, wrong_module


def _only_family(mod: ir.IRModule) -> str:
    names = {
        entry_family(str(gv.name_hint))
        for gv, fn in mod.functions.items()
        if isinstance(fn, relax.Function) and fn.attrs and IO_ATTR in fn.attrs
    }
    if not names:
        raise wrong_module("module", "no function has the attribute dist.io")
    if len(names) == 1 or "main" in names:
        return "main" if "main" in names else names.pop()
    raise no_single_entry(names)


def _entry(mod: ir.IRModule, name: str, fn: relax.Function) -> EntryFunction:
    io, known = fn.attrs[IO_ATTR], meshes(mod)
    number = int(io["mesh"])
    if not 0 <= number < len(known):
        raise wrong_module(name, f"dist.io names mesh {number}, and there are {len(known)} meshes")
    shape = mesh_shape(known[number])
    ins = tuple(read_port(item, name, shape) for item in io["inputs"])
    outs = tuple(read_port(item, name, shape) for item in io["outputs"])
    if len(ins) != len(fn.params):
        raise wrong_module(name, f"dist.io lists {len(ins)} inputs, there are {len(fn.params)}")
    devices = tuple(int(d) for d in mesh_devices(known[number]).ravel())
    ranks = tuple(int(d) for d in io["devices"]) if "devices" in io else devices
    dims = {str(dim): int(count) for dim, count in io["dims"].items()} if "dims" in io else {}
    return EntryFunction(name, number, shape, ranks, ins, outs, devices, dims)


def entries(mod: ir.IRModule, only: str | None = None) -> tuple[EntryFunction, ...]:
    """Return the entry functions of a level-5 module, in mesh order.

    Parameters
    ----------
    mod : IRModule
    only : str, optional
        Name of the original public function; ``main`` when the module holds several.

    Raises
    ------
    EngineError
        DIST0603 when there is none, or ``dist.io`` is wrong.
    ModelError
        DIST0341 when there are several of which none is ``main``.
    """
    names = only or _only_family(mod)
    result: list[EntryFunction] = []
    for gv, fn in mod.functions.items():
        name = str(gv.name_hint)
        if not isinstance(fn, relax.Function) or not fn.attrs or IO_ATTR not in fn.attrs:
            continue
        if names in (name, entry_family(name)):
            result.append(_entry(mod, name, fn))
    if not result:
        raise wrong_module(names, "there is no such entry function with the attribute dist.io")
    return check_entries(result)
