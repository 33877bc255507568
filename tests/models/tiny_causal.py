"""Tiny language models with random weights and a tokenizer without a padding token, as folders that tests can name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from tests.conftest import BAD, GOOD, PLAIN, THINGS

SPECIAL = ["<unk>", "<s>", "</s>"]
WORDS = [*SPECIAL, "the", "order", *GOOD, *BAD, *PLAIN, *(thing for things in THINGS.values() for thing in things)]
SHAPE: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
IDS: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2}


def make_tiny_causal(
    folder: Path, kind: str, side: str = "left", pad: int | None = None, eos: str | None = "</s>"
) -> Path:
    """The folder, with a `llama`, `qwen2` or `gpt2` of two layers of 32; `pad` is what its configuration claims."""
    tokenizer = _bytes() if kind == "qwen2" else _words(side, eos)
    common = {"vocab_size": len(tokenizer), "pad_token_id": pad, **IDS}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: Any = {
            "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, num_key_value_heads=2, **common)),
            "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE, num_key_value_heads=2, **common)),
            "gpt2": lambda: GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, **common)),
        }[kind]()
    model.save_pretrained(folder)
    tokenizer.padding_side = side
    tokenizer.save_pretrained(folder)
    return folder


def _words(side: str, eos: str | None) -> Any:
    """A tokenizer of words, without a padding token."""
    raw = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    raw.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        bos_token="<s>",
        eos_token=eos,
        unk_token="<unk>",
        padding_side=side,
        model_input_names=["input_ids", "attention_mask"],
    )


def _bytes() -> Any:
    """A tokenizer of bytes as Qwen has, which pads with the token that ends a text."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    raw.train_from_iterator(
        WORDS, trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    )
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|endoftext|>", pad_token="<|endoftext|>")
