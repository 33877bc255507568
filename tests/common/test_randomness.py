import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstill.common.randomness import Stream, generator, key

CPU = torch.device("cpu")


def test_a_key_is_half_the_first_eight_bytes_of_a_sha256():
    # printf '7/2/sports/train' | sha256sum begins with 43354b9785b7a628; little-endian, then halved.
    first = hashlib.sha256(b"7/2/sports/train").digest()[:8]
    assert first.hex() == "43354b9785b7a628"
    assert key(7, 2, "sports", "train") == int.from_bytes(first, "little") // 2 == 1464615196023954081


def test_a_key_is_the_same_in_another_process():
    program = "from fedstill.common.randomness import key; print(key(7, 2, 'sports', 'train'))"
    environment = os.environ | {"PYTHONHASHSEED": "12345"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert int(done.stdout) == 1464615196023954081


def test_a_key_differs_by_each_of_its_parts():
    parts = [(0, 1, "a", "train"), (1, 1, "a", "train"), (0, 2, "a", "train"), (0, 1, "b", "train"), (0, 1, "a", "x")]
    assert (
        len({key(*part) for part in [*parts, (1, 0, "a", "train"), (11, 1, "a", "train"), (1, 11, "a", "train")]}) == 8
    )


@given(st.integers(), st.integers(0), st.text(max_size=9).filter(lambda s: s.isprintable()), st.sampled_from("ab"))
def test_a_key_is_a_seed_that_torch_and_numpy_take(seed, round, party, purpose):
    number = key(seed, round, party, purpose)
    assert 0 <= number < 2**63
    torch.Generator().manual_seed(number)


def test_a_generator_is_numpys_with_that_key():
    expected = np.random.default_rng(key(3, 1, "a", "draw")).integers(0, 1000, 5)
    assert generator(3, 1, "a", "draw").integers(0, 1000, 5).tolist() == expected.tolist()


def alone(seed, numbers):
    return torch.rand(numbers, generator=torch.Generator().manual_seed(seed))


def test_a_stream_goes_on_where_it_left_off():
    stream = Stream(5, CPU)
    with stream():
        first = torch.rand(20)
    with stream():
        second = torch.rand(20)
    torch.manual_seed(5)
    assert torch.equal(torch.cat([first, second]), torch.cat([torch.rand(20), torch.rand(20)]))
    assert torch.equal(first, alone(5, 20))


def test_streams_do_not_disturb_each_other_or_the_outside():
    torch.manual_seed(0)
    outside = [torch.rand(2), torch.rand(2), torch.rand(2)]
    torch.manual_seed(0)
    one, other = Stream(1, CPU), Stream(2, CPU)
    seen = [torch.rand(2)]
    drawn = {1: [], 2: []}
    for _ in range(2):
        for number, stream in ((1, one), (2, other)):
            with stream():
                drawn[number].append(torch.rand(4))
        seen.append(torch.rand(2))
    assert all(torch.equal(a, b) for a, b in zip(seen, outside, strict=True))
    for number in (1, 2):
        torch.manual_seed(number)
        assert all(torch.equal(found, torch.rand(4)) for found in drawn[number])


def test_an_error_inside_a_stream_leaves_the_outside_as_it_was():
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)

    def fail():
        with Stream(1, CPU)():
            torch.rand(3)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert torch.equal(torch.rand(2), expected)
