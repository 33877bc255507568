from dataclasses import dataclass

import pytest

from fedstill.common.errors import FedstillError
from fedstill.common.plugins import check_options, nearest, own_class


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("AdaFd", "AdaFD"), ("adafd", "AdaFD"), ("FedKd", "FedKD"), ("Locl", "Local"), ("DSFL", "DSFL")],
)
def test_the_nearest_name_is_named_whatever_its_case(typed, meant):
    assert nearest(typed, ["AdaFD", "DSFL", "FedKD", "Local"]) == f"did you mean {meant!r}?"


def test_without_a_near_name_all_are_listed_in_order():
    assert nearest("xyz", ["MHAT", "AdaFD", "DSFL"]) == "known: AdaFD, DSFL, MHAT."
    assert nearest("xyz", []) == ""


@pytest.fixture
def own_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from dataclasses import dataclass\n\n@dataclass\nclass Mine:\n    width: int = 3\n\nvalue = 5\n")
    return file


def test_a_class_is_found_in_a_file_and_in_a_module(own_file):
    assert own_class(f"{own_file}:Mine")().width == 3
    assert own_class("fractions:Fraction")(1, 2) == 0.5


def test_a_file_is_looked_for_from_where_one_stands(own_file, monkeypatch):
    monkeypatch.chdir(own_file.parent)
    assert own_class("mine.py:Mine").__name__ == "Mine"


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("{folder}/other.py:Mine", "other.py could not be loaded .*there is no such file; the current folder is"),
        ("{folder}/mine.py:Mien", "mine.py has no class 'Mien'; did you mean 'Mine'"),
        ("{folder}/mine.py:value", "has no class 'value'"),
        ("{folder}/mine.py:", "has no class ''"),
        ("{folder}/broken.py:Mine", r"broken.py could not be loaded \(.*line 1"),
        ("{folder}/lacking.py:Mine", "lacking.py could not be loaded .*no_such_package"),
        ("no_such_package.module:Mine", "no_such_package.module could not be loaded .*No module named"),
        ("fractions:Fractoin", "fractions has no class 'Fractoin'; did you mean 'Fraction'"),
        (":Mine", "write file.py:Class or package.module:Class"),
        ("Mine", "write file.py:Class or package.module:Class"),
        (".relative:Mine", "write file.py:Class or package.module:Class"),
        ("..:Mine", "write file.py:Class or package.module:Class"),
    ],
)
def test_what_is_no_class_is_an_error_that_says_why(own_file, path, complaint):
    (own_file.parent / "broken.py").write_text("class Mine(:\n")
    (own_file.parent / "lacking.py").write_text("import no_such_package\n")
    with pytest.raises(FedstillError, match=complaint):
        own_class(path.format(folder=own_file.parent))


class Closed:
    def __init__(self, given, width=1, depth=2):
        pass


@dataclass(frozen=True)
class Bare:
    width = 1  # without its type it is no field


class Open:
    def __init__(self, given, width=1, **others):
        pass


def test_options_that_the_constructor_takes_pass():
    check_options(Closed, {"width": 3, "depth": 4}, fixed=("given",))
    check_options(Open, {"width": 3, "anything": 4}, fixed=("given",))


@pytest.mark.parametrize(
    ("cls", "option", "complaint"),
    [
        (Closed, "widht", "Closed has no option 'widht'; did you mean 'width'"),
        (Closed, "zzz", "Closed has no option 'zzz'; known: depth, width"),
        (Closed, "given", "Closed has no option 'given'"),
        (Open, "given", "Open has no option 'given'"),
        (Bare, "width", "Bare has no option 'width'; it has none: an option is a field of a frozen dataclass"),
    ],
)
def test_other_options_are_refused_with_the_nearest_name(cls, option, complaint):
    with pytest.raises(FedstillError, match=complaint):
        check_options(cls, {option: 1}, fixed=("given",))
