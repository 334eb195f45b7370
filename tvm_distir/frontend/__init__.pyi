# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from . import zoo as zoo
from .hlo import from_stablehlo as from_stablehlo
from .model import Model as Model
from .model import from_exported_program as from_exported_program
from .model import from_onnx as from_onnx
from .model import load_model as load_model
from .model import load_weights as load_weights
from .model import model_keys as model_keys
from .spec import check_model as check_model
from .spec import may_be_annotated as may_be_annotated
from .spec import model_file as model_file
from .tvmscript import from_tvmscript as from_tvmscript
