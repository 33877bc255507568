"""`fedstill watch`: the report page of runs that go on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def watch(
    path: Annotated[
        Path, typer.Argument(help="A run folder, a folder of runs, or a federation's; it need not be there yet.")
    ],
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Of this machine; default: the first free one from 8765 on.")
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Also open the page in a browser.")] = False,
    texts: Annotated[
        bool, typer.Option("--texts/--no-texts", help="Show some texts on which a client and the server disagree.")
    ] = True,
) -> None:
    """Follow runs in a browser, on this machine only: the page of `report`, kept up to date until Ctrl-C."""
    import webbrowser

    from fedstill.engines.stopping import stopping_on_sigterm
    from fedstill.federation.following import following
    from fedstill.results.report.page import packages
    from fedstill.results.watch.server import serve
    from fedstill.results.watch.watch import Watch

    packages()
    with following() as find, serve(Watch(path, texts, find), port) as server:
        Console().print(
            f"Following {path}: {server.address} (Ctrl-C ends this, not the runs)", soft_wrap=True, highlight=False
        )
        if open_page:
            webbrowser.open(server.address)
        try:
            with stopping_on_sigterm():
                server.serve_forever()
        except KeyboardInterrupt:
            return
