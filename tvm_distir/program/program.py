# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The ``Program``: what every device does, as plain data; functions and calls stay as they are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1
KINDS = ("compute", "collective", "wait", "call", "branch", "transfer", "view")
COLLECTIVES = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute",
    "exchange",
)  # fmt: skip
TRANSFERS = ("send", "recv")
ROLES = ("activation", "input", "weight", "constant")
KERNEL_CLASSES = ("matmul", "conv", "attention", "memory", "gather", "view")


@dataclass(frozen=True)
class Mesh:
    """A device mesh: axis names and sizes major first, device ids row-major over them."""

    name: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    device_ids: tuple[int, ...]

    def groups(self, axes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Groups of devices that differ in the coordinates along ``axes`` only."""
        rows: dict[tuple[int, ...], list[int]] = {}
        for position, device in enumerate(self.device_ids):
            rest, key = position, []
            for axis in reversed(range(len(self.shape))):
                rest, coordinate = divmod(rest, self.shape[axis])
                key.append(0 if axis in axes else coordinate)
            rows.setdefault(tuple(key), []).append(device)
        return tuple(tuple(row) for row in rows.values())


@dataclass(frozen=True)
class Value:
    """One tensor of a function, as one device holds it.

    Attributes
    ----------
    name, dtype : str
    shape : tuple of int
        Local shape.
    bytes : int
        Local size.
    role : str
        ``activation``; ``constant`` (at hand from the start, produced by no op); of an entry's
        parameters ``weight`` or ``input``.
    whole_shape : tuple of int, optional
        Of an entry's parameters: the shape over all devices of the mesh.
    placement : str, optional
        Of an entry's parameters.
    mesh : int, optional
        Of an entry's parameters: the mesh it lies on, where that is not the entry's own.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    role: str = "activation"
    whole_shape: tuple[int, ...] | None = None
    placement: str | None = None
    mesh: int | None = None


@dataclass(frozen=True)
class Op:
    """One step of a function.

    Attributes
    ----------
    name : str
        Of the binding.
    kind : str
        ``compute``, ``collective``, ``wait`` (for a collective that was started: its operand),
        ``call``, ``branch``, ``transfer``, or ``view``: its result is its first operand's memory
        under another shape. The operands of a ``branch`` are the
        condition, those of ``callee``, those of ``otherwise``.
    op : str
        What is called: op, PrimFunc or function.
    inputs, outputs : tuple of int
        Indices into the function's ``values``.
    flops, bytes_read, bytes_written : int
        Work of a compute op on one device.
    modelled : bool
        False where the work is not known; ``reason`` says why, the bytes are then those of all
        operands and results.
    kernel_class, dtype : str
        Of a compute op: which of the hardware's peaks it can reach.
    callee : str
        Of a call: the function. Of a branch: the one that runs when the condition holds.
    otherwise : str
        Of a branch: the other function.
    collective : str
        Of a collective: its kind. Of a transfer: ``send`` or ``recv``.
    mesh : int
        Of a collective or transfer: the mesh it works on.
    mesh_axes : tuple of int
        Of a collective: the axes it works along.
    group_size : int
        Of a collective: devices per group.
    payload_bytes : int
        Of a collective: size of one device's result. Of a transfer: size of one device's tensor.
    wire_bytes : int
        Of a transfer: the most that one device of this end sends or receives; in an entry, one
        device that runs it. What stays on its device is not counted.
    tag, peer_mesh : int
        Of a transfer: what joins its ends, and the mesh at the other end.
    """

    name: str
    kind: str
    op: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    modelled: bool = True
    kernel_class: str = ""
    dtype: str = ""
    reason: str = ""
    callee: str = ""
    otherwise: str = ""
    collective: str = ""
    mesh: int = 0
    mesh_axes: tuple[int, ...] = ()
    group_size: int = 0
    payload_bytes: int = 0
    wire_bytes: int = 0
    tag: int = 0
    peer_mesh: int = 0

    @property
    def is_start(self) -> bool:
        """Whether it is a collective that other work may overlap, until its ``wait``."""
        return self.kind == "collective" and self.op.endswith("_start")

    @property
    def callees(self) -> tuple[str, ...]:
        """Functions that it calls, or may call."""
        return tuple(name for name in (self.callee, self.otherwise) if name)


COMMON_KEYS = (
    "name", "kind", "op", "inputs", "outputs", "flops", "bytes_read", "bytes_written", "modelled",
)  # fmt: skip
EXTRA_KEYS: Mapping[str, tuple[str, ...]] = {
    "compute": ("kernel_class", "dtype"),
    "collective": ("collective", "mesh", "mesh_axes", "group_size", "payload_bytes"),
    "call": ("callee",),
    "branch": ("callee", "otherwise"),
    "transfer": ("collective", "mesh", "tag", "peer_mesh", "payload_bytes", "wire_bytes"),
    "view": (),
    "wait": (),
}
"""What an op of each kind has besides :data:`COMMON_KEYS` (and ``reason``, if not modelled)."""


@dataclass(frozen=True)
class Function:
    """Values, and steps in program order. ``mesh`` is the first mesh it runs on."""

    mesh: int
    params: tuple[int, ...]
    ops: tuple[Op, ...]
    results: tuple[int, ...]
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Entry:
    """What all devices that belong to the same meshes run.

    Attributes
    ----------
    mesh : int
        The first mesh it works on.
    function : str
    device_ids : tuple of int
        The devices that run it, where others of the mesh run another entry; empty: all.
    """

    mesh: int
    function: str
    device_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Program:
    """What every device does in one step, hierarchical: functions call functions.

    Attributes
    ----------
    meshes : tuple of Mesh
    functions : mapping of str to Function
    entries : tuple of Entry
        One per mesh that runs something; where meshes share devices, one for all devices that
        belong to the same meshes.
    """

    meshes: tuple[Mesh, ...]
    functions: Mapping[str, Function]
    entries: tuple[Entry, ...]

    def to_dict(self) -> dict[str, Any]:
        """Give the program as plain data, the content of its JSON file."""
        return {
            "schema_version": SCHEMA_VERSION,
            "meshes": [
                {
                    "name": mesh.name,
                    "axes": list(mesh.axes),
                    "shape": list(mesh.shape),
                    "device_ids": list(mesh.device_ids),
                }
                for mesh in self.meshes
            ],
            "functions": {name: _function_dict(fn) for name, fn in self.functions.items()},
            "entries": [_entry_dict(one) for one in self.entries],
        }

    def to_json(self) -> str:
        """Give the program as JSON text."""
        return json.dumps(self.to_dict(), indent=None, separators=(",", ":"), allow_nan=False)

    def save(self, path: str | Path) -> None:
        """Write the JSON file."""
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    @staticmethod
    def from_dict(data: Any, place: str = "program") -> Program:
        """Read plain data, each key and index checked.

        Raises
        ------
        SimulationError
            DIST0710 for an unknown, missing or wrong value, DIST0711 for another schema version,
            DIST0712 for what contradicts itself, such as a callee that is not there, DIST0713
            for cyclic calls.
        """
        from .reading import parse

        return parse(data, place)

    @staticmethod
    def from_json(text: str, place: str = "program") -> Program:
        """Read JSON text. Errors as in :meth:`from_dict`; DIST0710 for what is no JSON."""
        from .reading import parse_json

        return parse_json(text, place)

    @staticmethod
    def load(path: str | Path) -> Program:
        """Read a JSON file. Errors as in :meth:`from_json`."""
        from .reading import load

        return load(path)

    def device_count(self) -> int:
        """Number of devices that run something."""
        return sum(len(self.devices_of(entry)) for entry in self.entries)

    def devices_of(self, entry: Entry) -> tuple[int, ...]:
        """Devices that run an entry."""
        return entry.device_ids or self.meshes[entry.mesh].device_ids

    def leads(self, entry: Entry, mesh: int) -> bool:
        """Whether an entry runs on the first device of a mesh: what entries share counts there."""
        return self.meshes[mesh].device_ids[0] in self.devices_of(entry)

    def place_of(self, entry: Entry) -> str:
        """Names of the meshes that an entry works on, ``mesh0+mesh1``."""
        fn = self.functions[entry.function]
        values = [fn.values[i] for i in fn.params]
        found = {entry.mesh, *(value.mesh for value in values if value.mesh is not None)}
        found.update(op.mesh for op in fn.ops if op.kind in ("collective", "transfer"))
        return "+".join(self.meshes[number].name for number in sorted(found))


def _entry_dict(entry: Entry) -> dict[str, Any]:
    out: dict[str, Any] = {"mesh": entry.mesh, "function": entry.function}
    if entry.device_ids:
        out["device_ids"] = list(entry.device_ids)
    return out


def _function_dict(fn: Function) -> dict[str, Any]:
    return {
        "mesh": fn.mesh,
        "params": list(fn.params),
        "results": list(fn.results),
        "values": [_value_dict(value) for value in fn.values],
        "ops": [_op_dict(op) for op in fn.ops],
    }


def _value_dict(value: Value) -> dict[str, Any]:
    out: dict[str, Any] = {
        "name": value.name,
        "shape": list(value.shape),
        "dtype": value.dtype,
        "bytes": value.bytes,
    }
    if value.role != "activation":
        out["role"] = value.role
    if value.whole_shape is not None:
        out["whole_shape"] = list(value.whole_shape)
    if value.placement is not None:
        out["placement"] = value.placement
    if value.mesh is not None:
        out["mesh"] = value.mesh
    return out


def _op_dict(op: Op) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key in (*COMMON_KEYS, *EXTRA_KEYS[op.kind]):
        value = getattr(op, key)
        out[key] = list(value) if isinstance(value, tuple) else value
    if not op.modelled:
        out["reason"] = op.reason
    return out
