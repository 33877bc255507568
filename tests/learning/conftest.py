import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """So small products take many times as long where two threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
