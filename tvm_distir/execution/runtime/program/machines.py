# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Create virtual machines of compiled libraries."""

from __future__ import annotations

import re
from typing import Any

import tvm
import tvm_ffi
from tvm.runtime.vm import VirtualMachine

from tvm_distir.execution.runtime.dispatch.kernel_registration import register_kernels
from tvm_distir.execution.runtime.dispatch.packed_names import library_named
from tvm_distir.support import EngineError

_UNKNOWN = re.compile(r"Cannot find ffi::Function (\S+) in ")
"""TVM's words for a packed function that a library calls and nobody registered."""


def make_machine(
    library: tvm.runtime.Module, device: tvm.runtime.Device | None = None
) -> VirtualMachine:
    """Make a virtual machine of a library; it looks up the functions that the library calls.

    Parameters
    ----------
    library : runtime Module
    device : tvm.runtime.Device, optional
        The device of the kernels (default: the CPU).

    Raises
    ------
    EngineError
        DIST0618 for a packed function that is not registered.
    DependencyError
        DIST0111 where the program calls kernels of PyTorch, which is not installed.
    """
    try:
        return VirtualMachine(library, device or tvm.cpu())
    except RuntimeError as err:
        unknown = _UNKNOWN.search(str(err))
        if unknown is None:
            raise
        library_name = library_named(unknown[1])
        if library_name is not None:
            register_kernels(library_name)
        if tvm_ffi.get_global_func(unknown[1], allow_missing=True) is not None:
            return make_machine(library, device)  # registered here, or by another thread
        raise EngineError(
            "DIST0618",
            "the program calls a packed function of this name, which is not registered",
            location=unknown[1],
            remedy="Register it with tvm_ffi.register_global_func in each process that runs the "
            "program; the engines mpi and torch import modules for this purpose (preload).",
        ) from err


class Machines:
    """A pool of a library's virtual machines; each running call has a separate machine.

    A machine keeps the registers of the call that it runs, so two calls cannot share it. One is
    made in some 60 us and holds less than 1 MB, because constants belong to the library. Idle
    machines are therefore kept, as many as there were calls at once, and no call waits for
    another one: a packed function may run the same program again.

    Parameters
    ----------
    library : runtime Module
    """

    def __init__(self, library: tvm.runtime.Module) -> None:
        self._library = library
        self._idle: list[VirtualMachine] = []  # appending and popping are atomic

    def call(self, function: str, *args: object) -> Any:
        """Call a function of the library by its name."""
        try:
            machine = self._idle.pop()
        except IndexError:
            machine = make_machine(self._library)
        result = machine[function](*args)
        self._idle.append(machine)  # where the call failed the machine is dropped
        return result
