# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Predict a step for each row of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tvm_distir.core.rewriting import gc_paused
from tvm_distir.hardware import System
from tvm_distir.planning.weight_types import equal_devices
from tvm_distir.planning.workers import Workers
from tvm_distir.support import UsageError, check_choice

from .configuration_table import grid_table, read_table, record_table
from .pipeline import CUTS, DECIDE, ProgramPipeline, check_model_given
from .serving_pipeline import ServingPipeline, serves
from .sweep_result import SweepResult
from .sweep_run import OnProgress, SweepRun

Rows = str | Path | Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]]

Ints = npt.NDArray[np.int64]


def sweep(
    model: str,
    rows: Rows,
    system: System | str,
    *,
    train: Mapping[str, Any] | None = None,
    micro_batches: int = 1,
    tensor: str = "",
    cuts: str = "layers",
    decide: str = "bytes",
    dims: Mapping[str, int] | None = None,
    quantize: str | None = None,
    packed: Sequence[int] = (),
    output: str | Path | None = None,
    resume: bool = False,
    settings: Mapping[str, Any] | None = None,
    structures: bool = True,
    cache: str | Path | None = None,
    on_progress: OnProgress | None = None,
    workers: int | None = None,
    executor: Executor | None = None,
) -> SweepResult:
    """Predict the step of a model in many configurations.

    Parameters
    ----------
    model : str
        MODEL string: a file, or ``zoo:NAME?key=value,...``, whose keys rows may give.
    rows : path, mapping of str to sequence, or sequence of mapping of str to object
        A CSV file, a configuration a row; values by column, of which all combinations are
        taken; or a list of configurations, each with its values by column. Columns are ``tp``,
        ``pp``, ``dp``, ``micro_batch``, ``micro_batches`` or ``global_batch``, ``schedule``,
        ``chunks``, ``recompute``, ``zero``, ``sequence_parallel``, keys of the model, and
        ``dim:NAME``; what is not given is 1, or none. Serving steps (``entry=serve``) also have
        ``batch``, ``past`` and the other keys of caches.
    system : System or str
    train : mapping, optional
        Keywords of ``td.train_step``; None: forward steps.
    micro_batches : int
        Micro-batches of the steps of rows without ``micro_batches`` and ``global_batch``.
    tensor : str
        Strategy of ``tp``: ``megatron`` for transformers of the zoo, else ``tensor_parallel``.
    cuts : str
        ``layers``: stages of equally many layers, where the model has repeated ones; ``work``: as
        ``td.train_step`` cuts.
    decide : str
        The costs that decide what strategies leave open: ``bytes`` and operations, by fixed
        weights; or ``times`` of the system, which change more often between rows.
    dims : mapping of str to int, optional
        Sizes of symbolic dims for all rows.
    quantize : str, optional
        The type of weights: see :func:`tvm_distir.planning.weight_types.with_weights`.
    packed : sequence of int
        The tokens of the documents in each sequence; every row is taken through the whole pipeline.
    output : path, optional
        A CSV file to which rows are written as they are computed.
    resume : bool
        Continue from what the file contains.
    settings : mapping, optional
        The further settings that predictions depend on, for ``resume`` to compare.
    structures : bool
        Predict training and serving steps from structures, where there are enough rows alike;
        False: take every row through the whole pipeline.
    cache : path, optional
        Folder in which programs of samples and rows are kept; that of the user by default.
    on_progress : callable, optional
        Called about every second with the ``Progress`` of the sweep.
    workers : int, optional
        The number of programs that are made at once, by as many processes; the result does not
        depend on it.
    executor : concurrent.futures.Executor, optional
        The executor that makes programs instead of processes of this machine.

    Raises
    ------
    HardwareError
        DIST0705 for a kernel profile whose products the device cannot compute.
    SimulationError
        DIST0750 for rows that cannot be read, and columns that are options elsewhere; DIST0753 for
        a prediction that is not that of the whole pipeline.
    ModelError
        DIST0313 for ``dims`` of a model of the zoo.
    UsageError
        DIST0151 for a model whose text gives a batch, an ``output`` with other rows; DIST0152 for
        ``cuts`` or ``decide`` that are none; DIST0153.

    Examples
    --------
    >>> result = td.sweep("zoo:gpt?size=tiny", {"tp": [1, 2]}, "h100")
    >>> [(row["tp"], row["status"]) for row in result.to_dicts()]
    [(1, 'ok'), (2, 'ok')]
    """
    check_choice(cuts, "value", CUTS, "cuts")
    check_choice(decide, "value", DECIDE, "decide")
    resolved = equal_devices(system, "a sweep", quantize, model if train is None else None)
    check_model_given(model, dims or {})
    if serves(model) and (train is not None or packed):
        problem = "a serving step has no gradients" if train is not None else "requests are apart"
        remedy = f"Remove entry=serve, or {'--packed' if train is None else '--train'}."
        raise UsageError("DIST0151", problem, location=model, remedy=remedy)
    kind = ServingPipeline if serves(model) else ProgramPipeline
    lengths = tuple(packed)
    pipeline = kind(model, resolved, train, tensor, cuts, decide, dims or {}, cache, lengths)
    with gc_paused(), Workers(workers, executor) as pool:
        if isinstance(rows, Mapping):
            axes = {name: [str(value) for value in values] for name, values in rows.items()}
            table = grid_table(axes, pipeline.keys, micro_batches)
        elif isinstance(rows, (str, Path)):
            table = read_table(rows, pipeline.keys, micro_batches)
        else:
            table = record_table(rows, pipeline.keys, micro_batches)
        if isinstance(pipeline, ServingPipeline):
            pipeline.divide(table)
        table.show(pipeline.usual)
        table.name(model, resolved.name)
        work = SweepRun(
            pipeline, table, output, resume, settings or {}, structures and not lengths,
            on_progress, pool,
        )  # fmt: skip
        return work.run()
