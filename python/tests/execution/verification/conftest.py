# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Makes the modules of one test file importable by the others."""

from __future__ import annotations
