# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Give the dims of a program that has none their sizes, from the inputs of a run.

Nothing here needs IR: TVM's runtime-only library is enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any

from tvm_distir.core.ir import extent_value, shard_counts
from tvm_distir.support import EngineError

from .input_faults import bad_input, input_location
from .inputs import Inputs, values_by_position
from .io_layout import Entries, EntryFunction, Port
from .runnable import DerivedProgram, Runnable
from .sharded import ShardedArray


def is_symbolic(entries: Entries) -> bool:
    """Return whether an input of a program has a dim without a size."""
    return any(entry.dims for entry in entries)


def sizes_of_inputs(entries: Entries, values: Mapping[int, Any]) -> dict[str, int]:
    """Return the sizes of the dims of a program, from the shapes of its inputs.

    Parameters
    ----------
    entries : sequence of EntryFunction
    values : mapping of int to array
        Inputs by position.

    Raises
    ------
    EngineError
        DIST0602 for two sizes of a dim, or a dim that no input has; DIST0624 for a size that
        the devices cannot divide into equal parts.
    """
    parts = {name: count for entry in entries for name, count in entry.dims.items()}
    sizes: dict[str, int] = {}
    where: dict[str, str] = {}
    for port, name, size in _named_dims(entries, values, parts):
        location = input_location(port)
        if sizes.setdefault(name, size) != size:
            problem = f"the dim {name} has the size {size}, and {sizes[name]} in {where[name]}"
            raise bad_input(problem, "Give inputs of consistent shapes.", port)
        where[name] = location
        if size % parts[name]:
            raise EngineError(
                "DIST0624",
                f"the dim {name} has the size {size}, which {parts[name]} does not divide",
                location=location,
                remedy=f"Give a multiple of {parts[name]}, or distribute the module with the size "
                f'of the dim: td.bind_dims(mod, {{"{name}": {size}}}).',
            )
    missing = [name for name in parts if name not in sizes]
    if missing:
        raise bad_input(f"no input has the dim {missing[0]} as its shape", "Give all inputs.")
    return sizes


def _named_dims(
    entries: Entries, values: Mapping[int, Any], names: Mapping[str, int]
) -> Iterator[tuple[Port, str, int]]:
    """Yield the dims of inputs that are a variable alone, with their sizes."""
    for entry in entries:
        mesh = entry.mesh_of
        for port in entry.inputs:
            if port.index not in values or all(isinstance(n, int) for n in port.shape):
                continue
            value, counts = values[port.index], [1] * len(port.shape)
            if isinstance(value, ShardedArray):
                shape = value.shape
                if shape is None:
                    shape = tuple(next(iter(value.parts.values())).shape)
                    counts = shard_counts(port.labels, mesh(port)[0], len(port.shape))
            else:
                shape = tuple(getattr(value, "shape", ()))
            if len(shape) == len(port.shape):
                for extent, size, count in zip(port.shape, shape, counts, strict=True):
                    if isinstance(extent, str) and extent in names:
                        yield port, extent, int(size) * count


def with_sizes(entries: Entries, sizes: Mapping[str, int]) -> tuple[EntryFunction, ...]:
    """Return the entries with numbers in all shapes."""

    def sized(port: Port) -> Port:
        return replace(port, shape=tuple(extent_value(n, sizes) for n in port.shape))

    return tuple(
        replace(
            entry,
            inputs=tuple(map(sized, entry.inputs)),
            outputs=tuple(map(sized, entry.outputs)),
            dims={},
        )
        for entry in entries
    )


class SizedProgram(DerivedProgram):
    """A program with symbolic dims at the sizes of a run; its libraries serve all sizes.

    Parameters
    ----------
    program : Runnable
    sizes : mapping of str to int
        The sizes of the dims.
    """

    def __init__(self, program: Runnable, sizes: Mapping[str, int]) -> None:
        super().__init__(program)
        self.sizes, self.library, self.save = sizes, program.library, program.save
        self.entries = with_sizes(program.entries, sizes)

    stored = property(attrgetter("_program.stored"))
    target = property(attrgetter("_program.target"))

    def bound(self) -> Runnable:
        """Return the program of these sizes alone, for engines that compile from IR.

        Raises
        ------
        EngineError
            DIST0605 for a program without IR.
        """
        from tvm_distir.core.rewriting import bind_dims

        from .lowered import LoweredProgram

        if not isinstance(self._program, LoweredProgram):
            problem = "the engine compiles a program for each size, from IR, which is not there"
            remedy = 'Use the engine "threads" or "virtual".'
            raise EngineError("DIST0605", problem, location="engine", remedy=remedy)
        return LoweredProgram(bind_dims(self._program.mod, self.sizes))


def sized_program(program: Runnable, inputs: Inputs | None) -> Runnable:
    """Return a program whose dims have the sizes of the inputs; itself where all have sizes.

    Raises
    ------
    EngineError
        DIST0602 and DIST0624, see :func:`sizes_of_inputs`.
    """
    if not is_symbolic(program.entries):
        return program
    if inputs is None:
        raise bad_input(
            "the sizes of symbolic dims come from the inputs, of which this process has none",
            "Give the inputs on all processes.",
        )
    values = values_by_position(program.entries, inputs, program.stored)
    return SizedProgram(program, sizes_of_inputs(program.entries, values))
