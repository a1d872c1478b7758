"""A headless Chromium, spoken to over a pipe in its own protocol: pages opened, hovered, clicked and looked at."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--disable-quic", "--hide-scrollbars",
    "--remote-debugging-pipe",
)  # fmt: skip
SECONDS = 60.0
"""How long anything may take on a busy machine."""


def program() -> str | None:
    """The browser on this machine."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One browser process."""

    def __init__(self, profile: Path) -> None:
        found = program()
        assert found is not None
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # The protocol's pipes are descriptors 3 and 4 of the browser; the shell puts them there.
        command = 'exec "$0" "$@" 3<&"$PIPE_IN" 4>&"$PIPE_OUT"'
        self.process = subprocess.Popen(
            ["bash", "-c", command, found, *OPTIONS, f"--user-data-dir={profile}", "about:blank"],
            env={**os.environ, "PIPE_IN": str(theirs_in), "PIPE_OUT": str(theirs_out)},
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._number = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self._heard = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        rest = b""
        while data := os.read(self._in, 1 << 16):
            *whole, rest = (rest + data).split(b"\0")
            with self._heard:
                for message in map(json.loads, whole):
                    if "id" in message:
                        self._answers[message["id"]] = message
                    else:
                        self.events.append(message)
                self._heard.notify_all()

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol, and its result."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        with self._heard:
            assert self._heard.wait_for(lambda: number in self._answers, SECONDS), f"no answer to {method}"
            answer = self._answers.pop(number)
        assert "error" not in answer, (method, answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    @contextlib.contextmanager
    def page(self, path: Path | str, *, width: int = 1280, height: int = 900, dark: bool = False) -> Iterator[Visit]:
        """The page in a file, or at an address, in a tab of its own, of this size and theme, after its script ran."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        visit = Visit(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            visit.call(f"{domain}.enable")
        visit.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        visit.call("Emulation.setEmulatedMedia", features=[scheme])
        visit.call("Page.navigate", url=path if isinstance(path, str) else path.as_uri())
        visit.wait("document.readyState === 'complete'")
        yield visit
        self.call("Target.closeTarget", targetId=target)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()
        os.close(self._out)


class Visit:
    """A page that is open."""

    def __init__(self, browser: Browser, session: str) -> None:
        self.browser, self.session = browser, session

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **parameters)

    def value(self, expression: str) -> Any:
        """What an expression in the page gives."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, expression: str) -> None:
        """Until an expression holds."""
        until = time.monotonic() + SECONDS
        while not self.value(expression):
            assert time.monotonic() < until, f"never true: {expression}"
            time.sleep(0.05)

    def move(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, button="left", clickCount=1, buttons=1)

    def release(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseReleased", x=x, y=y, button="left", clickCount=1)

    def click(self, selector: str) -> None:
        """A click of the mouse in the middle of an element."""
        x, y, *_ = self.box(selector)
        self.move(x, y)
        self.press(x, y)
        self.release(x, y)

    def box(self, selector: str) -> tuple[float, float, float, float]:
        """Middle, width and height of an element, scrolled into sight."""
        found = self.value(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center', "
            "behavior: 'instant'}); const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2,"
            " b.width, b.height]; })()"
        )
        return tuple(found)

    def console(self) -> list[str]:
        """All that the browser has said about the page: what scripts wrote, errors, refusals."""
        said = []
        for event in self._own():
            if event["method"] == "Runtime.consoleAPICalled":
                said.append(" ".join(str(part.get("value", part)) for part in event["params"]["args"]))
            elif event["method"] == "Runtime.exceptionThrown":
                said.append(str(event["params"]["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded":
                said.append(str(event["params"]["entry"]["text"]))
        return said

    def requests(self) -> list[str]:
        """The addresses that the page asked for, but for its own and data within it."""
        found = [
            event["params"]["request"]["url"] for event in self._own() if event["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in found[1:] if not url.startswith("data:")]

    def _own(self) -> list[dict[str, Any]]:
        return [event for event in self.browser.events if event.get("sessionId") == self.session]

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """A screenshot; with `whole`, of the page from top to bottom."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))
