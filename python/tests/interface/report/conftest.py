# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Makes the hand-made analyses of this folder importable."""

from __future__ import annotations
