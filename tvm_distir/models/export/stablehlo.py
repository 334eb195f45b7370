# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Export modules of levels 1 to 5 as StableHLO text with shardings of Shardy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import ir, relax
from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.ir import (
    Labels,
    axis_groups,
    check_module,
    is_private,
    mesh_axes,
    mesh_devices,
    mesh_index,
    mesh_names,
    mesh_shape,
    meshes,
    parse_placement,
    relax_functions,
    segments_of,
)
from tvm_distir.core.ir.attributes import IO_ATTR, num_input
from tvm_distir.core.ir.views import first_view
from tvm_distir.core.rewriting import gc_paused, plain_calls
from tvm_distir.models.common.hlo_names import KERNEL_OPERATION
from tvm_distir.support import UsageError, nearest

from .body_writer import Ssa
from .composites import Composites
from .function_writer import FunctionWriter, annotation_orders, fault
from .port_attributes import NUM_INPUT, port_notes
from .sub_axes import axes_text, sizes_of_joined
from .text import string, symbol, tensor_text

PARTITIONINGS = ("auto", "manual", "replicas")
"""How a local module can be written; other modules ignore it."""


@gc_paused()
def to_stablehlo(mod: ir.IRModule, partitioning: str = "auto", *, composites: bool = True) -> str:
    """Write a module as text of StableHLO, in MLIR's generic form.

    Parameters
    ----------
    mod : IRModule
        A module at any level. Global: plain functions. Annotated: with ``sdy.mesh``,
        ``sdy.sharding`` on arguments and ``sdy.sharding_constraint``. Distributed and legalized:
        with shardings of all arguments and results, and constraints where values are redistributed
        (the partitioner that reads it chooses collectives). Local: with explicit collectives.
    partitioning : str
        How a local module is written: ``manual``, full arrays and ``sdy.manual_computation``,
        which requires even shards; ``replicas``, the program of each device, of local shapes, as
        replicas numbered in the order of device ids, with attributes that say of which arrays
        arguments and results are parts; ``auto``, the first where it is possible. Modules of
        other levels ignore it.
    composites : bool
        Whether ops that StableHLO lacks (softmax, layer_norm, take, ...) are written as its
        composites: by name and attributes, with a function that says what they compute. They are
        read as the ops that they were. Otherwise their operations stand in their place.

    Returns
    -------
    str

    Raises
    ------
    UsageError
        DIST0152 for an unknown partitioning.
    ModelError
        DIST0380 naming what StableHLO cannot express.

    Examples
    --------
    >>> mod = td.zoo.build("mlp", {"batch": 4, "layers": 1, "hidden": 8})
    >>> print(td.to_stablehlo(mod))
    module attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
      func.func public @main(%arg0: tensor<4x8xf32> loc("x"), ...
    """
    check_module(mod, "td.to_stablehlo")
    if partitioning not in PARTITIONINGS:
        problem = f'there is no partitioning "{partitioning}"'
        remedy = nearest(partitioning, PARTITIONINGS)
        raise UsageError("DIST0152", problem, location="partitioning", remedy=remedy)
    return _Writer(plain_calls(mod), partitioning, Composites() if composites else None).text()


