# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A system's constants fitted to measured steps, by programs of the real pipeline."""

from __future__ import annotations
