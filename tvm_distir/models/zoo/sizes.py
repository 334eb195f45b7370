# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read the published sizes of the zoo's models.

Architectures: GPT-2 (Radford et al. 2019, table 2), GPT-3 (Brown et al. 2020, table 2.1), Llama 2
(Touvron et al. 2023, table 1), Llama 3 (Grattafiori et al. 2024, table 3), Mistral (Jiang et al.
2023), Mixtral (Jiang et al. 2024), Qwen 2.5 and Qwen 3 (Yang et al. 2024, 2025), Gemma 2 and 3
(Gemma Team 2024, 2025), Phi 3 (Abdin et al. 2024), OLMo 2 (OLMo et al. 2024), Falcon (Almazrouei et
al. 2023), DeepSeek-V2 and V3 (DeepSeek-AI 2024), GPT-OSS (OpenAI 2025). The sizes of decoders are
those of the ``config.json`` that each of them publishes; the papers of the others are named where
their models are defined.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm_distir.support import shipped_data

SIZES: Mapping[str, Mapping[str, Mapping[str, float | str]]] = shipped_data(__file__, "sizes.json")
"""Fields that differ from the defaults of a model's configuration, by model and size, the default
size first."""
