# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Learn a system from traces of steps (``learn``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tvm import ir

from tvm_distir.core.plan import PlanLike
from tvm_distir.hardware import System
from tvm_distir.models import Model
from tvm_distir.performance import HOST, read_kineto, simulate, typical_step
from tvm_distir.planning.calibration.step_times import with_constants
from tvm_distir.planning.step_options import SIMULATE, StepOptions
from tvm_distir.planning.study import Study

from .alignment import align, predicted_ops
from .fitting import fit_matches, with_laws, within_peaks
from .learned_system import LAUNCH, LearnedSystem


def learn(
    traces: str | Path | Sequence[str | Path],
    model: Model | ir.IRModule | str | Path,
    plan: PlanLike = None,
    *,
    source: str = "learned from a trace",
    **options: Any,
) -> LearnedSystem:
    """Compare traces of a step with its prediction, and fit the system to them.

    Parameters
    ----------
    traces : str or Path, or sequence of them
        Files of ``torch.profiler``, ``.json`` or ``.json.gz``, of the same step: of a rank, or of
        several ranks.
    model : Model, IRModule, str or Path
        The model whose step was traced.
    plan : Plan, mapping, str or Path, optional
        The plan of the step, unless ``strategy`` states it.
    source : str
        The text that is written as the source of what was learned.
    **options : value
        The options of the step as for ``analyze``, among them ``system``, which is fitted.

    Returns
    -------
    LearnedSystem

    Raises
    ------
    SimulationError
        DIST0731 for a trace that cannot be read.
    DistIRError
        What the stages of the prediction raise.

    Examples
    --------
    >>> import json, tempfile
    >>> def op(name, ts, dur):
    ...     return {"ph": "X", "cat": "cpu_op", "name": name, "tid": 1, "ts": ts, "dur": dur}
    >>> events = [op("aten::linear", 0, 900), op("aten::relu", 900, 90)]
    >>> events += [op("aten::linear", 990, 900)]
    >>> with tempfile.NamedTemporaryFile("w", suffix=".json") as file:  # what torch.profiler writes
    ...     json.dump({"traceEvents": events}, file)
    ...     file.flush()
    ...     model = "zoo:mlp?layers=2,hidden=256,batch=64"
    ...     result = td.learn(file.name, model, system="laptop-cpu")
    >>> f"{result.step.duration_s * 1e3:.2f} ms, named {result.named_share:.0%}"
    '1.89 ms, named 100%'
    """
    paths = [traces] if isinstance(traces, str | Path) else list(traces)
    chosen = StepOptions(model, plan, **options).with_seq().on_one_device()
    system = System.required(chosen.system, equal_for="learning")
    steps = [step for path in paths for step in read_kineto(path)]
    study = Study.of(replace(chosen, system=system))
    step, predicted = typical_step(steps), study.result
    ops = predicted_ops(predicted.lanes[0], study.forward)
    matches = align(step.calls, ops)
    types = {op.args["dtype"] for op in ops if op.args.get("dtype")}
    learned = with_laws(system, sorted(types))
    calibration = fit_matches(learned, matches, source)
    learned = learned if calibration is None else within_peaks(calibration.system)
    launches = sum(op.flops for op in ops if op.args.get("class") == HOST)
    if launches and step.on_device:
        issued_s = min(step.issued_s for step in steps)
        learned = with_constants(learned, {LAUNCH: issued_s / launches * 1e6}, source)
    learned = replace(learned, name=f"{system.name}-learned")
    result = simulate(study.program, learned, **study.passed_to(SIMULATE))
    return LearnedSystem(system, learned, step, len(steps), matches, predicted, result, calibration)
