# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Take a model to the prediction of its step, for commands and searches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tvm import ir

from tvm_distir.core import (
    ATTENTION_OP,
    Plan,
    PlanLike,
    Schedule,
    System,
    as_plan,
    calls_op,
    data_positions,
    entry_of,
    keep_entry,
    mesh_text,
)
from tvm_distir.models import Model, load_model
from tvm_distir.performance import Profile, Program, Result, export, simulate
from tvm_distir.support import Stopwatch, UsageError
from tvm_distir.transforms import (
    FUSE_ATTENTION,
    FuseAttention,
    OutlineRepeatedLayers,
    PassSpec,
    communication_passes,
    passes_for,
    train_step,
)

from .strategies.composition import compose
from .strategies.context_parallelism import recompute_of
from .strategies.memory_fit import REFERENCE_SYSTEM, evenly_cut, fitted
from .strategies.pipelining import (
    check_micro_batches,
    in_micro_batches,
    is_single_pass,
    schedule_of,
)
from .strategies.registry import StrategySpec, parse
from .strategies.training_parts import with_updates

Recompute = str | Mapping[str, str]
FUSED = "fused"
ATTENTIONS = (FUSED, "written")


@dataclass(eq=False)
class Study:
    """Study of a step: load, train, plan, distribute, export, simulate.

    Each stage runs when its result is first read, and once: reading :attr:`program` runs all
    stages but the simulation.

    Parameters
    ----------
    model : Model, IRModule, str or Path
        A model, its module, or a MODEL string as :func:`tvm_distir.load_model` takes it. For a step
        in micro-batches, a string is loaded with the samples of a single micro-batch; a module and
        a model are taken as they are.
    plan : Plan, mapping, str or Path, optional
        A plan; None without a strategy: the annotations of the module.
    strategy : str, optional
        Text of strategies that make the plan.
    mesh : mapping of str to int, optional
        Sizes of the mesh axes, major first, for the strategy.
    system : System or str, optional
        The system, whose times decide what the plan leaves open, and are those of the simulation.
    train : mapping, optional
        Keywords of :func:`tvm_distir.train_step`; None: the model is run forward.
    recompute : str or mapping of str to str, optional
        The recomputation of the backward pass; None: as the plan or the strategy says.
    schedule : Schedule or mapping, optional
        Schedule of the training step; None: that of the strategy or of the plan.
    micro_batches : int, optional
        The number of micro-batches of the training step, whose gradients are accumulated; None: as
        the schedule, the strategy or the plan says.
    batch, dims, entry
        Samples of the whole step, sizes of symbolic dims, and the function of several entry points.
    decide : str
        ``times`` of the system decide what the plan leaves open, or ``bytes``, which count
        without a system too.
    bucket_bytes, ahead_bytes, overlap_activations, overlap_optimizer
        The options, as :func:`tvm_distir.distribute` takes them; the last also as
        :func:`tvm_distir.simulate` takes it.
    exporter : callable
        Makes the program of the distributed module.
    kernels, allocator
        The options, as :func:`tvm_distir.simulate` takes them.
    attention : str, optional
        ``fused``: softmax attention that is written out becomes a single op
        (:func:`tvm_distir.transforms.FuseAttention`); ``written``: it stays; None: as the kernel
        profile of the system says.
    levels : dict, optional
        Receives the module after each pass, by the name of the pass.
    loaded : dict, optional
        Receives each model that is loaded, by the MODEL string, samples and dims; other studies
        with the same dictionary take it from there.
    watch : Stopwatch
        Measures the stages ``load``, ``plan``, ``train``, each pass, ``export``, ``simulate``.
    """

    model: Model | ir.IRModule | str | Path
    plan: PlanLike = None
    _: KW_ONLY
    strategy: str | None = None
    mesh: Mapping[str, int] | None = None
    system: System | str | None = None
    train: Mapping[str, Any] | None = None
    recompute: Recompute | None = None
    schedule: Schedule | Mapping[str, Any] | None = None
    micro_batches: int | None = None
    batch: int | None = None
    dims: Mapping[str, int] | None = None
    entry: str | None = None
    decide: str = "times"
    bucket_bytes: int | str | None = None
    ahead_bytes: int | None = None
    overlap_activations: bool = False
    overlap_optimizer: bool = False
    exporter: Callable[[ir.IRModule], Program] = export
    kernels: Profile | str | None = None
    allocator: str = "framework"
    attention: str | None = None
    levels: dict[str, ir.IRModule] | None = None
    loaded: dict[object, Model] = field(default_factory=dict)
    watch: Stopwatch = field(default_factory=Stopwatch)
    _attempt: Study | None = field(default=None, init=False)
    _fitted_plan: Plan | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if isinstance(self.system, str):
            with self.watch.stage("load"):
                self.system = System.load(self.system)

    @property
    def is_planned(self) -> bool:
        """Return whether a plan or a strategy is given."""
        return self.plan is not None or self.strategy is not None

    @property
    def known_system(self) -> System | None:
        """Return the loaded system."""
        return System.resolve(self.system)

    @cached_property
    def source(self) -> Model:
        """Return the model as loaded, with repeated layers of a file of ONNX or torch as functions.

        Raises
        ------
        UsageError
            DIST0151 for a schedule without ``train``, or a batch beside a module; DIST0152 where
            the batch is no multiple of the micro-batches.
        """
        if isinstance(self.model, Model):
            return self.model
        if isinstance(self.model, ir.IRModule):
            if self.batch is None and not self.dims:
                return Model(self.model, "module", "relax")
            raise UsageError(
                "DIST0151", "a batch or dims are given, but the sizes of the module are fixed",
                place="batch", remedy="Remove them, or give a file or a model of the zoo.",
            )  # fmt: skip
        schedule = self._schedule
        forward = self.train is None
        if forward and schedule is not None and not (self.strategy and is_single_pass(schedule)):
            raise UsageError(
                "DIST0151", "stages and micro-batches require a training step",
                place="train", remedy="Pass train= (on the command line, --train).",
            )  # fmt: skip
        with self.watch.stage("load"):
            return self._load(self.model, 1 if schedule is None else schedule.micro_batches)

    def _load(self, spec: str | Path, parts: int) -> Model:
        """Load the model with the samples of one of several micro-batches."""
        whole = self.batch
        if whole is None or parts == 1:
            model = self._load_once(spec, whole)
            if parts == 1 or model.is_text:
                return model
            entry = model.mod[entry_of(model.mod)]
            whole = int(entry.params[data_positions(entry)[0]].ty.shape[0])
        if whole % parts:
            raise UsageError(
                "DIST0152", f"the batch {whole} is not a multiple of the {parts} micro-batches",
                place="batch", remedy="Give the batch of a full step, a multiple of them.",
            )  # fmt: skip
        return self._load_once(spec, whole // parts)

    def _load_once(self, spec: str | Path, batch: int | None) -> Model:
        """Load the model, its repeated layers as functions, unless another study did."""
        key = str(spec), batch, tuple(sorted((self.dims or {}).items()))
        model = self.loaded.get(key)
        if model is None:
            model = load_model(spec, batch=batch, dims=self.dims)
            if model.kind in ("onnx", "torch"):
                model = replace(model, mod=OutlineRepeatedLayers()(model.mod))
            self.loaded[key] = model
        return model

    @cached_property
    def forward(self) -> ir.IRModule:
        """Return the loaded module, with a single entry point."""
        mod = keep_entry(self.source.mod, self.entry)
        return FuseAttention()(mod) if self._fuses_attention else mod

    @cached_property
    def _profile(self) -> Profile | None:
        """Return the kernel profile, or None where there is neither a profile nor a system."""
        system = self.known_system
        kernels = self.kernels or (system.kernels if system is not None else None)
        return None if kernels is None else Profile.resolve(kernels)

    @property
    def recomputed_ops(self) -> tuple[str, ...]:
        """Return the ops that kernels of the backward pass compute again."""
        return () if self._profile is None else self._profile.recomputed_ops

    @property
    def _fuses_attention(self) -> bool:
        """Return whether softmax attention is a single op.

        Raises
        ------
        UsageError
            DIST0152 for a word that is neither ``fused`` nor ``written``.
        """
        if self.attention is None:
            if self._given_plan is not None and self._given_plan.attention == FUSED:
                return True  # its rules are for the op
            return self._profile is not None and self._profile.attention == FUSED
        if self.attention not in ATTENTIONS:
            raise UsageError(
                "DIST0152", f'attention "{self.attention}" is not known',
                place="attention", remedy=f"Use {' or '.join(ATTENTIONS)}.",
            )  # fmt: skip
        return self.attention == FUSED

    @cached_property
    def _specs(self) -> list[StrategySpec]:
        if self.strategy is None:
            return []
        with self.watch.stage("plan"):
            specs = list(parse(self.strategy))
            count = self.micro_batches
            return specs if count is None else in_micro_batches(specs, count)

    @cached_property
    def _given_plan(self) -> Plan | None:
        """Return the given plan, after comparing its mesh with the given mesh.

        Raises
        ------
        UsageError
            DIST0151 where the two differ.
        """
        if self.plan is None:
            return None
        with self.watch.stage("plan"):
            plan = as_plan(self.plan, ir.IRModule())
        if self.mesh is not None and not _is_of_mesh(plan, list(self.mesh.items())):
            meshes = "; ".join(mesh_text(mesh.axes) for mesh in plan.meshes)
            name = f" {self.plan}" if isinstance(self.plan, (str, Path)) else ""
            raise UsageError(
                "DIST0151", f"the plan{name} is for the mesh {meshes}, not for the given one",
                place="mesh", remedy="Remove the mesh, or change one of them.",
            )  # fmt: skip
        return plan

    @cached_property
    def _schedule(self) -> Schedule | None:
        if self.schedule is not None:
            return Schedule.resolve(self.schedule)
        if self.strategy is not None:
            return schedule_of(self._specs, self.mesh)
        schedule = None if self._given_plan is None else self._given_plan.schedule
        if self.micro_batches is None:
            return schedule
        if schedule is None:
            return Schedule("1f1b", 1, self.micro_batches)
        check_micro_batches(self.micro_batches, schedule.micro_batches, "plan")
        return schedule

    @cached_property
    def step(self) -> ir.IRModule:
        """Return the module that is distributed: the model, or its training step."""
        forward = self.forward
        if self.train is None:
            return forward
        recompute = self._chosen_recompute()
        if not self.is_planned:
            return self._train_step(recompute)
        attempts: dict[int, Study] = {}

        def measure_peak(step: ir.IRModule, plan: Plan) -> int:
            attempt = attempts[id(step)] = self._attempt_of(step, plan)
            program = attempt.program if self.exporter is export else export(attempt.local)
            return simulate(
                program, self.known_system or REFERENCE_SYSTEM,
                kernels=self.kernels, allocator=self.allocator,
            ).peak_memory_bytes  # fmt: skip

        step, self._fitted_plan = fitted(
            self._train_step, self._make_plan, recompute, self.known_system,
            measure_peak=measure_peak,
        )  # fmt: skip
        self._attempt = attempts.get(id(step))
        if self._attempt is not None and self.levels is not None:
            self.levels.update(self._attempt.levels or {})
        return step

    @cached_property
    def step_plan(self) -> Plan:
        """Return the plan of the step."""
        step = self.step
        plan = self._make_plan(step) if self._fitted_plan is None else self._fitted_plan
        return with_attention(step, plan) if self._fuses_attention else plan

    def _train_step(self, recompute: Recompute) -> ir.IRModule:
        with self.watch.stage("train"):
            return train_step(
                self.forward, recompute=recompute, system=self.known_system,
                schedule=self._schedule, recomputed_ops=self.recomputed_ops, **(self.train or {}),
            )  # fmt: skip

    def _make_plan(self, step: ir.IRModule) -> Plan:
        """Make the plan of a step."""
        plan, specs = self._given_plan, self._specs
        with self.watch.stage("plan"):
            if self.strategy is not None:
                return compose(step, self.mesh or {}, specs, self.known_system)
            if plan is None:
                return as_plan(None, step)
            if self.entry is not None:
                functions = {str(gv.name_hint) for gv in self.source.mod.get_global_vars()}
                functions -= {str(gv.name_hint) for gv in self.forward.get_global_vars()}
                plan = plan.without_functions(functions)
            return plan if self.train is None else with_updates(step, plan)

    def _chosen_recompute(self) -> Recompute:
        """Return the recomputation: as given, as in the plan, or as the strategy needs.

        ``auto`` takes activations to be cut evenly over the mesh, of a stage where there are
        some, where it does not say how they are cut.

        Raises
        ------
        UsageError
            DIST0151 where both ``recompute`` and the plan say it.
        """
        choice, plan, schedule = self.recompute, self._given_plan, self._schedule
        of_plan = {} if plan is None else plan.recompute
        if choice is None:
            return of_plan or (recompute_of(self._specs) if self._specs else "none")
        if of_plan:
            raise UsageError(
                "DIST0151", 'recompute is given, and the plan has "recompute"',
                place="recompute", remedy="Remove one of them.",
            )  # fmt: skip
        if not isinstance(choice, str):
            return choice
        if self.mesh:
            devices = math.prod(self.mesh.values()) // (schedule.stages if schedule else 1)
        else:
            counts = [1] if plan is None else [mesh.device_count for mesh in plan.meshes]
            devices = min(counts) if schedule else max(counts)
        return evenly_cut(choice, devices)

    def _attempt_of(self, step: ir.IRModule, plan: Plan) -> Study:
        """Return the study of a step that may be chosen."""
        return Study(
            step, plan, system=self.known_system, decide=self.decide,
            bucket_bytes=self.bucket_bytes, ahead_bytes=self.ahead_bytes, exporter=self.exporter,
            overlap_activations=self.overlap_activations,
            overlap_optimizer=self.overlap_optimizer, attention="written",
            levels=None if self.levels is None else {}, watch=self.watch,
        )  # fmt: skip

    @cached_property
    def local(self) -> ir.IRModule:
        """Return the distributed module, at level 5."""
        _ = self.step  # a step that was fitted to a memory has been distributed
        return self.distribute() if self._attempt is None else self._attempt.local

    def distribute(self, first: str = "annotate", until: str | None = None) -> ir.IRModule:
        """Run the named passes of the pipeline over the step.

        Parameters
        ----------
        first : str
            The pass to begin with.
        until : str, optional
            The pass to end with; None: the last pass.
        """
        mod, system = self.step, self.known_system if self.decide == "times" else None
        named = [
            *(
                (name, {**options, "system": system})
                for name, options in passes_for(self.step_plan)
                if name != FUSE_ATTENTION  # done before the step was made
            ),
            *communication_passes(
                mod,
                system,
                bucket_bytes=self.bucket_bytes,
                ahead_bytes=self.ahead_bytes,
                overlap_activations=self.overlap_activations,
                overlap_optimizer=self.overlap_optimizer,
            ),
        ]
        names = [name for name, _ in named]
        end = len(named) if until is None else names.index(until) + 1
        chosen = named[names.index(first) : end]
        for name, run_pass in [(name, PassSpec(name).make(**options)) for name, options in chosen]:
            with self.watch.stage(name):
                mod = run_pass(mod)
            if self.levels is not None:
                self.levels[name] = mod
        return mod

    @cached_property
    def program(self) -> Program:
        """Return the program that is simulated."""
        local = self.local
        if self._attempt is not None:
            return self._attempt.program
        with self.watch.stage("export"):
            return self.exporter(local)

    @cached_property
    def result(self) -> Result:
        """Return the simulated step."""
        program, system = self.program, self.known_system
        if system is None:
            raise UsageError(
                "DIST0151", "a step is simulated on a system, and none is given",
                place="system", remedy='Give a system, for example system="a100".',
            )  # fmt: skip
        with self.watch.stage("simulate"):
            return simulate(
                program, system, kernels=self.kernels, allocator=self.allocator,
                overlap_optimizer=self.overlap_optimizer,
            )  # fmt: skip


def with_attention(mod: ir.IRModule, plan: Plan) -> Plan:
    """Return a plan that says where the module has attention as a single op."""
    return replace(plan, attention=FUSED) if calls_op(mod, (ATTENTION_OP,)) else plan


def _is_of_mesh(plan: Plan, axes: Sequence[tuple[str, int]]) -> bool:
    """Return whether a plan is for a mesh; of a plan with stages a single axis may be theirs."""
    meshes = [list(mesh.axes.items()) for mesh in plan.meshes]
    if meshes == [axes]:
        return True
    if plan.schedule is None:
        return False
    stages = plan.schedule.stages
    return any(
        meshes == [[axis for axis in axes if axis != cut]] for cut in axes if cut[1] == stages
    )
