# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Makes the helpers of the frontend's tests importable."""

from __future__ import annotations
