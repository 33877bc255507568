"""The fast path: the same work in less time.

Everything that makes learning faster without changing what is learnt is in this folder, and the rest of the package
meets it in two places: `predict.forward` asks it for a batch's logits, and `Phase.run` for a whole phase.

- `settings`: which techniques are on, and the one place where a model is told (`accelerate`).
- `anatomy`: where BERT-, RoBERTa- and DistilBERT-like classifiers of Hugging Face keep their parts. The parameters stay
  in the Hugging Face module; the fast path only computes with them in another way.
- `encoder` (with `unpadded` and `functions`), `masks`, `vocabulary`: a CPU's part: no padding, only the states that the
  head looks at, cheap dropout masks, only the words that occur.
- `card` and `gpu/`: a GPU's part: whole steps captured as CUDA graphs, several clients at once.
"""

from fedstill.learning.fast.settings import Fast, accelerate, fast_of, switched_off

__all__ = ["Fast", "accelerate", "fast_of", "switched_off"]
