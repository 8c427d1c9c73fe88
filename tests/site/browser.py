"""Debian's chromium, driven through a pipe by its DevTools protocol: pages, their scripts, the mouse, screenshots."""

import base64
import fcntl
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select
from typing import Any

PROGRAM = "chromium"
TIMEOUT = 60.0
"""Seconds for an answer of the browser: the machine may have other work."""


class Browser:
    """One headless browser with one page.

    Attributes:
        errors: what the page's scripts raised, what they logged as errors, and what they tried to load and could not.
        loaded: the addresses that were asked for since the last `open`.
    """

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self.to_browser, self.from_browser = to_browser, from_browser
        self.buffer = b""
        self.number = 0
        self.session: str | None = None
        self.errors: list[str] = []
        self.loaded: list[str] = []
        self.events: set[str] = set()

    def attach(self) -> None:
        """Open a page and listen to it."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command of the protocol."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def read(self) -> dict[str, Any]:
        """The next message of the browser."""
        while b"\0" not in self.buffer:
            if not select([self.from_browser], [], [], TIMEOUT)[0]:
                raise RuntimeError(f"{PROGRAM} said nothing for {TIMEOUT:.0f} seconds")
            part = os.read(self.from_browser, 1 << 20)
            if not part:
                raise RuntimeError(f"{PROGRAM} has gone")
            self.buffer += part
        text, _, self.buffer = self.buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self.note(message)
        return message

    def note(self, message: dict[str, Any]) -> None:
        """Keep what an event says of errors and of what is loaded."""
        method, parameters = message.get("method", ""), message.get("params", {})
        self.events.add(method)
        if method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.errors.append(str(details.get("exception", {}).get("description", details["text"])))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.loaded.append(parameters["request"]["url"])

    def open(self, address: str, width: int = 1280, height: int = 900) -> None:
        """Load a page at a size [pixels]."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.go("about:blank")  # an address that differs in its fragment alone would not load the page again
        self.errors.clear()
        self.loaded.clear()
        self.go(address)

    def go(self, address: str) -> None:
        """Navigate, and wait until the page has loaded."""
        self.events.discard("Page.loadEventFired")
        self.call("Page.navigate", url=address)
        while "Page.loadEventFired" not in self.events:
            self.read()

    def run(self, script: str) -> Any:
        """The value of an expression of JavaScript; a promise is waited for."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"].get("exception", answer["exceptionDetails"])))
        return answer["result"].get("value")

    def move(self, x: float, y: float, *, click: bool = False) -> None:
        """Move the mouse there, and click."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def key(self, name: str) -> None:
        """Press a key by its name, as `ArrowRight`."""
        codes = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Escape": 27}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=codes[name])

    def screenshot(self, path: Path) -> None:
        """Write what the window shows as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def browser() -> Iterator[Browser]:
    """A running browser.

    Raises:
        SystemExit: without chromium.
    """
    program = shutil.which(PROGRAM)
    if program is None:
        sys.exit(f"{PROGRAM} is not installed, and pages are looked at in it: apt-get install {PROGRAM}")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        arguments = [program, "--headless", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        arguments += ["--no-first-run", "--disable-extensions", "--hide-scrollbars", "--force-color-profile=srgb"]
        arguments += ["--no-sandbox"] if os.geteuid() == 0 else []
        (there, to_browser), (from_browser, back) = os.pipe(), os.pipe()
        # the browser reads from descriptor 3 and writes to 4: the ends it gets are moved out of the way of both first
        inner = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (there, back)]
        quiet = os.open(os.devnull, os.O_WRONLY)
        moves = [
            (os.POSIX_SPAWN_DUP2, inner[0], 3),
            (os.POSIX_SPAWN_DUP2, inner[1], 4),
            (os.POSIX_SPAWN_DUP2, quiet, 2),
        ]
        process = os.posix_spawn(program, arguments, dict(os.environ), file_actions=moves, setpgroup=0)
        for end in (there, back, quiet, *inner):
            os.close(end)
        try:
            page = Browser(to_browser, from_browser)
            page.attach()
            yield page
        finally:
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
            os.close(to_browser)
            os.close(from_browser)
