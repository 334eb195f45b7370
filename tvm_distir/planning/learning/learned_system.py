# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Show a traced step beside its prediction, and what was fitted to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tvm_distir.hardware import System
from tvm_distir.performance import BACKWARD, FORWARD, OPTIMIZER, Result, TracedCall, TracedStep
from tvm_distir.planning.calibration.calibration import Calibration
from tvm_distir.support import Column, DataTable
from tvm_distir.support.display import units

from .alignment import AlignedWork

LAUNCH = "python_launch_us"
"""The constant of the host's time of a launch."""
OTHER = "(not in the program)"
"""The module of calls that no op corresponds to."""
NO_MODULE = "(no module)"
_MOST_ROWS = 24
"""Rows of a table in text."""
_SAME_SIZES = 0.05
"""Relative difference of FLOPs above which trace and program are of other sizes."""


@dataclass(frozen=True)
class LearnedSystem:
    """A traced step compared with its prediction, and the system fitted to it.

    Attributes
    ----------
    before, system : System
        The system that was given, and the one with the numbers that the trace determines.
    step : TracedStep
        The typical step of the traces.
    steps : int
        The number of steps in the traces.
    work : sequence of AlignedWork
        The calls of the step with the ops that correspond to them.
    predicted, learned : Result
        The step as predicted before, and by the fitted system.
    calibration : Calibration, optional
        The fit of kernels and collectives; None where there is nothing to fit.
    """

    before: System
    system: System
    step: TracedStep
    steps: int
    work: Sequence[AlignedWork]
    predicted: Result
    learned: Result
    calibration: Calibration | None

    @property
    def named_share(self) -> float:
        """Return the share of the time of all kernels whose family is known."""
        return self._share(lambda call: bool(call.family))

    @property
    def explained_share(self) -> float:
        """Return the share of the time of all kernels that correspond to ops of the program."""
        others = {id(call) for work in self.work if not work.ops for call in work.calls}
        return self._share(lambda call: id(call) not in others)

    def _share(self, counts: Callable[[TracedCall], bool]) -> float:
        total_s = sum(call.duration_s for call in self.step.calls)
        return sum(call.duration_s for call in self.step.calls if counts(call)) / total_s

    def to_dict(self) -> dict[str, object]:
        """Give the content of the JSON of ``tvm-distir learn``."""
        return {
            "steps": self.steps,
            "predicted_s": self.predicted.time_s,
            "learned_s": self.learned.time_s,
            "named_share": self.named_share,
            "explained_share": self.explained_share,
            **{table.title.lower(): table.rows for table in self._tables()},
            "notes": list(self.notes()),
            "calibration": None if self.calibration is None else self.calibration.to_dict(),
        }

    def to_text(self) -> str:
        """Return the tables that ``tvm-distir learn`` prints."""
        measured_s = self.step.duration_s
        predicted, learned = (
            f"{units.duration(result.time_s)} ({result.time_s / measured_s - 1:+.1%})"
            for result in (self.predicted, self.learned)
        )
        lines = [
            f"{self.step.name}, typical of {self.steps} steps: {units.duration(measured_s)}",
            f"  predicted {predicted}, by the learned system {learned}",
            f"  named {self.named_share:.1%} of the time of kernels; "
            f"{self.explained_share:.1%} corresponds to ops of the program",
            *(f"  {note}" for note in self.notes()),
        ]
        for table in self._tables():
            more = len(table.rows) - _MOST_ROWS
            lines += ["", *replace(table, rows=table.rows[:_MOST_ROWS]).to_lines()]
            lines += [f"  {more} more (--json)"] if more > 0 else []
        fitted = "" if self.calibration is None else f"\n{self.calibration.to_text()}"
        return "\n".join(lines) + "\n" + fitted

    def notes(self) -> Iterator[str]:
        """Yield what differs between trace and program, and what was learned of the host."""
        sized = [m for m in self.work if m.family == "product" and all(c.flops for c in m.calls)]
        traced = sum(call.flops for work in sized for call in work.calls)
        planned = sum(op.flops for work in sized for op in work.ops)
        if traced and abs(planned / traced - 1) > _SAME_SIZES:
            yield (
                f"the products of the trace have {traced / planned:.3g} times the FLOPs of those "
                "of the program: check the batch, the sizes of the model and the plan"
            )
        missing = dict.fromkeys(c.name for m in self.work if not m.ops for c in m.calls)
        if missing:
            yield f"no op of the program corresponds to {', '.join(list(missing)[:8])}"
        for work in self.work:
            counts = len(work.calls), len(work.ops)
            if work.is_collective and counts[0] != counts[1]:
                yield f"{work.family}: {counts[0]} in the trace, {counts[1]} in the program"
        old, new = (system.constant(LAUNCH) for system in (self.before, self.system))
        if old != new:
            yield f"{LAUNCH}: {old:.4g} becomes {new:.4g}, from the shortest issue of a step"
        old, new = (s.device.memory_bandwidth_GBps for s in (self.before, self.system))
        if new > old:
            yield (
                f"memory_bandwidth_GBps: {old:.4g} becomes {new:.4g}, as kernels move the bytes of "
                "the program faster: caches, or kernels that fuse more than the profile says"
            )
        for dtype, peak in self.system.device.matmul_TFLOPs.items():
            old = self.before.peak_flops_per_s(dtype) * 1e-12
            if peak > old:
                yield f"matmul_TFLOPs of {dtype}: {old:.4g} becomes {peak:.4g}, the fastest rate"

    def _tables(self) -> list[DataTable]:
        times = (
            Column("measured_s", "measured", units.duration),
            Column("predicted_s", "predicted", units.duration),
            Column("error", "error", "{:+.0%}".format),
        )
        phase, module = Column("phase", "pass"), Column("module", "module")
        counts = Column("family", "work"), Column("calls", "calls", str), Column("ops", "ops", str)
        kinds = defaultdict[tuple[str, str], list[float]](lambda: [0, 0, 0.0, 0.0])
        for work in self.work:
            values = len(work.calls), len(work.ops), work.measured_s, work.predicted_s
            total = kinds[work.phase, work.family]
            total[:] = (old + new for old, new in zip(total, values, strict=True))
        rows = [_row(*key, *values) for key, values in kinds.items()]
        traced = self._traced_modules()
        return [
            DataTable("Step", (Column("part", "part"), *times), list(self._parts())),
            DataTable("Work", (phase, *counts, *times), rows),
            DataTable("Modules", (module, phase, *times), self._modules()),
            *([DataTable("Traced modules", (module, phase, *times), traced)] if traced else []),
        ]

    def _parts(self) -> Iterator[list[object]]:
        """Yield the times of the step, by device and by pass."""
        device, step = self.predicted.devices[0], self.step
        yield _row("step", step.duration_s, self.predicted.time_s)
        yield _row("kernels", step.busy_s, device.compute_s)
        for name in (FORWARD, BACKWARD, OPTIMIZER, "collectives"):
            chosen = [
                m for m in self.work if name == ("collectives" if m.is_collective else m.phase)
            ]
            yield _row(name, sum(m.measured_s for m in chosen), sum(m.predicted_s for m in chosen))
        yield _row("exposed collectives", step.exposed_s, device.exposed_comm_s)
        gaps = "gaps between launches" if step.on_device else "gaps between calls"
        yield _row(gaps, step.idle_s, device.idle_s)

    def _modules(self) -> list[list[object]]:
        """Return a row for each module and pass, the longest first.

        The time of calls is divided among the modules of their ops, in proportion to these.
        """
        times = defaultdict[tuple[str, str], list[float]](lambda: [0.0, 0.0])
        for work in (work for work in self.work if not work.is_collective):
            scale = work.measured_s / work.predicted_s if work.predicted_s else 0.0
            for op in work.ops:
                total = times[str(op.args["module"] or NO_MODULE), work.phase]
                total[:] = total[0] + op.duration_s * scale, total[1] + op.duration_s
            if not scale:
                times[OTHER, work.phase][0] += work.measured_s
        return [_row(*k, *v) for k, v in sorted(times.items(), key=lambda item: -item[1][0])]

    def _traced_modules(self) -> list[list[object]]:
        """Return a row for each module that the trace names and pass, the longest first.

        The time of ops is divided among their calls in proportion to these. Without names: no row.
        """
        times = defaultdict[tuple[str, str], list[float]](lambda: [0.0, 0.0])
        for work in (work for work in self.work if not work.is_collective):
            for call in work.calls:
                share = call.duration_s / work.measured_s if work.measured_s else 0.0
                total = times[call.module or NO_MODULE, work.phase]
                total[:] = total[0] + call.duration_s, total[1] + work.predicted_s * share
        rows = sorted(times.items(), key=lambda item: -item[1][0])
        return [_row(*k, *v) for k, v in rows] if any(k[0] != NO_MODULE for k, _ in rows) else []


def _row(*values: str | float) -> list[object]:
    """Return a row that ends with a measured and a predicted time, and the error of the latter."""
    measured_s, predicted_s = map(float, values[-2:])
    return [*values, predicted_s / measured_s - 1 if measured_s and predicted_s else None]
