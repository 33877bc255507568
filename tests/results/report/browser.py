"""Chromium without a window, told what to do through two pipes: no driver and no port."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE_S = 60
PASS_ON = (
    "import os, sys\nos.dup2(int(sys.argv[1]), 3)\nos.dup2(int(sys.argv[2]), 4)\nos.execvp(sys.argv[3], sys.argv[3:])"
)
"""Chromium reads commands from file 3 and writes answers to file 4."""


class Browser:
    """One page in Chromium; `problems` has everything that the page's console complained of."""

    def __init__(self, profile: Path, width: int = 1200, height: int = 900) -> None:
        theirs_in, ours_out = (_above(number) for number in os.pipe())
        ours_in, theirs_out = (_above(number) for number in os.pipe())
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        command = [CHROMIUM or "", *flags, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", PASS_ON, str(theirs_in), str(theirs_out), *command],
            pass_fds=(theirs_in, theirs_out),
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.out, self.into = ours_out, ours_in
        self.rest, self.number, self.session = b"", 0, ""
        self.problems: list[str] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")
        self.resize(width, height)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE_S)
        os.close(self.out)
        os.close(self.into)

    def open(self, page: Path) -> None:
        """Open a page from disk, and wait until its charts are drawn."""
        self.ask("Page.navigate", url=page.resolve().as_uri())
        self.wait("document.documentElement?.dataset.ready === 'yes'")

    def resize(self, width: int, height: int, is_mobile: bool = False) -> None:
        """Give the page another window."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_mobile}
        self.ask("Emulation.setDeviceMetricsOverride", **size)

    def prefer(self, scheme: str) -> None:
        """Have the system prefer light or dark."""
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def run(self, script: str) -> Any:
        """What an expression is worth on the page."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, script: str) -> None:
        """Wait until an expression is true."""
        until = time.monotonic() + PATIENCE_S
        while not self.run(script):
            if time.monotonic() > until:
                raise AssertionError(f"never came true: {script}; {self.problems}")
            time.sleep(0.05)

    def picture(self, path: Path) -> None:
        """Write the whole page as a PNG."""
        shot = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def paper(self, path: Path) -> None:
        """Print the page to a PDF."""
        path.write_bytes(base64.b64decode(self.ask("Page.printToPDF", printBackground=True)["data"]))

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; what the page says meanwhile is kept."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + PATIENCE_S
        while True:
            answer = self._read(until, method)
            self._listen(answer)
            if answer.get("id") == self.number:
                assert "error" not in answer, (method, answer)
                result: dict[str, Any] = answer["result"]
                return result

    def _listen(self, said: dict[str, Any]) -> None:
        parameters = said.get("params", {})
        if said.get("method") == "Runtime.exceptionThrown":
            self.problems.append(str(parameters["exceptionDetails"]))
        if said.get("method") == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.problems.append(str(parameters["args"]))
        if said.get("method") == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.problems.append(str(parameters["entry"]["text"]))

    def _read(self, until: float, method: str) -> dict[str, Any]:
        while b"\0" not in self.rest:
            if not select.select([self.into], [], [], max(0.0, until - time.monotonic()))[0]:
                raise AssertionError(f"{method}: Chromium did not answer in {PATIENCE_S} s")
            if not (more := os.read(self.into, 1 << 20)):
                raise AssertionError(f"{method}: Chromium ended")
            self.rest += more
        message, _, self.rest = self.rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer


def _above(number: int) -> int:
    """The same file under a number that Chromium's own two cannot collide with."""
    moved = fcntl.fcntl(number, fcntl.F_DUPFD, 20)
    os.close(number)
    return moved
