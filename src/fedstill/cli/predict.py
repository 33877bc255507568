"""`fedstill predict`: new texts labelled with a model of a finished run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedstill.common.errors import FedstillError

if TYPE_CHECKING:
    from fedstill.results.inference import Labeller, Texts


def predict(
    run: Annotated[
        Path, typer.Argument(help="A run folder, such as runs/demo/demo-adafd/seed-0; at a site KIT/runs/ID.")
    ],
    file: Annotated[Path, typer.Argument(help="CSV, TSV, JSONL or Parquet with the texts.")],
    party: Annotated[
        str | None, typer.Option(help="Whose model: server, or a client. Default: the server's; a site's own.")
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option(help="The text column; twice for a pair. Default: the experiment's.")
    ] = None,
    encoding: Annotated[str, typer.Option(help="The file's encoding.")] = "utf-8",
    delimiter: Annotated[str | None, typer.Option(help="Between the fields of a CSV file; default: found.")] = None,
    task: Annotated[str | None, typer.Option(help="The task of the texts, if the run has several.")] = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="Weights in eight bits: faster for encoders on a CPU, nearly the same.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write .csv, .tsv, .jsonl or .parquet here instead of CSV to the screen.")
    ] = None,
) -> None:
    """Label texts with a model of a finished run: all columns, the label, and the probability of every label."""
    from fedstill.data.corpora.tables import Form, files_of
    from fedstill.results.inference import Texts, labeller, text_columns
    from fedstill.results.labelled import check_form, write_delimited, write_rows

    if out is not None:
        check_form(out)
        if out.exists() and any(read.exists() and out.samefile(read) for read in files_of(file)):
            raise FedstillError(f"--out {out} is the file of the texts itself; give another name, nothing is changed.")
    texts = Texts.survey(file, text_columns(run, text), Form(encoding, None, delimiter))
    if out is not None and out.suffix.lower() == ".tsv" and not texts.is_flat:
        raise FedstillError(f"--out {out}: {file} holds tabs or line breaks, which TSV cannot; write .csv or .jsonl.")
    model = labeller(run, party, task, int8)
    names = [*texts.names, *model.headings]
    rows = _shown(model, texts)
    if out is None:
        write_delimited(sys.stdout, rows, names)
        return
    write_rows(out, rows, names, file)
    Console().print(f"{texts.rows:,} texts labelled: {out}", highlight=False, soft_wrap=True, markup=False)


def _shown(model: Labeller, texts: Texts) -> Iterator[dict[str, object]]:
    """The labelled rows, with a bar on a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("labelling"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield from progress.track(model.label(texts), total=texts.rows)
