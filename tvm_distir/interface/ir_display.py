# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Print modules with the names of mesh axes and with partial sums."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

from tvm import ir, relax
from tvm.relax.distributed import DTensorType

from tvm_distir.core.analysis import LEVELS, PartialState, level_of
from tvm_distir.core.ir import (
    P,
    check_module,
    mesh_axes,
    mesh_index,
    mesh_names,
    meshes,
    parse_placement,
    relax_functions,
    value_types,
)
from tvm_distir.core.ir.views import first_view
from tvm_distir.core.rewriting import all_bindings
from tvm_distir.support import LevelError

from .ordered_labels import ordered_words

_Leaves = list[frozenset[int] | None]
"""Of the tensors of a variable the axes along which each is a partial sum, as far as known."""

_LABELS = r"(?:R|S\[\d+\])(?:, (?:R|S\[\d+\]))*"
_TYPE = re.compile(rf'"mesh\[(\d+)\]", "({_LABELS})"')
_PLACEMENT = re.compile(rf'placement="({_LABELS})"')
_MESH = re.compile(r'device_mesh="mesh\[(\d+)\]"')
_AXES = re.compile(r"mesh_axes=\[([\d, ]*)\]")
_AXIS = re.compile(r"mesh_axis=(\d+)")
_FUNCTION = re.compile(r"^\s*def (\w+)\(")
_BINDING = re.compile(r"^(\s*)(\w+): (.*?) = (.*)$")


def annotated_script(mod: ir.IRModule) -> str:
    """Return the TVMScript of a module with named mesh axes and partial sums.

    The type of a distributed value has a label per axis by its name, as ``"dp: S[0], tp: P"``. On
    a view of a mesh the order of the axes of a dim follows: ``"dp: S[0]{tp,dp}, tp: S[0]{tp,dp}"``.
    ``P`` is a partial sum, which TVM's placements cannot express; it is inferred at levels 3 and 4.
    The result is for readers: TVM does not parse it.

    Parameters
    ----------
    mod : IRModule
        At any level.
    """
    lines, states = [], partial_states(mod)
    printer = _LinePrinter(mod)
    leaves: Iterator[_Leaves] = iter(())
    for line in mod.script().splitlines():
        function, binding = _FUNCTION.match(line), _BINDING.match(line)
        if function is not None:
            leaves = _leaves(states.get(function[1]))
            line = printer.types(line, [*next(leaves, []), *next(leaves, [])])
        elif binding is not None:
            line = f"{binding[1]}{binding[2]}: {printer.types(binding[3], next(leaves, []))} = "
            line += printer.types(binding[4], [])
        lines.append(printer.attributes(line))
    return "\n".join(lines)


def show(mod: ir.IRModule, style: str | None = None) -> None:
    """Print a module with the names of mesh axes and ``P`` for partial sums.

    The text is that of :func:`annotated_script`, coloured in terminals and notebooks where Pygments
    is installed.

    Parameters
    ----------
    mod : IRModule
    style : str, optional
        ``light``, ``dark`` or the name of a style of Pygments.

    Examples
    --------
    >>> mod = td.zoo.build("mlp", {"batch": 4, "layers": 1, "hidden": 8})
    >>> td.show(mod)
    # from tvm.script import ir as I
    ...
    """
    check_module(mod, "td.show")
    text = annotated_script(mod)
    if "ipykernel" in sys.modules or sys.stdout.isatty():
        from tvm.script.highlight import cprint

        cprint(text, style)
    else:
        print(text)


class _LinePrinter:
    """Replaces numbers of meshes and mesh axes in lines by names.

    Parameters
    ----------
    mod : IRModule
        The module with the meshes.
    """

    def __init__(self, mod: ir.IRModule) -> None:
        self.names, self.axes, self.meshes = mesh_names(mod), mesh_axes(mod), meshes(mod)
        firsts = [first_view(mesh, self.meshes) for mesh in self.meshes]
        self.firsts = [mesh_index(mod, mesh) for mesh in firsts]

    def types(self, text: str, leaves: _Leaves) -> str:
        """Name the axes of types; ``leaves`` are their partial sums, in the order of the text."""
        partial = iter(leaves)

        def named(match: re.Match[str]) -> str:
            first = self.firsts[int(match[1])]
            return f'"{self.names[first]}", "{self._labels(match, next(partial, None))}"'

        return _TYPE.sub(named, text)

    def _labels(self, match: re.Match[str], partial: frozenset[int] | None) -> str:
        number, labels = int(match[1]), list(parse_placement(match[2]))
        for axis in partial or ():
            labels[axis] = P
        first = self.firsts[number]
        names = self.axes[first]
        words = ordered_words(labels, self.meshes[number], self.meshes[first], names)
        return ", ".join(f"{name}: {word}" for name, word in zip(names, words, strict=True))

    def attributes(self, line: str) -> str:
        """Name the meshes and axes of the attributes of a call."""
        mesh = _MESH.search(line)
        if mesh is None:
            return line
        axes = self.axes[int(mesh[1])]

        def labels(match: re.Match[str]) -> str:
            pairs = zip(axes, match[1].split(", "), strict=True)
            return f'placement="{", ".join(f"{axis}: {label}" for axis, label in pairs)}"'

        def numbers(match: re.Match[str]) -> str:
            words = [f'"{axes[int(word)]}"' for word in match[1].split(",") if word.strip()]
            return f"mesh_axes=[{', '.join(words)}]"

        line = _AXES.sub(numbers, line)
        line = _AXIS.sub(lambda match: f'mesh_axis="{axes[int(match[1])]}"', line)
        if 'peer_mesh="' not in line:  # otherwise each placement belongs to another mesh
            line = re.sub(r"(?<!peer_)" + _PLACEMENT.pattern, labels, line)
        return _MESH.sub(lambda match: f'device_mesh="{self.names[int(match[1])]}"', line)


def partial_states(mod: ir.IRModule) -> dict[str, PartialState]:
    """Return the partial sums of each function; none at levels other than 3 and 4."""
    try:
        level = level_of(mod)
    except LevelError:
        return {}
    if level not in (LEVELS[3], LEVELS[4]):
        return {}
    states = {}
    for gv, fn in relax_functions(mod):
        name = str(gv.name_hint)
        states[name] = PartialState(mod, name, fn, legalized=level == LEVELS[4])
        states[name].check()
    return states


def _leaves(state: PartialState | None) -> Iterator[_Leaves]:
    """Yield the partial sums of the parameters, the results, and each binding of a function."""
    if state is not None:
        yield [axes for param in state.fn.params for axes in _placed(param, state)]
        yield _placed(state.fn.body.body, state)
        for binding in all_bindings(state.fn.body):
            yield _placed(binding.var, state)


def _placed(expr: relax.Expr, state: PartialState) -> _Leaves:
    """Return the partial sums of the distributed tensors of an expression."""
    pairs: Any = zip(value_types(expr.ty), state.of(expr), strict=True)
    return [axes for ty, axes in pairs if isinstance(ty, DTensorType)]
