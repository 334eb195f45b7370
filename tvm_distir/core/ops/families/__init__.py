# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""All that is said of TVM's ops, a file per family: rule, local form, what padding needs."""

from __future__ import annotations
