# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A fabric in memory that processes share, which the library offers and no engine uses."""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi

from tvm_distir.execution.runtime.collectives.native_library import CclFabric
from tvm_distir.support import load_library


class SharedFabric(CclFabric):
    """A fabric in which other processes take part through :meth:`open` of its descriptor."""

    def __init__(self, ranks: Sequence[int], timeout_s: float) -> None:
        shape = tvm_ffi.Shape([int(r) for r in ranks])
        self._keep(load_library()["ccl_make_fabric"](shape, float(timeout_s), True))

    @classmethod
    def open(cls, descriptor: int) -> SharedFabric:
        """Open the fabric of another process by its open file, which stays the caller's."""
        fabric = cls.__new__(cls)
        fabric._keep(load_library()["ccl_open_fabric"](descriptor))
        return fabric

    @property
    def descriptor(self) -> int:
        """Return the descriptor of the shared memory."""
        return int(self._call("descriptor"))
