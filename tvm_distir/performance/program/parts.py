# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the parts of a program: meshes, functions with values and steps, entries."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple, get_type_hints

from tvm_distir.core.ir.operators import COLLECTIVES, TRANSFERS
from tvm_distir.core.ops import KERNEL_CLASSES, VIEW
from tvm_distir.core.plan import FETCH, STORE
from tvm_distir.support import (
    LARGEST,
    Check,
    Count,
    Integer,
    InvalidValue,
    Keys,
    KeysByKind,
    Text,
    lists_by_key,
    one_of,
    reachable,
)

SCHEMA_VERSION = 1
STAGED_VERSION = 2
"""The version of pipelined programs."""
KINDS = ("compute", "collective", "wait", "call", "branch", "transfer", "view", "copy")
ROLES = ("activation", "input", "weight", "state", "host", "gradient", "constant")


def _check_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    if math.prod(shape) > LARGEST:
        raise InvalidValue(
            f"{list(shape)} is too large", "Give the shape of the shard on a device."
        )
    return shape


class Value(NamedTuple):
    """Tensor of a function, as a single device holds it.

    Attributes
    ----------
    name, dtype : str
    shape : tuple of int
        Local shape.
    bytes : int
        Local size.
    role : str
        ``activation``, or ``gradient`` where it is known to be that of a weight; ``constant`` (at
        hand from the start, produced by no op); ``host`` in the host's memory; of an entry's
        parameters ``weight``, ``state`` (of an optimizer) or ``input``.
    whole_shape : tuple of int, optional
        The shape over all devices of the mesh, of an entry's parameters.
    placement : str, optional
        The placement, of an entry's parameters.
    mesh : int, optional
        The mesh on which an entry's parameter is placed, where it is not the entry's mesh.
    """

    name: str
    shape: Annotated[tuple[Count, ...], Check(_check_shape)]
    dtype: Text
    bytes: Count
    role: Annotated[str, one_of(ROLES)] = "activation"
    whole_shape: tuple[Count, ...] | None = None
    placement: Text | None = None
    mesh: Count | None = None

    @property
    def is_weight(self) -> bool:
        """Return whether it is a weight among an entry's parameters."""
        return self.role == "weight"

    @property
    def is_on_host(self) -> bool:
        """Return whether it is in the memory of the host."""
        return self.role == "host"

    @property
    def full_shape(self) -> tuple[int, ...]:
        """Return the shape over all devices of the mesh, or the local one where it is unknown."""
        return self.shape if self.whole_shape is None else self.whole_shape


ReadValue = Annotated[
    Value,
    Keys(get_type_hints(Value, include_extras=True), optional=Value._field_defaults),
    Check(lambda fields: Value(**fields)),
]
"""A value as an object of a file."""


def short_name(op: str) -> str:
    """Return the name of an op without its namespace."""
    return op.removeprefix("relax.").removeprefix("dist.")


