# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Take a model to the prediction of its step, for commands and searches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tvm import ir

from tvm_distir.core.ir.operators import ATTENTION_OP
from tvm_distir.core.plan import Plan, Schedule, as_plan, mesh_text
from tvm_distir.core.propagation import Decision
from tvm_distir.core.rewriting import calls_op, keep_entry
from tvm_distir.hardware import System
from tvm_distir.models import Model, has_keys, model_with_key
from tvm_distir.performance import Profile, Program, Result, export, simulate
from tvm_distir.support import Stopwatch, UsageError, check_choice
from tvm_distir.transforms import (
    FUSE_ATTENTION,
    WRITE_ATTENTION,
    FuseAttention,
    PassSpec,
    communication_passes,
    passes_for,
    train_step,
    with_adapters,
    with_documents,
)

from .model_loading import load_part
from .stack import Stack
from .stage_memo import StageMemo
from .step_options import ATTENTIONS, DISTRIBUTE, FUSED, SIMULATE, WRITTEN, Recompute, StepOptions
from .strategies.composition import compose
from .strategies.context_parallelism import has_ring
from .strategies.memory_fit import REFERENCE_SYSTEM, evenly_cut, fitted
from .strategies.pipelining import (
    check_micro_batches,
    in_micro_batches,
    is_single_pass,
    schedule_of,
)
from .strategies.registry import StrategySpec, parse
from .strategies.training_parts import with_updates
from .token_groups import KEY, token_groups
from .weight_types import kernels_for, types_of

LORA = "lora"
"""Keyword of ``train_step``: adapters, which are a part of the forward module of a study."""
_Value = TypeVar("_Value")


