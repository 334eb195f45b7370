# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Translate Shardy and GSPMD shardings to annotations."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tvm_ffi
from tvm import ir, relax
from tvm.relax import BlockBuilder, Expr
from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.ir import (
    AXES_ATTR,
    DEVICE_NUM_ATTR,
    MESH_INFO,
    NAMES_ATTR,
    device_mesh,
    mesh_devices,
    placement_of,
)
from tvm_distir.core.ir.attributes import VALUE_MARK
from tvm_distir.core.ir.views import Axes, Tiling, ordered_axes, view_of
from tvm_distir.models.common.sub_axes import piece
from tvm_distir.models.common.translation import Unsupported
from tvm_distir.models.mlir.attributes import unescaped
from tvm_distir.models.mlir.tree import Module, Opaque
from tvm_distir.support import ModelError, parse_int

from .gspmd import axes_of_tiles, mesh_of_tiles
from .named_meshes import SUB_AXIS, TEXT, WORD, NamedMesh, named_meshes

_NAMED = re.compile(rf"\s*@(?:{TEXT}|([\w$.\-]+))\s*,\s*")
_DIMS = re.compile(rf'\[((?:[^\]"]|{WORD})*)\](.*)', re.DOTALL)
_DIM = re.compile(rf'\{{((?:[^}}"]|{WORD})*)\}}')
_PART = re.compile(rf"{SUB_AXIS}|{TEXT}")
GSPMD_MESH = "mesh"
"""Name of the mesh that GSPMD's shardings are read on; theirs have none."""


class Sharding(NamedTuple):
    """A sharding: the label of each axis of a mesh, and the axes of each dim, major first."""

    mesh: NamedMesh
    labels: list[int]
    dims: list[list[int]]

    @property
    def orders(self) -> list[list[int]]:
        """Return the axes of the dims that several axes shard."""
        return [axes for axes in self.dims if len(axes) > 1]

    @property
    def order(self) -> Axes:
        """Return an order of the axes of the mesh in which the sharding can be stated."""
        tiles = Tiling(tuple(map(tuple, self.dims)), frozenset())
        order = ordered_axes((tuple(self.mesh.axes.values()), ()), [tiles])
        assert order is not None, "each axis shards at most a single dim"
        return order


