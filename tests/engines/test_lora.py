# SPDX-License-Identifier: Apache-2.0
"""weft.lora with PEFT's models: an adapter goes out as a small model that PEFT loads again, and merged weights are bit
for bit what PEFT's own merge of the same masters rounds to."""

import os
import pathlib
import tempfile
import unittest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"

import frameworks

frameworks.ensure()

import peft
import torch
import weft
import weft.trl
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

MODEL = frameworks.PLACE.parent / "model"
PROBE = torch.arange(24).view(2, 12) * 11


def base_model(dtype=torch.float32):
    config = AutoConfig.from_pretrained(MODEL)
    config.num_hidden_layers, config.layer_types = 2, None
    torch.manual_seed(7)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).to(dtype)


def adapted(dtype=torch.float32, **options):
    config = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "down_proj"], **options)
    return peft.get_peft_model(base_model(dtype), config)


def train(model, seed):
    """One step of what is trained, large enough to be seen."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.01 * torch.randn_like(parameter)


class Lora(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="weft-lora.")
        self.addCleanup(scratch.cleanup)
        self.place = pathlib.Path(scratch.name)

    def assertSame(self, one, other):
        self.assertEqual(set(one), set(other))
        for name, tensor in one.items():
            self.assertTrue(torch.equal(tensor, other[name]), name)

    def test_adapter(self):
        """Names are PEFT's, memory is the model's, and PEFT loads what a subscriber keeps on disk."""
        model = adapted()
        state = weft.lora.adapter_state(model)
        self.assertSame(peft.get_peft_model_state_dict(model), state)
        model.save_pretrained(self.place / "adapter")  # its configuration; the weights are followed
        file = self.place / "adapter" / "adapter_model.safetensors"
        file.unlink()
        with (
            weft.Publisher(self.place / "store", state, dtype="bfloat16") as publisher,
            weft.Subscriber(self.place / "store", file) as subscriber,
        ):
            for seed in range(3):
                train(model, seed)
                publisher.publish(step=seed)
                subscriber.pull()
        served = peft.PeftModel.from_pretrained(base_model(), self.place / "adapter")
        with torch.no_grad():
            for name, tensor in state.items():
                tensor.copy_(tensor.to(torch.bfloat16))
            self.assertTrue(torch.equal(served(PROBE).logits, model(PROBE).logits))
        with self.assertRaises(weft.InvalidArgument):
            weft.lora.adapter_state(model, "other")

    def merged_equals_peft(self, model, merged):
        """Masters in FP32, merged by PEFT, rounded to BF16."""
        whole = model.merge_and_unload()
        want = {name: tensor.to(torch.bfloat16) for name, tensor in whole.state_dict().items()}
        self.assertSame(want, merged.state)

    def test_merged(self):
        for options in ({}, {"use_rslora": True}, {"modules_to_save": ["norm"]}):
            with self.subTest(options):
                model = adapted(**options)
                merged = weft.lora.Merged(model)
                before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
                train(model, 1)
                merged.refresh()
                train(model, 2)
                merged.refresh()
                self.assertNotEqual(
                    [name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])], []
                )
                self.merged_equals_peft(model, merged)

    def test_refusals(self):
        with self.assertRaisesRegex(weft.UnsupportedError, "DoRA"):
            weft.lora.Merged(adapted(use_dora=True))
        with self.assertRaises(weft.InvalidArgument):
            weft.lora.Merged(base_model())
        self.assertFalse(weft.lora.is_adapted(base_model()))

    def test_callback(self):
        """A trainer of transformers with an adapter: what followers hold is the merged model, or the adapter."""
        data = [{"input_ids": row, "labels": row} for row in PROBE]
        for alone in (False, True):
            with self.subTest(adapter=alone):
                store, model = self.place / f"store-{alone}", adapted()
                callback = weft.trl.PublishCallback(store, adapter=alone)
                arguments = TrainingArguments(
                    output_dir=str(self.place / "out"),
                    use_cpu=True,
                    max_steps=2,
                    learning_rate=1e-3,
                    save_strategy="no",
                    report_to=[],
                    per_device_train_batch_size=2,
                )
                Trainer(model=model, args=arguments, train_dataset=data, callbacks=[callback]).train()
                if alone:
                    want = {name: tensor.to(torch.bfloat16) for name, tensor in weft.lora.adapter_state(model).items()}
                else:
                    want = weft.lora.Merged(model).state
                held = {name: torch.zeros_like(tensor) for name, tensor in want.items()}
                if "lm_head.weight" in held and not alone:
                    held["lm_head.weight"] = held["model.embed_tokens.weight"]
                with weft.Subscriber(store, held) as subscriber:
                    subscriber.pull()
                    self.assertEqual(subscriber.labels, {"step": "2"})
                self.assertSame(want, held)


if __name__ == "__main__":
    frameworks.main()
