"""A model of your own, trained from scratch; what its constructor takes after pad_id are options of an experiment."""

from torch import Tensor, nn


class MyModel(nn.Module):
    """The mean of a text's word vectors, one hidden layer, logits."""

    rate = 5e-3  # its learning rate where the experiment names none; 1e-3 without this line

    def __init__(self, vocabulary: int, classes: int, pad_id: int, width: int = 64) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width, padding_idx=pad_id)
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        # The mask is 0 at padding; token_type_ids tell the first text of a pair from the second.
        mask = attention_mask[:, :, None].to(self.words.weight.dtype)
        mean = (self.words(input_ids) * mask).sum(1) / mask.sum(1).clamp(min=1)
        logits: Tensor = self.head(mean)
        return logits
