# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define meshes and rules of plans as immutable dataclasses that check their fields."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.ir.mesh import check_axes, device_mesh
from tvm_distir.core.ir.placement import P, R, parse_placement, placement_text
from tvm_distir.support import Faults, MeshError, PlanError, nearest, shortened

SCHEMA_VERSION = 1
DEFAULT_MESH = "mesh0"
KINDS = ("param", "value", "call")

OpenLabels = tuple[int | None, ...]
"""A label per mesh axis: a dim, :data:`~.placement.R`, None where the axis is open, or
:data:`~.placement.P` where it stays a partial sum (values only; replicated if it is none)."""

_OPEN = {"?": None, "P": P}


def parse_open_placement(text: str, location: str = "") -> OpenLabels:
    """Read a placement whose entries may be ``?`` or ``P``: ``"S[0], ?"`` gives ``(0, None)``.

    Raises
    ------
    MeshError
        DIST0203 when an entry is none of ``R``, ``S[d]`` (d >= 0), ``?`` and ``P``.
    """
    words = [word.strip() for word in text.split(",")]
    try:
        closed = parse_placement(", ".join("R" if word in _OPEN else word for word in words))
    except MeshError as error:
        raise MeshError(
            error.code,
            f'the placement "{shortened(text)}" cannot be read: {error.what}',
            location=location,
            remedy='Write R, S[dim], "?" or "P" for each mesh axis.',
        ) from None
    return tuple(_OPEN.get(word, label) for word, label in zip(words, closed, strict=True))


def labels_text(labels: OpenLabels) -> str:
    """Return the text form of labels; an open axis is ``?``."""
    return ", ".join("?" if x is None else placement_text((x,)) for x in labels)


def mesh_text(axes: Mapping[str, int]) -> str:
    """Return the sizes of mesh axes as the option ``--mesh`` reads them, ``dp=2,tp=4``."""
    return ",".join(f"{axis}={size}" for axis, size in axes.items())


