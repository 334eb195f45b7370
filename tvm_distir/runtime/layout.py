# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Whole arrays to per-rank arrays and back, as the attribute ``dist.io`` of the entries says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import ir, relax
from tvm.relax.distributed import DeviceMesh

from ..errors import RuntimeError_, nearest
from ..ir import (
    Labels,
    check_placement,
    device_coordinates,
    local_shape,
    mesh_devices,
    mesh_shape,
    meshes,
    parse_placement,
    placement_text,
    shard_slices,
)
from ..ir.attributes import IO_ATTR

Array = npt.NDArray[Any]
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Port:
    """One input or output of an entry function.

    Attributes
    ----------
    index : int
        Position in the original function's parameters or flattened results.
    name : str
    shape : tuple of int
        Whole shape.
    dtype : str
    labels : tuple of int
        Placement on the entry's mesh.
    """

    index: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    labels: Labels


@dataclass(frozen=True)
class Entry:
    """An entry function: what runs on every device of one mesh.

    Attributes
    ----------
    function : str
        Name in the module.
    mesh_index : int
    mesh : DeviceMesh
    ranks : tuple of int
        Device ids in row-major order of the mesh.
    inputs, outputs : tuple of Port
    """

    function: str
    mesh_index: int
    mesh: DeviceMesh
    ranks: tuple[int, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


def _wrong(place: str, what: str) -> RuntimeError_:
    return RuntimeError_(
        "DIST0603", what, place=place, remedy="Lower the module with LowerDistIR first."
    )


def np_dtype(name: str) -> np.dtype[Any]:
    """NumPy type of a TVM dtype name, ``bfloat16`` and the 8-bit floats through ml_dtypes."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found


def _port(item: Mapping[str, Any], place: str, mesh: DeviceMesh) -> Port:
    try:
        port = Port(
            int(item["index"]),
            str(item["name"]) if "name" in item else f"#{int(item['index'])}",
            tuple(int(n) for n in item["shape"]),
            str(item["dtype"]),
            parse_placement(str(item["placement"])),
        )
    except (KeyError, TypeError, ValueError) as err:
        raise _wrong(place, f"an item of dist.io cannot be read: {err}") from err
    check_placement(port.labels, mesh_shape(mesh), len(port.shape), f"{place}/{port.name}")
    return port


def _family(name: str) -> str:
    """Name of the original function: ``main`` of ``main_mesh1``."""
    head, mesh, number = name.rpartition("_mesh")
    return head if mesh and number.isdigit() else name


def _only_family(mod: ir.IRModule) -> str:
    names = {
        _family(str(gv.name_hint))
        for gv, fn in mod.functions.items()
        if isinstance(fn, relax.Function) and fn.attrs and IO_ATTR in fn.attrs
    }
    if not names:
        raise _wrong("module", "no function has the attribute dist.io")
    if len(names) == 1 or "main" in names:
        return "main" if "main" in names else names.pop()
    raise _wrong("module", f"several entry functions: {', '.join(sorted(names))}, none is main")


def entries(mod: ir.IRModule, only: str | None = None) -> tuple[Entry, ...]:
    """Entry functions of a level-5 module, in mesh order.

    Parameters
    ----------
    mod : IRModule
    only : str, optional
        Name of the original public function; ``main`` when the module holds several.

    Raises
    ------
    RuntimeError_
        DIST0603 when there is none, or ``dist.io`` is wrong.
    """
    known = meshes(mod)
    wanted = only or _only_family(mod)
    found: list[Entry] = []
    for gv, fn in mod.functions.items():
        name = str(gv.name_hint)
        if not isinstance(fn, relax.Function) or not fn.attrs or IO_ATTR not in fn.attrs:
            continue
        if wanted not in (name, _family(name)):
            continue
        io = fn.attrs[IO_ATTR]
        number = int(io["mesh"])
        if not 0 <= number < len(known):
            raise _wrong(name, f"dist.io names mesh {number} of {len(known)}")
        mesh = known[number]
        ins = tuple(_port(item, name, mesh) for item in io["inputs"])
        outs = tuple(_port(item, name, mesh) for item in io["outputs"])
        if len(ins) != len(fn.params):
            raise _wrong(name, f"dist.io lists {len(ins)} inputs, there are {len(fn.params)}")
        ranks = tuple(int(d) for d in mesh_devices(mesh).ravel())
        found.append(Entry(name, number, mesh, ranks, ins, outs))
    if not found:
        raise _wrong(wanted, "no such entry function with the attribute dist.io")
    found.sort(key=lambda e: (e.mesh_index, e.function))
    owner: dict[int, str] = {}
    for entry in found:
        for rank in entry.ranks:
            if rank in owner:
                raise _wrong(
                    entry.function, f"device {rank} belongs to {owner[rank]} and {entry.function}"
                )
            owner[rank] = entry.function
    return tuple(found)


def whole_inputs(
    found: Sequence[Entry], inputs: Sequence[Any] | Mapping[str, Any]
) -> dict[int, Array]:
    """Check the arrays given to a run and index them by original parameter position.

    Parameters
    ----------
    found : sequence of Entry
    inputs : sequence in the original function's order, or mapping by parameter name
        Whole arrays (anything NumPy reads), of exactly the shape and type of the parameter.

    Raises
    ------
    RuntimeError_
        DIST0602 naming the input.
    """
    ports: dict[int, Port] = {}
    for entry in found:
        for port in entry.inputs:
            ports.setdefault(port.index, port)
    count = max(ports, default=-1) + 1
    if isinstance(inputs, Mapping):
        names = {p.name: i for i, p in ports.items()}
        for name in inputs:
            if name not in names:
                raise _bad_input(f'there is no input "{name}"', nearest(name, names))
        missing = sorted(set(names) - set(inputs))
        if missing:
            raise _bad_input(f"missing: {', '.join(missing)}", "Give every input.")
        given = {names[name]: value for name, value in inputs.items()}
    else:
        if len(inputs) != count:
            raise _bad_input(f"{len(inputs)} inputs given, {count} needed", "Give every input.")
        given = dict(enumerate(inputs))
    out: dict[int, Array] = {}
    for index, port in sorted(ports.items()):
        value = given[index]
        array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
        dtype = np_dtype(port.dtype)
        if array.shape != port.shape:
            raise _bad_input(
                f"shape {array.shape} given, {port.shape} needed", "Give the whole array.", port
            )
        if array.dtype != dtype:
            raise _bad_input(
                f"type {array.dtype} given, {dtype} needed", f'Use .astype("{dtype}").', port
            )
        out[index] = array
    return out


def _bad_input(what: str, remedy: str, port: Port | None = None) -> RuntimeError_:
    place = f'input {port.index} "{port.name}"' if port else "inputs"
    return RuntimeError_("DIST0602", what, place=place, remedy=remedy)


def shard(array: Array, labels: Labels, mesh: DeviceMesh) -> list[Array]:
    """Cut a whole array into one (zero-padded) local array per device, in device order.

    Every local array has the shape ``ceil(n / k)`` per dim cut into k shards.
    """
    shape = mesh_shape(mesh)
    size = [int(n) for n in local_shape(array.shape, labels, shape)]
    made: dict[tuple[tuple[int, int], ...], Array] = {}
    out = []
    for device in mesh_devices(mesh).ravel():
        bounds = tuple(
            shard_slices(array.shape, labels, shape, device_coordinates(mesh, int(device)))
        )
        if bounds not in made:
            part = array[tuple(slice(a, b) for a, b in bounds)]
            if list(part.shape) != size:
                padded = np.zeros(size, array.dtype)
                padded[tuple(slice(0, n) for n in part.shape)] = part
                part = padded
            made[bounds] = np.ascontiguousarray(part).reshape(size)
        out.append(made[bounds])
    return out


def gather(parts: Sequence[Array], port: Port, mesh: DeviceMesh, place: str) -> Array:
    """Join the local arrays of all devices of a mesh into the whole array, cutting padding off.

    Raises
    ------
    RuntimeError_
        DIST0604 when two replicas differ in any bit, naming the output and the ranks;
        DIST0603 when a local array has a wrong shape or type.
    """
    shape = mesh_shape(mesh)
    size = tuple(int(n) for n in local_shape(port.shape, port.labels, shape))
    dtype = np_dtype(port.dtype)
    whole = np.zeros(port.shape, dtype)
    holder: dict[tuple[tuple[int, int], ...], tuple[int, Array]] = {}
    for device, part in zip(mesh_devices(mesh).ravel().tolist(), parts):
        if part.shape != size or part.dtype != dtype:
            raise RuntimeError_(
                "DIST0603",
                f"rank {device} gave {part.dtype}{list(part.shape)}, "
                f"dist.io promises {dtype}{list(size)}",
                place=place,
                remedy="The entry function and its dist.io disagree: lower the module again.",
            )
        bounds = tuple(
            shard_slices(port.shape, port.labels, shape, device_coordinates(mesh, device))
        )
        kept = part[tuple(slice(0, b - a) for a, b in bounds)]
        if bounds in holder:
            first, other = holder[bounds]
            if not same_bits(kept, other):
                raise RuntimeError_(
                    "DIST0604",
                    f"ranks {first} and {device} hold different bits of a value that lies "
                    f'"{placement_text(port.labels)}"',
                    place=place,
                    remedy="A collective is missing, or the engine reduces in another order.",
                )
            continue
        holder[bounds] = (device, kept)
        whole[tuple(slice(a, b) for a, b in bounds)] = kept
    return whole


def same_bits(a: Array, b: Array) -> bool:
    """Whether two arrays of one type are equal bit for bit (NaN and -0.0 included)."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    word = np.dtype(f"u{a.dtype.itemsize}") if a.dtype.itemsize in (1, 2, 4, 8) else np.uint8
    one, other = (np.ascontiguousarray(v).reshape(-1).view(word) for v in (a, b))
    return all(
        bool((one[i : i + _CHUNK] == other[i : i + _CHUNK]).all())
        for i in range(0, one.size, _CHUNK)
    )


def shard_inputs(
    mod: ir.IRModule, inputs: Sequence[Any] | Mapping[str, Any]
) -> list[list[list[Array]]]:
    """Per entry (mesh), per device in row-major order, the local arrays in ``dist.io`` order.

    Parameters
    ----------
    mod : IRModule
        At level 5.
    inputs : sequence or mapping of whole arrays
        As for :func:`tvm_distir.runtime.run`.
    """
    found = entries(mod)
    whole = whole_inputs(found, inputs)
    out = []
    for entry in found:
        columns = [shard(whole[p.index], p.labels, entry.mesh) for p in entry.inputs]
        out.append([[col[i] for col in columns] for i in range(len(entry.ranks))])
    return out


def gather_outputs(mod: ir.IRModule, results: Sequence[Sequence[Sequence[Array]]]) -> list[Array]:
    """Whole outputs, in the order of the original function's flattened results.

    Parameters
    ----------
    mod : IRModule
        At level 5.
    results : per entry, per device in row-major order, the local results
        In ``dist.io`` order.

    Raises
    ------
    RuntimeError_
        DIST0604 when replicas (on one mesh or on several) differ in any bit, DIST0603 when an
        output is missing.
    """
    whole: dict[int, tuple[str, Array]] = {}
    for entry, per_rank in zip(entries(mod), results):
        for rank, outs in zip(entry.ranks, per_rank):
            if len(outs) != len(entry.outputs):
                raise _wrong(
                    entry.function,
                    f"rank {rank} gave {len(outs)} results, dist.io lists {len(entry.outputs)}",
                )
        for k, port in enumerate(entry.outputs):
            place = f'{entry.function}/output {port.index} "{port.name}"'
            value = gather([outs[k] for outs in per_rank], port, entry.mesh, place)
            if port.index not in whole:
                whole[port.index] = (entry.function, value)
            elif not same_bits(whole[port.index][1], value):
                raise RuntimeError_(
                    "DIST0604",
                    f"{whole[port.index][0]} and {entry.function} give different bits",
                    place=place,
                    remedy="Return it from one mesh, or complete it before it leaves.",
                )
    if sorted(whole) != list(range(len(whole))):
        raise _wrong("module", f"the entries give outputs {sorted(whole)}: one is missing")
    return [whole[i][1] for i in range(len(whole))]
