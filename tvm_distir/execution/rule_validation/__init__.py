# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Validate sharding rules by execution: local forms on shards against the full call.

``python -m tvm_distir.ops.validate`` proves the rules of the sources it is run from,
those of
installed packages included. Nothing below this room is asked: the calls of a local form are
compiled by TVM, and what the devices say to each other is interpreted with NumPy, all devices in
step.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
