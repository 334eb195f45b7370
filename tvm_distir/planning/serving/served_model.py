# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Describe the model, the plan and the system of a serving engine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tvm_distir.core.plan import mesh_text
from tvm_distir.hardware import System
from tvm_distir.models import CacheConfig, DecoderConfig, model_positions, serving_step
from tvm_distir.planning.strategies.pipelining import AXIS, PIPELINE
from tvm_distir.planning.strategies.registry import StrategySpec, parse
from tvm_distir.planning.strategies.stage_division import even_layers
from tvm_distir.planning.study import Study
from tvm_distir.planning.weight_types import settled
from tvm_distir.support import ModelError, PlanError, UsageError

from .workload import Workload

_POSITIONS = 16384
"""Rows of tables of learned positions; requests have fewer tokens."""
_DRAWN = 1 << 14
"""Requests whose lengths are compared with the positions."""


@dataclass(frozen=True)
class ServedModel:
    """Model, plan and system of an engine.

    Parameters
    ----------
    model : str
        MODEL string of a decoder, without the keys of a serving step.
    strategy : str
        Text of strategies.
    mesh : mapping of str to int
        Sizes of the mesh axes.
    system : System
    kv_dtype : str
        The dtype of caches; empty: that of the model.
    page : int
        Positions of a page.
    layers : int
        The layers, where they are not those of the model; 0: those of the model.
    """

    model: str
    strategy: str
    mesh: Mapping[str, int]
    system: System
    kv_dtype: str = ""
    page: int = 16
    layers: int = 0

    @property
    def plan_text(self) -> str:
        """Return the strategies and the mesh."""
        return f"{self.strategy} {mesh_text(self.mesh)}"

    @property
    def devices(self) -> int:
        """Return the number of devices of a replica."""
        return math.prod(self.mesh.values())

    @cached_property
    def pipeline(self) -> StrategySpec | None:
        """Return the strategy that divides layers over stages, if there is one."""
        return next((spec for spec in parse(self.strategy) if spec.name == PIPELINE), None)

    @cached_property
    def stages(self) -> int:
        """Return the number of pipeline stages."""
        spec = self.pipeline
        return 1 if spec is None else self.mesh.get(str(spec.options.get("axis", AXIS)), 1)

    @cached_property
    def stage_layers(self) -> tuple[int, ...]:
        """Return the number of layers of each stage."""
        stated = "" if self.pipeline is None else str(self.pipeline.options.get("layers", ""))
        if stated:
            return tuple(map(int, stated.split("/")))
        return even_layers(self.config[0].layers, self.stages)

    def with_layers(self, layers: Sequence[int]) -> ServedModel:
        """Return the model with so many layers in each stage."""
        few = replace(self, layers=sum(layers))
        if self.pipeline is None:
            return few
        options = {**self.pipeline.options, "layers": "/".join(map(str, layers))}
        text = f"{PIPELINE}:" + ",".join(f"{key}={value}" for key, value in options.items())
        words = [w for w in self.strategy.split("+") if w.partition(":")[0].strip() != PIPELINE]
        return replace(few, strategy="+".join([text, *words]))

    @property
    def pools(self) -> int:
        """Return the parts into which data parallelism divides requests."""
        return math.prod(n for axis, n in self.mesh.items() if axis in ("dp", "ep"))

    def text(self, batch: int, seq: int, past: int) -> str:
        """Return the MODEL string of a step; tables of learned positions have rows for samples."""
        step = self.step_text(batch, seq, past)
        learned = self.config[0].positions and "positions=" not in self.model
        return step + (f",positions={_POSITIONS}" if learned else "")

    def step_text(self, batch: int, seq: int, past: int) -> str:
        """Return the MODEL string of a step; a model has as many positions as it says.

        Raises
        ------
        UsageError
            DIST0151 for a model with a size of a step, such as ``seq=512``.
        """
        keys = {"entry": "serve", "batch": batch, "seq": seq, "past": past, "page": self.page}
        keys |= {"pools": self.pools} if self.pools > 1 else {}
        keys |= {"kv_dtype": self.kv_dtype} if self.kv_dtype else {}
        name, _, options = self.model.partition("?")
        words = options.split(",") if options else []
        size = next((key for word in words if (key := word.partition("=")[0]) in keys), None)
        if size is not None:
            raise UsageError(
                "DIST0151", f"the engine sets {size} of each of its steps", location=self.model,
                remedy=f"Leave out {size}=; a workload has the tokens of requests (in=, out=), and "
                "a scheduler the limits of a step (tokens=, requests=).",
            )  # fmt: skip
        if self.layers:
            words = [word for word in words if not word.startswith("layers=")]
            keys["layers"] = self.layers
        return f"{name}?" + ",".join([*words, *(f"{key}={value}" for key, value in keys.items())])

    def study(self, batch: int, seq: int, past: int) -> Study:
        """Return the study of a step of ``seq`` tokens of each of ``batch`` requests.

        Raises
        ------
        PlanError
            DIST0233 for more stages than layers: each stage has caches.
        """
        layers = self.config[0].layers
        if self.stages > layers:
            raise PlanError(
                "DIST0233", f"{self.stages} stages are more than the layers of the model, {layers}",
                location=f'strategy "{PIPELINE}"',
                remedy="Use fewer stages, or a model with more layers.",
            )  # fmt: skip
        return Study(
            self.text(batch, seq, past),
            strategy=self.strategy,
            mesh=self.mesh,
            system=self.system,
            decide="bytes",
            quantize=settled(self.system.kernels),
        )

    @cached_property
    def config(self) -> tuple[DecoderConfig, CacheConfig]:
        """Return the configurations of the model and of a step."""
        return serving_step(self.step_text(self.pools, 1, 0))

    @cached_property
    def positions(self) -> int:
        """Return the positions of the model: of its table, its scaling or its file; 0: unknown."""
        config, _ = self.config
        if config.rotary_scaling == "yarn":
            return int(config.rotary_positions * config.rotary_factor)
        return config.positions or model_positions(self.model)

    def check_lengths(self, work: Workload) -> None:
        """Refuse requests that are longer than the model has positions (ModelError DIST0332)."""
        most = work.most_tokens[1]
        if not most:  # lengths without a bound: those that are drawn
            requests = work.at_once(max(work.count, _DRAWN))
            most = int((requests.input_tokens + requests.output_tokens).max())
        if 0 < self.positions < most:
            problem = f"a request has {most} tokens, and {self.model} {self.positions} positions"
            remedy = "Give shorter in= and out=, or a model with more positions."
            raise ModelError("DIST0332", problem, location="workload", remedy=remedy)

    @cached_property
    def repeated(self) -> tuple[ServedModel, ServedModel, tuple[int, ...]] | None:
        """Return the model with few layers, with one period of layers more in each stage, and the
        periods left in each stage.

        Layers repeat with a period: that of windows, behind the layers without experts. None where
        there are too few layers for a difference of two depths to be that of all others.
        """
        config, _ = self.config
        kinds = [(config.has_experts(k), config.has_window(k)) for k in range(config.layers)]
        first = next((k for k, kind in enumerate(kinds) if kind[0] == kinds[-1][0]), 0)
        for period in range(1, config.layers // 2):
            if kinds[first + period :] == kinds[first:-period]:
                break
        else:
            return None
        few = []
        for stage, layers in enumerate(self.stage_layers):
            least = max(period, 2) + (first if stage == 0 else 0)
            few.append(least + (layers - least) % period)
        times = tuple((n - k) // period for n, k in zip(self.stage_layers, few, strict=True))
        if min(times) < 0 or max(times) < 3:
            return None
        return self.with_layers(few), self.with_layers([layers + period for layers in few]), times
