import pytest

from fedstill.common.errors import FedstillError
from fedstill.common.plugins import own_class
from fedstill.common.trust import remember, trusting


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    path = tmp_path / "own.py"
    path.write_text("class Mine:\n    pass\n")
    return path


def test_code_that_a_file_names_runs_only_if_it_is_trusted(own):
    with (
        trusting(False),
        pytest.raises(FedstillError, match=r"own.py:Mine is code .* --trust-code, or .*fedstill trust"),
    ):
        own_class(f"{own}:Mine")
    with trusting(False), pytest.raises(FedstillError, match=r"fractions:Fraction is code .* give --trust-code\."):
        own_class("fractions:Fraction")
    assert own_class(f"{own}:Mine").__name__ == "Mine"


def test_a_trusted_file_is_trusted_until_it_changes(own):
    remember(own)
    with trusting(False):
        assert own_class(f"{own}:Mine").__name__ == "Mine"
        own.write_text("class Mine:\n    other = 1\n")
        with pytest.raises(FedstillError, match="--trust-code"):
            own_class(f"{own}:Mine")


def test_a_file_that_is_not_there_cannot_be_trusted(own):
    with pytest.raises(FedstillError, match=r"none\.py does not exist"):
        remember(own.with_name("none.py"))
