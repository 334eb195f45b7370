# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the verdict on a program that others distributed."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from tvm_distir.support import WrongProgramError

SCHEMA_VERSION = 1
EQUAL, WRONG, DEADLOCK, UNPROVED = "equal", "wrong", "deadlock", "unproved"
RULES = "rules"
NOT_CHECKED = (
    "other sizes than those of the traces",
    "random ops",
    "waits for asynchronous collectives",
    "branches that these inputs do not take",
)


@dataclass(frozen=True)
class CheckReport:
    """Outcome of :func:`tvm_distir.check`.

    Attributes
    ----------
    verdict : str
        ``equal``, ``wrong``, ``deadlock``, or ``unproved`` where rules alone cannot say.
    mesh : dict of str to int
        The axes along which ranks communicate.
    seed : int
    outputs : tuple of str
        The outputs that were compared.
    wrong : tuple of str
        Those that differ, or that are not proved.
    placements : dict of str to dict of str to int
        Of each input the dim that an axis shards; of outputs too where the module declares it.
    first : str
        The name of the first value that stands for no value of the reference.
    op, line : str
        Its op, and its line of code and module.
    problem : str
        What it is.
    repair : str
        What makes all outputs right, where that was found by running it.
    chain : tuple of str
        Of an equal program what each result of a collective is, in order.
    not_checked : tuple of str
    method : str
        ``execution``, or ``rules``: for all values at the sizes of the traces.
    """

    verdict: str
    mesh: dict[str, int]
    seed: int
    outputs: tuple[str, ...]
    wrong: tuple[str, ...] = ()
    placements: dict[str, dict[str, int]] | None = None
    first: str = ""
    op: str = ""
    line: str = ""
    problem: str = ""
    repair: str = ""
    chain: tuple[str, ...] = ()
    not_checked: tuple[str, ...] = NOT_CHECKED
    method: str = "execution"

    @property
    def equal(self) -> bool:
        """Return whether every output is that of the reference."""
        return self.verdict == EQUAL

    def __str__(self) -> str:
        axes = ", ".join(f"{axis}={size}" for axis, size in self.mesh.items())
        by = " by rules" if self.method == RULES else ""
        if self.equal:
            which = "for all inputs" if by else f"(seed {self.seed})"
            lines = [f"EQUAL{by} on {axes}: {len(self.outputs)} outputs {which}"]
            lines += [f"  {step}" for step in self.chain]
        else:
            lines = [f"{self.verdict.upper()}{by} on {axes}: {self.problem}"]
            if self.line:
                lines.append(f"  at {self.line}")
            if self.repair:
                lines.append(f"  repair: {self.repair} (then all outputs are equal)")
            if self.wrong:
                which = "open" if self.verdict == UNPROVED else "wrong"
                lines.append(f"  {which} outputs: {', '.join(self.wrong)}")
        lines.append(f"  not checked: {'; '.join(self.not_checked)}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data with a ``schema_version``."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}

    def to_json(self) -> str:
        """Return the report as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def check(self) -> CheckReport:
        """Return the report itself where the verdict is ``equal``.

        Raises
        ------
        WrongProgramError
            DIST0692 for another verdict, with the first wrong value and the repair; DIST0693 where
            rules alone cannot say.
        """
        if not self.equal:
            code = "DIST0693" if self.verdict == UNPROVED else "DIST0692"
            remedy = "See the first value that stands for none of the reference."
            if self.verdict == UNPROVED:
                remedy = "Trace a small model on this mesh, which can run."
            remedy = self.repair or remedy
            raise WrongProgramError(
                code, self.problem, location=self.line or self.first, remedy=remedy
            )
        return self
