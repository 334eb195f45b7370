# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Choose the activations to recompute under a memory limit."""

from __future__ import annotations