class Shardings:
    """Meshes of a module, and the interpretation of its shardings.

    Parameters
    ----------
    module : Module
    texts : sequence of str
        The shardings of GSPMD that the module holds.
    text : str
        The text of the module. Axes whose sub-axes it names, as ``"x":(2)4``, are read as several
        axes, of these names: those of a finer mesh of the same devices.

    Attributes
    ----------
    orders : dict
        The stated orders of axes of the function that is translated, as
        :data:`tvm_distir.core.ir.attributes.AXIS_ORDERS_ATTR` has them.
    """

    def __init__(self, module: Module, texts: Sequence[str], text: str) -> None:
        self._meshes = {mesh.name: mesh for mesh in named_meshes(module, text)}
        self._used: dict[str, DeviceMesh] = {}
        self.orders: dict[str, list[list[int]]] = {}
        self._ordered: dict[Expr, list[list[int]]] = {}
        sizes = mesh_of_tiles(texts)
        if sizes and GSPMD_MESH not in self._meshes:
            axes = {f"axis{i}": n for i, n in enumerate(sizes)}
            self._meshes[GSPMD_MESH] = NamedMesh(GSPMD_MESH, axes)

    def annotated(
        self, builder: BlockBuilder, expr: Expr, sharding: Opaque | str, name: str = ""
    ) -> DeviceMesh:
        """Annotate an expression with a sharding, unless the sharding is empty.

        Parameters
        ----------
        sharding : Opaque or str
            A sharding of Shardy, or the text of a sharding of GSPMD.
        name : str
            The name of a parameter, or ``#`` and the number of a result; empty for other values.

        Raises
        ------
        Unsupported
            A sharding that no placement says.
        """
        placement, says = self.read(sharding)
        if placement is None or not says:
            return expr
        mesh = self._device_mesh(placement.mesh)
        placed = relax.op.distributed.annotate_sharding(expr, mesh, placement_of(placement.labels))
        before: Any = builder.lookup_binding(expr) if isinstance(expr, relax.Var) else None
        if before is not None and _says(before, placed):
            if self._ordered.get(expr, []) == placement.orders:
                return expr
        var = builder.emit(placed)
        if placement.orders:
            self._ordered[var] = placement.orders
            is_param = isinstance(expr, relax.Var) and before is None
            inside = str(expr.name) if is_param else f"{VALUE_MARK}{var.name}"
            self.orders[name or inside] = placement.orders
        return var

    def _device_mesh(self, mesh: NamedMesh) -> DeviceMesh:
        if mesh.name not in self._used:
            self._used[mesh.name] = device_mesh(mesh.axes, device_ids=mesh.device_ids)
        return self._used[mesh.name]

    def used_mesh(self, name: str) -> relax.distributed.DeviceMesh:
        """Return a device mesh by its name, and mark it as used."""
        return self._device_mesh(self._meshes[name])

    def number(self, name: str) -> int:
        """Return the number of a mesh among those used."""
        return list(self._used).index(name)

    def use_view(self, mesh: NamedMesh, order: Axes) -> DeviceMesh:
        """Return the view of a mesh with its axes in an order, and mark it as used."""
        first, names = self._device_mesh(mesh), [list(mesh.axes)[a] for a in order]
        view = view_of(first, order)
        if view is not first:
            named = NamedMesh("_".join([mesh.name, *names]), {n: mesh.axes[n] for n in names})
            self._meshes[named.name], self._used[named.name] = named, view
        return view

    def read(self, sharding: Opaque | str) -> tuple[Sharding | None, bool]:
        """Return a sharding of either kind, and whether it says anything."""
        if isinstance(sharding, Opaque):
            return self._of_sdy(sharding)
        placement = self._of_gspmd(sharding)
        return placement, placement is not None

    def placed(self, sharding: Opaque) -> Sharding:
        """Return a sharding by its axes, where dims may be open for others.

        Raises
        ------
        Unsupported
            A sharding that no placement says.
        """
        return self._of_sdy(sharding)[0]

    def _of_sdy(self, sharding: Opaque) -> tuple[Sharding, bool]:
        """Return a sharding, and whether it says anything."""
        named = _NAMED.match(sharding.body)
        name = _unquoted(*named.groups()) if named else ""
        if named is None or name not in self._meshes:
            raise Unsupported(
                f"the sharding <{sharding.body}>, whose mesh the module does not have"
            )
        mesh = self._meshes[name]
        dims, rest = _split_dims(sharding.body[named.end() :])
        if "unreduced" in rest:
            raise Unsupported(f"the sharding <{sharding.body}> of partial sums")
        names = list(mesh.axes)
        is_open = bool(dims) and all("?" in dim and '"' not in dim for dim in dims)
        positions = [
            [axis for part in _PART.findall(text) for axis in self._axes(part, names, sharding)]
            for text in dims
        ]
        return _by_dims(mesh, positions), bool(names) and not is_open

    @staticmethod
    def _axes(part: Sequence[str], names: Sequence[str], sharding: Opaque) -> list[int]:
        """Return the axes of the refined mesh that an axis, or a sub-axis, is, major first."""
        name, start, size, full = part
        low, of = parse_int(start or "1") or 0, unescaped(name or full)
        high = low * (parse_int(size) or 0) if size else math.inf
        pieces = enumerate(map(piece, names))
        axes = [a for a, (name, begin) in pieces if name == of and low <= begin < high]
        if not axes:
            raise Unsupported(f'"{of}" of <{sharding.body}>, which is no axis of the mesh')
        return axes

    def _of_gspmd(self, text: str) -> Sharding | None:
        mesh = self._meshes.get(GSPMD_MESH)
        says = "devices=" in text or "replicated" in text or "maximal" in text
        if mesh is None or not says:
            return None
        return _by_dims(mesh, axes_of_tiles(text, list(mesh.axes.values())))

    def declare(self, mod: ir.IRModule) -> ir.IRModule:
        """Return the module with the meshes that its annotations use."""
        if not self._used:
            return mod
        meshes = list(self._used.values())
        attrs = {
            **dict(mod.attrs or {}),
            AXES_ATTR: [list(self._meshes[name].axes) for name in self._used],
            NAMES_ATTR: list(self._used),
            DEVICE_NUM_ATTR: 1 + max(int(mesh_devices(mesh).max()) for mesh in meshes),
        }
        return ir.IRModule(
            dict(mod.functions),
            attrs=ir.make_node("ir.DictAttrs", **attrs),
            global_infos={MESH_INFO: meshes},
        )


def _by_dims(mesh: NamedMesh, dims: list[list[int]]) -> Sharding:
    """Return a sharding by the axes of each dim."""
    labels = {axis: dim for dim, axes in enumerate(dims) for axis in axes}
    return Sharding(mesh, [labels.get(axis, -1) for axis in range(len(mesh.axes))], dims)


def _split_dims(text: str) -> tuple[list[str], str]:
    """Return the content of the braces of ``[{...}, {...}]``, and the rest."""
    match = _DIMS.match(text)
    if match is None:
        raise Unsupported(f"the sharding {text}")
    return _DIM.findall(match.group(1)), match.group(2)


def _unquoted(quoted: str | None, bare: str | None) -> str:
    """Return a name without optional quotes."""
    return str(bare) if quoted is None else unescaped(quoted)


def _says(before: Expr, placed: Expr) -> bool:
    """Return whether an expression is an annotation equal to another."""
    same_op = isinstance(before, ir.Call) and before.op.same_as(placed.op)
    return same_op and bool(tvm_ffi.structural_equal(before.attrs, placed.attrs))


def sharding_of(attributes: Mapping[str, Any], source: str) -> Opaque | str | None:
    """Return the sharding among the attributes of a value or an operation, or None."""
    sharding = attributes.get("sdy.sharding", attributes.get("mhlo.sharding"))
    if sharding is not None and not isinstance(sharding, (str, Opaque)):
        problem = "a sharding is neither an attribute of Shardy nor a text"
        raise ModelError(
            "DIST0370", problem, location=source, remedy="Write the text again with JAX."
        )
    return sharding
