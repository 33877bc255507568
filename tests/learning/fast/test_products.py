import pytest
import torch

from fedstill.learning.fast import products

ERROR = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2}


@pytest.fixture(params=["this machine's", "oneDNN's"], autouse=True)
def fp32_products(request, monkeypatch):
    """Products of fp32 as they are here, and those of machines where oneDNN multiplies."""
    if request.param == "oneDNN's":
        if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
            pytest.skip("this torch has no products of oneDNN's")
        monkeypatch.setattr(products, "uses_onednn", lambda: True)


def factors(dtype, rows=64, inner=24, outer=40):
    torch.manual_seed(0)
    states, weight = torch.randn(rows, inner), torch.randn(outer, inner)
    if dtype == torch.bfloat16:
        return products.narrowed(states, True), products.narrowed(weight, True), torch.randn(outer)
    return states.to(dtype), weight.to(dtype), torch.randn(outer, dtype=dtype)


@pytest.mark.parametrize("dtype", ERROR)
def test_products_are_those_of_float64_up_to_rounding(dtype):
    states, weight, bias = factors(dtype)
    exact = states.double() @ weight.double().t() + bias.double()
    found = products.linear(states, weight, bias)
    assert found.dtype == bias.dtype
    assert (found - exact).norm() < ERROR[dtype] * exact.norm()
    for left, right in ((states, weight.t()), (states.t(), states)):
        exact = left.double() @ right.double()
        assert (products.product(left, right) - exact).norm() < ERROR[dtype] * exact.norm()


def test_the_same_product_has_the_same_bits_wherever_its_factors_lie():
    states, weight, bias = factors(torch.float32)
    expected = products.linear(states, weight, bias)
    for offset in range(1, 9):
        shifted = torch.empty(states.numel() + 16)[offset : offset + states.numel()].view_as(states).copy_(states)
        assert torch.equal(products.linear(shifted, weight, bias), expected)


@pytest.mark.parametrize(("vendor", "expected"), [("GenuineIntel", True), ("AuthenticAMD", False)])
def test_intels_processors_are_known_by_name(vendor, expected, tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text(f"vendor_id : {vendor}\n")
    monkeypatch.setattr(products, "CPU", tmp_path / "cpuinfo")
    assert products.is_intel() == expected
