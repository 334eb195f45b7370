# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Plans sliding windows over a sharded dim: which rows a shard needs of its neighbours."""

from __future__ import annotations
