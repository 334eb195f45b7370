# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Reads the sharding annotations of a function."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, relax
from tvm.ir import Call, Expr, Type
from tvm.relax import Var
from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.ir.attributes.keys import OPEN_AXES_ATTR, STATIONARY_ATTR
from tvm_distir.core.ir.attributes.readers import opened_labels
from tvm_distir.core.ir.handles import handle
from tvm_distir.support import PropagationError

from .types import Annotation, ModuleTypes

ANNOTATE = ir.Op.get("relax.dist.annotate_sharding")

NO_ANNOTATION = Annotation(None, -1, False)
"""The annotation of a parameter without an annotation."""


def is_annotation(expr: Expr) -> bool:
    """Return whether an expression is an ``annotate_sharding`` call."""
    return type(expr) is ir.Call and bool(ANNOTATE.same_as(expr.op))


class Annotations:
    """Reader of the annotations of a function.

    Parameters
    ----------
    facts : ModuleTypes
        The types of the module.
    fn : relax.Function
    name : str
        The name of the function.

    Attributes
    ----------
    stationary : sequence of str
        Variables that are not to be communicated.
    opens : bool
        Whether some variables have axes that their annotations leave open.
    """

    def __init__(self, facts: ModuleTypes, fn: relax.Function, name: str) -> None:
        self._facts, self._name = facts, name
        attrs = fn.attrs or {}
        self.stationary: Sequence[str] = attrs.get(STATIONARY_ATTR) or []
        opened = attrs.get(OPEN_AXES_ATTR) or {}
        self._open = {str(k): [int(a) for a in v] for k, v in opened.items()}
        self.opens = bool(self._open)

    def of(self, var: Var, call: Call, shape: Sequence[int | Expr], stationary: int) -> Annotation:
        """Return the annotation of a value.

        Parameters
        ----------
        var : Var
            The variable that the value is bound to.
        call : Call
            The annotation.
        shape : sequence
            Dims of the value; none where it is opaque, or several values of a tuple.
        stationary : int
            Whether :attr:`stationary` names the variable.

        Raises
        ------
        PropagationError
            DIST0415 for a mesh that the module does not have; what the labels of a placement
            raise.
        """
        mesh, placement = call.attrs.device_mesh, call.attrs.placement
        key = (handle(mesh), handle(placement), shape, stationary)
        pin = self._facts.pins.get(key)
        if pin is None:
            labels, at = self._labels(var.name, mesh, placement, shape)
            pin = self._facts.pins[key] = Annotation(labels, at, bool(stationary))
        opened = self._open.get(var.name) if self.opens else None
        if opened and pin.labels is not None:
            return pin._replace(labels=opened_labels(pin.labels, opened))
        return pin

    def _labels(
        self, name: str, mesh: DeviceMesh, placement: Type, shape: Sequence[int | Expr]
    ) -> tuple[tuple[int, ...], int]:
        """Return the labels of an annotation, and the number of its mesh."""
        number = self._facts.mesh_number(mesh)
        if number is None:
            problem = "the annotation's mesh is not among the module's meshes"
            remedy = 'Add it: mod.update_global_info("mesh", meshes).'
            raise PropagationError(
                "DIST0415", problem, location=f"{self._name}/{name}", remedy=remedy
            )
        location = f"{self._name}/{name} (annotate_sharding)"
        return self._facts.labels(placement, shape, number, location), number
