# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Steps in stages, written out: as one program in turn, or as one per rank of the pipeline."""

from __future__ import annotations
