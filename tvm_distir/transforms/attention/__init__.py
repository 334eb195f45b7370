# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Replace softmax attention that is written out by the op, and lower the op."""

from __future__ import annotations
