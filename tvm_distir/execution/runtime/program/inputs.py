# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Check the inputs of a run (full arrays, stored arrays or shards) and shard them by rank."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tvm_distir.core.ir import Segments
from tvm_distir.core.plan import match_name
from tvm_distir.support import EngineError, Faults, nearest

from .device_objects import DeviceObjects
from .io_layout import Bounds, EntryFunction, Port, np_dtype
from .sharded import ShardedArray, Stored, read_part

Array = npt.NDArray[Any]
Inputs = Sequence[Any] | Mapping[str, Any]


def bad_input(problem: str, remedy: str, port: Port | None = None) -> EngineError:
    """Return the error DIST0602, which names the input."""
    place = _input_place(port) if port else "inputs"
    return EngineError("DIST0602", problem, place=place, remedy=remedy)


def index_fault(values: Array, index_range: Sequence[int], place: str) -> EngineError | None:
    """Return the error DIST0619 if a value is outside of the range of indices.

    Parameters
    ----------
    values : array of integers
    index_range : sequence of int
        The range, as :attr:`Port.index_range` has it.
    place : str
        The place of the input.
    """
    low, high, *ignored = index_range
    if not values.size or (values.min() >= low and values.max() < high):
        return None
    outside = (values < low) | (values >= high)
    for number in ignored:
        outside &= values != number
    if not outside.any():
        return None
    at = np.argwhere(outside)[0]
    return EngineError(
        "DIST0619",
        f"{values[tuple(at)]} at {at.tolist()} is not an index of a dim of {high} elements",
        place=place,
        remedy=f"Give indices from {low} to {high - 1}.",
    )


def _check_indices(
    entries: Sequence[EntryFunction], checked: Mapping[int, Any], faults: Faults
) -> None:
    """Check full arrays of indices against the range that each entry allows."""
    ranges = {
        (port.index, port.index_range): port
        for entry in entries
        for port in entry.inputs
        if port.index_range
    }
    for (index, allowed), port in ranges.items():
        value = checked.get(index)
        if isinstance(value, np.ndarray) and value.dtype.kind in "iu":
            fault = index_fault(value, allowed, _input_place(port))
            if fault is not None:
                faults.add(fault)


def _input_place(port: Port) -> str:
    return f'input {port.index} "{port.name}"'


def _no_faults() -> Faults:
    return Faults("inputs", EngineError("DIST0602", "several inputs do not match"))


def input_ports(entries: Sequence[EntryFunction]) -> dict[int, Port]:
    """Return the inputs of all entries by their position in the original function, in its order."""
    ports: dict[int, Port] = {}
    for entry in entries:
        for port in entry.inputs:
            ports.setdefault(port.index, port)
    return dict(sorted(ports.items()))


def donated_inputs(entries: Sequence[EntryFunction], donate: Sequence[str]) -> frozenset[int]:
    """Return the positions of donated inputs.

    Parameters
    ----------
    entries : sequence of EntryFunction
    donate : sequence of str
        Names, or patterns of names, of inputs.

    Raises
    ------
    EngineError
        DIST0602 for a name or pattern that fits no input.
    """
    ports, donated = input_ports(entries), set[int]()
    for pattern in donate:
        fitting = {i for i, port in ports.items() if match_name(pattern, port.name)}
        if not fitting:
            names = [port.name for port in ports.values()]
            problem = f'there is no input "{pattern}" to donate'
            raise bad_input(problem, nearest(pattern, names))
        donated |= fitting
    return frozenset(donated)


def _by_position(
    ports: Mapping[int, Port], inputs: Inputs, stored: Mapping[int, Any], faults: Faults
) -> dict[int, Any]:
    """Return the values by position. A sequence names, in order, the inputs that are not stored."""
    if isinstance(inputs, Mapping):
        by_name = _by_name(ports, inputs, faults)
        for i, port in ports.items():
            if i not in by_name and i not in stored:
                needed = f"{port.dtype}{list(port.shape)} is required"
                faults.add(bad_input(f"missing: {port.name}; {needed}", "Give all inputs.", port))
        return {**stored, **by_name}
    count = max(ports, default=-1) + 1
    open_ports = [i for i in range(count) if i not in stored]
    if len(inputs) != len(open_ports):
        inputs = flatten_tuples(inputs)
    if len(inputs) != len(open_ports):
        raise bad_input(
            f"{len(inputs)} inputs are given, {len(open_ports)} are required", "Give all inputs."
        )
    return {**stored, **dict(zip(open_ports, inputs))}


