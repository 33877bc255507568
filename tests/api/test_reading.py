"""Records, models and comparisons in a program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import fedstill
from fedstill import FedstillError


def test_a_record_takes_a_string(record: fedstill.Record) -> None:
    assert fedstill.Record(str(record.folder)).f1("server") == record.f1("server")
    assert fedstill.Record(str(record.folder)) == record


def test_a_folder_that_is_no_run_is_told_so(record: fedstill.Record, tmp_path: Path) -> None:
    with pytest.raises(FedstillError, match="is no run folder; there is none in it"):
        fedstill.Record(str(tmp_path)).f1("server")
    with pytest.raises(FedstillError, match=r"is no run folder; give one of .*run"):
        fedstill.Record(record.folder.parent).f1("server")


def test_gain_is_what_the_measurements_say(record: fedstill.Record) -> None:
    gain = record.gain()
    assert [row["client"] for row in gain] == ["books", "garden", "toys"]
    frame = record.to_pandas()
    for row in gain:
        own = frame[(frame.party == row["client"]) & (frame.split == f"test/{row['client']}")]
        alone, after = own[own.stage == "trained"].f1.item(), own[own.stage == "distilled"].f1.item()
        assert (row["alone"], row["after"]) == (alone, after)
        assert row["gain"] == pytest.approx(after - alone)
    assert list(gain.to_pandas().columns) == list(gain[0])
    assert str(gain).splitlines()[1].startswith("books   bow")


def test_a_model_labels_as_the_run_did(record: fedstill.Record, rows: list[dict[str, Any]]) -> None:
    from safetensors.numpy import load_file

    stored = load_file(record.folder / "predictions" / "toys.safetensors")
    pairs = [(rows[number]["title"], rows[number]["body"]) for number in stored["rows"]]
    found = record.model("toys").predict(pairs)
    assert found.classes == ("bad", "good", "so-so")
    assert found.labels == [found.classes[number] for number in stored["predicted"]]
    expected = torch.from_numpy(stored["logits"]).double().softmax(-1).numpy()
    np.testing.assert_allclose(found.probabilities, expected, atol=1e-6)


def test_the_pipeline_is_transformers_own(record: fedstill.Record) -> None:
    model, tokenizer = (
        kind.from_pretrained(record.model_folder("server"))
        for kind in (AutoModelForSequenceClassification, AutoTokenizer)
    )
    with torch.no_grad():
        expected = model.eval()(**tokenizer("a lovely puzzle", return_tensors="pt")).logits.softmax(-1)[0]
    (found,) = record.model("server").pipeline()("a lovely puzzle")
    assert found["score"] == pytest.approx(float(expected.max()), abs=1e-5)
    assert found["label"] == model.config.id2label[int(expected.argmax())]
    with pytest.raises(FedstillError, match="textcnn is no sequence classifier of transformers"):
        record.model("garden").pipeline()


def test_texts_are_read_up_to_the_length_of_the_run(record: fedstill.Record) -> None:
    model = record.model("server")
    assert model.max_length == 24
    short, long, longer = (("a", "great " * many) for many in (1, 30, 100))
    assert model.predict([long]).probabilities.tolist() == model.predict([longer]).probabilities.tolist()
    model.max_length = None
    assert model.predict([long]).probabilities.tolist() != model.predict([longer]).probabilities.tolist()
    assert fedstill.load_model(record.model_folder("server")).max_length is None
    assert model.predict([]).probabilities.shape == (0, 3)
    with pytest.raises(FedstillError, match="give a list of texts"):
        model.predict("great")
    with pytest.raises(FedstillError, match="not some of each"):
        model.predict(["great", short])  # type: ignore[list-item]


def test_a_model_is_saved_under_a_string_and_read_again(record: fedstill.Record, tmp_path: Path) -> None:
    record.model("books").save(str(tmp_path / "copy"))
    again = fedstill.load_model(str(tmp_path / "copy"))
    assert (
        again.predict(["great"]).probabilities.tolist()
        == record.model("books").predict(["great"]).probabilities.tolist()
    )


def test_predict_takes_texts_tables_and_files(
    record: fedstill.Record, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    some = rows[:7]
    file = tmp_path / "new.csv"
    pandas.DataFrame(some).to_csv(file, index=False)
    pairs = [(row["title"], row["body"]) for row in some]
    given: list[Any] = [pairs, some, pandas.DataFrame(some), str(file), file]
    found = [fedstill.predict(str(record.folder), texts, "books") for texts in given]
    assert all(each.labels == found[0].labels for each in found)
    assert fedstill.predict(record, some, text="body").labels == record.model().predict([b for _, b in pairs]).labels
    table = found[0].to_pandas()
    assert list(table.columns) == ["label", "bad", "good", "so-so"]
    assert table[["bad", "good", "so-so"]].sum(axis=1).to_list() == pytest.approx([1.0] * 7)


def test_a_party_without_a_model_is_named(record: fedstill.Record) -> None:
    with pytest.raises(FedstillError, match="has no model of 'book'; did you mean 'books'"):
        fedstill.predict(record, ["great"], "book")
    with pytest.raises(FedstillError, match="this run has one task only: it has no task 'news'"):
        fedstill.predict(record, ["great"], task="news")


def test_compare_takes_records_and_paths(
    record: fedstill.Record, experiment: fedstill.Experiment, tmp_path: Path
) -> None:
    local = experiment.changed(name="alone", algorithm=fedstill.Local(), clients="bow")
    fedstill.run(local, tmp_path / "alone", progress=False)
    comparison = fedstill.compare([record, str(tmp_path / "alone")])
    table = comparison.to_pandas().set_index("method")
    assert table["global"]["AdaFD w/ ENWC"] == record.f1("server")
    assert table["difference"]["AdaFD w/ ENWC"] == pytest.approx(record.f1("server") - table["global"]["Local"])
    assert f"{100 * record.f1('server'):.1f}" in str(comparison)
    assert fedstill.compare(record).rows[0].method == "AdaFD w/ ENWC"
