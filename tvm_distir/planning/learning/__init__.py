# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Learning: traces of steps compared with their prediction, and systems fitted to them."""

from __future__ import annotations
