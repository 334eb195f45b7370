# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Export a level-5 module to a ``Program``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tvm import ir, relax

from tvm_distir.core.collectives import with_collectives
from tvm_distir.core.ir import (
    check_module,
    mesh_axes,
    mesh_key,
    mesh_names,
    meshes,
    relax_functions,
)
from tvm_distir.core.ir.attributes import IO_ATTR, NUM_INPUT_ATTR
from tvm_distir.core.plan import Pipeline, plain_name
from tvm_distir.core.rewriting import (
    dims_remedy,
    entry_family,
    gc_paused,
    no_single_entry,
    plain_calls,
)
from tvm_distir.support import SimulationError

from .callees import with_callees
from .function_exporter import FunctionExporter
from .mesh import Mesh
from .parts import Entry, Function
from .program import Program
from .training import state_kinds, updates, with_gradients


@gc_paused()
def export(mod: ir.IRModule) -> Program:
    """Export a level-5 module to the simulator's input; pipelines keep their stages.

    Functions and calls are kept, repeated layers not unrolled. Tuples are flattened. Reshapes
    that TVM turns into views cost nothing, nor do transposes that only matrix products read;
    every other op gets its FLOPs and bytes from its sharding rule. An op without a rule is kept,
    with ``modelled`` false and the reason.

    The inputs of an entry that are *weights*: where an item of ``dist.io`` has a ``"role"``, it
    decides; else the attribute ``num_input`` of the entry, which counts the data parameters of
    the original function; else all inputs of floating type but the original's first are weights.

    Parameters
    ----------
    mod : IRModule
        A module at the level local, with ``dist.io`` on its entries.

    Raises
    ------
    SimulationError
        DIST0714 for a module that is not at that level, or whose shapes are symbolic; DIST0713
        for cyclic calls.
    ModelError
        DIST0341 where the module has several entry functions of which none is ``main``.
    LoweringError
        DIST0512 where the stages of a step do not fit together.

    Examples
    --------
    >>> mod = td.zoo.build("mlp", {"batch": 4, "layers": 1, "hidden": 8})
    >>> plan = td.Plan(mesh={"tp": 2}, rules={"x": td.P(None, "tp")})
    >>> dist = td.distribute(mod, plan)
    >>> [(op.op, op.flops) for op in td.export(dist).functions["main"].ops if op.kind != "view"]
    [('relax.matmul', 256), ('relax.dist.all_reduce', 0), ('relax.add', 32)]
    """
    check_module(mod, "td.export")
    mod = with_collectives(plain_calls(mod))
    entries, pipeline = _entry_functions(mod), Pipeline.of(mod)
    _refuse_symbolic_dims(entries)
    if pipeline is not None:
        from .staging import export_stages

        return export_stages(mod, pipeline)
    families = {entry_family(name) for name in entries}
    if len(families) > 1:
        raise no_single_entry(families)
    mesh_list = [
        Mesh.of(name, axes, mesh)
        for name, axes, mesh in zip(mesh_names(mod), mesh_axes(mod), meshes(mod), strict=True)
    ]
    functions = _reachable(mod, entries)
    program = Program(
        meshes=tuple(mesh_list),
        functions=functions,
        entries=tuple(
            replace(_entry(name, fn), alias=updates(fn, functions[name]))
            for name, fn in entries.items()
        ),
    )
    program.check("export")
    return program


def _refuse_symbolic_dims(entries: Mapping[str, relax.Function]) -> None:
    """Refuse (DIST0714) entries whose dims get their sizes from the inputs of a run."""
    for name, fn in entries.items():
        io = fn.attrs[IO_ATTR]
        if "dims" in io:
            dims = [str(dim) for dim in io["dims"]]
            problem = f"costs need the sizes of {', '.join(dims)}"
            raise SimulationError("DIST0714", problem, location=name, remedy=dims_remedy(dims))


def _entry(name: str, fn: relax.Function) -> Entry:
    io = fn.attrs[IO_ATTR]
    devices = tuple(int(d) for d in io["devices"]) if "devices" in io else ()
    return Entry(int(io["mesh"]), name, devices)


def _entry_functions(mod: ir.IRModule) -> dict[str, relax.Function]:
    """Return the functions with ``dist.io``, by mesh, then by name."""
    entries = {
        str(gv.name_hint): fn for gv, fn in relax_functions(mod) if fn.attrs and IO_ATTR in fn.attrs
    }
    if not entries:
        problem = f"no function has the attribute {IO_ATTR}"
        remedy = "Export the module of td.distribute(mod, plan), or lower it with LowerDistIR."
        raise SimulationError("DIST0714", problem, location="module", remedy=remedy)
    mains = {name: fn for name, fn in entries.items() if entry_family(name) == "main"}
    chosen = [(int(fn.attrs[IO_ATTR]["mesh"]), name) for name, fn in (mains or entries).items()]
    return {name: entries[name] for _, name in sorted(chosen)}


def _reachable(mod: ir.IRModule, entries: Mapping[str, relax.Function]) -> dict[str, Function]:
    """Return the entries and all functions they call, each on the first mesh that reaches it."""
    out: dict[str, Function] = {}
    for name, fn in entries.items():
        entry, exporter = _entry(name, fn), FunctionExporter(mod, name, fn)
        exported = exporter.run(entry.mesh, _param_rows(mod, fn), entry.device_ids)
        out[name] = with_gradients(fn, exported)
        out = with_callees(mod, out, [exporter])
    return out


def _param_rows(mod: ir.IRModule, fn: relax.Function) -> list[dict[str, Any]]:
    """Return the role, global shape, placement and mesh of each parameter of an entry."""
    items = fn.attrs[IO_ATTR]["inputs"][:]
    if len(items) != len(fn.params):
        raise SimulationError(
            "DIST0714", f"{IO_ATTR} lists {len(items)} inputs, there are {len(fn.params)}",
            location="entry", remedy="Lower the module with LowerDistIR first.",
        )  # fmt: skip
    data_count = int(fn.attrs[NUM_INPUT_ATTR]) if NUM_INPUT_ATTR in fn.attrs else None
    known = [mesh_key(mesh) for mesh in meshes(mod)]
    states = state_kinds(fn)
    out = []
    for position, item in enumerate(items):
        index, dtype = int(item["index"]), str(item["dtype"])
        if "role" in item:
            weight = str(item["role"]) == "weight"
        elif data_count is not None:
            weight = position >= data_count
        else:
            weight = index > 0 and dtype.startswith(("float", "bfloat"))
        out.append(
            {
                "role": states.get(plain_name(str(item["name"])), "weight" if weight else "input"),
                "whole_shape": tuple(int(n) for n in item["shape"][:]),
                "placement": str(item["placement"]),
                "mesh": _mesh_number(known, item["mesh"]) if "mesh" in item else None,
            }
        )
    return out


def _mesh_number(known: Sequence[Any], mesh: Mapping[str, Any]) -> int:
    """Number of a mesh that an item of ``dist.io`` describes."""
    key = tuple(tuple(int(n) for n in mesh[part]) for part in ("shape", "devices"))
    if key not in known:
        raise SimulationError(
            "DIST0714", f"{IO_ATTR} names a mesh of shape {key[0]} that the module does not have",
            location="entry", remedy="Lower the module with LowerDistIR first.",
        )  # fmt: skip
    return known.index(key)
