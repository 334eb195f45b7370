# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Warn of weights that a plan by names leaves replicated."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from tvm_distir.support import warn

from .model_info import Parameter

LEAST_SHARE = 0.05
"""Projections that hold less than this of the elements of all are not worth a word."""
SHOWN = 4
_NUMBER = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])")
"""The number of a layer in the name of its weight: tables and heads, which have none, are no
layers."""


@dataclass(frozen=True)
class Projection:
    """Projection weight, which a matmul reads.

    Attributes
    ----------
    parameter : Parameter
    why_replicated : str
        The reason why it is not sharded; empty where it is.
    """

    parameter: Parameter
    why_replicated: str

    @property
    def elements(self) -> int:
        """Number of elements, as far as sizes are known."""
        return math.prod(n for n in self.parameter.shape or () if isinstance(n, int))


def warn_of_replicated(projections: Iterable[Projection], strategy: str, axis: str) -> None:
    """Warn where projections of layers stay replicated on every device, with their names.

    Parameters
    ----------
    projections : iterable of Projection
        The projections of an entry function.
    strategy, axis : str
        The strategy and the axis that the message names.
    """
    known = [projection for projection in projections if _NUMBER.search(projection.parameter.name)]
    replicated = [weight for weight in known if weight.why_replicated]
    total = sum(weight.elements for weight in known)
    share = sum(weight.elements for weight in replicated) / total if total else 0.0
    if share < LEAST_SHARE:
        return
    groups: dict[tuple[str, str], int] = {}
    for weight in replicated:
        pattern = _NUMBER.sub("*", weight.parameter.name)
        groups[pattern, weight.why_replicated] = groups.get((pattern, weight.why_replicated), 0) + 1
    shown = [f"{name} ({count}: {why})" for (name, why), count in list(groups.items())[:SHOWN]]
    more = f" and {len(groups) - SHOWN} more" if len(groups) > SHOWN else ""
    warn(
        f'{strategy} over "{axis}" shards {len(known) - len(replicated)} of {len(known)} weights '
        "of the layers' matrix products; each device stores the others unsharded, "
        f"{share:.0%} of their elements, and computes all of their products: "
        f"{'; '.join(shown)}{more}. "
        "tensor_parallel shards weights of any name.",
        stacklevel=3,
    )