class _FittedStep(NamedTuple):
    """The step, with the plan and the study that found its memory, where there are any."""

    module: ir.IRModule
    plan: Plan | None = None
    attempt: Study | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Study(StepOptions):
    """Study of a step: load, train, plan, distribute, export, simulate.

    Each stage runs when its result is first read, and once: reading :attr:`program` runs all
    stages but the simulation. Of a step in micro-batches, a MODEL string is loaded with the samples
    of a single micro-batch; a module and a model are taken as they are. Without a plan and a
    strategy the module has annotations.

    Parameters
    ----------
    exporter : callable
        Makes the program of the distributed module.
    decided : (IRModule, Decision), optional
        The annotated step, and the decision that the labels of the plan record: they are not read.
    levels : dict, optional
        Receives the module after each pass, by the name of the pass.
    memo : StageMemo, optional
        Keeps the results of stages, which other studies with the same memo take from there.
    watch : Stopwatch
        Measures the stages ``load``, ``plan``, ``train``, each pass, ``export``, ``simulate``.
    """

    exporter: Callable[[ir.IRModule], Program] = export
    decided: tuple[ir.IRModule, Decision] | None = None
    levels: dict[str, ir.IRModule] | None = None
    memo: StageMemo | None = None
    watch: Stopwatch = field(default_factory=Stopwatch)

    def __post_init__(self) -> None:
        with self.watch.stage("load"):
            object.__setattr__(self, "system", System.resolve(self.system))
            for name, value in self.stack_values().items():
                object.__setattr__(self, name, value)
        self._set_weights()
        self._set_token_groups()
        if self.price is not None and isinstance(self.system, System):
            object.__setattr__(self, "system", self.system.priced(self.price))

    def _set_weights(self) -> None:
        """Let the kernels read weights of the type that is stated, or of the checkpoint's.

        The weights that a training step updates have the type of the model. Unless a type is
        stated, so have all of them, but for those beside adapters.
        """
        system = self.known_system
        kernels = self.kernels or (None if system is None else system.kernels)
        if kernels is None or (self._trains_weights and self.quantize is None):
            return
        chosen = kernels_for(kernels, self.quantize, self.model, system)
        if chosen != kernels:
            object.__setattr__(self, "kernels", chosen)

    def _set_token_groups(self) -> None:
        """Send the tokens of each part of a sample to experts apart, unless a key states how."""
        if self.strategy is None or not isinstance(self.model, (str, Path)):
            return
        groups = token_groups(parse(self.strategy), self.mesh or {})
        if groups == 1 or not has_keys(str(self.model)) or f"{KEY}=" in str(self.model):
            return
        object.__setattr__(self, "model", model_with_key(str(self.model), KEY, groups, ""))

    @property
    def group_notes(self) -> tuple[str, ...]:
        """Return a sentence on the groups in which tokens are sent to experts."""
        model = str(self.model) if isinstance(self.model, (str, Path)) else ""
        groups = model.partition(f"{KEY}=")[2].partition(",")[0]
        sends = f"{KEY}={groups}: each part of a sample sends its tokens to experts by itself"
        return (sends,) if groups else ()

    @property
    def _adapters(self) -> str:
        """Return the adapters that are trained, in text; empty without any."""
        return str((self.training() or {}).get(LORA, ""))

    @property
    def _trains_weights(self) -> bool:
        """Return whether the weights of the model are trained."""
        return self.training() is not None and not self._adapters

    @property
    def weight_notes(self) -> tuple[str, ...]:
        """Return a sentence on the types in which the checkpoint stores weights."""
        stored = None if self.quantize is not None else types_of(self.model)
        if stored is None:
            return ()
        trained = self._trains_weights
        use = f"; they are trained in {stored.dtype}" if trained else f", others {stored.dtype}"
        return (f"weights of products are {stored.words}{use} ({stored.source})",)

    @classmethod
    def of(cls, options: StepOptions, *, watch: Stopwatch | None = None, **fields: Any) -> Study:
        """Return the study of options, with the masters that its system implies.

        Parameters
        ----------
        options : StepOptions
        watch : Stopwatch, optional
            Measures the stages.
        **fields : value
            Further fields of the study.
        """
        watch = watch or Stopwatch()
        with watch.stage("load"):
            system = System.resolve(options.system)
        values = {**options.of_step(), "system": system, "train": options.training(system)}
        return cls(**values, watch=watch, **fields)

    @property
    def is_planned(self) -> bool:
        """Return whether a plan or a strategy is given."""
        return self.plan is not None or self.strategy is not None

    @property
    def known_system(self) -> System | None:
        """Return the loaded system."""
        return System.resolve(self.system)

    @cached_property
    def _timed_system(self) -> System | None:
        """Return the system without its price, on which no module depends."""
        system = self.known_system
        if system is None or system.device.price_per_hour is None:
            return system
        return replace(system, device=replace(system.device, price_per_hour=None))

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
                location="batch", remedy="Remove them, or give a file or a model of the zoo.",
            )  # fmt: skip
        schedule = self._schedule
        forward = self.training() is None
        if forward and schedule is not None and not (self.strategy and is_single_pass(schedule)):
            raise UsageError(
                "DIST0151", "stages and micro-batches require a training step",
                location="train", remedy="Pass train= (on the command line, --train).",
            )  # fmt: skip
        with self.watch.stage("load"):
            parts = 1 if schedule is None else schedule.micro_batches
            return load_part(self.model, self.batch, self.dims, parts, self.memo)

    def _kept(self, stage: str, inputs: object, make: Callable[[], _Value]) -> _Value:
        """Return the result of a stage, from the memo where there is one."""
        return make() if self.memo is None else self.memo.result(stage, inputs, make)

    @cached_property
    def forward(self) -> ir.IRModule:
        """Return the loaded module, with a single entry point and the adapters to train."""
        source, fuses = self.source.mod, self._fuses_attention
        lora, packed = self._adapters, tuple(self.packed or ())

        def make() -> ir.IRModule:
            mod = with_adapters(keep_entry(source, self.entry), lora)
            if packed:
                return with_documents(mod, packed)
            return FuseAttention()(mod) if fuses else mod

        return self._kept("forward", (source, self.entry, fuses, lora, packed), make)

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
        if self.attention is not None:
            check_choice(self.attention, "attention", ATTENTIONS, "attention")
        plan = self._given_plan
        if has_ring(self._specs) or (plan is not None and plan.attention == FUSED):
            return True  # the rules are for the op
        if self.attention is None:
            return self._profile is not None and self._profile.attention == FUSED
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
                location="mesh", remedy="Remove the mesh, or change one of them.",
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

    @property
    def step(self) -> ir.IRModule:
        """Return the module that is distributed: the model, or its training step."""
        return self._step.module

    @cached_property
    def _step(self) -> _FittedStep:
        """Return the step, with its plan where the step was fitted to a memory."""
        forward = self.forward
        if self.training() is None:
            return _FittedStep(forward)
        recompute = self._chosen_recompute()
        if not self.is_planned:
            return _FittedStep(self._train_step(recompute))
        attempts: dict[int, Study] = {}

        def measure_peak(step: ir.IRModule, plan: Plan) -> int:
            attempt = attempts[id(step)] = self._attempt_of(step, plan)
            program = attempt.program if self.exporter is export else export(attempt.local)
            system = self.known_system or REFERENCE_SYSTEM
            return simulate(program, system, **self.passed_to(SIMULATE)).peak_memory_bytes

        step, plan = fitted(
            self._train_step, self._make_plan, recompute, self.known_system,
            measure_peak=measure_peak,
        )  # fmt: skip
        attempt = attempts.get(id(step))
        if attempt is not None and self.levels is not None:
            self.levels.update(attempt.levels or {})
        return _FittedStep(step, plan, attempt)

    @cached_property
    def step_plan(self) -> Plan:
        """Return the plan of the step."""
        step, plan, _ = self._step
        plan = self._make_plan(step) if plan is None else plan
        return with_attention(step, plan) if self._fuses_attention else plan

    def _train_step(self, recompute: Recompute) -> ir.IRModule:
        forward = self.forward
        keywords = {
            "recompute": recompute, "system": self._timed_system, "schedule": self._schedule,
            "recomputed_ops": self.recomputed_ops, **(self.training() or {}), LORA: "",
        }  # fmt: skip
        with self.watch.stage("train"):
            return self._kept("train", (forward, keywords), lambda: train_step(forward, **keywords))

    def _make_plan(self, step: ir.IRModule) -> Plan:
        """Make the plan of a step."""
        plan, specs = self._given_plan, self._specs
        with self.watch.stage("plan"):
            if self.strategy is not None:
                inputs = step, self.mesh or {}, specs, self._timed_system
                return self._kept("plan", inputs, lambda: compose(*inputs))
            if plan is None:
                return as_plan(None, step)
            if self.entry is not None:
                functions = {str(gv.name_hint) for gv in self.source.mod.get_global_vars()}
                functions -= {str(gv.name_hint) for gv in self.forward.get_global_vars()}
                plan = plan.without_functions(functions)
            return plan if self.training() is None else with_updates(step, plan)

    def _chosen_recompute(self) -> Recompute:
        """Return the recomputation: as given, as in the plan, or none.

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
            return of_plan or "none"
        if of_plan:
            raise UsageError(
                "DIST0151", 'recompute is given, and the plan has "recompute"',
                location="recompute", remedy="Remove one of them.",
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
            step, plan, system=self.known_system, stack=self.stack, decide=self.decide,
            exporter=self.exporter, attention=self.attention, watch=self.watch, memo=self.memo,
            levels=None if self.levels is None else {}, **self.passed_to(DISTRIBUTE),
        )  # fmt: skip

    @cached_property
    def local(self) -> ir.IRModule:
        """Return the distributed module, at level 5."""
        attempt = self._step.attempt  # a step that was fitted to a memory has been distributed
        return self.distribute() if attempt is None else attempt.local

    def distribute(self, first: str = "annotate", until: str | None = None) -> ir.IRModule:
        """Run the named passes of the pipeline over the step.

        Parameters
        ----------
        first : str
            The pass to begin with.
        until : str, optional
            The pass to end with; None: the last pass.
        """
        mod, system = self.step, self._timed_system if self.decide == "times" else None
        pins = isinstance(self.stack, Stack) and self.stack.placements == "bytes"
        first_passes = {
            name: {**options, "system": None if pins else system}
            for name, options in passes_for(self.step_plan)
            if name != FUSE_ATTENTION  # done before the step was made
        }
        if self.decided is not None and first == "annotate":
            first = "propagate"
            mod, first_passes[first]["decision"] = self.decided
        named = [
            *first_passes.items(),
            *([(WRITE_ATTENTION, {})] if self.attention == WRITTEN else []),
            *communication_passes(self.step, system, **self.passed_to(DISTRIBUTE)),
        ]
        names = [name for name, _ in named]
        end = len(named) if until is None else names.index(until) + 1
        chosen = named[names.index(first) : end]
        specs = [(PassSpec(name), options) for name, options in chosen]
        for spec, options, run_pass in [(spec, by, spec.make(**by)) for spec, by in specs]:
            name, inputs = spec.name, (spec.name, spec.info.accepted(options), mod)
            with self.watch.stage(name):
                mod = self._kept("pass", inputs, partial(run_pass, mod))
            if self.levels is not None:
                self.levels[name] = mod
        return mod

    @cached_property
    def program(self) -> Program:
        """Return the program that is simulated."""
        local = self.local
        if self._step.attempt is not None:
            return self._step.attempt.program
        with self.watch.stage("export"):
            if self.exporter is export:
                return self._kept("export", local, lambda: export(local))
            return self.exporter(local)

    @cached_property
    def result(self) -> Result:
        """Return the simulated step."""
        program, system = self.program, System.required(self.known_system)
        with self.watch.stage("simulate"):
            return simulate(program, system, **self.passed_to(SIMULATE))


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
