#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Every strategy, model and form of a trainer: exported, read back and simulated.

``python scripts/checks/plan_round_trips.py [FORM ...]``. What is read back from the options of a
plan must have its collectives, and its predicted time and peak memory within 1 %. Prints a line
for each pair, ``equal``, ``refused`` (the trainer has no options for the plan; the reason is of
``export_plan``) or ``DIFFERS``, and the totals. The pairs are those of
``python/tests/planning/test_plan_round_trips.py``, with further models. Exits with 1 where
a pair differs, is refused though the trainer has options for it, or where fewer than 120 are equal.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

from tests.planning.test_plan_round_trips import CASES, FORMS, MODELS, study
from tests.planning.trainer_readers import READERS

import tvm_distir as td
from tvm_distir.planning import Study
from tvm_distir.support.errors.tree import DistIRError

EQUAL, REFUSED, DIFFERS, LOST = "equal", "refused", "DIFFERS", "REFUSED"
LEAST = 120
"""The number of pairs that must be equal."""
FURTHER = {"gpt": "zoo:gpt?size=tiny,vocab=256", "deepseek": "zoo:deepseek?size=tiny"}
"""Models beside those of the tests; a trainer may refuse their plans where it takes a Llama's."""
OF_MIXTURES = ("mixtral", "deepseek")


def pairs(forms: Sequence[str]) -> Iterator[tuple[str, str, dict[str, int], str, str, bool | None]]:
    """Yield models, strategies, meshes, recomputations, forms, and whether a form has the plan.

    The last is None where the tests do not state it.
    """
    for model in MODELS:
        for strategy, mesh, dense, mixture, recompute in CASES:
            letters = mixture if model in OF_MIXTURES else dense
            for letter, form in FORMS.items():
                if form in forms and letters != "-":
                    stated = letter in letters if model not in FURTHER else None
                    yield model, strategy, mesh, recompute, form, stated


def sent(of: Study) -> list[tuple[str, int, int]]:
    """Return the collectives of a step with the bytes that a device sends."""
    return sorted((c.kind, c.count, c.bytes_per_device) for c in of.result.collectives)


def outcome(
    model: str, strategy: str, mesh: dict[str, int], recompute: str, form: str, stated: bool | None
) -> tuple[str, str]:
    """Return the outcome of a pair with its reason."""
    ours = study(model, strategy, tuple(mesh.items()), recompute)
    try:
        text = td.export_plan(ours.step, ours.step_plan, form)
    except DistIRError as error:
        return (LOST if stated or error.code != "DIST0241" else REFUSED), f"{error.code} {error}"
    read = READERS[form](text, math.prod(mesh.values()))
    back = study(model, read.strategy, tuple(read.mesh.items()), read.recompute)
    found, expected = back.result, ours.result
    ratios = {
        "time": found.time_s / expected.time_s,
        "memory": found.peak_memory_bytes / expected.peak_memory_bytes,
    }
    wrong = [f"{name} {ratio:.3f}" for name, ratio in ratios.items() if abs(ratio - 1) > 0.01]
    wrong += ["collectives"] * (sent(back) != sent(ours))
    return (DIFFERS if wrong else EQUAL), ", ".join(wrong) or read.strategy


def main(arguments: Sequence[str]) -> int:
    """Run all pairs, and return the exit code."""
    MODELS.update(FURTHER)
    counts: Counter[str] = Counter()
    for pair in pairs(arguments or tuple(FORMS.values())):
        model, strategy, mesh, recompute, form, _ = pair
        try:
            how, why = outcome(*pair)
        except DistIRError as error:  # the model has no step by these strategies
            how, why = "no plan", str(error)
        counts[how] += 1
        sizes = ",".join(f"{name}={size}" for name, size in mesh.items())
        print(f"{how:8} {model:9} {form:10} {strategy} {sizes} {recompute}: {why}", flush=True)
    print(", ".join(f"{count} {how}" for how, count in sorted(counts.items())))
    return int(bool(counts[DIFFERS] or counts[LOST]) or (not arguments and counts[EQUAL] < LEAST))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
