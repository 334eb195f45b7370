# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Packed functions that end a rank between two units; workers import this file by its name."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import tvm_ffi

PREFIX = "tvm_distir.test_runtime_stages."


def _raise(x: Any, out: Any) -> None:
    raise ValueError("boom")


def _sleep(x: Any, out: Any) -> None:
    time.sleep(6.0)


def _killed(x: Any, out: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _exits(x: Any, out: Any) -> None:
    os._exit(3)


for _name, _act in {"raise": _raise, "sleep": _sleep, "killed": _killed, "exits": _exits}.items():
    tvm_ffi.register_global_func(PREFIX + _name, _act, override=True)
