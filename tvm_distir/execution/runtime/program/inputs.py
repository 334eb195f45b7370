# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Check the inputs of a run (full arrays, stored arrays or shards) and shard them by rank."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tvm_distir.core.plan import match_name
from tvm_distir.support import EngineError, Faults, nearest

from .device_objects import DeviceObjects
from .input_faults import bad_input, index_fault, input_location
from .io_layout import Entries, Port, np_dtype
from .local_inputs import LocalInputs
from .sharded import ShardedArray, Stored
from .tensors import as_array

Inputs = Sequence[Any] | Mapping[str, Any]


def _check_indices(entries: Entries, checked: Mapping[int, object], faults: Faults) -> None:
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
            fault = index_fault(value, allowed, input_location(port))
            if fault is not None:
                faults.add(fault)


def _no_faults() -> Faults:
    return Faults("inputs", EngineError("DIST0602", "several inputs do not match"))


def input_ports(entries: Entries) -> dict[int, Port]:
    """Return the inputs of all entries by their position in the original function, in its order."""
    ports: dict[int, Port] = {}
    for entry in entries:
        for port in entry.inputs:
            ports.setdefault(port.index, port)
    return dict(sorted(ports.items()))


def donated_inputs(entries: Entries, donate: Sequence[str]) -> frozenset[int]:
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
            raise bad_input(f'there is no input "{pattern}" to donate', nearest(pattern, names))
        donated |= fitting
    return frozenset(donated)


def _by_position(
    ports: Mapping[int, Port], inputs: Inputs, stored: Mapping[int, object], faults: Faults
) -> dict[int, object]:
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
    ports: Mapping[int, Port], inputs: Mapping[str, object], faults: Faults
) -> dict[int, object]:
    """Return the values by position, given by the names that :func:`leaves_by_name` reads."""
    names = {p.name: i for i, p in ports.items()}
    arguments: dict[int, object] = {}
    for name, known, value in leaves_by_name(inputs, names):
        if known not in names:
            faults.add(bad_input(f'there is no input "{name}"', nearest(name, names)))
        elif names[known] in arguments:
            faults.add(bad_input(f'"{name}" is given twice', "Give each input once."))
        else:
            arguments[names[known]] = value
    return arguments


def leaves_by_name(
    inputs: Mapping[str, object], names: Collection[str]
) -> Iterator[tuple[str, str, object]]:
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
            value = as_array(value)
        except (TypeError, ValueError, RuntimeError, BufferError) as error:
            # Rows of different lengths, or a sparse, meta or quantized tensor of PyTorch.
            problem = f"it is not an array: {str(error).strip().splitlines()[0]}"
            faults.add(bad_input(problem, "Give a single array.", port))
            return value
    dtype = np_dtype(port.dtype)
    if tuple(value.shape) != port.shape:
        problem = f"shape {tuple(value.shape)} given, {port.shape} needed"
        faults.add(bad_input(problem, "Give the full array.", port))
    if value.dtype != dtype:
        problem = f"type {value.dtype} given, {dtype} needed"
        faults.add(bad_input(problem, f'Use .astype("{dtype}").', port))
    return value


def flatten_tuples(inputs: Sequence[object]) -> list[object]:
    """Flatten the tuples of tuple parameters."""
    return [x for i in inputs for x in (flatten_tuples(i) if isinstance(i, tuple) else [i])]


def bind_some(entries: Entries, inputs: Mapping[str, object]) -> dict[int, object]:
    """Check some of the inputs as :func:`bind_inputs` does; they are returned by position."""
    ports, faults = input_ports(entries), _no_faults()
    arguments = _by_name(ports, inputs, faults)
    checked = {i: _checked(value, ports[i], faults) for i, value in arguments.items()}
    _check_indices(entries, checked, faults)
    faults.raise_all()
    return checked


def values_by_position(
    entries: Entries, inputs: Inputs, stored: Mapping[int, object]
) -> dict[int, object]:
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
    entries: Entries, inputs: Inputs, stored: Mapping[int, object] | None = None
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
