# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Steps of traces, as calls of ops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class TracedCall(NamedTuple):
    """A call with its kernels, or a collective.

    Attributes
    ----------
    name : str
        The op or the node of the automatic gradient; the kernel where neither is known.
    family : str
        A family of ``kernel_families.json``, the kind of a collective; empty: it is not known.
    phase : str
        ``forward``, ``backward`` or ``optimizer``.
    is_collective : bool
    start_s, duration_s : float
        The start of the first kernel, and the sum of the durations of all.
    flops : int
        FLOPs of its matrix products, from their shapes; 0 where the trace has none.
    size_bytes : int
        The operand of a collective; 0 where the trace does not state it.
    module : str
        The classes of the modules, and the names of ``record_function``, that called it, from the
        outermost, as ``Model/Block/Linear``; in backward passes those of the forward op. Empty:
        the trace does not state it.
    """

    name: str
    family: str
    phase: str
    is_collective: bool
    start_s: float
    duration_s: float
    flops: int = 0
    size_bytes: int = 0
    module: str = ""


@dataclass(frozen=True)
class TracedStep:
    """A step of a trace.

    Attributes
    ----------
    name : str
    duration_s : float
    calls : tuple of TracedCall
        In the order in which the host issued them.
    busy_s, exposed_s : float
        The time in which compute kernels run, and in which only collectives do.
    issued_s : float
        The time from the first launch of the host to the last.
    on_device : bool
        Whether kernels run on a device, or calls on the CPU.
    """

    name: str
    duration_s: float
    calls: tuple[TracedCall, ...]
    busy_s: float
    exposed_s: float
    issued_s: float
    on_device: bool

    @property
    def idle_s(self) -> float:
        """Return the time in which nothing runs, between launches or between calls."""
        return max(self.duration_s - self.busy_s - self.exposed_s, 0.0)
