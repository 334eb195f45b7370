# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Make the program of a configuration through the usual pipeline."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tvm import ir

from tvm_distir.hardware import System
from tvm_distir.models import check_zoo_dims, model_file, model_keys, zoo
from tvm_distir.performance import Profile, Program
from tvm_distir.planning.search.layers import layer_ends
from tvm_distir.planning.stage_memo import StageMemo
from tvm_distir.planning.study import Study
from tvm_distir.support import UsageError, parse_int

from .cache import kept_program
from .configuration import DIM, Configuration, refused

TRANSFORMERS = ("gpt", "llama", "bert", "vit", "moe")
"""Models of the zoo whose weights Megatron's strategy knows."""
DECIDE = ("bytes", "times")
"""The costs that may decide what strategies leave open."""
CUTS = ("layers", "work")
"""The methods of dividing models into stages."""
SHOWN = ("layers", "hidden", "heads", "seq", "vocab")
"""Sizes of models of the zoo that results always have columns of."""

RECENT = 32
"""Models and training steps that are kept for the rows that follow."""


@dataclass(frozen=True)
class ProgramPipeline:
    """Pipeline that makes programs.

    Parameters
    ----------
    model : str
        MODEL string.
    system : System
        The system whose times decide what strategies leave open.
    train : mapping, optional
        Keywords of ``train_step``; None: forward steps.
    tensor : str
        Strategy of ``tp``; empty: Megatron's for transformers of the zoo, else
        ``tensor_parallel``.
    cuts : str
        ``layers``: stages have equally many layers; ``work``: equal work.
    decide : str
        The costs that decide what strategies leave open: ``bytes``, or ``times`` of the system.
    dims : mapping of str to int
        Sizes of symbolic dims for all rows.
    cache : str or Path, optional
        The folder in which programs are stored; None: the default folder.
    packed : tuple of int
        The tokens of the documents in each sequence; empty: one document.
    """

    model: str
    system: System
    train: Mapping[str, Any] | None = None
    tensor: str = ""
    cuts: str = "layers"
    decide: str = "bytes"
    dims: Mapping[str, int] = field(default_factory=dict)
    cache: str | Path | None = None
    packed: tuple[int, ...] = ()

    @cached_property
    def zoo(self) -> tuple[str, dict[str, str]] | None:
        """Return the name and keys of a model of the zoo; None for an imported model."""
        return model_keys(self.model)

    @cached_property
    def identity(self) -> tuple[object, ...]:
        """Return all that programs depend on beside their rows and the times of the system."""
        path = model_file(self.model)
        content = hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else ""
        train = None if self.train is None else sorted(self.train.items())
        dims = sorted(self.dims.items())
        settings = self.strategy, self.cuts, self.decide
        kernels = Profile.resolve(self.system.kernels)
        of_kernels = (kernels.attention, kernels.recomputed_ops)
        return self.model, content, train, dims, *settings, of_kernels, self.packed

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Return the keys of the model that rows may give."""
        if self.zoo is None:
            return ()
        return ("size", *(key for key in vars(zoo.config(*self.zoo)) if key != "batch"))

    @cached_property
    def counted(self) -> dict[str, int]:
        """Return the sizes of the zoo's model that are neither counts of built parts nor flags."""
        if self.zoo is None:
            return {}
        config = zoo.config(*self.zoo)
        return {
            key: value
            for key, value in vars(config).items()
            if type(value) is int and key != "batch"
            and key not in config.FLAGS and key not in config.LIMITS
        }  # fmt: skip

    def given(self, key: str, sizes: Collection[str]) -> bool:
        """Return whether MODEL or a column says a key of the zoo's model."""
        return key in sizes or (self.zoo is not None and key in self.zoo[1])

    @cached_property
    def usual(self) -> dict[str, str]:
        """Return the sizes of the zoo's model that results show where rows do not give them."""
        if self.zoo is None:
            return {}
        config = zoo.config(*self.zoo)
        return {key: str(getattr(config, key)) for key in SHOWN if key in self.keys}

    @cached_property
    def strategy(self) -> str:
        """Return the strategy of ``tp``."""
        known = self.zoo is not None and self.zoo[0] in TRANSFORMERS
        return self.tensor or ("megatron" if known else "tensor_parallel")

    def config(self, row: Configuration) -> Any:
        """Return the configuration of the zoo's model of a row."""
        assert self.zoo is not None
        name, keys = self.zoo
        dims = {**keys, **dict(row.sizes)}
        if {"seq", "positions"} <= set(self.keys) and "positions" not in dims:
            seq = dims.pop("seq", None)
            usual = zoo.config(name, dims)
            if seq is not None:
                dims["seq"] = seq
            if parse_int(str(seq), 1) is not None and 0 < usual.positions < int(str(seq)):
                dims["positions"] = str(seq)
        return zoo.config(name, {**dims, "batch": str(row.micro_batch * row.dp)})

    @cached_property
    def _memo(self) -> StageMemo:
        """Return the latest models, steps and programs, which rows share."""
        return StageMemo(RECENT, ("model", "forward", "train", "program"))

    def __getstate__(self) -> dict[str, object]:
        """Return the state without modules, for workers."""
        return {key: value for key, value in self.__dict__.items() if key != "_memo"}

    def forward(self, row: Configuration) -> ir.IRModule:
        """Return the model of a row with the samples of a micro-batch."""
        if self.zoo is not None:
            name, sizes = self.zoo[0], vars(self.config(row))
            return self._memo.result("model", (name, sizes), lambda: zoo.build(name, sizes))
        dims = {name.removeprefix(DIM): int(value) for name, value in row.sizes}
        batch, dims = row.micro_batch * row.dp, {**self.dims, **dims}
        study = Study(self.model, batch=batch, dims=dims)
        return self._memo.result("model", (batch, dims), lambda: study.forward)

    def study(self, row: Configuration) -> Study:
        """Return the study of the step of a row, which is predicted.

        Raises
        ------
        DistIRError
            What makes the row impossible: DIST0751, and what the frontends raise; the study
            raises what its stages do.
        """
        training = self.train is not None
        row.check(training)
        model = self.forward(row)
        return Study(
            model, strategy=row.strategy(self.strategy, training), mesh=row.mesh(training),
            system=self.system, train=self.train, recompute=row.recompute,
            schedule=self._schedule(row, model) if training else None, decide=self.decide,
            bucket_bytes=0, ahead_bytes=0, memo=self._memo, packed=self.packed,
        )  # fmt: skip

    def program(self, row: Configuration) -> Program:
        """Return the program of a row, read from disk where it was made before.

        GPipe and 1F1B run the same units in another order, so their rows share a program.

        Raises
        ------
        DistIRError
            As :meth:`study`.
        """
        shared = replace(row, schedule="1f1b") if row.schedule == "gpipe" else row
        subject = self.identity, repr(self.system) if self._reads_times(row) else "", shared
        program = self._memo.result(
            "program", subject,
            lambda: kept_program(subject, lambda: self.study(shared).program, self.cache),
        )  # fmt: skip
        if shared is row or program.staged is None:
            return program
        schedule = replace(program.staged.schedule, kind=row.schedule)
        return replace(program, staged=replace(program.staged, schedule=schedule))

    def _reads_times(self, row: Configuration) -> bool:
        """Return whether the times of the system may decide something in the program of a row."""
        known = self.zoo is not None and self.zoo[0] in TRANSFORMERS
        chosen = self.cuts, self.decide, self.strategy, row.recompute
        return not known or chosen != ("layers", "bytes", "megatron", "none")

    def _schedule(self, row: Configuration, model: ir.IRModule) -> dict[str, Any]:
        """Return the schedule of a row, with the cuts between equally many layers."""
        schedule: dict[str, Any] = {
            "kind": row.schedule, "stages": row.pp, "micro_batches": row.micro_batches,
        }  # fmt: skip
        if row.chunks > 1:
            schedule["chunks"] = row.chunks
        parts = row.stages * (2 if row.schedule == "zero_bubble_v" and row.chunks == 1 else 1)
        if parts > 1 and self.cuts == "layers":
            ends = layer_ends(model)
            if ends:
                schedule["cuts"] = even_cuts(ends, parts)
        return schedule


