"""Models for images: shapes, sizes, dropout, and that they learn."""

import sys

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedstill.common.errors import FedstillError
from fedstill.data.corpora.images import load
from fedstill.data.images import ImageStore
from fedstill.models.images import IMAGE_MODELS, LeNet, ResNet18, SmallCNN


def has_torchvision() -> bool:
    try:
        import torchvision.models  # noqa: F401
    except (ImportError, RuntimeError):  # the second where it was built for another torch
        return False
    return True


def numbers(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("cls", "size"), [(LeNet, 12), (LeNet, 13), (LeNet, 28), (LeNet, 32), (SmallCNN, 8), (SmallCNN, 11), (SmallCNN, 32)]
)
def test_logits_have_a_column_a_class_for_any_size_and_channels(cls, size, channels):
    model = cls(channels, size, 7)
    assert model(torch.randn(4, channels, size, size)).shape == (4, 7)


def test_lenet_has_the_parameters_worked_out_by_hand():
    # 6 filters of 5x5 and biases; 16 of 6x5x5; 28 halved is 14, less 4 is 10, halved is 5: 16x5x5 to 120; 120 to 10
    assert numbers(LeNet(1, 28, 10)) == (6 * 25 + 6) + (16 * 150 + 16) + (400 * 120 + 120) + (120 * 10 + 10) == 51_902
    assert numbers(LeNet(3, 28, 10)) == 51_902 + 2 * 6 * 25


def test_the_small_cnn_has_the_parameters_worked_out_by_hand():
    convolutions = (16 * 9 + 16) + (32 * 16 * 9 + 32)
    head = (32 * 49 * 64 + 64) + (64 * 10 + 10)
    assert numbers(SmallCNN(1, 28, 10)) == convolutions + 2 * (16 + 32) + head
    assert numbers(SmallCNN(1, 28, 10, groups=0)) == convolutions + head


@pytest.mark.parametrize("cls", [LeNet, SmallCNN])
def test_dropout_is_at_work_in_training_only(cls):
    torch.manual_seed(0)
    model, pixels = cls(1, 28, 10), torch.randn(8, 1, 28, 28)
    assert not torch.equal(model(pixels), model(pixels))
    model.eval()
    assert torch.equal(model(pixels), model(pixels))


@pytest.mark.parametrize("cls", [LeNet, SmallCNN])
def test_models_keep_no_statistics_beside_their_parameters(cls):
    assert list(cls(1, 28, 10).buffers()) == []


@pytest.mark.parametrize(("name", "size"), [("lenet", 11), ("cnn", 7), ("resnet18", 7)])
def test_too_small_an_image_is_refused(name, size):
    with pytest.raises(FedstillError, match=rf"{name} needs images of \d+x\d+ pixels or more, and these have {size}x"):
        IMAGE_MODELS[name](1, size, 10)


@pytest.mark.parametrize(("name", "groups"), [("cnn", 5), ("resnet18", 0), ("resnet18", 3)])
def test_groups_that_do_not_divide_the_filters_are_refused(name, groups):
    with pytest.raises(FedstillError, match=f"{name} cannot put .* filters into {groups} groups"):
        IMAGE_MODELS[name](1, 28, 10, groups=groups)


@pytest.mark.parametrize("cls", [LeNet, SmallCNN])
def test_a_thousand_digits_teach_the_rest(cls):
    corpus = load("digits", None)
    store, labels = ImageStore(corpus.images), torch.from_numpy(corpus.labels)
    order = np.random.default_rng(0).permutation(len(corpus))
    train, test = order[:1000], order[1000:]
    torch.manual_seed(0)
    model = cls(1, 28, 10)
    optimizer = torch.optim.AdamW(model.parameters(), cls.rate)
    for epoch in range(5):
        for rows in np.array_split(np.random.default_rng(epoch).permutation(train), 32):
            optimizer.zero_grad()
            cross_entropy(model(**store.batch(rows, training=True)), labels[rows]).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        right = model(**store.batch(test)).argmax(1) == labels[test]
    assert right.float().mean() > 0.92


def test_without_torchvision_the_command_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    with pytest.raises(FedstillError, match=r"resnet18 needs torchvision .* run `pip install torchvision`"):
        ResNet18(3, 32, 100)


@pytest.mark.skipif(not has_torchvision(), reason="torchvision is not installed")
def test_resnet18_is_for_small_images_and_keeps_no_statistics():
    model = ResNet18(3, 32, 100)
    # torchvision's own count for 1,000 classes, with the stem's 7x7 made 3x3, and 900 classes fewer
    assert numbers(model) == 11_689_512 - 64 * 3 * (49 - 9) - 900 * 513
    assert list(model.buffers()) == []
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 100)
    assert ResNet18(1, 8, 10)(torch.randn(2, 1, 8, 8)).shape == (2, 10)
