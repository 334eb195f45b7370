# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from . import gpt2 as gpt2
from .importer import from_onnx as from_onnx
from .resolve import with_batch as with_batch
from .weights import load_weights as load_weights
