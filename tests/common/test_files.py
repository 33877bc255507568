import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstill.common.errors import FedstillError
from fedstill.common.files import (
    FileReference,
    file_name,
    follow_umask,
    refuse_unreadable,
    replacing,
    unusable,
    write_whole,
)
from tests.strangers import common_folder, unreadable


def test_a_file_is_written_and_replaced_with_its_folders(tmp_path):
    path = tmp_path / "new" / "folder" / "state.bin"
    write_whole(path, b"first")
    write_whole(path, b"second and longer")
    assert path.read_bytes() == b"second and longer"
    assert os.listdir(path.parent) == ["state.bin"]


# A file may not grow beyond 4 KiB here, which the system reports in the middle of writing, as it does a full disk.
FULL_DISK = """
import resource, sys
from pathlib import Path
from fedstill.common.files import write_whole
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    write_whole(Path(sys.argv[1]), b"x" * 100_000)
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.parametrize("before", [b"the old content", None], ids=["replace", "new"])
def test_a_disk_that_fills_up_leaves_the_old_file_and_nothing_else(tmp_path, before):
    path = tmp_path / "state.bin"
    if before is not None:
        path.write_bytes(before)
    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "File too large"
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == ({} if before is None else {"state.bin": before})


def test_a_file_that_cannot_be_replaced_leaves_nothing_over(tmp_path):
    (tmp_path / "state" / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        write_whole(tmp_path / "state", b"data")
    assert os.listdir(tmp_path) == ["state"]
    assert os.listdir(tmp_path / "state") == ["inside"]


def test_a_file_that_cannot_be_written_is_named_and_other_faults_keep_their_words(tmp_path):
    for raised, words in ((OSError(28, "full"), "state.bin cannot be used (No space"), (OSError("line lost"), "lost")):
        with pytest.raises(OSError, match=r"full|lost|space") as failed, replacing(tmp_path / "state.bin"):
            raise raised
        assert words in unusable(failed.value)


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_files_get_the_mode_that_the_umask_gives_new_ones(tmp_path, umask, mode):
    paths = [tmp_path / "closed", tmp_path / "open"]
    for path, mode_before in zip(paths, (0o600, 0o666), strict=True):
        path.write_text("kept")
        path.chmod(mode_before)
    before = os.umask(umask)
    try:
        follow_umask(paths)
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in paths] == [mode, mode]
    assert sorted(os.listdir(tmp_path)) == ["closed", "open"]
    assert {path.read_text() for path in paths} == {"kept"}


def test_a_file_of_somebody_else_is_said_to_be_unreadable_and_its_owner_what_to_do():
    with common_folder() as folder:
        path = folder / "model of books.safetensors"
        path.write_bytes(b"weights")
        with unreadable(path), pytest.raises(FedstillError) as refused:
            refuse_unreadable([path])
        allow = f"its owner can let others read it: chmod a+r '{path}'"
        assert str(refused.value) == f"{path} cannot be read (Permission denied); {allow}."
        refuse_unreadable([path])


def test_a_reference_reads_what_was_written(tmp_path):
    reference = FileReference.write(tmp_path, "state/a.1", b"data")
    assert reference == FileReference("state/a.1", hashlib.sha256(b"data").hexdigest())
    assert reference.read(tmp_path) == b"data"


@pytest.mark.parametrize("damage", [b"", b"dat", b"Data", b"data\n"])
def test_a_reference_notices_a_changed_file(tmp_path, damage):
    reference = FileReference.write(tmp_path, "a.1", b"data")
    (tmp_path / "a.1").write_bytes(damage)
    assert reference.read(tmp_path) is None


def test_a_reference_notices_that_its_file_is_gone(tmp_path):
    reference = FileReference.write(tmp_path, "a.1", b"data")
    (tmp_path / "a.1").unlink()
    assert reference.read(tmp_path) is None
    (tmp_path / "a.1").mkdir()
    assert reference.read(tmp_path) is None


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("sports", "sports"),
        ("home & garden", "home & garden"),
        ("johnson&johnson", "johnson&johnson"),
        ("PUBG(2)", "PUBG(2)"),
    ],
)
def test_ordinary_names_stay_readable(name, file):
    assert file_name(name) == file


awkward = st.sampled_from(
    ["../x", "a/b", "", ".", "..", "...", "/", "/etc/passwd", "a\x00b", "~", "~root", "\n", "\\", "é"]
)


@given(awkward | st.text(max_size=20).filter(lambda text: text.encode("utf-8", "ignore").decode() == text))
def test_a_file_name_is_never_a_path(name):
    found = file_name(name)
    assert found not in ("", ".", "..")
    assert not set(found) & set("/\\\x00\n:")
    assert not found.startswith(".")
    folder = Path("/runs/x")
    assert (folder / found).parent == folder
    assert Path(os.path.normpath(folder / found)) == folder / found


def test_different_awkward_names_have_different_files():
    assert len({file_name(name) for name in ("a/b", "a%2Fb", "a\\b", "ab", "a:b")}) == 5


def test_different_names_give_different_files():
    names = ["a b", "a_b", "x", ".x", "%2Ex", "", "%", "y" * 300, "y" * 301]
    assert len({file_name(name) for name in names}) == len(names)
    assert max(len(file_name(name)) for name in names) <= 120
