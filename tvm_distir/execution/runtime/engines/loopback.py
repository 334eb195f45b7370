# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Name the network interface that only the processes of this host reach."""

from __future__ import annotations

import sys

LOOPBACK = "127.0.0.1"
LOOPBACK_NAME = "lo0" if sys.platform == "darwin" else "lo"
