"""A tiny T5 with random weights and a tokenizer of its own, as a folder that any test can name as a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration


def make_tiny_t5(
    folder: Path, texts: Sequence[str], words: Sequence[str], vocabulary: int = 300, seed: int = 0
) -> Path:
    """The folder, with a T5 of two layers of 48 that can spell these texts and label words."""
    raw = Tokenizer(models.BPE(unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    alphabet = sorted({letter for text in (*texts, *words) for letter in text} - {" "})
    raw.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=special, initial_alphabet=alphabet)
    )
    raw.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=512,
        model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip
    config = T5Config(
        vocab_size=vocabulary, d_model=48, d_kv=12, d_ff=96, num_layers=2, num_heads=4, dropout_rate=0.0,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = T5ForConditionalGeneration(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
