# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Choose the collectives that training frameworks overlap with computation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tvm import ir, relax
from tvm.relax import Var
from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.ir import is_private, meshes
from tvm_distir.core.ir.attributes import IO_ATTR, STAGE_KIND_ATTR
from tvm_distir.core.ir.operators import call_axes, started_op
from tvm_distir.core.ir.views import first_view, moved_axes
from tvm_distir.core.passes import port_mesh
from tvm_distir.core.plan import ACTIVATION, GRADIENT, data_positions

from .call_sites import CallSites, laid_out

_OF_WEIGHTS_ONLY = frozenset(("all_to_all", "exchange"))


class OverlapChoice:
    """Choice of the started collectives that other work may overlap with.

    These are the collectives along axes that divide the samples: gathers of weights, reductions of
    gradients, and the messages of rings. So are gathers of what a function is given, such as
    activations that the forward pass has saved in parts (Korthikanti et al. 2022, section 4.2.2).
    The next op waits for all others of activations: collectives along other axes, and exchanges.

    Parameters
    ----------
    mod : IRModule
        A module of level 5.
    """

    def __init__(self, mod: ir.IRModule) -> None:
        self.calls = CallSites(mod)
        self.meshes = meshes(mod)
        self.axes = self._data_axes()
        self.weights = {
            str(gv.name_hint): self.calls.early_params(gv) for gv in self.calls.functions
        }
        self.private = {
            str(gv.name_hint) for gv, fn in self.calls.functions.items() if is_private(fn)
        }

    def of(self, name: str, params: Iterable[Var], rows: Iterable[Any]) -> set[Var]:
        """Return the variables of a function's started collectives that overlap.

        Parameters
        ----------
        name : str
            The function.
        params : iterable of Var
            Its parameters.
        rows : iterable of (Binding, Var, value, str or None)
            Its bindings, in order.
        """
        positions = self.weights.get(name, set())
        known_early = set(params) if name in self.private else set[Any]()
        known = {param for number, param in enumerate(params) if number in positions}
        chosen: set[Var] = set()
        for _, var, value, _ in rows:
            kind = started_op(value)
            if kind is None:
                for available in (known, known_early):
                    item = type(value) is relax.TupleGetItem and value.tuple_value in available
                    if item or laid_out(value, available):
                        available.add(var)
            elif not self.axes.isdisjoint(
                self._on_first_view(call_axes(value), value.attrs["device_mesh"])
            ):
                if kind not in _OF_WEIGHTS_ONLY or value.args[0] in known:
                    chosen.add(var)
            elif kind == "all_gather" and value.args[0] in known_early:
                chosen.add(var)
        return chosen

    def _data_axes(self) -> set[int]:
        """Return the mesh axes that divide the inputs of a module that are data."""
        axes: set[int] = set()
        for gv, fn in self.calls.functions.items():
            if not fn.attrs or IO_ATTR not in fn.attrs:
                continue
            roles = (
                [str(r) for r in fn.attrs[STAGE_KIND_ATTR]["params"]]
                if STAGE_KIND_ATTR in fn.attrs
                else []
            )
            for position in data_positions(fn, str(gv.name_hint)):
                role = roles[position].partition(":")[0] if position < len(roles) else ""
                if role in (ACTIVATION, GRADIENT):
                    continue
                io = fn.attrs[IO_ATTR]
                port = io["inputs"][position]
                labels = str(port["placement"]).split(", ")
                shards = [axis for axis, label in enumerate(labels) if label.startswith("S[")]
                axes.update(
                    self._on_first_view(shards, port_mesh(port, self.meshes[int(io["mesh"])]))
                )
        return axes

    def _on_first_view(self, axes: Iterable[int], mesh: DeviceMesh) -> frozenset[int]:
        """Return the axes of a mesh as numbers of its first view in the module."""
        return moved_axes(axes, mesh, first_view(mesh, self.meshes))
