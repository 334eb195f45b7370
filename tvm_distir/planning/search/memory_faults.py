# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""State faults of memory by what steps store in simulation."""

from __future__ import annotations

from tvm_distir.hardware import TooLargeError


def reduced_error(error: TooLargeError, saved_bytes: int, devices: int) -> TooLargeError:
    """Return the error of what ops need, less what fused kernels do not store on each device.

    The bytes are negative where quantized copies outweigh it; these depend on the mesh.
    """
    if not saved_bytes:
        return error
    gib = saved_bytes / 2**30
    what = f"{error.what}, both with {gib:.3f} GiB that fused kernels do not store"
    if saved_bytes < 0:
        what = f"{error.what}, both without {-gib:.3f} GiB of quantized copies"
    reduced = TooLargeError(error.code, what, location=error.location, remedy=error.remedy)
    reduced.least_bytes = max(0, error.least_bytes - saved_bytes)
    reduced.mesh_bytes = max(0, error.mesh_bytes - max(0, saved_bytes) * devices)
    return reduced
