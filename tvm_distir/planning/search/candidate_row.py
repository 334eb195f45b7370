# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the row of a candidate: its state and numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tvm_distir.performance import Result

from .candidates import Candidate

SOLVED, MEMORY, BOUND, REFUSED, LEFT = "solved", "memory", "bound", "refused", "left"
"""The states of a candidate: it has a plan; nothing fits; it cannot be better; the model cannot be
sharded so; the time was up."""

ESTIMATE = "estimate"
"""A further state: by the time and memory of its layers it is far from good, or far from
fitting."""


@dataclass(frozen=True)
class CandidateRow:
    """Row of a candidate: its state and numbers.

    Attributes
    ----------
    candidate : Candidate
    state : str
    least_s : float
        No plan of the candidate takes less.
    price_s : float, optional
        The cost of the chosen placements, with all communication that counts in sequence with the
        work.
    gap : float, optional
        The maximum excess of the cost over the minimum, as a share of it.
    time_s : float, optional
        The simulated time of the plan.
    peak_bytes : int, optional
        The simulated peak memory of the plan.
    why : str
        The reason why there is no plan.
    likely_s : float, optional
        The time expected of its layers, before auto-sharding.
    needs_bytes : int, optional
        The least bytes that a device must store where the candidate does not fit, as is proved of
        its placements; or the likely bytes, by its layers.
    whole_bytes : int, optional
        The bytes that the devices of a mesh of any shape must store together where the candidate
        does not fit, less what fused kernels do not store.
    hidden : float
        Share of what can be sent beside the work that its labels take to be hidden.
    parts : str
        Into how many parts the plan divides data, weights and states
        (:func:`.divided_parts.parts_text`).
    compute_s, exposed_comm_s : float, optional
        The parts of ``time_s`` on the device with most of both: work, and communication that does
        not overlap with work. In the rest of the step the device waits.
    bounded_s : float, optional
        The part of ``compute_s`` in kernels that ``least_s`` counts: matrix products, convolutions
        and attention where the kernel profile fuses others, else all.
    """

    candidate: Candidate
    state: str
    least_s: float
    price_s: float | None = None
    gap: float | None = None
    time_s: float | None = None
    peak_bytes: int | None = None
    why: str = ""
    likely_s: float | None = None
    needs_bytes: int | None = None
    whole_bytes: int | None = None
    hidden: float = 0.0
    parts: str = ""
    compute_s: float | None = None
    exposed_comm_s: float | None = None
    bounded_s: float | None = None

    @property
    def shares(self) -> tuple[float | None, float | None]:
        """Return the shares of computing and of exposed communication in the step."""
        total_s = self.time_s or 1.0
        compute, comm = self.compute_s, self.exposed_comm_s
        return (
            None if compute is None else compute / total_s,
            None if comm is None else comm / total_s,
        )

    def above(self, least_s: float) -> dict[str, float]:
        """Return the parts of what the simulated time exceeds a lower bound by, in seconds.

        ``kernels_s`` is the excess of the kernels that the bound counts, with the time in which the
        device waits; there are none where the time of these is not known.
        """
        total_s, work_s, comm_s = self.time_s, self.compute_s, self.exposed_comm_s
        if total_s is None or work_s is None or comm_s is None or self.bounded_s is None:
            return {}
        other_s = work_s - self.bounded_s
        kernels_s = total_s - comm_s - other_s - least_s
        return {"kernels_s": kernels_s, "other_kernels_s": other_s, "communication_s": comm_s}

    def simulated(self, result: Result, limit_bytes: int, only_products: bool) -> CandidateRow:
        """Return the row with the simulated numbers, solved where it fits into device memory.

        ``only_products``: the bound counts matrix products, convolutions and attention alone.
        """
        pairs = zip(result.devices.distinct, result.lanes, strict=True)
        busiest, lane = max(pairs, key=lambda pair: pair[0].compute_s + pair[0].exposed_comm_s)
        return replace(
            self,
            state=SOLVED if result.peak_memory_bytes <= limit_bytes else MEMORY,
            time_s=result.time_s,
            peak_bytes=result.peak_memory_bytes,
            compute_s=busiest.compute_s,
            exposed_comm_s=busiest.exposed_comm_s,
            bounded_s=lane.products_s if only_products else busiest.compute_s,
        )

    def to_dict(self) -> dict[str, Any]:
        """Give the fields by name, the candidate by its parts."""
        candidate = self.candidate
        return {
            "key": candidate.key,
            "mesh": dict(candidate.axes),
            **({"meshes": [dict(axes) for axes in candidate.ranks]} if candidate.ranks else {}),
            **({"cuts": list(candidate.cuts)} if candidate.cuts else {}),
            "stages": candidate.stages,
            "micro_batches": candidate.micro_batches,
            "chunks": candidate.chunks,
            "recompute": candidate.recompute,
            **{k: v for k, v in self.__dict__.items() if k != "candidate" and v not in (None, "")},
        }
