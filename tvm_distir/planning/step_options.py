# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Declare the options of a step, from which commands and functions take theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tvm_distir.support import (
    UsageError,
    option,
    option_fields,
    parse_amount,
    parse_bucket,
    parse_bytes,
    parse_count,
    parse_dims,
    parse_mesh,
    parse_number,
    parse_numbers,
)

from .training_run import TrainingRun

if TYPE_CHECKING:
    from tvm import ir

    from tvm_distir.core.plan import PlanLike, Schedule
    from tvm_distir.hardware import System, Systems
    from tvm_distir.models import Model
    from tvm_distir.performance import Profile

    from .stack import Stack

Recompute = str | Mapping[str, str]
ATTENTIONS = FUSED, WRITTEN = ("fused", "written")
"""Forms of softmax attention: a kernel, or products and a softmax."""
STAGES = ("load", "plan", "train", "distribute", "simulate", "advise")
"""Stages of the analysis of a step, by which commands choose options."""
LOAD, PLAN, TRAIN, DISTRIBUTE, SIMULATE, ADVISE = STAGES

_Options = TypeVar("_Options", bound="StepOptions")
_count_of_samples = partial(parse_count, remedy="Give the global batch size, e.g. --batch 8.")
_count_of_tokens = partial(parse_count, remedy="Give the tokens of a sample, e.g. --seq 4096.")


def _lengths(text: str, option: str) -> list[int]:
    """Read tokens of documents, joined by commas (UsageError DIST0152)."""
    remedy = "Give the tokens of each document, e.g. --packed 512,1024,2560."
    return [parse_count(part, option, remedy) for part in text.split(",")]


@dataclass(frozen=True, eq=False)
class TrainingOptions:
    """Options of the command that become keywords of :func:`tvm_distir.train_step`.

    Parameters
    ----------
    loss : str
        Set the loss: cross_entropy (default), mse or OUTPUT:NAME*WEIGHT,...; needs --train.
    optimizer : str
        Set the optimizer, such as sgd (default), adam or adamw; needs --train.
    clip : float
        Clip the global gradient norm to NORM; needs --train.
    loss_scale : str or float
        Set the loss scale, a number or dynamic; needs --train.
    master : bool, optional
        Keep float32 master copies of half-precision weights (default: on for systems of schema
        version 2, as trainers do); needs --train.
    frozen : sequence of str
        Freeze the weights that match PATTERN, e.g. wte.*; needs --train; repeatable.
    lora : str
        Train low-rank adapters alone, of the named layers or of all products:
        r=16,alpha=32,targets=q_proj+v_proj; needs --train.
    rate_input : bool, optional
        Make the learning rate an input of each step, `rate`, for a schedule; needs --train.
    """

    loss: str = option(TRAIN, "NAME", default="cross_entropy")
    optimizer: str = option(TRAIN, "NAME[:k=v,...]", default="sgd", frequent=True)
    clip: float = option(TRAIN, "NORM", parse_number, default=0.0)
    loss_scale: str | float = option(TRAIN, "S", default=1.0)
    master: bool | None = option(TRAIN)
    frozen: Sequence[str] = option(TRAIN, "PATTERN", default=(), flag="--freeze", repeated=True)
    lora: str = option(TRAIN, "r=R[,k=v...]", default="")
    rate_input: bool | None = option(TRAIN)

    def keywords(self) -> dict[str, Any]:
        """Return the keywords of ``train_step`` (UsageError DIST0152, DIST0351)."""
        from tvm_distir.transforms import optimizer_named, read_optimizer

        name, numbers = read_optimizer(self.optimizer, "--optimizer")
        optimizer_named(name, numbers)
        result = {**vars(self), "optimizer": name, **numbers}
        return {key: value for key, value in result.items() if value is not None}