def _by_name(
    ports: Mapping[int, Port], inputs: Mapping[str, Any], faults: Faults
) -> dict[int, Any]:
    """Return the values by position, given by the names that :func:`leaves_by_name` reads."""
    names = {p.name: i for i, p in ports.items()}
    arguments: dict[int, Any] = {}
    for name, known, value in leaves_by_name(inputs, names):
        if known not in names:
            faults.add(bad_input(f'there is no input "{name}"', nearest(name, names)))
        elif names[known] in arguments:
            faults.add(bad_input(f'"{name}" is given twice', "Give each input once."))
        else:
            arguments[names[known]] = value
    return arguments


def leaves_by_name(
    inputs: Mapping[str, Any], names: Collection[str]
) -> Iterator[tuple[str, str, Any]]:
    """Yield inputs with the name as given, the name of the program's input, and the value.

    Names may be those of the model, with dots for example. A tensor of a tuple is ``x_0``,
    ``x[0]`` or ``x.0``; a tuple under the name of its parameter is all of its tensors.

    Parameters
    ----------
    inputs : mapping of str to array, or (nested) tuple of arrays
    names : collection of str
        The names of the program's inputs, those of tuples by tensor.
    """
    for name, value in inputs.items():
        spellings = (name, re.sub(r"\W", "_", name), re.sub(r"\W+", "_", name).rstrip("_"))
        known = next((spelling for spelling in spellings if spelling in names), spellings[-1])
        if isinstance(value, tuple) and known not in names:
            fields = {f"{name}_{number}": field for number, field in enumerate(value)}
            yield from leaves_by_name(fields, names)
        else:
            yield name, known, value


def _checked(value: Any, port: Port, faults: Faults) -> Any:
    """Return a value of exactly the port's full shape and type, an array or :class:`Stored`."""
    if port.is_object != isinstance(value, DeviceObjects):
        expected = "an object of each device" if port.is_object else "an array"
        remedy = "Pass td.DeviceObjects." if port.is_object else "Give the full array."
        faults.add(bad_input(f"it has to be {expected}", remedy, port))
        return value
    if isinstance(value, ShardedArray | DeviceObjects):
        return value
    if not isinstance(value, Stored):
        try:
            value = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
        except (TypeError, ValueError) as error:  # rows of different lengths, for example
            faults.add(bad_input(f"it is not an array: {error}", "Give a single array.", port))
            return value
    dtype = np_dtype(port.dtype)
    if tuple(value.shape) != port.shape:
        problem = f"shape {tuple(value.shape)} given, {port.shape} needed"
        faults.add(bad_input(problem, "Give the full array.", port))
    if value.dtype != dtype:
        problem = f"type {value.dtype} given, {dtype} needed"
        faults.add(bad_input(problem, f'Use .astype("{dtype}").', port))
    return value


def flatten_tuples(inputs: Sequence[Any]) -> list[Any]:
    """Flatten the tuples of tuple parameters."""
    return [x for i in inputs for x in (flatten_tuples(i) if isinstance(i, tuple) else [i])]


class LocalInputs:
    """The local inputs of each rank, sharded from the user's inputs on demand.

    Replicas of a shard share an array: nothing is cut, read or sent twice.

    Parameters
    ----------
    values : mapping of int to array, Stored or ShardedArray
        The values by position in the original function.
    """

    def __init__(self, values: Mapping[int, Any]) -> None:
        self._values = values
        self._slices: dict[tuple[int, Bounds], Array] = {}

    def source(self, port: Port) -> Any:
        """Return the user's value of an input."""
        return self._values[port.index]

    def of(self, entry: EntryFunction, rank: int) -> list[Array]:
        """Return the local arrays of a rank, in ``dist.io`` order."""
        return [self.part(entry, port, rank) for port in entry.inputs]

    def part(self, entry: EntryFunction, port: Port, rank: int) -> Any:
        """Return the local (zero-padded) array of an input on a rank, or the rank's object."""
        value = self._values[port.index]
        if isinstance(value, DeviceObjects):
            return value.of(rank, _input_place(port))
        if isinstance(value, ShardedArray):
            return _own_part(value, entry, port, rank)
        bounds = entry.bounds(port, rank)
        key = (port.index, bounds)
        if key not in self._slices:
            self._slices[key] = _cut(value, bounds, entry.local_shape(port), port.segments)
        return self._slices[key]


