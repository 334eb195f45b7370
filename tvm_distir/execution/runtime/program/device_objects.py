# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Objects of which each device has its own, such as caches of keys and values.

Nothing here needs IR: TVM's runtime-only library is enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm_ffi

from tvm_distir.support import EngineError


class DeviceObjects:
    """An object per device, which :func:`tvm_distir.run` takes and returns for ``R.Any``.

    Parameters
    ----------
    objects : mapping of int to object
        The object of each device, by its id in the mesh. A program that changes its object, as a
        cache to which it appends, changes it for all later runs.

    Examples
    --------
    >>> counters = td.DeviceObjects({0: [], 1: []})
    >>> sorted(counters.objects)
    [0, 1]
    """

    def __init__(self, objects: Mapping[int, object]) -> None:
        self.objects = dict(objects)

    def call(self, function: str, *args: object) -> list[Any]:
        """Call a global function of TVM on the object of every device, in order of their ids.

        Parameters
        ----------
        function : str
            The name, such as ``vm.builtin.kv_state_begin_forward``.
        args : values
            The arguments behind the object.

        Raises
        ------
        EngineError
            DIST0618 where no function of this name is registered.
        """
        known = tvm_ffi.get_global_func(function, allow_missing=True)
        if known is None:
            problem = "no packed function of this name is registered"
            remedy = "Register it with tvm_ffi.register_global_func."
            raise EngineError("DIST0618", problem, location=function, remedy=remedy)
        return [known(self.objects[device], *args) for device in sorted(self.objects)]

    def of(self, rank: int, location: str) -> object:
        """Return the object of a device (EngineError DIST0602 where it has none)."""
        if rank not in self.objects:
            problem = f"device {rank} has no object, the devices {sorted(self.objects)} have"
            remedy = "Give td.DeviceObjects with an object for each device of the mesh."
            raise EngineError("DIST0602", problem, location=location, remedy=remedy)
        return self.objects[rank]
