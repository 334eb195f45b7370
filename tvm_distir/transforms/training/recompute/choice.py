# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Parse the recomputation of a training step: policies, or a memory bound."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial

from tvm_distir.core.plan import Recomputation
from tvm_distir.support import nearest, parse_float, parse_int, shortened
from tvm_distir.transforms.step_faults import wrong_argument

AUTO = "auto"
_wrong = partial(wrong_argument, name="recompute")


@dataclass(frozen=True)
class Auto:
    """Recomputation that takes the least time within a memory bound.

    Attributes
    ----------
    memory_gib : float
        The memory of a device in GiB; 0: that of the system.
    activations : int
        Parts into which activations are cut over devices.
    weights : int
        Parts into which weights, their gradients and their states are cut over devices.
    """

    memory_gib: float = 0.0
    activations: int = 1
    weights: int = 1

    @property
    def text(self) -> str:
        """Return the text that parses to this value."""
        options = [f"{field.name}={getattr(self, field.name)!r}" for field in fields(Auto)]
        return f"{AUTO}:{','.join(options[not self.memory_gib :])}"

    @staticmethod
    def read(text: str) -> Auto:
        """Parse ``auto`` or ``auto:memory_gib=4,activations=8`` (ModelError DIST0351)."""
        known = [field.name for field in fields(Auto)]
        memory_gib, parts = 0.0, {"activations": 1, "weights": 1}
        for item in text.partition(":")[2].split(",") if ":" in text else []:
            key, _, value = (word.strip() for word in item.partition("="))
            if key not in known:
                raise _wrong(f'auto has no option "{shortened(key)}"', nearest(key, known))
            if key == "memory_gib":
                memory_gib = _positive(value)
                continue
            count = parse_int(value, 1)
            if count is None:
                remedy = "Give the number of shards, for example 8."
                raise _wrong(f'{key} is "{shortened(value)}"', remedy)
            parts[key] = count
        return Auto(memory_gib, **parts)


def _positive(text: str) -> float:
    number = parse_float(text)
    if not 0 < number < math.inf:
        raise _wrong(f'memory_gib is "{shortened(text)}"', "Give the memory of a device in GiB.")
    return number


def read_recompute(policy: str | Mapping[str, str]) -> Recomputation | Auto:
    """Parse the argument of :func:`.train_step` (ModelError DIST0351)."""
    if isinstance(policy, str) and policy.partition(":")[0].strip() == AUTO:
        return Auto.read(policy)
    return Recomputation.read(policy, _wrong)
