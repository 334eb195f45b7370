# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Name the attributes of modules and functions, and what their values may be."""

from __future__ import annotations

IO_ATTR = "dist.io"
"""Level-5 entry: index, full shape, mesh and placement of every input and output."""

WORKERS_ATTR = "dist.workers"
"""Module with ``R.ccl``: the mesh's axes and their sizes, and the number of Disco's groups. Its
entries: what ``dist.io`` says at level 5."""

WORKER_INDEX_ATTR = "dist.worker_index"
"""Function of such a module that returns a worker's position along these mesh axes."""

DONATED_ATTR = "dist.donated"
"""Level-5 function: the numbers of the parameters whose memory kernels may write results to."""

PARTIAL_ATTR = "dist.partial"
"""Private function, levels 3 and 4: which parameters and results are partial sums."""

STATIONARY_ATTR = "dist.stationary"
"""Level 2: annotated variables that may not be communicated."""

OPEN_AXES_ATTR = "dist.open_axes"
"""Level 2: per annotated variable the mesh axes its annotation leaves open; ``~axis`` where it
stays a partial sum (:func:`~.readers.open_axes_of`)."""

AXIS_ORDERS_ATTR = "dist.axis_orders"
"""Levels 2 and 3: the mesh axes of each dim whose order is stated, major first, by the name of a
parameter, ``#`` and the number of a flat result, or ``%`` and the name of an annotated value."""

VALUE_MARK = "%"
"""What begins the name of an annotated value in :data:`AXIS_ORDERS_ATTR`."""

BRANCH_ATTR = "dist.branch"
"""Private function: the branch of an ``If`` that it was, as ``main_y:then``."""

COMPLETE_ATTR = "dist.whole"
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

STAGE_KIND_ATTR = "dist.role"
"""Public function of a stage: what its parameters (``params``) and results (``results``) are, and
the names of the values (``values``) that are its results."""

PIPELINE_ATTR = "dist.pipeline"
"""Module of a pipelined step: schedule, names of all parameters, and per stage its function."""

LABELS_ATTR = "dist.labels"
"""Annotated module: JSON of the labels of its plan, which propagation writes as they are."""

CODEGEN_ATTR, COMPOSITE_ATTR = "Codegen", "Composite"
"""Functions that TVM has partitioned: the library that compiles it, the pattern that it is."""

COMPOSITE_OPS_ATTR = "dist.composite_ops"
"""Function with ``Composite``, levels 1 to 4: the names of the ops that the pattern matched."""

FRONTEND_ATTR = "dist.frontend"
"""Module: where it was imported from."""

FORWARD_PHASE, BACKWARD_PHASE, WEIGHT_PHASE = "forward", "backward", "weight"
"""Phases of a stage (:data:`PHASE_ATTR`) that are units of a schedule."""

ACCUMULATE_PHASE, EACH_PHASE = "accumulate", "each"
"""Phases that follow them: sums over micro-batches of what they are given, and what hands that of
each on to a separate update."""

COUNT_PHASE = "count"
"""Phase in front of the first micro-batch: what it computes of each is summed over all of them."""
