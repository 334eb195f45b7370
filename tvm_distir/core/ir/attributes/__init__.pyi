# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .keys import ACCUMULATE_PHASE as ACCUMULATE_PHASE
from .keys import BACKWARD_PHASE as BACKWARD_PHASE
from .keys import CODEGEN_ATTR as CODEGEN_ATTR
from .keys import COMPLETE_ATTR as COMPLETE_ATTR
from .keys import COMPOSITE_ATTR as COMPOSITE_ATTR
from .keys import COUNT_PHASE as COUNT_PHASE
from .keys import DONATED_ATTR as DONATED_ATTR
from .keys import DROPOUT_KERNEL as DROPOUT_KERNEL
from .keys import DROPOUT_RATE_ATTR as DROPOUT_RATE_ATTR
from .keys import EACH_PHASE as EACH_PHASE
from .keys import FIELDS_ATTR as FIELDS_ATTR
from .keys import FORWARD_PHASE as FORWARD_PHASE
from .keys import FRONTEND_ATTR as FRONTEND_ATTR
from .keys import IN_FLIGHT_ATTR as IN_FLIGHT_ATTR
from .keys import INPUTS_ATTR as INPUTS_ATTR
from .keys import IO_ATTR as IO_ATTR
from .keys import NUM_INPUT_ATTR as NUM_INPUT_ATTR
from .keys import OPEN_AXES_ATTR as OPEN_AXES_ATTR
from .keys import PARAM_NAMES_ATTR as PARAM_NAMES_ATTR
from .keys import PARTIAL_ATTR as PARTIAL_ATTR
from .keys import PHASE_ATTR as PHASE_ATTR
from .keys import PIPELINE_ATTR as PIPELINE_ATTR
from .keys import REPEAT_ATTR as REPEAT_ATTR
from .keys import STAGE_KIND_ATTR as STAGE_KIND_ATTR
from .keys import STATIONARY_ATTR as STATIONARY_ATTR
from .keys import TRAINING_ATTR as TRAINING_ATTR
from .keys import WEIGHT_PHASE as WEIGHT_PHASE
from .readers import donated_params as donated_params
from .readers import num_input as num_input
from .readers import open_axes_of as open_axes_of
from .readers import opened_labels as opened_labels
from .readers import param_names as param_names
from .readers import phase_of as phase_of
from .readers import training_notes as training_notes
from .readers import with_annotated as with_annotated
