"""What a party keeps from round to round in addition to its model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Memory:
    """Arrays, mappings of arrays (a model's parameters, say) and numbers, by name: saved with the state, never sent."""

    arrays: dict[str, Tensor] = field(default_factory=dict)
    mappings: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)

    def tensors(self) -> Iterator[Tensor]:
        """All arrays in it."""
        yield from self.arrays.values()
        for mapping in self.mappings.values():
            yield from mapping.values()

    def state(self) -> dict[str, Tensor]:
        """All of it as one flat mapping."""
        state = {f"memory/{name}": value for name, value in self.arrays.items()}
        for name, mapping in self.mappings.items():
            state |= {f"memory/{name}/{part}": value for part, value in mapping.items()}
        numbers = {name: torch.tensor(value, dtype=torch.float64) for name, value in self.numbers.items()}
        return state | {f"number/{name}": value for name, value in numbers.items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Memory:
        """The memory from a mapping that `state` made; entries of other kinds are ignored."""
        memory = cls()
        for key, value in state.items():
            kind, _, name = key.partition("/")
            outer, slash, part = name.partition("/")
            if kind == "number":
                memory.numbers[name] = float(value)
            elif kind == "memory" and slash:
                memory.mappings.setdefault(outer, {})[part] = value
            elif kind == "memory":
                memory.arrays[name] = value
        return memory
