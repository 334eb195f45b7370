# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Validate sharding rules by execution: local forms on shards against the full call.

``python -m tvm_distir.execution.rule_validation`` validates the rules of installed packages by
their examples, ``scripts/checks/check_rules.py`` of the sources also those that ship. The runtime
is not involved: the calls of a local form are compiled by TVM, and the communication of the devices
is interpreted with NumPy, all devices in lockstep.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
