"""`fedstill push`: a model of a finished run on the Hugging Face Hub, with a card written from the record."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def push(
    run: Annotated[Path, typer.Argument(help="A finished run that kept its models, such as runs/shops/seed-0.")],
    repository: Annotated[str, typer.Argument(help="Where it goes on the Hub: user/name.")],
    party: Annotated[
        str | None, typer.Option(help="Whose model: server, or a client. Default: the server's; a site's own.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Make a private repository.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the card and the files; push nothing.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the files into this folder instead of pushing them.")] = None,
    language: Annotated[str | None, typer.Option(help="The texts' language, such as en; for the card.")] = None,
) -> None:
    """Put a model of a finished run on the Hugging Face Hub, with a model card written from the record."""
    from fedstill.common.units import size_text
    from fedstill.results.hub.push import subject_of, upload, write, written

    console = Console()

    def say(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True, markup=False, emoji=False)

    subject = subject_of(run, party, repository, language)
    if out is not None and not dry_run:
        write(subject, out)
        say(f"{out} holds what the Hub would get; to push it by hand: hf upload {repository} {out}")
        return
    with written(subject) as folder:
        if dry_run:
            say((folder / "README.md").read_text(encoding="utf-8"))
            for path in sorted(folder.iterdir()):
                say(f"{path.name}: {size_text(path.stat().st_size)}")
            say(f"nothing was pushed; without --dry-run these files go to {repository}.")
            return
        say(f"pushed: {upload(folder, repository, private)}")
