"""The same work in fedstill, by the experiment that the driver wrote; checkpoints and everybody's scores included."""

import sys
from pathlib import Path

import fedstill
from fedstill.common.events import Event, RoundDone, Step


def main() -> None:
    folder = Path(sys.argv[1])
    has_begun = False

    def tell(event: Event) -> None:
        nonlocal has_begun
        if isinstance(event, RoundDone):
            print("round", flush=True)
        elif isinstance(event, Step) and event.done and not has_begun:
            has_begun = True
            print("batch", flush=True)

    fedstill.run(folder / f"{sys.argv[2]}.yaml", folder / f"run-{sys.argv[2]}", force=True, tell=tell)


if __name__ == "__main__":
    main()