@dataclass(frozen=True, eq=False)
class StepOptions:
    """Model and options of a step, which the command reads and Python takes as keywords.

    Parameters
    ----------
    model : Model, IRModule, str or Path
        A .onnx, .pt2, .mlir, .json or .py (TVMScript) file, a config.json of the Hugging Face hub,
        hf:NAME, or zoo:NAME?key=value,...
    plan : Plan, mapping, str or Path, optional
        Read the plan from a JSON file.
    strategy : str, optional
        Create the plan by strategies joined with +, such as megatron or zero (see
        --help-strategies).
    mesh : mapping of str to int, optional
        Set the mesh axes and their sizes, major first; needs --strategy.
    batch : int, optional
        Set the global batch size in samples.
    dims : mapping of str to int, optional
        Set the size of a symbolic dim, e.g. seq=1024; repeatable.
    seq : int, optional
        Set the tokens of a sample of hf:NAME, config.json or zoo:NAME (as the key seq).
    packed : sequence of int, optional
        Pack documents of these tokens in each sequence, such as 512,1024,2560, or of one length
        that is repeated; tokens see their document only.
    entry : str, optional
        Select the function of a module with several entry points, e.g. prefill.
    system : System or str, or list, optional
        A system of `tvm-distir systems`, such as h100, or a .json file; for stages h100,a100. Its
        times determine the placements that the plan leaves open.
    stack : Stack or str, optional
        Pin what a trainer does but for stated options: megatron-core, megatron-lm, torch-fsdp,
        torch-eager, deepspeed, xla, best (nothing) or a .json file.
    decide : str
        ``times`` of the system decide what the plan leaves open, or ``bytes``, which count
        without a system too.
    train : mapping, TrainingOptions or bool, optional
        Build a training step: loss, gradients and optimizer update.
    micro_batches : int, optional
        Accumulate gradients over M micro-batches, with or without a pipeline; needs --train.
    recompute : str or mapping of str to str, optional
        Set the recomputation (activation checkpointing) policy: none, megatron, attention, core,
        selective, alternate, full, checkpoint, cut:SHARE, NAME=POLICY,... by function, or
        auto[:memory_gib=G,...] for the least that fits in device memory; needs --train.
    schedule : Schedule or mapping, optional
        Schedule of the training step; None: that of the strategy or of the plan.
    bucket_bytes : int or str, optional
        Set the bucket size of small collectives in bytes; 0 disables bucketing, and unit gathers
        and reduces each layer's weights by one flat buffer, as FSDP does, and makes buckets of 25
        MiB of other reductions (default: unit for training steps with a system, otherwise 0).
    ahead_bytes : int, optional
        Set the extra memory in bytes for overlapping collectives with compute in training steps
        with a system; 0 disables overlap (default: 1/16 of the peak memory, and the weights of a
        layer).
    overlap_activations : bool, optional
        Overlap collectives of activations, such as those of tensor parallelism, with other work;
        by default they block, as in most frameworks, unless the stack overlaps them.
    overlap_optimizer : bool, optional
        Overlap a distributed optimizer with the step: gather updated weights beside the first
        forward pass of the next step, and reduce gradients beside the backward pass of the last
        micro-batch (Megatron-LM: --overlap-param-gather, --overlap-grad-reduce).
    offload_optimizer : bool, optional
        Keep the states of the optimizer in the host's memory between their updates; needs --train.
    allocator : str, optional
        Set the memory model: framework (default), the live tensors; pytorch or pytorch-expandable,
        what PyTorch reserves for them with the CUDA context and NCCL; or tvm, the storage plan of
        `run`.
    kernels : Profile or str, optional
        Set the kernel profile: eager, megatron, ... or a file (default: of the system).
    quantize : str, optional
        Set the type of the weights of an inference step: none, fp8, fp8-block, int4, ... (default:
        of the checkpoint, as quantization_config states it).
    price : float, optional
        Set the price of a device and an hour in dollars (default: of the system).
    attention : str, optional
        Compute softmax attention by one kernel, or by products and a softmax (default: of the
        profile, and one kernel on a ring).
    """

    model: Model | ir.IRModule | str | Path
    plan: PlanLike = option(PLAN, "P.json", frequent=True)
    _: KW_ONLY
    strategy: str | None = option(PLAN, "NAME[:k=v,...][+NAME...]", frequent=True)
    mesh: Mapping[str, int] | None = option(PLAN, "dp=2,tp=4", parse_mesh, frequent=True)
    batch: int | None = option(LOAD, "N", _count_of_samples, to=(LOAD,), frequent=True)
    dims: Mapping[str, int] | None = option(
        LOAD, "NAME=SIZE", parse_dims, to=(LOAD,), flag="--dim", repeated=True
    )
    seq: int | None = option(LOAD, "N", _count_of_tokens, frequent=True)
    packed: Sequence[int] | None = option(LOAD, "L[,L...]", _lengths, to=(LOAD,))
    entry: str | None = option(LOAD, "NAME", to=(LOAD,))
    system: Systems | None = option(PLAN, "S", frequent=True)
    stack: Stack | str | None = option(PLAN, "NAME", frequent=True)
    decide: str = "times"
    train: Mapping[str, Any] | TrainingOptions | bool | None = option(
        TRAIN, default=False, frequent=True
    )
    micro_batches: int | None = option(TRAIN, "M", parse_count, frequent=True)
    recompute: Recompute | None = option(TRAIN, "POLICY", frequent=True)
    schedule: Schedule | Mapping[str, Any] | None = None
    bucket_bytes: int | str | None = option(DISTRIBUTE, "N", parse_bucket, to=(DISTRIBUTE,))
    ahead_bytes: int | None = option(DISTRIBUTE, "N", parse_bytes, to=(DISTRIBUTE,))
    overlap_activations: bool | None = option(DISTRIBUTE, to=(DISTRIBUTE,))
    overlap_optimizer: bool | None = option(DISTRIBUTE, to=(DISTRIBUTE, SIMULATE))
    offload_optimizer: bool | None = option(DISTRIBUTE, to=(DISTRIBUTE,))
    allocator: str | None = option(SIMULATE, "A", to=(SIMULATE,))
    kernels: Profile | str | None = option(SIMULATE, "P", to=(SIMULATE,))
    quantize: str | None = option(SIMULATE, "T", frequent=True)
    price: float | None = option(SIMULATE, "USD", parse_number)
    attention: str | None = option(SIMULATE, choices=ATTENTIONS)

    def training(self, system: System | None = None) -> dict[str, Any] | None:
        """Return the keywords of ``train_step``; None for a forward step.

        On a system of schema version 2 half-precision weights have float32 masters unless it is
        stated otherwise, as in the trainers whose steps these systems describe.
        """
        if self.train is None or self.train is False:
            return None
        masters = {"master": system.device.is_composed} if system is not None else {}
        if isinstance(self.train, TrainingOptions):
            return {**masters, **self.train.keywords()}
        return {**masters, **({} if self.train is True else self.train)}

    def of_step(self) -> dict[str, Any]:
        """Return the options of the step by name."""
        return {field.name: getattr(self, field.name) for field in fields(StepOptions)}

    def passed_to(self, function: str) -> dict[str, Any]:
        """Return the options that are stated and that are keywords of a function, by name."""
        return {
            name: value
            for name, declared in option_fields(StepOptions).items()
            if function in declared.to and (value := getattr(self, name)) is not None
        }

    @property
    def pinned_stack(self) -> Stack | None:
        """Return the stack; None without one."""
        from .stack import Stack

        return None if self.stack is None else Stack.resolve(self.stack)

    def stack_values(self) -> dict[str, Any]:
        """Return the options that the stack pins, but for stated ones, and the system's host.

        Raises
        ------
        HardwareError
            DIST0701 to DIST0703 where the stack, or the system, cannot be read.
        """
        from tvm_distir.hardware import System

        stack = self.pinned_stack
        if stack is None:
            return {}
        values: dict[str, Any] = {"stack": stack}
        for name, value in vars(stack.options).items():
            if value is not None and getattr(self, name) is None:
                values[name] = value
        if self.recompute is not None:
            values["recompute"] = stack.policy(self.recompute)
        if isinstance(self.kernels, str):
            values["kernels"] = stack.profile(self.kernels)
        if self.system is not None:
            values["system"] = stack.on(System.required(self.system))
        return values

    @property
    def stack_notes(self) -> tuple[str, ...]:
        """Return a sentence for each option that is not as the stack pins it."""
        stack = self.pinned_stack
        if stack is None:
            return ()
        pairs = [(name, value, getattr(self, name)) for name, value in vars(stack.options).items()]
        named = [(name, value, getattr(stated, "name", stated)) for name, value, stated in pairs]
        return tuple(
            f"{name} is {stated}, as stated, and not {value} as the stack {stack.name} pins"
            for name, value, stated in named
            if value is not None and stated is not None and stated != value
        )

    def with_seq(self: _Options) -> _Options:
        """Return the options with the tokens of a sample as a key of the model.

        Raises
        ------
        UsageError
            DIST0151 for a module.
        ModelError
            DIST0313 for a file whose sizes are not keys.
        """
        remedy = "Give the size of a symbolic dim: dims={NAME: SIZE}, or --dim NAME=SIZE."
        return self if self.seq is None else self._with_key("seq", "seq", self.seq, remedy)

    def _with_key(self: _Options, option: str, key: str, value: float, remedy: str) -> _Options:
        """Return the options with the value of an option as a key of the model."""
        from tvm_distir.models import model_with_key

        if not isinstance(self.model, (str, Path)):
            problem = f"{option} is given, but the sizes of the module are fixed"
            remedy = f"Remove {option}, or give a configuration or a model of the zoo."
            raise UsageError("DIST0151", problem, location=option, remedy=remedy)
        model = model_with_key(str(self.model), key, value, remedy)
        changed: dict[str, Any] = {"model": model, option: None}
        return replace(self, **changed)

    def on_one_device(self: _Options) -> _Options:
        """Return the options with the plan of one device, where no plan and no mesh is given.

        A module keeps its annotations, which are on meshes.
        """
        from tvm import ir

        from tvm_distir.core.ir import meshes
        from tvm_distir.models import may_be_annotated

        named = any(value is not None for value in (self.plan, self.strategy, self.mesh))
        if isinstance(self.model, str | Path):
            annotated = may_be_annotated(str(self.model))
        else:
            module = getattr(self.model, "mod", self.model)
            annotated = not isinstance(module, ir.IRModule) or bool(meshes(module))
        if named or annotated:
            return self
        return replace(self, strategy="data_parallel", mesh={"dp": 1})


