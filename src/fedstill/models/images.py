"""Models for images, trained from scratch.

Each takes `pixels` [batch, channels, size, size] and returns logits. A user's own class has the same constructor:
`Class(channels, size, classes, **options)`.
"""

from __future__ import annotations

from importlib import import_module
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedstill.common.errors import FedstillError


class LeNet(nn.Module):
    """Two convolutions with pooling, two linear layers with dropout between (LeCun 1998, as in FedSND)."""

    rate: ClassVar[float] = 2e-3
    reads: ClassVar[str] = "images"

    def __init__(self, channels: int, size: int, classes: int, hidden: int = 120, dropout: float = 0.5) -> None:
        super().__init__()
        _check_size(size, 12, "lenet")
        # A border of two pixels, as LeCun's, who placed images of 28x28 in 32x32.
        self.convolutions = nn.Sequential(
            nn.Conv2d(channels, 6, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        side = (size // 2 - 4) // 2
        self.head = nn.Sequential(
            nn.Flatten(),
            nn.Linear(16 * side**2, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, classes),
        )

    def forward(self, pixels: Tensor) -> Tensor:
        return self.head(self.convolutions(pixels))  # type: ignore[no-any-return]


class SmallCNN(nn.Module):
    """Two 3x3 convolutions with group norm and pooling, a hidden layer, dropout: fast, and works from 8x8 pixels on."""

    rate: ClassVar[float] = 1e-3
    reads: ClassVar[str] = "images"

    def __init__(
        self,
        channels: int,
        size: int,
        classes: int,
        filters: int = 16,
        hidden: int = 64,
        dropout: float = 0.25,
        groups: int = 4,
    ) -> None:
        """`groups` of 0: no group norm."""
        super().__init__()
        _check_size(size, 8, "cnn")
        if groups and filters % groups:
            raise FedstillError(
                f"cnn cannot put {filters} filters into {groups} groups; choose `groups` that divide it."
            )
        self.convolutions = nn.Sequential(
            *_convolution(channels, filters, groups), *_convolution(filters, 2 * filters, groups)
        )
        self.head = nn.Sequential(
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(2 * filters * (size // 4) ** 2, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, classes),
        )

    def forward(self, pixels: Tensor) -> Tensor:
        return self.head(self.convolutions(pixels))  # type: ignore[no-any-return]


class ResNet18(nn.Module):
    """torchvision's ResNet-18 for small images: a 3x3 stem without pooling, group norm instead of batch norm.

    Batch norm keeps statistics of a client's own data, which become wrong when parameters are averaged. Two groups are
    what Reddi et al. (2021) use on CIFAR-100.
    """

    rate: ClassVar[float] = 3e-4
    reads: ClassVar[str] = "images"

    def __init__(self, channels: int, size: int, classes: int, groups: int = 2) -> None:
        super().__init__()
        _check_size(size, 8, "resnet18")
        if groups < 1 or 64 % groups:
            raise FedstillError(f"resnet18 cannot put 64 filters into {groups} groups; choose `groups` that divide it.")
        try:
            models = import_module("torchvision.models")
        except (ImportError, RuntimeError) as error:  # RuntimeError: torchvision was built for another torch
            raise FedstillError(
                f"resnet18 needs torchvision in the version for torch {torch.__version__}: run `pip install "
                "torchvision`, or choose lenet or cnn."
            ) from error
        self.network: nn.Module = models.resnet18(
            num_classes=classes, norm_layer=lambda filters: nn.GroupNorm(groups, filters)
        )
        self.network.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        self.network.maxpool = nn.Identity()

    def forward(self, pixels: Tensor) -> Tensor:
        return self.network(pixels)  # type: ignore[no-any-return]


def _convolution(channels: int, filters: int, groups: int) -> list[nn.Module]:
    norm = [nn.GroupNorm(groups, filters)] if groups else []
    return [nn.Conv2d(channels, filters, 3, padding=1), *norm, nn.ReLU(), nn.MaxPool2d(2)]


def _check_size(size: int, smallest: int, name: str) -> None:
    if size < smallest:
        raise FedstillError(
            f"{name} needs images of {smallest}x{smallest} pixels or more, and these have {size}x{size}; "
            "set the corpus's `size:` higher, or choose another model."
        )


IMAGE_MODELS: dict[str, type[nn.Module]] = {"lenet": LeNet, "cnn": SmallCNN, "resnet18": ResNet18}
