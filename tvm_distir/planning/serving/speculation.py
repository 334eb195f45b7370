# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Times of the steps of an engine whose draft model proposes tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tvm_distir.planning.weight_types import drafted

from .batching import StepTimes
from .lengths import workload_fault
from .served_model import ServedModel
from .surface import Surface


@dataclass(frozen=True)
class Speculation:
    """Speculation of an engine: a draft model proposes tokens, which the model checks.

    Attributes
    ----------
    draft : str
        MODEL string of the draft model; empty: the model itself.
    tokens : int
        Tokens that it proposes in each step.
    acceptance : float
        The probability that a proposed token is accepted.
    """

    draft: str
    tokens: int
    acceptance: float

    def times(self, served: ServedModel, plain: StepTimes) -> StepTimes:
        """Return the times of an engine with speculation, from those of one without.

        Raises
        ------
        SimulationError
            DIST0761 for an acceptance that is no probability, and for stages.
        """
        if plain.stages > 1:
            problem = "the steps of a draft model are not divided over pipeline stages"
            raise workload_fault(problem, "draft_tokens", "Use a plan without stages.")
        target = Surface(served, self.tokens + 1)
        draft = self.draft or served.model
        system = drafted(served.system, served.model, draft)
        draft_steps = Surface(replace(served, model=draft, system=system))
        return speculative(target, draft_steps, self.acceptance, plain)


def speculative(target: Surface, draft: Surface, acceptance: float, plain: StepTimes) -> StepTimes:
    """Return the times of an engine whose draft model proposes tokens that the model checks.

    Parameters
    ----------
    target : Surface
        Of steps of ``new`` tokens of each request, one more than the draft model proposes.
    draft : Surface
    acceptance : float
        The probability that a proposed token is accepted.
    plain : StepTimes
        The times without speculation, whose prompts take as long.

    Raises
    ------
    SimulationError
        DIST0761 for an acceptance that is no probability.

    Notes
    -----
    Tokens per step are ``(1 - a^(k + 1)) / (1 - a)`` (Leviathan et al. 2023, "Fast inference from
    transformers via speculative decoding", eq. 1).
    """
    if not 0 <= acceptance <= 1:
        problem = f"a share of accepted tokens of {acceptance:g} is impossible"
        raise workload_fault(problem, "acceptance", "Give a share from 0 to 1.")
    count = target.new - 1
    pairs = [x.ravel() for x in np.meshgrid(plain.batches, plain.contexts, indexing="ij")]
    duration = target.decode_parts_ps(*pairs) + count * draft.decode_parts_ps(*pairs)
    gain = (
        float(target.new)
        if acceptance == 1
        else ((1 - acceptance ** (count + 1)) / (1 - acceptance))
    )
    return replace(plain, decode_ps=duration.reshape(plain.decode_ps.shape), gain=gain)