@dataclass(frozen=True, eq=False, kw_only=True)
class AnalysisOptions(StepOptions):
    """Options of the analysis of a step.

    Parameters
    ----------
    measure : bool
        Measure each kernel on this machine; link times are those of the system.
    advice : str
        Set how recommendations are evaluated: bounds (formulas only), quick (simulate a few
        changes, the default) or full (simulate all changes).
    reuse : bool
        Take stages whose inputs are those of an earlier analysis of this process from there: a
        change of options that only the simulation reads, such as the kernel profile, then takes the
        time of the simulation.
    tokens : float, optional
        Predict days, and dollars, of a run on so many tokens, such as 15T; needs --train.
    mtbf_hours : float, optional
        Predict the goodput with failures: set the mean time between failures of a device; needs
        --checkpoint-minutes.
    checkpoint_minutes : float, optional
        Set the time that steps wait for a checkpoint; needs --mtbf-hours.
    restart_minutes : float, optional
        Set the time from a failure to the next step (default: --checkpoint-minutes); needs
        --mtbf-hours.
    expert_skew : float or sequence of float, optional
        Load the experts unevenly: the rows of the most loaded device of expert_parallel over the
        mean, such as 1.5, or the loads of all experts, 3,1,1,1.
    """

    measure: bool = option(SIMULATE, default=False)
    advice: str = option(ADVISE, "HOW", default="bounds", usual="quick")
    reuse: bool = True
    tokens: float | None = option(SIMULATE, "N", parse_amount)
    mtbf_hours: float | None = option(SIMULATE, "HOURS", parse_number)
    checkpoint_minutes: float | None = option(SIMULATE, "MIN", parse_number)
    restart_minutes: float | None = option(SIMULATE, "MIN", parse_number)
    expert_skew: float | Sequence[float] | None = option(SIMULATE, "F[,F...]", parse_numbers)

    def with_skew(self) -> AnalysisOptions:
        """Return the options with as many slots for tokens as the most loaded device has rows.

        Raises
        ------
        UsageError
            DIST0151 without expert parallelism or for a module, DIST0152 for wrong loads.
        ModelError
            DIST0313 for a file whose sizes are not keys.
        """
        from .expert_skew import most_loaded

        if self.expert_skew is None:
            return self
        factor = most_loaded(self.expert_skew, self.strategy, self.mesh)
        remedy = "Give hf:NAME, a config.json or zoo:NAME."
        return self._with_key("expert_skew", "capacity_factor", factor, remedy)

    @property
    def training_run(self) -> TrainingRun:
        """Return the run of the step (UsageError DIST0151, DIST0152)."""
        run = TrainingRun(
            self.tokens, self.mtbf_hours, self.checkpoint_minutes, self.restart_minutes
        )
        if run != TrainingRun() and not self.train:
            problem, remedy = "a run of many steps trains", "Add train (--train)."
            raise UsageError("DIST0151", problem, location="tokens", remedy=remedy)
        return run
