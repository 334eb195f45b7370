# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Search: order candidates by bounds, auto-shard and simulate them, keep the best."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tvm import ir

from tvm_distir.core.plan import Plan
from tvm_distir.core.rewriting import gc_paused
from tvm_distir.hardware import System, main_dtype
from tvm_distir.models import load_model
from tvm_distir.performance import Profile
from tvm_distir.planning.error_band import StepKind, bits_of
from tvm_distir.planning.weight_types import equal_devices, weights_line
from tvm_distir.planning.workers import Workers
from tvm_distir.support import UsageError

from .candidate_row import SOLVED
from .candidates import Enumeration
from .constraints import Constraints
from .first_plans import first_plans
from .folder import Folder
from .found_plan import FoundPlan
from .modules import Make, Source
from .parallelism import chosen, grouped, parallelism_text
from .result import SearchResult
from .search_run import OnProgress, SearchRun
from .strategy_maker import Compare
from .trials import GIVEN, Trials

MARGIN = 0.05
"""The assumed difference between a likely and an actual value, as a share of it."""


def search(
    model: ir.IRModule | Make | str | Path,
    devices: int,
    system: System | str,
    *,
    batch: int | None = None,
    quantize: str | None = None,
    train: Mapping[str, Any] | None = None,
    memory_bytes: int | None = None,
    gap: float = 0.01,
    constraints: Constraints | None = None,
    top: int = 5,
    margin: float = MARGIN,
    time_limit_s: float | None = None,
    compare: Compare | None = None,
    why: bool = False,
    folder: Folder | None = None,
    on_progress: OnProgress | None = None,
    workers: int | None = None,
    executor: Executor | None = None,
) -> SearchResult:
    """Find the fastest plans of a model on a cluster.

    Meshes, stages and micro-batches are enumerated in the order of a bound, the kernels of the
    step cut by all devices, with the idle ends of the pipeline (:mod:`.arithmetic`). On each,
    :func:`.auto_shard` decides all placements; the plan is distributed, exported and simulated, and
    it is that time by which plans are ranked. The enumeration ends when no bound left is below the
    worst of the ``top`` best. Where there are stages, candidates come in the order of what tables
    of their layers say (:mod:`.estimates`), and those are left out of which they say that they do
    not fit, or that they are not as good, by ``margin`` and more.

    Parameters
    ----------
    model : IRModule, callable, str or Path
        A forward model, or a training step made already; or what makes the model of a batch,
        given its samples, or a MODEL string with ``batch``: only so there are micro-batches.
    devices : int
    system : System or str
    batch : int, optional
        Samples of a whole step, for a callable.
    quantize : str, optional
        The type of weights: see :func:`tvm_distir.planning.weight_types.with_weights`.
    train : mapping, optional
        Keywords of ``td.train_step`` (``loss``, ``optimizer`` and so on), to search for a step of
        training the model.
    memory_bytes : int, optional
        The maximum number of bytes that a device may store; the memory of the system's devices by
        default.
    gap : float
        The maximum excess of the cost over the minimum, as a share of it.
    constraints : Constraints, optional
    top : int
        The number of plans to return.
    margin : float
        The margin of estimates, as a share.
    time_limit_s : float, optional
        Wall-clock seconds after which no further candidate is begun, unless there is no plan
        and none has been tried. The first plans of a training step (:mod:`.first_plans`) count.
    compare : (str, callable or Plan), optional
        The baseline, as its name and what it is: a callable that makes plans is simulated on every
        mesh of the space without stages, and the best of these is ``baseline``; a plan is simulated
        as it is. The baseline is returned among the plans too where it fits and is as good as those
        of the search.
    why : bool
        Whether to also compute the cost of other placements of the best plan's weights, ``why``.
    folder : Folder, optional
        A folder that stores rows and plans as they arise, and has those of an earlier search.
    on_progress : callable, optional
        Called after each plan and each candidate with the number of candidates by outcome, and the
        best plan so far.
    workers : int, optional
        The number of candidates that are tried at once, by as many processes; the result does not
        depend on it, except that plans have no ``simulated``.
    executor : concurrent.futures.Executor, optional
        The executor that tries candidates instead of processes of this machine. ``model`` must be
        a module or a function of a module, so that processes can import it.

    Raises
    ------
    HardwareError
        DIST0705 for a kernel profile whose products the device cannot compute.
    InfeasibleError
        DIST0802 where the constraints leave nothing; DIST0801 where no candidate fits.
    UsageError
        DIST0151 where the plan to compare with is for another number of devices, and for numbers
        of micro-batches of a step that cannot be divided.

    Examples
    --------
    >>> result = td.search("zoo:mlp?size=tiny", 2, "h100", batch=8)
    >>> result.complete, result.plans[0].plan.meshes[0].device_count
    (True, 2)
    """
    resolved = equal_devices(system, "a search", quantize, model if train is None else None)
    if isinstance(model, (str, Path)):
        text = str(model)
        model = load_model(text).mod if batch is None else partial(_load, text)
    source = Source(model, batch, train, resolved)
    limit = resolved.memory_capacity_bytes if memory_bytes is None else memory_bytes
    rules = constraints or Constraints()
    enumeration = Enumeration(rules, devices, resolved, source.batch, stages=train is not None)
    _check_counts(enumeration)
    trials = Trials(source, resolved, limit, gap, rules, margin, in_stages=enumeration.in_stages)
    with gc_paused(), Workers(workers, executor) as pool:
        search_run = SearchRun(trials, enumeration, top, folder, pool, time_limit_s, on_progress)
        baseline = None
        if compare is not None and isinstance(compare[1], Plan):
            baseline = trials.given(compare[0], compare[1], devices)
        search_run.begin_with(first_plans(trials, enumeration))
        result = search_run.run()
        pool.drop()
        if compare is not None and not result.interrupted:
            name, comparison = compare
            if not isinstance(comparison, Plan):
                baseline = trials.compared(name, comparison, enumeration.meshes())
            result = _with_baseline(result, baseline)
        result = _grouped(result, source, top)
        best = next((plan.row for plan in result.plans if plan.row is not result.baseline), None)
        if why and best is not None and not result.interrupted:
            result = replace(result, why=trials.why(best.candidate))
        return _described(result, source, devices)


