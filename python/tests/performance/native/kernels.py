# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Puts the references of the simulator's native kernels in the place of the kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from tests.performance.native.maps_reference import ReferenceMaps
from tests.performance.native.meeting_reference import Meeting
from tests.performance.native.schedule_reference import schedule_reference
from tvm_distir.performance.engine import contention, maps, schedule

KERNELS = ("native", "reference")


@contextmanager
def using(kernels: str) -> Iterator[None]:
    """Let the simulator call its native kernels, or the references in Python (slow, exact)."""
    if kernels == "native":
        yield
        return
    with (
        patch.object(maps, "NativeMaps", ReferenceMaps),
        patch.object(contention, "_meet_native", lambda *inputs: Meeting(*inputs).go()),
        patch.object(schedule, "_schedule_native", schedule_reference),
    ):
        yield