class _Writer:
    """Writer of a module, which provides its devices to functions."""

    def __init__(self, mod: ir.IRModule, partitioning: str, composites: Composites | None) -> None:
        self._mod, self._composites = mod, composites
        self._meshes = meshes(mod)
        self._names, self._axes = mesh_names(mod), mesh_axes(mod)
        self._first_views = [
            mesh_index(mod, first_view(mesh, self._meshes)) for mesh in self._meshes
        ]
        functions = relax_functions(mod)
        self._orders = {k: v for _, fn in functions for k, v in annotation_orders(fn).items()}
        self._entries = [str(gv.name_hint) for gv, fn in functions if _io(fn) is not None]
        for gv, fn in functions:
            ports = (_io(fn) or {}).get("inputs", ())
            if segments_of(fn.attrs) or any("segments" in port for port in ports):
                raise fault(str(gv.name_hint), "an input with interleaved segments")
        self.is_local = bool(self._entries)
        ids = sorted({d for number in self._on_own_devices() for d in self._devices(number)})
        self._numbers = {device: number for number, device in enumerate(ids)}
        self.partitioning = partitioning if self.is_local else "global"
        if self.partitioning == "auto":
            io = _io(mod[self._entries[0]])
            self.partitioning = "manual" if self._not_manual(io) is None else "replicas"

    def text(self) -> str:
        if len(self._entries) > 1:
            listed = ", ".join(self._entries)
            raise fault("module", f"several programs on separate meshes: {listed}")
        functions = "".join(
            self._function(str(gv.name_hint), fn) for gv, fn in relax_functions(self._mod)
        )
        functions += "".join(self._composites.functions if self._composites else ())
        numbers = self._on_own_devices()
        if self.partitioning != "replicas":
            numbers = [number for number in numbers if self._first_views[number] == number]
        lines = [self._mesh(number) for number in numbers]
        replicas = len(self._numbers) if self.partitioning == "replicas" else 1
        partitions = len(self._numbers) if self.partitioning != "replicas" and self._meshes else 1
        notes = f"mhlo.num_partitions = {partitions} : i32, mhlo.num_replicas = {replicas} : i32"
        return f"module attributes {{{notes}}} {{\n" + "".join(lines) + functions + "}\n"

    def _devices(self, index: int) -> list[int]:
        return [int(d) for d in mesh_devices(self._meshes[index]).ravel()]

    def _on_own_devices(self) -> list[int]:
        """Return the numbers of the meshes, at level 5 of those on the program's devices."""
        every = list(range(len(self._meshes)))
        if not self._entries:
            return every
        devices = set(self._devices(int(_io(self._mod[self._entries[0]])["mesh"])))
        return [number for number in every if set(self._devices(number)) == devices]

    def _mesh(self, index: int) -> str:
        axes = ", ".join(f"{string(name)}={size}" for name, size in self._sizes(index).items())
        ids = list(map(self.number, self._devices(index)))
        order = "" if ids == list(range(len(ids))) else f", device_ids={ids}"
        if sorted(ids) != list(range(len(ids))):
            raise fault(self._names[index], "a mesh of some of the module's devices only")
        return f"  sdy.mesh {symbol(self._names[index])} = <[{axes}]{order}>\n"

    def number(self, device: int) -> int:
        """Return the number of a device in the program."""
        return self._numbers[device]

    def operation(self, kernel: ir.GlobalVar) -> str | None:
        """Return the operation of StableHLO that a kernel computes, if it was imported from one."""
        name = (self._mod[kernel].attrs or {}).get(KERNEL_OPERATION)
        return None if name is None else str(name)

    def groups(self, mesh: DeviceMesh, axes: Sequence[int]) -> list[list[int]]:
        """Return the groups of devices along some axes, by number."""
        return [[self.number(d) for d in group] for group in axis_groups(mesh, axes)]

    def sharding(self, mesh: DeviceMesh, labels: Labels, rank: int, call: ir.Call | None) -> str:
        """Return a sharding such as ``<@mesh, [{"x"}, {}]>`` by the axes of a mesh's first view."""
        index = mesh_index(self._mod, mesh)
        first = self._first_views[index]
        dims = []
        for dim in range(rank):
            axes = [a for a, label in enumerate(labels) if label == dim]
            stated = (order for order in self._orders.get(call, ()) if {*order} == {*axes})
            named = {self._axes[index][a]: mesh_shape(mesh)[a] for a in next(stated, axes)}
            dims.append(axes_text(named, self._sizes(first)))
        return f"<{symbol(self._names[first])}, [{', '.join(dims)}]>"

    def _sizes(self, index: int) -> Mapping[str, int]:
        """Return the axes of a mesh as the text names them."""
        axes = dict(zip(self._axes[index], mesh_shape(self._meshes[index])))
        return axes if self.partitioning == "replicas" else sizes_of_joined(axes)

    def _function(self, name: str, fn: relax.Function) -> str:
        writer = FunctionWriter(name, fn, self, self._composites)
        results = writer.run()
        io = _io(fn)
        if io is not None and self.partitioning == "manual":
            return self._manual(writer, results, io, self._notes(fn))
        kind = "private" if is_private(fn) else "public"
        port_texts = None
        if io is not None and self.partitioning == "replicas":
            port_texts = port_notes(io, lambda port: self._names[self._mesh_of(port, io)])
        is_public = kind == "public"
        arguments = ", ".join(
            writer.signature(port_texts.inputs if port_texts else None, is_public)
        )
        title = "main" if io is not None else name
        head = f"  func.func {kind} @{title}({arguments})"
        types = ", ".join(writer.results(results, port_texts.outputs if port_texts else None))
        lines = "".join(f"    {line}\n" for line in writer.body.lines)
        notes = self._notes(fn) if is_public else ""
        ended = _return("func.return", results)
        return f"{head} -> ({types}) {notes}{{\n{lines}    {ended}\n  }}\n"

    def _notes(self, fn: relax.Function) -> str:
        """Return the attribute with the number of leading data arguments, if any."""
        count = num_input(fn)
        if count is None:
            return ""
        note = f'{NUM_INPUT} = "{count}"'
        return f"attributes {{mhlo.frontend_attributes = {{{note}}}}} "

    def _mesh_of(self, port: ir.Map, io: ir.Map) -> int:
        """Return the number of the mesh of an input or output."""
        if "mesh" not in port:
            return int(io["mesh"])
        shape, devices = ([int(n) for n in port["mesh"][key]] for key in ("shape", "devices"))
        for number, mesh in enumerate(self._meshes):
            if [int(n) for n in mesh_shape(mesh)] == shape and self._devices(number) == devices:
                return number
        raise fault(_title(port), f"on a mesh {shape} that the module does not have")

    def _not_manual(self, io: ir.Map) -> str | None:
        """Return why an entry cannot be a manual computation, or None."""
        for port in [*io["inputs"], *io["outputs"]]:
            number = self._mesh_of(port, io)
            sizes = mesh_shape(self._meshes[number])
            if self._first_views[number] != self._first_views[int(io["mesh"])]:
                return f'"{_title(port)}" is on another mesh'
            shape = [int(n) for n in port["shape"]]
            for label, size in zip(self._labels(port), sizes):
                if label >= 0:
                    shape[label], rest = divmod(shape[label], size)
                    if rest:
                        return f'"{_title(port)}" is not sharded into equal shards'
        return None

    @staticmethod
    def _labels(port: ir.Map) -> Labels:
        return parse_placement(str(port["placement"]))

    def _port(self, port: ir.Map, io: ir.Map) -> tuple[str, str]:
        """Return the type and sharding of the full array of an input or output."""
        mesh = self._meshes[self._mesh_of(port, io)]
        shape = [int(n) for n in port["shape"]]
        kind = tensor_text(shape, str(port["dtype"]))
        return kind, self.sharding(mesh, self._labels(port), len(shape), None)

    def _manual(self, writer: FunctionWriter, results: list[Ssa], io: ir.Map, notes: str) -> str:
        """Write the entry as a function of full arrays around the local program."""
        reason = self._not_manual(io)
        if reason is not None:
            raise fault(
                "main", f"no manual computation can express it, as {reason}; write it as replicas"
            )
        ins, outs = ([self._port(p, io) for p in io[side]] for side in ("inputs", "outputs"))
        names = [str(port["name"]) for port in io["inputs"]]
        arguments = ", ".join(
            f"%in{i}: {kind} {{sdy.sharding = #sdy.sharding{sharding}}} loc({string(name)})"
            for i, ((kind, sharding), name) in enumerate(zip(ins, names))
        )
        result_types = ", ".join(
            f"{kind} {{sdy.sharding = #sdy.sharding{sharding}}}" for kind, sharding in outs
        )
        axes = ", ".join(map(string, self._sizes(self._first_views[int(io["mesh"])])))
        shardings = [", ".join(sharding for _, sharding in side) for side in (ins, outs)]
        kinds = [", ".join(kind for kind, _ in side) for side in (ins, outs)]
        count = f":{len(outs)}" if len(outs) != 1 else ""
        names_ = ", ".join(f"%out#{i}" if count else "%out" for i in range(len(outs)))
        operands = ", ".join(f"%in{i}" for i in range(len(ins)))
        lines = "".join(f"      {line}\n" for line in writer.body.lines)
        inner = ", ".join(f"{value.name}: {value.type}" for value in writer.arguments)
        ended = ", ".join(value.name for value in results)
        types = ", ".join(value.type for value in results)
        return (
            f"  func.func public @main({arguments}) -> ({result_types}) {notes}{{\n"
            f"    %out{count} = sdy.manual_computation({operands}) in_shardings=[{shardings[0]}] "
            f"out_shardings=[{shardings[1]}] manual_axes={{{axes}}} ({inner}) {{\n{lines}"
            f"      sdy.return {ended} : {types}\n    }} : ({kinds[0]}) -> ({kinds[1]})\n"
            f'    "func.return"({names_}) : ({kinds[1]}) -> ()\n  }}\n'
        )


def _io(fn: relax.Function) -> Any:
    attrs: Any = fn.attrs or {}
    return attrs[IO_ATTR] if IO_ATTR in attrs else None


def _title(port: ir.Map) -> str:
    return str(port.get("name", f"output {port['index']}"))


def _return(name: str, values: Sequence[Ssa]) -> str:
    names, types = (
        ", ".join(part) for part in ([v.name for v in values], [v.type for v in values])
    )
    return f'"{name}"({names}) : ({types}) -> ()'
