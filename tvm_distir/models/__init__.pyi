# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from . import zoo as zoo
from .common.published import zoo_spec as zoo_spec
from .common.spec import check_model as check_model
from .common.spec import has_keys as has_keys
from .common.spec import may_be_annotated as may_be_annotated
from .common.spec import model_file as model_file
from .common.spec import model_with_key as model_with_key
from .common.spec import split_keys as split_keys
from .common.traced import LINES_ATTR as LINES_ATTR
from .common.traced import TRACE_ATTR as TRACE_ATTR
from .export.ccl import LowerToCCL as LowerToCCL
from .export.stablehlo import to_stablehlo as to_stablehlo
from .frontends import load_weights as load_weights
from .hlo import from_stablehlo as from_stablehlo
from .model import Model as Model
from .model import check_zoo_dims as check_zoo_dims
from .model import load_model as load_model
from .model import model_keys as model_keys
from .model import serving_step as serving_step
from .relax_json import read_relax as read_relax
from .stored_weights import StoredWeights as StoredWeights
from .stored_weights import checkpoint_name as checkpoint_name
from .stored_weights import model_positions as model_positions
from .stored_weights import stored_weights as stored_weights
from .zoo.cached_config import CacheConfig as CacheConfig
from .zoo.decoder_config import DecoderConfig as DecoderConfig
