"""The fast path: the same work in less time.

Everything that makes learning faster without changing what is learnt is in this folder. The rest of the package uses it
in two places: `predict.forward` asks it for a batch's logits, and `Phase.run` for a whole phase.

- `settings`: which techniques are on, and `accelerate`, which switches them on for a model.
- `anatomy`: where BERT-, RoBERTa- and DistilBERT-like classifiers of Hugging Face keep their parts. The parameters stay
  in the Hugging Face module; the fast path only computes with them in another way.
- `encoder` (with `unpadded`, `functions` and `products`), `masks`, `vocabulary`: for CPUs: no padding, only the states
  that the head uses, the quickest library for its products, cheap dropout masks, only the words that occur.
- `int8`: prediction on a CPU with rounded weights, only when it is asked for: it is not the same work.
- `card` and `gpu/`: for GPUs: whole steps captured as CUDA graphs, several clients at once.
"""

from fedstill.learning.fast.settings import Fast, accelerate, fast_of, switched_off

__all__ = ["Fast", "accelerate", "fast_of", "switched_off"]
