# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Identify IR nodes by their handles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm_ffi

handle: Callable[[Any], int] = tvm_ffi.Object.__chandle__
"""A number that two Python objects share exactly when they are the same IR node.

Good as a key only while the node is alive. Variables compare equal by this as well, but through
an overloaded ``==`` that costs twenty times as much.
"""
