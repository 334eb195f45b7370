# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Search for the repair that makes all outputs right, by running it."""

from __future__ import annotations

from typing import Any

from tvm_distir.support import DistIRError

from .blame import findings
from .comparison import Patch, RankComparison
from .output_walk import Finding
from .repairs import ValueChange

_MOST_STARTS = 24
"""The repairs that are tried at several places, one after the other."""
_MOST_REPEATS = 16


def repaired(compared: RankComparison, listed: list[Finding]) -> tuple[Finding, str]:
    """Return the finding whose repair makes all outputs right, or the first; and the repair.

    A repair is tried alone, and together with the same change at the values of other findings.
    """
    same: dict[tuple[str, ValueChange], dict[tuple[int, str], ValueChange]] = {}
    for finding in listed:
        for text, patch in finding.repairs if finding.together else ():
            for at, change in patch.items():
                same.setdefault((_verb(text), change), {})[at] = change
    tried: set[tuple[Any, ...]] = set()
    for finding in listed:
        for text, patch in finding.repairs:
            groups = [same.get((_verb(text), change), {}) for change in patch.values()]
            joined = {at: change for group in (patch, *groups) for at, change in group.items()}
            if not finding.together:
                joined = dict(patch)
            more = len(joined) - len(patch)
            for changes, suffix in ((patch, ""), (joined, f", and so at {more} more")):
                key = tuple(sorted((at, str(change)) for at, change in changes.items()))
                if key not in tried and compared.is_repaired(changes):
                    return finding, text + suffix
                tried.add(key)
    starts = [(f, text, patch) for f in listed for text, patch in f.repairs][:_MOST_STARTS]
    for finding, text, patch in starts:
        count = _repeated(compared, _verb(text), patch)
        if count:
            return finding, f"{text}, and so at {count} more"
    return listed[0], ""


def _repeated(compared: RankComparison, verb: str, patch: Patch) -> int:
    """Return at how many more places a repair is needed, as in every layer; 0 if it is none.

    With the repair, the first wrong value is another one. Where the same change is a repair of it,
    this is made too. Changed values must be right.
    """
    joined, (change, *others) = dict(patch), dict.fromkeys(patch.values())
    for _ in range(0 if others else _MOST_REPEATS):
        after = compared.with_patch(joined)
        try:
            states = [after.state(after.families[f], name) for f, name in joined]
        except DistIRError:
            return 0
        if not all(state is not None and state.is_right for state in states):
            return 0
        wrong = after.wrong_outputs(after.computed.outputs)
        if not wrong:
            return len(joined) - len(patch)
        repeated = [
            (at, change)
            for finding in findings(after, wrong)
            for text, next_patch in finding.repairs
            if _verb(text) == verb and {*next_patch.values()} == {change}
            for at in next_patch
            if at not in joined
        ]
        if not repeated:
            break
        joined.update(repeated[:1])
    return 0


def _verb(text: str) -> str:
    """Return the first word of a repair."""
    return text.partition(" ")[0]
