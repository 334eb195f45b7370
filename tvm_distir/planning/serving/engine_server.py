# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Describe a server of a deployment by what the options of serving engines can say."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_distir.models import checkpoint_name
from tvm_distir.performance import WEIGHTS
from tvm_distir.planning.plan_export.exported_plan import unsupported
from tvm_distir.planning.strategies.registry import parse
from tvm_distir.planning.weight_types import PLAIN, quantizes, with_weights
from tvm_distir.support import PlanError

from .served_model import ServedModel
from .serving_engine import MEMORY_SHARE, ServingEngine
from .workload import Workload

_AXES = {"megatron": "tp", "expert_parallel": "ep", "data_parallel": "dp", "pipeline": "pp"}


@dataclass(frozen=True)
class EngineServer:
    """A server: the model, the division of its devices, and the limits of a step.

    A fact that has its default needs no option.

    Attributes
    ----------
    model : str
        The name of a checkpoint on the hub, or its folder.
    division : str
        What of a layer is divided: ``tensor``, ``experts`` or ``experts and their widths``.
    tensor, experts, data, stages : int
        Devices that divide tensors, parts that divide experts and requests, parts that divide
        requests alone, and pipeline stages.
    scheduler : str
        Its kind, with the phase, and with ``draft`` where there is a draft model.
    tokens, requests : int
        The most of a step, and at a time, of each part.
    length, sent : int
        The most tokens of a request, and of caches that are sent; 0: not known, or not sent.
    memory : tuple of float
        Shares: of a device's memory that the engine takes, the same without workspace, and that of
        caches in what weights and workspace leave.
    caches, weights : str
        Types, where they are not those of the checkpoint.
    draft, draft_tokens : str, int
        The checkpoint of the draft model, and the tokens that it proposes.
    phase : str
        ``prefill``, ``decode`` or empty for both.
    """

    model: str
    division: str = ""
    tensor: int = 1
    experts: int = 1
    data: int = 1
    stages: int = 1
    scheduler: str = ""
    tokens: int = 0
    requests: int = 0
    length: int = 0
    sent: int = 0
    memory: tuple[float, ...] = ()
    caches: str = ""
    weights: str = ""
    draft: str = ""
    draft_tokens: int = 0
    phase: str = ""

    @staticmethod
    def of(engine: ServingEngine, work: Workload, phase: str = "") -> EngineServer:
        """Describe a replica of an engine.

        Raises
        ------
        PlanError
            DIST0241 for a model without a checkpoint, and a plan that no engine has.
        """
        served, options, guess = engine.served, engine.options, engine.speculation
        sizes, weights = _sizes(served), _weights(served)
        capacity, memory = served.system.memory_capacity_bytes, engine.memory
        rest = capacity - memory.weight_bytes - memory.workspace_bytes
        shares = (MEMORY_SHARE, MEMORY_SHARE - memory.workspace_bytes / capacity,
                  1 - (1 - MEMORY_SHARE) * capacity / rest)  # fmt: skip
        prompt, length = work.most_tokens
        if guess is not None and weights:
            weights += " of a draft model too"
        words = [options.kind, phase, "draft" if guess is not None else ""]
        return EngineServer(
            _checkpoint(served.model), _division(served, sizes),
            sizes["tp"], sizes["ep"], sizes["dp"], sizes["pp"],
            " ".join(filter(None, words)), options.tokens, options.requests, length,
            prompt if phase else 0, tuple(int(1000 * share) / 1000 for share in shares),
            served.kv_dtype if served.kv_dtype != served.config[0].dtype else "", weights,
            "" if guess is None else _checkpoint(guess.draft or served.model),
            0 if guess is None else guess.tokens, phase,
        )  # fmt: skip

    @property
    def numbers(self) -> dict[str, object]:
        """Return the facts by name, and products of them that options of some engines have."""
        return {
            **vars(self),
            "ranks": self.tensor * self.experts,
            "all_tokens": self.tokens * self.experts,
            "all_requests": self.requests * self.experts,
            "stage_requests": self.requests // self.stages,
            "checked_tokens": self.draft_tokens + 1,
        }


def _fault(problem: str, remedy: str) -> PlanError:
    return unsupported(problem, remedy, "--flags")


def _checkpoint(model: str) -> str:
    name = checkpoint_name(model)
    if not name:
        remedy = "Write hf:PUBLISHER/NAME without keys, or the folder of a config.json."
        raise _fault(f"{model} does not name a checkpoint that an engine could load", remedy)
    return name


def _sizes(served: ServedModel) -> dict[str, int]:
    """Return the sizes of the axes of a plan of :data:`_AXES` without options."""
    axes = {"" if spec.options else _AXES.get(spec.name, "") for spec in parse(served.strategy)}
    if "" in axes or not {axis for axis, size in served.mesh.items() if size > 1} <= axes:
        known = ", ".join(f"{name} over {axis}" for name, axis in _AXES.items())
        raise _fault(
            f"engines do not have the plan {served.plan_text}", f"Use {known}, no options."
        )
    return {axis: served.mesh.get(axis, 1) for axis in _AXES.values()}


def _division(served: ServedModel, sizes: dict[str, int]) -> str:
    """Return what of a layer is divided."""
    config, _ = served.config
    tensor, experts = sizes["tp"] > 1, sizes["ep"] > 1
    if config.experts and sizes["dp"] > 1:
        remedy = "Use expert_parallel, or replicas."
        raise _fault("engines divide experts over the parts of data parallelism", remedy)
    if not experts or not tensor:
        return "experts" if experts else "tensor" if tensor else ""
    dense = not all(config.has_experts(layer) for layer in range(config.layers))
    return "experts and their widths" + (", and layers without experts" if dense else "")


def _weights(served: ServedModel) -> str:
    """Return the type of the weights, where it is not that of the checkpoint."""
    kernels, system = served.system.kernels, served.system
    if WEIGHTS not in kernels and quantizes(kernels):
        return kernels
    if kernels == with_weights(with_weights(system, PLAIN), "", served.model).kernels:
        return ""
    return kernels.partition(WEIGHTS)[2].removesuffix(",dtype=operands") or PLAIN