@dataclass(frozen=True)
class MeshSpec:
    """A named mesh of a plan.

    Parameters
    ----------
    name : str
        The name of the mesh in rules.
    axes : mapping of str to int, or jax.sharding.Mesh
        Names and sizes, major first. Of a mesh of JAX, its names and sizes.
    start : int
        The first device id, when ``device_ids`` is empty.
    device_ids : tuple of int
        The devices in row-major order, when they are no range.

    Raises
    ------
    MeshError
        DIST0201 for bad axes, DIST0202 for device ids that do not fit.
    """

    name: str
    axes: Mapping[str, int]
    start: int = 0
    device_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        location = f'mesh "{self.name}"'
        axes = getattr(self.axes, "shape", self.axes)  # the shape of a mesh of JAX is a mapping
        if not isinstance(axes, Mapping):
            remedy = 'Give names and sizes: {"dp": 2, "tp": 4}.'
            raise MeshError(
                "DIST0201", f"the axes are {self.axes!r}", location=location, remedy=remedy
            )
        check_axes(axes, location)
        object.__setattr__(self, "axes", dict(axes))
        try:
            self.device_mesh()
        except MeshError as error:
            raise MeshError(
                error.code, error.what, location=location, remedy=error.remedy
            ) from None

    @property
    def axis_names(self) -> tuple[str, ...]:
        """Return the names of the axes, major first."""
        return tuple(self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the sizes of the axes, major first."""
        return tuple(self.axes.values())

    @property
    def device_count(self) -> int:
        """Return how many devices the mesh has."""
        return math.prod(self.shape)

    def axis_number(self, axis: str, location: str = "") -> int:
        """Return the position of an axis.

        Raises
        ------
        MeshError
            DIST0206 when the mesh has no such axis.
        """
        if axis not in self.axes:
            raise MeshError(
                "DIST0206",
                f'the mesh has no axis "{axis}"',
                location=location or f'mesh "{self.name}"',
                remedy=nearest(axis, self.axes),
            )
        return self.axis_names.index(axis)

    def device_mesh(self) -> DeviceMesh:
        """Return TVM's form of the mesh."""
        ids = list(self.device_ids) or None
        return device_mesh(self.axes, start=self.start, device_ids=ids)

    @property
    def is_default(self) -> bool:
        """Return whether the short form ``"mesh": {axes}`` says all about it."""
        return self.name == DEFAULT_MESH and self.start == 0 and not self.device_ids


@dataclass(frozen=True)
class PlanRule:
    """A rule of a plan for the tensors that it matches.

    Parameters
    ----------
    kind : str
        ``param``: parameters of a function; ``value``: variables bound in a function;
        ``call``: an argument of the calls of a private function.
    name : str
        For ``param`` and ``value`` a name or shell-style pattern (``*``, ``?``, ``[...]``); dots
        count as underscores, as TVMScript prints them. For ``call`` rules it is the callee.
    placement : tuple of int or None
        A label per axis of the mesh, see :data:`OpenLabels`.
    mesh : str
        Name of the mesh.
    stationary : bool
        The tensor never moves: propagation may not convert it, whatever that would save.
    moving : tuple of int
        Numbers of the mesh axes along which a stationary tensor may move all the same.
    function : str, optional
        The function to look in. None: ``main``, or every public function where there is no
        ``main``. A private function is looked into only when named.
    index : int, optional
        The number of the call in program order, from 0, of ``call`` rules. None: every call.
    arg : int, optional
        The number of the argument, from 0, of ``call`` rules.
    segments : tuple of int
        The extents of the segments of a fused weight along the sharded dim, in ``param`` rules of
        entries: each device has its part of every segment. Empty: a shard is contiguous.
    orders : tuple of tuple of int
        The numbers of the axes of each dim whose order is stated, major first, in ``param`` rules.
        The order of other dims is chosen (:class:`.OrderAxes`).
    """

    kind: str
    name: str
    placement: OpenLabels
    mesh: str = DEFAULT_MESH
    stationary: bool = False
    function: str | None = None
    index: int | None = None
    arg: int | None = None
    moving: tuple[int, ...] = ()
    segments: tuple[int, ...] = ()
    orders: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        extras = (self.index, self.arg) != (None, None) or self.moving or self.segments
        typed = type(self.placement) is tuple and isinstance(self.name, str)
        plain = typed and P not in self.placement and not extras
        if plain and self.kind in ("param", "value") and self.name:
            return  # nothing to be wrong: strategies make thousands of these
        faults = faults_of_plan("rule")

        def wrong(problem: str, location: str, remedy: str) -> None:
            faults.add(PlanError("DIST0221", problem, location=location, remedy=remedy))

        if not typed:
            problem = f"{shortened(repr((self.name, self.placement)))} is not a name and labels"
            remedy = "Give a label per mesh axis, as (0, None); rules in JSON form take P and text."
            wrong(problem, str(self.kind), remedy)
            faults.raise_all()
        if self.kind not in KINDS:
            remedy = nearest(str(self.kind), KINDS)
            wrong(f'there is no kind of rule "{self.kind}"', "rule", remedy)
        elif not self.name:
            wrong("the name is empty", self.kind, "Give the name of a tensor, function or op.")
        if P in self.placement and self.kind != "value":
            wrong('the placement has "P"', self.title, 'Use "P" in value rules only.')
        if self.kind == "call" and self.arg is None:
            wrong(
                'the call rule has no "arg"',
                self.title,
                "Give the number of the argument, counted from 0.",
            )
        if any(not 0 <= axis < len(self.placement) for axis in self.moving):
            count = len(self.placement)
            problem = f'"moving" is {list(self.moving)}, and the mesh has {count} axes'
            wrong(problem, self.title, "Give numbers of mesh axes, counted from 0.")
        for key, number in (("index", self.index), ("arg", self.arg)):
            if number is not None and (self.kind != "call" or number < 0):
                problem = f'"{key}" is {number} in a rule of kind {self.kind}'
                wrong(problem, self.title, "Use it in call rules only, counted from 0.")
        if self.segments and (self.kind != "param" or min(self.segments) < 1):
            problem = f'"segments" is {list(self.segments)} in a rule of kind {self.kind}'
            wrong(
                problem, self.title, "Give the positive extents of segments, in param rules only."
            )
        faults.raise_all()

    @property
    def title(self) -> str:
        """Return the rule in a few words, for messages."""
        text = f'{self.kind} "{self.name}"'
        if self.index is not None:
            text += f" index {self.index}"
        if self.arg is not None:
            text += f" arg {self.arg}"
        return text

    @property
    def closed_labels(self) -> tuple[int, ...]:
        """Return the placement with open axes and partial sums written as replicated."""
        return tuple(R if x is None or x == P else x for x in self.placement)


def faults_of_plan(location: str = "plan") -> Faults:
    """Return the collector of the faults of a plan."""
    return Faults(location, PlanError("DIST0228", "the plan has several faults"))


def find_mesh(meshes: Sequence[MeshSpec], name: str, location: str) -> MeshSpec:
    """Return the mesh of a name (MeshError DIST0206 where there is none)."""
    for mesh in meshes:
        if mesh.name == name:
            return mesh
    remedy = nearest(name, [mesh.name for mesh in meshes])
    raise MeshError("DIST0206", f'there is no mesh "{name}"', location=location, remedy=remedy)


def check_rule(rule: PlanRule, meshes: Sequence[MeshSpec], location: str) -> None:
    """Refuse a rule for an unknown mesh (DIST0206), or a placement of another length (DIST0204)."""
    mesh = find_mesh(meshes, rule.mesh, location)
    if len(rule.placement) != len(mesh.axes):
        problem = (
            f'the placement "{labels_text(rule.placement)}" has {len(rule.placement)} '
            f'entries, the mesh "{mesh.name}" has {len(mesh.axes)} axes '
            f"({', '.join(mesh.axis_names)})"
        )
        raise MeshError(
            "DIST0204", problem, location=location, remedy="Give one entry per mesh axis."
        )