def _cut(
    value: Any, bounds: Bounds, size: tuple[int, ...], segments: Segments | None = None
) -> Array:
    if segments is None:
        part = _box_of(value, bounds)
    else:
        dim = segments.dim
        ranges = segments.sources(*bounds[dim])
        boxes = [(*bounds[:dim], piece, *bounds[dim + 1 :]) for piece in ranges]
        part = np.concatenate([_box_of(value, box) for box in boxes], axis=dim)
    if part.shape != size:
        padded = np.zeros(size, part.dtype)
        padded[tuple(slice(0, n) for n in part.shape)] = part
        part = padded
    return np.ascontiguousarray(part).reshape(size)


def _box_of(value: Any, bounds: Bounds) -> Array:
    """Return a box of an array, in memory or in a file."""
    if isinstance(value, Stored):
        return value.read(bounds)
    box: Array = value[tuple(slice(a, b) for a, b in bounds)]
    return box


def _own_part(value: ShardedArray, entry: EntryFunction, port: Port, rank: int) -> Array:
    if rank not in value.parts:
        raise bad_input(
            f"rank {rank} has no shard, ranks {sorted(value.parts)} have",
            f"Give a shard for each of the ranks {list(entry.ranks)}.",
            port,
        )
    bounds = entry.bounds(port, rank)
    if value.boxes and value.boxes.get(rank) != bounds:
        raise bad_input(
            f"rank {rank} holds {_box_text(value.boxes.get(rank))} of the tensor, it requires "
            f"{_box_text(bounds)}",
            "Give the full array, or place it equally in both modules.",
            port,
        )
    part, size, dtype = read_part(value.parts[rank]), entry.local_shape(port), np_dtype(port.dtype)
    fault = index_fault(part, port.index_range, _input_place(port)) if port.index_range else None
    if fault is not None:
        raise fault
    if part.shape != size or part.dtype != dtype:
        raise bad_input(
            f"rank {rank} holds {part.dtype}{list(part.shape)}, it needs {dtype}{list(size)}",
            "Shard it as dist.io says, padded to equal shards.",
            port,
        )
    return np.ascontiguousarray(part).reshape(size)


def _box_text(box: Bounds | None) -> str:
    return "an unknown box" if box is None else f"[{', '.join(f'{a}:{b}' for a, b in box)}]"


def bind_some(entries: Sequence[EntryFunction], inputs: Mapping[str, Any]) -> dict[int, Any]:
    """Check some of the inputs as :func:`bind_inputs` does; they are returned by position."""
    ports, faults = input_ports(entries), _no_faults()
    arguments = _by_name(ports, inputs, faults)
    checked = {i: _checked(value, ports[i], faults) for i, value in arguments.items()}
    _check_indices(entries, checked, faults)
    faults.raise_all()
    return checked


def values_by_position(
    entries: Sequence[EntryFunction], inputs: Inputs, stored: Mapping[int, Any]
) -> dict[int, Any]:
    """Return the inputs of a run by position, before their shapes and types are checked.

    Raises
    ------
    EngineError
        DIST0602 for missing and unknown inputs.
    """
    faults = _no_faults()
    values = _by_position(input_ports(entries), inputs, stored, faults)
    faults.raise_all()
    return values


def bind_inputs(
    entries: Sequence[EntryFunction], inputs: Inputs, stored: Mapping[int, Any] | None = None
) -> LocalInputs:
    """Check the inputs of a run and index them by parameter.

    Parameters
    ----------
    entries : sequence of EntryFunction
    inputs : sequence in the original function's order, or mapping by parameter name
        The inputs. For a parameter that is a tuple, a (nested) tuple; by name, also its tensors
        ``x_0`` or ``x[0]``, ``x_1_0``, ... Each is a full array (anything NumPy reads) of exactly
        the parameter's shape and type, a
        :class:`~tvm_distir.execution.runtime.program.sharded.Stored` array, or a
        :class:`~tvm_distir.execution.runtime.program.sharded.ShardedArray`.
    stored : mapping of int to such a value, optional
        Values that need not be given, by position.

    Raises
    ------
    EngineError
        DIST0602 naming the input, DIST0619 for indices that are outside of the dim they index;
        ``error.violations`` has all that do not fit.
    """
    ports, faults = input_ports(entries), _no_faults()
    arguments = _by_position(ports, inputs, stored or {}, faults)
    checked = {
        i: _checked(arguments[i], port, faults) for i, port in ports.items() if i in arguments
    }
    _check_indices(entries, checked, faults)
    faults.raise_all()
    return LocalInputs(checked)
