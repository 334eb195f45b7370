# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define meshes, placements, DTensor types and the plugin's ops, shared by all passes.

The names below load their modules when they are first used: the arithmetic of shards
(:mod:`.placement`) also works with TVM's runtime-only library, which has no IR.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
