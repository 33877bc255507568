"""The picture of a partition: on a terminal of any width, and as a PNG."""

import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fedstill.common.errors import FedstillError
from fedstill.results.picture import lines, save

LABELS = ["trouser", "an article of clothing with a long name", "[bold]bag $5$"]


def deal(clients: int, labels: int = 3) -> np.ndarray:
    """Row counts that differ from client to client; the first has none of the first label."""
    counts = np.random.default_rng(0).integers(1, 400, (labels, clients))
    counts[0, 0] = 0
    return counts


def clients(many: int) -> list[str]:
    return [f"client-{number:0{len(str(many))}}" for number in range(1, many + 1)]


def printed(counts: np.ndarray, rows: list[str], columns: list[str], width: int = 80) -> list[str]:
    console = Console(width=width, no_color=True, legacy_windows=False)
    with console.capture() as capture:
        console.print(lines(counts, rows, columns, width))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_few_clients_are_shown_with_names_and_numbers():
    shown = printed(np.array([[0, 1000], [10, 501]]), ["cat", "[dog]"], ["books", "garden"])
    assert shown[0].split() == ["books", "garden"]
    assert shown[2].split() == ["cat", "0", "·", "1,000", "█"]
    assert shown[3].split() == ["[dog]", "10", "░", "501", "▓"]
    assert shown[4] == "Training rows of books to garden; █ is up to 1,000, · is none."


@pytest.mark.parametrize(
    ("number", "shade"),
    [(0, "·"), (1, "░"), (25, "░"), (26, "▒"), (50, "▒"), (51, "▓"), (75, "▓"), (76, "█"), (100, "█")],
)
def test_a_shade_is_a_quarter_of_the_largest_cell_and_only_none_is_a_dot(number, shade):
    assert printed(np.array([[number, 100]]), ["cat"], ["a", "b"])[2].split()[:3] == ["cat", str(number), shade]


def test_ten_clients_keep_their_numbers_on_80_columns():
    counts = deal(10)
    shown = printed(counts, LABELS, clients(10))
    assert shown[0].split() == [f"{number:02}" for number in range(1, 11)]
    assert [int(word) for word in shown[2].split()[1::2]] == counts[0].tolist()
    assert shown[3].startswith("an article of c… ")
    assert "client-01 to client-10" in shown[5]


def test_a_client_is_a_character_where_numbers_do_not_fit():
    shown = printed(deal(60), LABELS, clients(60))
    assert shown[0].split() == ["client-01", "client-60"]
    assert len(shown[2].split()[1]) == 60
    assert shown[2].split()[1][0] == "·"
    assert "A character is a client, client-01 to client-60" in shown[5]


def test_clients_share_a_character_where_one_each_does_not_fit():
    counts = np.zeros((1, 100), np.int64)
    counts[0, :2] = 30, 10
    counts[0, 98:] = 5, 5
    shown = printed(counts, ["x" * 60], clients(100))
    # The label is cut to 20 characters, so 59 remain: two clients each.
    assert shown[2].split() == ["x" * 19 + "…", "█" + "·" * 48 + "░"]
    assert "A character is 2 clients together" in shown[3]
    assert "█ is up to 40 training rows" in " ".join(shown[3:])


@pytest.mark.parametrize("width", [30, 80, 200])
@pytest.mark.parametrize("many", [1, 3, 10, 100, 1000])
def test_every_partition_fits_the_terminal(many, width):
    shown = printed(deal(many), LABELS, clients(many), width)
    assert max(map(len, shown)) <= width
    assert len([line for line in shown if line.startswith(("trouser", "trous…", "an", "[b"))]) == 3


def test_nothing_dealt_is_all_dots():
    assert printed(np.zeros((1, 2), int), ["cat"], ["a", "b"])[2].split() == ["cat", "0", "·", "0", "·"]


@pytest.mark.parametrize("many", [2, 10, 100])
def test_a_picture_is_a_png_of_a_sensible_size(tmp_path, many):
    pytest.importorskip("matplotlib")
    path = tmp_path / "pictures" / "partition.png"
    save(deal(many), LABELS, clients(many), "three labels, $alpha$ 0.5", path)
    raw = path.read_bytes()
    assert raw.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", raw[16:24])
    assert 800 <= width <= 2400
    assert 400 <= height <= 1200
    assert [file.name for file in path.parent.iterdir()] == ["partition.png"]


def test_the_picture_shows_the_counts(tmp_path):
    image = pytest.importorskip("matplotlib.image")
    counts = np.array([[400, 0], [0, 400]])
    save(counts, ["a", "b"], ["1", "2"], "diagonal", tmp_path / "diagonal.png")
    pixels = image.imread(tmp_path / "diagonal.png")[..., :3].mean(-1)
    height, width = pixels.shape
    # A quarter and three quarters of the way through, where the axes' margins do not reach.
    corners = pixels[[[height // 4] * 2, [3 * height // 5] * 2], [[width // 4, 2 * width // 3]] * 2]
    assert (corners < 0.5).tolist() == [[True, False], [False, True]]


def test_without_matplotlib_the_command_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(FedstillError, match=r'run `pip install "fedstill\[figures\]"`'):
        save(deal(2), LABELS, clients(2), "", Path("never.png"))