def _described(result: SearchResult, source: Source, devices: int) -> SearchResult:
    """Return the result with its weights, the price of its devices, and its kind of training."""
    result = replace(result, weights=weights_line(source.system.kernels))
    price = source.system.device.price_per_hour
    if price is not None:
        result = replace(result, price_per_s_usd=price * devices / 3600)
    if source.train is None or not result.plans:
        return result
    profile = Profile.resolve(source.system.kernels)
    dtype = profile.quantization.dtype if profile.quantization else ""
    model = source.forward(result.plans[0].row.candidate.micro_batches)
    bits = bits_of(dtype or main_dtype(model))
    return replace(result, kind=StepKind(profile.name, source.system.device.name, "", bits))


def _check_counts(enumeration: Enumeration) -> None:
    if enumeration.constraints.counts and not (enumeration.stages and enumeration.batch):
        problem = "micro-batches require a training step of a model whose batch can be divided"
        remedy = "Pass train= (--train) and a model of any batch, or remove them."
        raise UsageError("DIST0151", problem, location="micro_batches", remedy=remedy)


def _with_baseline(result: SearchResult, other: FoundPlan | None) -> SearchResult:
    """Add the baseline of plans; where it is among the best, mark it there."""
    if other is None:
        return result
    plans = [*result.plans, *([other] if other.row.state == SOLVED else [])]
    plans = sorted(plans, key=lambda plan: plan.time_s)
    return replace(result, baseline=other.row, plans=tuple(plans))


def _grouped(result: SearchResult, source: Source, top: int) -> SearchResult:
    """Return the result with at most so many plans, those of a step of training in groups."""
    if source.train is None:
        return replace(result, plans=result.plans[:top])

    def name_of(plan: FoundPlan) -> str:
        candidate, rules = plan.row.candidate, plan.plan
        policy = rules.recompute if candidate.recompute == GIVEN else candidate.recompute
        if candidate.ranks:
            return ""
        stages = f"stages/{candidate.stages} " if candidate.stages > 1 else ""
        name = stages + parallelism_text(source.module(rules.schedule, policy), rules)
        return name.strip()

    groups = grouped(result.plans, name_of, top)
    return replace(result, plans=chosen(groups, top), groups=groups)


def _load(text: str, batch: int) -> ir.IRModule:
    """Return the module of a MODEL string for a batch."""
    return load_model(text, batch=batch).mod
