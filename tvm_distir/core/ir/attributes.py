# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the module and function attributes through which passes exchange information."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import ir, relax

from .arrays import unpack
from .placement import P

IO_ATTR = "dist.io"
"""Level-5 entry: index, full shape, mesh and placement of every input and output."""

PARTIAL_ATTR = "dist.partial"
"""Private function, levels 3 and 4: which parameters and results are partial sums."""

STATIONARY_ATTR = "dist.stationary"
"""Level 2: annotated variables that may not be communicated."""

OPEN_AXES_ATTR = "dist.open_axes"
"""Level 2: per annotated variable the mesh axes its annotation leaves open; ``~axis`` where it
stays a partial sum (:func:`open_axes_of`)."""

BRANCH_ATTR = "dist.branch"
"""Private function: the branch of an ``If`` that it was, as ``main_y:then``."""

WHOLE_ATTR = "dist.whole"
"""Private function that runs whole wherever it is called: also what no caller reads is made."""

INPUTS_ATTR = "dist.inputs"
"""Names of the parameters that are data, not weights."""

DROPOUT_KERNEL = "dropout_kernel"
"""Begin of the names of PrimFuncs that drop elements of their first operand."""

DROPOUT_RATE_ATTR = "dist.dropout_rate"
"""Such a PrimFunc that draws which they are: how many it drops, from 0 to below 1."""

PARAM_NAMES_ATTR = "dist.param_names"
"""The model's names of the parameters, dots kept."""

FIELDS_ATTR = "dist.fields"
"""Entry whose tuple parameters were opened: the field that each parameter was, as ``cache.0``."""

NUM_INPUT_ATTR = "num_input"
"""Attribute with the number of leading parameters that are data (TVM's name)."""

TRAINING_ATTR = "dist.training"
"""Entry function of a training step: ``updated``, the value that is the new form of each updated
parameter, by the parameter's name; ``states``, the names of a weight's optimizer states;
``again``, the value as which the backward pass reads a weight; ``places``, of a step that was
written elsewhere, the number of the result that updates a parameter."""

PHASE_ATTR = "dist.phase"
"""Private function of a stage: which part of the schedule its calls are."""

REPEAT_ATTR = "dist.repeat"
"""Private function: how often a step runs each of its calls, once per micro-batch."""

IN_FLIGHT_ATTR = "dist.in_flight"
"""Private function, level 5: which parameters (``params``) and fields of the result (``results``)
are in flight: begun by a start and waited for by a done in another function."""

ROLE_ATTR = "dist.role"
"""Public function of a stage: what its parameters (``params``) and results (``results``) are, and
the names of the values (``values``) that are its results."""

PIPELINE_ATTR = "dist.pipeline"
"""Module of a pipelined step: schedule, names of all parameters, and per stage its function."""

LABELS_ATTR = "dist.labels"
"""Annotated module: JSON of the labels of its plan, which propagation writes as they are."""

FRONTEND_ATTR = "dist.frontend"
"""Module: where it was imported from."""


FORWARD_PHASE, BACKWARD_PHASE, WEIGHT_PHASE = "forward", "backward", "weight"
"""Phases of a stage (:data:`PHASE_ATTR`) that are units of a schedule."""

ACCUMULATE_PHASE, EACH_PHASE = "accumulate", "each"
"""Phases that follow them: sums over micro-batches of what they are given, and what hands that of
each on to a separate update."""

COUNT_PHASE = "count"
"""Phase in front of the first micro-batch: what it computes of each is summed over all of them."""


def param_names(fn: relax.Function) -> list[str]:
    """Return the names of a function's parameters, as the model has them where it is known."""
    names = fn.attrs.get(PARAM_NAMES_ATTR) if fn.attrs else None
    if names is None or len(names) != len(fn.params):
        return [str(param.name) for param in unpack(fn.params)]
    return list(map(str, unpack(names)))


def training_notes(fn: relax.Function, key: str) -> dict[str, Any]:
    """Return one of the notes on a training step (:data:`TRAINING_ATTR`); empty elsewhere."""
    attrs: Any = fn.attrs or {}
    if TRAINING_ATTR not in attrs or key not in attrs[TRAINING_ATTR]:
        return {}
    return {str(k): v for k, v in attrs[TRAINING_ATTR][key].items()}


def with_annotated(
    fn: relax.Function,
    body: relax.Expr,
    stationary: Sequence[str],
    open_axes: Mapping[str, Sequence[int]],
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
    """
    attrs = dict(fn.attrs or {})
    if stationary:
        attrs[STATIONARY_ATTR] = [*attrs.get(STATIONARY_ATTR, []), *stationary]
    if open_axes:
        attrs[OPEN_AXES_ATTR] = {**attrs.get(OPEN_AXES_ATTR, {}), **open_axes}
    attributes = ir.make_node("ir.DictAttrs", **attrs) if attrs else None
    return relax.Function(fn.params, body, fn.ret_ty, fn.is_pure, attributes)


def open_axes_of(labels: Sequence[int | None]) -> list[int]:
    """Return the axes that an annotation leaves open, as :data:`OPEN_AXES_ATTR` has them."""
    return [~a if x == P else a for a, x in enumerate(labels) if x is None or x == P]


def opened_labels(labels: Sequence[int | None], open_axes: Sequence[int]) -> tuple[int | None, ...]:
    """Return the labels of an annotation, None or ``P`` along the axes that it leaves open."""
    return tuple(
        [None if a in open_axes else P if ~a in open_axes else x for a, x in enumerate(labels)]
    )


def phase_of(fn: Any) -> str:
    """Return the phase (:data:`PHASE_ATTR`) that the calls of a function are, empty of others."""
    return str(fn.attrs[PHASE_ATTR]) if fn.attrs and PHASE_ATTR in fn.attrs else ""


def num_input(fn: relax.Function) -> int | None:
    """Return how many of the first parameters are data, None when the function does not say."""
    count = fn.attrs.get(NUM_INPUT_ATTR) if fn.attrs else None
    return None if count is None else int(count)