def even_cuts(ends: list[str], parts: int) -> list[str]:
    """Return the last values of equally long parts of the layers but the last.

    Raises
    ------
    SimulationError
        DIST0751 where the parts would differ.
    """
    each, rest = divmod(len(ends), parts)
    if rest:
        raise refused(
            f"{len(ends)} layers are not divisible by {parts} stages",
            "Choose pp x chunks that divide layers, or --cuts work.",
        )
    return [ends[(k + 1) * each - 1] for k in range(parts - 1)]


def check_model_given(model: str, dims: Mapping[str, int]) -> None:
    """Refuse what is no text of a model, and what a model of the zoo cannot have.

    Raises
    ------
    UsageError
        DIST0151 for a module, and a model whose text gives a batch.
    ModelError
        DIST0313 for sizes of symbolic dims of a model of the zoo.
    """
    if not isinstance(model, str):
        raise UsageError(
            "DIST0151", f"a sweep requires the name of a model, which its rows change, and the "
            f"argument is of type {type(model).__name__}", location="sweep",
            remedy='Give a file or "zoo:NAME?key=value". For a single module call '
            "td.simulate(td.distribute(mod, plan), system), or td.search(mod, devices, system).",
        )  # fmt: skip
    if model.partition("::")[0].endswith(".py"):
        raise UsageError(
            "DIST0151", "the batch of a TVMScript module is fixed", location="sweep",
            remedy="Sweep an ONNX file, an archive of torch.export, or a model of the zoo.",
        )  # fmt: skip
    keys = model_keys(model)
    if keys is not None:
        check_zoo_dims(model, keys[0], dims)
    if keys is not None and "batch" in keys[1]:
        raise UsageError(
            "DIST0151", "the batch follows from each row", location=model,
            remedy="Remove batch=, and give the columns micro_batch and dp.",
        )  # fmt: skip
