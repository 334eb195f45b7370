# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the outcome of ``verify``."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

from tvm_distir.execution.runtime.program.counts import CollectiveCount
from tvm_distir.support import MismatchError

from .bisect import Fault
from .collective_counts import ExpectedCollective
from .compare import OutputReport
from .rounding import RoundingBound

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class VerifyReport:
    """Outcome of :func:`tvm_distir.verify`.

    Attributes
    ----------
    equal : bool
        Whether every output is, and every one of ``float32_outputs``.
    max_abs_diff, max_rel_diff, atol, rtol : float
        Largest over the outputs.
    engine : str
    seed : int
    exact : bool
    outputs : tuple of OutputReport
        For a program of 16-bit or 8-bit floats without ``exact``: differences from the original in
        float32, else from a single device.
    collectives : tuple of CollectiveCount
        The collectives that a run executed; empty where the engine does not count.
    float32_outputs : tuple of OutputReport
        For such a program: the distributed program in float32 against the original in float32.
    rounding : RoundingBound, optional
        For such a program without a tolerance given: the terms of its tolerance.
    positive : bool
        For such a program: whether positive data and weights were compared as well.
    claims : tuple of ExpectedCollective
        The collectives that ``export`` expects of a run.
    unlike_claims : tuple of str
        The collectives that ran otherwise than expected, a text each.
    distribution : str
        The distribution from which data were drawn, of :data:`.random_inputs.DISTRIBUTIONS`.
    replicas : str
        The ranks that hold different bits of an output, if any do.
    fault : Fault, optional
        The first binding that differs, where ``equal`` is false and it could be determined.
    no_fault : str
        The reason why the search for it had no result.
    """

    equal: bool
    max_abs_diff: float
    max_rel_diff: float
    atol: float
    rtol: float
    engine: str
    seed: int
    exact: bool
    outputs: tuple[OutputReport, ...]
    collectives: tuple[CollectiveCount, ...]
    float32_outputs: tuple[OutputReport, ...] = ()
    rounding: RoundingBound | None = None
    positive: bool = False
    claims: tuple[ExpectedCollective, ...] = ()
    unlike_claims: tuple[str, ...] = ()
    replicas: str = ""
    fault: Fault | None = None
    no_fault: str = ""
    distribution: str = "normal"

    def __str__(self) -> str:
        how = "bit for bit" if self.exact else "within the tolerance"
        verdict = f"EQUAL {how}" if self.equal else f"NOT EQUAL: {self._what()}"
        return (
            f"{verdict} (engine {self.engine}, seed {self.seed}, {len(self.outputs)} outputs"
            f"{self.data_text()})\n"
            f"  maximum difference {self.max_abs_diff:.3g}, relative {self.max_rel_diff:.3g}; "
            f"tolerance {self.atol:.3g} + {self.rtol:.3g} * |reference|"
        )

    def data_text(self) -> str:
        """Return a text on the distribution of the data, empty for a normal one."""
        return "" if self.distribution == "normal" else f", data {self.distribution}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data with a ``schema_version``; infinite differences are None."""
        return {"schema_version": SCHEMA_VERSION, **_finite(asdict(self))}

    def to_json(self) -> str:
        """Return the report as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def check(self) -> VerifyReport:
        """Return the report itself where all is as it should be.

        Raises
        ------
        MismatchError
            DIST0690 when it is not equal, naming the first binding that differs if it was
            found; DIST0691 when other collectives ran than ``export`` claims.
        """
        if not self.equal:
            raise MismatchError(
                "DIST0690", self._what(), location=self._location(), remedy=self._remedy()
            )
        if self.unlike_claims:
            problem = "; ".join(self.unlike_claims)
            remedy = "Report it: it is a bug of export, or of the engine's counting."
            raise MismatchError("DIST0691", problem, location="collectives", remedy=remedy)
        return self

    def _wrong(self) -> tuple[list[OutputReport], str]:
        wrong = [o for o in self.outputs if not o.equal]
        if wrong:
            return wrong, ""
        return [o for o in self.float32_outputs if not o.equal], "in float32, "

    def _location(self) -> str:
        if self.fault is not None:
            return self.fault.location()
        wrong, _ = self._wrong()
        return f"output {wrong[0].index}" if wrong else "outputs"

    def _what(self) -> str:
        wrong, prefix = self._wrong()
        parts = [self.fault.text()] if self.fault is not None else []
        if self.replicas:
            parts.append(self.replicas)
        if wrong:
            first = wrong[0]
            text = (
                f"{prefix}{len(wrong)} of {len(self.outputs)} outputs differ; output "
                f"{first.index} by up to {first.max_abs_diff:.3g} (allowed: {first.atol:.3g} + "
                f"{first.rtol:.3g} |ref|"
                f"{', data ' + first.distribution if first.distribution else ''})"
            )
            if first.max_abs_diff <= first.atol:
                text += f", rms {first.rms_diff:.3g} (allowed: {first.rms_allowed:.3g})"
            parts.append(text)
        if self.no_fault:
            parts.append(self.no_fault)
        return "; ".join(parts)

    def _remedy(self) -> str:
        if self.fault is not None:
            return "Report this bug with the module and the plan."
        if self.exact:
            return "Report it with the module and the plan: exact sums have no rounding."
        if self.rounding is not None and all(output.equal for output in self.float32_outputs):
            return "Report it with the module: a kernel rounds more than its dtype does."
        return "Run it with exact=True to distinguish rounding from a wrong result."


def _finite(value: object) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
