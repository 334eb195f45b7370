# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Make the programs of serving steps, whose rows give requests and the tokens in their caches."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

from tvm_distir.models import CacheConfig, serving_step, split_keys, zoo, zoo_spec
from tvm_distir.planning.serving.served_model import ServedModel
from tvm_distir.planning.study import Study
from tvm_distir.planning.weight_types import settled
from tvm_distir.support import UsageError

from .configuration import Configuration
from .pipeline import SHOWN, ProgramPipeline
from .table import Table

ENTRY, BATCH, POOLS, SEQ, PAST = "entry", "batch", "pools", "seq", "past"
EXPERTS = "expert_parallel"
_CACHE_KEYS = tuple(f.name for f in fields(CacheConfig) if f.name != POOLS)


@dataclass(frozen=True)
class ServedRow:
    """Serving step of a row.

    Attributes
    ----------
    served : ServedModel
    batch, seq, past : int
        Requests, new tokens of each, and tokens in the cache of each.
    """

    served: ServedModel
    batch: int
    seq: int
    past: int

    @property
    def text(self) -> str:
        """Return the MODEL string of the step."""
        return self.served.step_text(self.batch, self.seq, self.past)


class ServingPipeline(ProgramPipeline):
    """Pipeline of the serving steps of a model (``entry=serve``)."""

    @cached_property
    def named(self) -> tuple[str, dict[str, str]]:
        """Return the model without its keys, and the keys."""
        return split_keys(zoo_spec(self.model), self.model)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Return the keys of the model and of its caches that rows may give."""
        if self.zoo is None:
            known = vars(serving_step(self.model)[0])
        else:
            rest, _ = zoo.split_serve_keys(self.model, self.zoo[1])
            known = vars(zoo.config(self.zoo[0], rest))
        return ("size", *(key for key in known if key != BATCH), *_CACHE_KEYS, BATCH)

    @cached_property
    def usual(self) -> dict[str, str]:
        """Return the sizes of the step that results show where rows do not give them."""
        config, caches = serving_step(self.model)
        return {**{key: str(getattr(config, key)) for key in SHOWN}, PAST: str(caches.past)}

    @cached_property
    def strategy(self) -> str:
        """Return the strategy of ``tp``."""
        return self.tensor or "megatron"

    def divide(self, table: Table) -> None:
        """Divide the requests of the column ``batch`` among the parts of ``dp``."""
        column = table.sizes.pop(BATCH, None)
        if column is None:
            return
        numbers = table.numbers
        for row, text in enumerate(column):
            parts = int(numbers["dp"][row])
            if not text.isascii() or not text.isdigit() or int(text) < 1:
                table.faults.setdefault(row, f'batch is "{text}", no number of requests')
            elif int(text) % parts:
                table.faults.setdefault(row, f"batch={text} is not a multiple of dp = {parts}")
            elif numbers["micro_batch"][row] not in (1, int(text) // parts):
                table.faults.setdefault(row, "batch and micro_batch differ: give one of them")
            else:
                numbers["micro_batch"][row] = int(text) // parts
        table.others = {BATCH: column, **table.others}

    def served_row(self, row: Configuration) -> ServedRow:
        """Return the step of a row."""
        name, options = self.named
        keys, caches = zoo.split_serve_keys(self.model, {**options, **dict(row.sizes)})
        assert caches is not None
        seq = keys.pop(SEQ, None)
        keys |= {"pages": str(caches.pages)} if caches.pages else {}
        text = f"{name}?" + ",".join(f"{key}={value}" for key, value in keys.items())
        mesh = row.mesh(training=False)
        if self.strategy.partition(":")[0] == EXPERTS:
            mesh = {"ep" if axis == "tp" else axis: size for axis, size in mesh.items()}
        served = ServedModel(
            text.removesuffix("?"), row.strategy(self.strategy, training=False), mesh,
            self.system, caches.kv_dtype, caches.page,
        )  # fmt: skip
        new = served.config[0].seq if seq is None else int(seq)
        return ServedRow(served, row.global_batch, new, caches.past)

    def study(self, row: Configuration) -> Study:
        """Return the study of the step of a row, which is predicted; errors are as in a sweep."""
        row.check(training=False)
        step = self.served_row(row)
        return Study(
            step.text, strategy=step.served.strategy, mesh=step.served.mesh, system=self.system,
            decide=self.decide, bucket_bytes=0, ahead_bytes=0,
            quantize=settled(self.system.kernels),
        )  # fmt: skip


def serves(model: str) -> bool:
    """Return whether a MODEL string is that of a serving step.

    Raises
    ------
    UsageError
        DIST0151 for requests or pools, which follow from rows.
    """
    keys = split_keys(model, model)[1] if f"{ENTRY}=" in model else {}
    if ENTRY not in keys:
        return False
    for key in (BATCH, POOLS):
        if key in keys:
            raise UsageError(
                "DIST0151", f"{key} follows from each row", location=model,
                remedy=f"Remove {key}=, and give the columns batch and dp.",
            )  # fmt: skip
    return True