class Op(NamedTuple):
    """Step of a function.

    Attributes
    ----------
    name : str
        The name of the binding.
    kind : str
        ``compute``, ``collective``, ``wait`` (for a collective that was started: its operand),
        ``call``, ``branch``, ``transfer``, ``copy`` (of its operands to the host or back), or
        ``view``: its result is its first operand's memory under another shape. The operands of a
        ``branch`` are the condition, those of ``callee``, those of ``otherwise``.
    op : str
        The op, PrimFunc or function that is called.
    inputs, outputs : tuple of int
        Indices into the function's ``values``.
    flops, bytes_read, bytes_written : int
        The work of a compute op on a device.
    modelled : bool
        False where the work is not known; ``reason`` says why, the bytes are then those of all
        operands and results.
    kernel_class, dtype : str
        The class and dtype of a compute op, which decide which peak of the hardware it can reach.
    callee : str
        The function of a call. Of a branch, the function that runs when the condition holds.
    otherwise : str
        The other function of a branch.
    collective : str
        The kind of a collective; ``send``, ``recv``; of a copy ``store`` (to the host), ``fetch``.
    mesh : int
        The mesh on which a collective or transfer works.
    mesh_axes : tuple of int
        The axes along which a collective works.
    group_size : int
        The number of devices per group of a collective.
    payload_bytes : int
        The size of a device's result of a collective, its tensor in a transfer, or all its copies.
    wire_bytes : int
        The most bytes that a device of this end of a transfer sends or receives; in an entry, a
        device that runs it. Bytes that stay on their device are not counted.
    tag, peer_mesh : int
        The tag that joins the ends of a transfer, and the mesh at the other end.
    measured_ps : int
        The measured picoseconds of a compute op; 0: it was not measured.
    scratch_bytes : int
        The bytes that a measured compute op allocates while it runs, besides its results.
    selects : tuple of int
        Of a product of experts: how many experts work on a token, and all experts.
    anchor : str
        The op of the model around which ops were grouped to this kernel of a profile or a library,
        whose name is ``op``; empty for an op of the model.
    channel : int
        The channel of a collective: 0 is that of all; a collective of another neither waits for
        those of 0 nor delays them. A simulation sets it, no file has it.
    """

    name: str
    kind: str
    op: Text
    inputs: tuple[Count, ...] = ()
    outputs: tuple[Count, ...] = ()
    flops: Count = 0
    bytes_read: Count = 0
    bytes_written: Count = 0
    modelled: bool = True
    kernel_class: Annotated[str, one_of(KERNEL_CLASSES)] = ""
    dtype: str = ""
    reason: Text = ""
    callee: Text = ""
    otherwise: Text = ""
    collective: str = ""
    mesh: Count = 0
    mesh_axes: tuple[Count, ...] = ()
    group_size: Count = 0
    payload_bytes: Count = 0
    wire_bytes: Count = 0
    tag: Integer = 0
    peer_mesh: Count = 0
    measured_ps: Count = 0
    scratch_bytes: Count = 0
    selects: tuple[Count, ...] = ()
    anchor: Text = ""
    channel: Count = 0

    @property
    def title(self) -> str:
        """Return the name for tables: the model's op, and in brackets the kernel of a profile."""
        name = short_name(self.op)
        return f"{short_name(self.anchor)} ({name})" if self.anchor else name

    @property
    def model_op(self) -> str:
        """Return the op of the model that it is, or around which ops were grouped to it."""
        return self.anchor or self.op

    @property
    def is_start(self) -> bool:
        """Return whether it is a collective that other work may overlap, until its ``wait``."""
        return self.kind == "collective" and self.op.endswith("_start")

    def without_work(self) -> Op:
        """Return the op as a view, which takes no time."""
        return self._replace(flops=0, bytes_read=0, bytes_written=0, kernel_class=VIEW)

    @property
    def callees(self) -> tuple[str, ...]:
        """Return the functions that it calls, or may call."""
        if not self.callee:  # most ops, and this is asked of each of them again and again
            return (self.otherwise,) if self.otherwise else ()
        return (self.callee, self.otherwise) if self.otherwise else (self.callee,)


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
    "copy": ("collective", "payload_bytes"),
}
"""The keys that an op of each kind has besides :data:`COMMON_KEYS` (and ``reason``, if not
modelled)."""


def _keys_of_op(kind: str) -> Keys:
    measured = ("measured_ps", "scratch_bytes", "selects") if kind == "compute" else ()
    optional = ("reason", *measured)
    types = get_type_hints(Op, include_extras=True)
    collectives = {"transfer": TRANSFERS, "copy": (STORE, FETCH)}.get(kind, COLLECTIVES)
    types["collective"] = Annotated[str, one_of(collectives)]
    return Keys({key: types[key] for key in (*COMMON_KEYS, *EXTRA_KEYS[kind], *optional)}, optional)


_ReadOp = Annotated[
    Op, KeysByKind({kind: _keys_of_op(kind) for kind in KINDS}), Check(lambda keys: Op(**keys))
]


@dataclass(frozen=True)
class Function:
    """Function with values, and steps in program order, on its first ``mesh``."""

    mesh: Count
    params: tuple[Count, ...]
    ops: tuple[_ReadOp, ...]
    results: tuple[Count, ...]
    values: tuple[ReadValue, ...]

    @functools.cached_property
    def makers(self) -> Mapping[int, tuple[Op, int]]:
        """Return the op that makes each value, and its place among the op's results."""
        return {value: (op, n) for op in self.ops for n, value in enumerate(op.outputs)}

    @functools.cached_property
    def readers(self) -> Mapping[int, list[tuple[Op, int]]]:
        """Return the ops that read each value, and its places among their operands."""
        return lists_by_key(
            (value, (op, position)) for op in self.ops for position, value in enumerate(op.inputs)
        )

    def on(self, mesh: int) -> Function:
        """Return the function on another mesh, collectives included."""
        ops = tuple(op._replace(mesh=mesh) if op.kind == "collective" else op for op in self.ops)
        return replace(self, mesh=mesh, ops=ops)


def reached(functions: Mapping[str, Function], roots: Iterable[str]) -> set[str]:
    """Return the names of functions, and of all that they call, directly or not."""
    return set(reachable(roots, lambda name: (c for op in functions[name].ops for c in op.callees)))


@dataclass(frozen=True)
class Entry:
    """Entry that all devices of the same meshes run.

    Attributes
    ----------
    mesh : int
        The first mesh it works on.
    function : str
    device_ids : tuple of int
        The devices that run it, where others of the mesh run another entry; empty: all.
    alias : tuple of (int, int)
        The places of results, each with that of the parameter whose memory it may take: an updated
        weight takes the memory of the old weight.
    """

    mesh: Count
    function: Text
    device_ids: tuple[Count, ...] = ()
    alias: tuple[tuple[Count, Count], ...] = ()
