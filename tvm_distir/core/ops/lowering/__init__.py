# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What ops are compiled to: kernels that keep NaN, and whose indices stay inside of buffers."""

from __future__ import annotations
