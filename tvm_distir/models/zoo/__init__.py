# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Build models of any size without weights: transformers, convolutional nets, MLPs.

Examples
--------
>>> mod = td.zoo.build("gpt", {"size": "tiny"})
>>> mod["main"].ret_ty
R.Tensor((16, 16, 503), dtype="float32")
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
