# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read and write attributes of functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import ir, relax
from tvm.ir import Expr
from tvm.relax import Function

from tvm_distir.core.ir.arrays import unpack
from tvm_distir.core.ir.attributes.keys import (
    AXIS_ORDERS_ATTR,
    DONATED_ATTR,
    NUM_INPUT_ATTR,
    OPEN_AXES_ATTR,
    PARAM_NAMES_ATTR,
    PHASE_ATTR,
    STATIONARY_ATTR,
    TRAINING_ATTR,
)
from tvm_distir.core.ir.placement import P


def param_names(fn: relax.Function) -> list[str]:
    """Return the names of a function's parameters, as the model has them where it is known."""
    names = fn.attrs.get(PARAM_NAMES_ATTR) if fn.attrs else None
    if names is None or len(names) != len(fn.params):
        return [str(param.name) for param in unpack(fn.params)]
    return list(map(str, unpack(names)))


def donated_params(fn: relax.Function) -> list[int]:
    """Return the numbers of the parameters whose memory kernels may write results to."""
    attrs: Any = fn.attrs or {}
    return [int(number) for number in attrs.get(DONATED_ATTR, ())]


def training_notes(fn: relax.Function, key: str) -> dict[str, Any]:
    """Return one of the notes on a training step (:data:`TRAINING_ATTR`); empty elsewhere."""
    attrs: Any = fn.attrs or {}
    if TRAINING_ATTR not in attrs or key not in attrs[TRAINING_ATTR]:
        return {}
    return {str(k): v for k, v in attrs[TRAINING_ATTR][key].items()}


def with_annotated(
    fn: Function,
    body: Expr,
    stationary: Sequence[str],
    open_axes: Mapping[str, Sequence[int]],
    orders: Mapping[str, Sequence[Sequence[int]]] | None = None,
) -> relax.Function:
    """Return a function with another body, which holds further annotated variables.

    Parameters
    ----------
    fn : Function
    body : SeqExpr
    stationary : sequence of str
        Names of the variables that may not be communicated.
    open_axes : mapping of str to sequence of int
        The mesh axes that the annotation of each variable leaves open.
    orders : mapping of str to sequence of sequence of int, optional
        The mesh axes of dims whose order is stated (:data:`AXIS_ORDERS_ATTR`), by parameter.
    """
    attrs = dict(fn.attrs or {})
    if orders:
        stated = {name: [list(axes) for axes in dims] for name, dims in orders.items()}
        attrs[AXIS_ORDERS_ATTR] = {**attrs.get(AXIS_ORDERS_ATTR, {}), **stated}
    if stationary:
        attrs[STATIONARY_ATTR] = [*attrs.get(STATIONARY_ATTR, []), *stationary]
    if open_axes:
        attrs[OPEN_AXES_ATTR] = {**attrs.get(OPEN_AXES_ATTR, {}), **open_axes}
    attributes = ir.make_node("ir.DictAttrs", **attrs) if attrs else None
    return relax.Function(fn.params, body, fn.ret_ty, fn.is_pure, attributes)


def open_axes_of(labels: Sequence[int | None]) -> list[int]:
    """Return the axes that an annotation leaves open, as :data:`OPEN_AXES_ATTR` has them."""
    return [~a if x == P else a for a, x in enumerate(labels) if x is None or x == P]


def stated_orders(fn: relax.Function) -> dict[str, list[tuple[int, ...]]]:
    """Return the orders of mesh axes that are stated of parameters (:data:`AXIS_ORDERS_ATTR`)."""
    attrs: Any = fn.attrs or {}
    return {
        str(name): [tuple(int(a) for a in axes) for axes in dims]
        for name, dims in attrs.get(AXIS_ORDERS_ATTR, {}).items()
    }


def opened_labels(labels: Sequence[int | None], open_axes: Sequence[int]) -> tuple[int | None, ...]:
    """Return the labels of an annotation, None or ``P`` along the axes that it leaves open."""
    return tuple(
        [None if a in open_axes else P if ~a in open_axes else x for a, x in enumerate(labels)]
    )


def phase_of(fn: relax.Function) -> str:
    """Return the phase (:data:`PHASE_ATTR`) that the calls of a function are, empty of others."""
    return str(fn.attrs[PHASE_ATTR]) if fn.attrs and PHASE_ATTR in fn.attrs else ""


def num_input(fn: relax.Function) -> int | None:
    """Return how many of the first parameters are data, None when the function does not say."""
    count = fn.attrs.get(NUM_INPUT_ATTR) if fn.attrs else None
    return None if count is None else int(count)
