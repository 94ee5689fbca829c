"""A real headless Chromium, driven over the W3C WebDriver protocol by chromedriver."""

import base64
import json
import os
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from debian_tools import TOOLS, library_path, program
from support.waiting import WAIT_SECONDS, wait_until

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""The key under which the protocol returns the handle of an element."""

FONTS = """<?xml version="1.0"?>
<fontconfig><dir>{fonts}</dir><dir>/usr/share/fonts</dir><cachedir>{cache}</cachedir></fontconfig>
"""


CONTRASTS = """
const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
const light = (colour) => numbers(colour).slice(0, 3).map((one) => one / 255)
  .map((one) => one <= .04045 ? one / 12.92 : ((one + .055) / 1.055) ** 2.4)
  .reduce((sum, one, at) => sum + one * [.2126, .7152, .0722][at], 0);
const behind = (node) => {
  for (; node; node = node.parentElement) {
    const colour = getComputedStyle(node).backgroundColor;
    if ((numbers(colour)[3] ?? 1) > 0) return colour;
  }
  return "rgb(255, 255, 255)";
};
const found = [];
const walker = document.createTreeWalker(document.querySelector(arguments[0]), NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const text = walker.currentNode.data.trim(), node = walker.currentNode.parentElement;
  if (text === "" || node.disabled || node.tagName === "OPTION") continue;
  const [dark, bright] = [light(getComputedStyle(node).color), light(behind(node))].sort((a, b) => a - b);
  if ((bright + .05) / (dark + .05) < 4.5) found.push(`${text.slice(0, 40)} (${node.tagName})`);
}
return found;
"""


class StaleElementError(Exception):
    """The page does not show the element any more."""


class Browser:
    """One window. Leaving its block ends the browser."""

    def __init__(self, folder: Path) -> None:
        """``folder`` takes the browser's profile and its log."""
        folder.mkdir()
        fonts = folder / "fonts.conf"
        fonts.write_text(FONTS.format(fonts=TOOLS / "chromium/usr/share/fonts", cache=folder / "fonts"))
        chromium, driver = program("chromium"), program("chromedriver")
        settings = {"HOME": str(folder), "FONTCONFIG_FILE": str(fonts), "LD_LIBRARY_PATH": library_path("chromium")}
        self._log = folder / "chromedriver.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [driver, "--port=0"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **settings}
            )
        self._session = ""
        try:
            self._address = f"http://127.0.0.1:{self._wait_port()}"
            options = {
                "binary": str(chromium),
                "args": [
                    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                    "--window-size=1360,900", f"--user-data-dir={folder / 'profile'}",
                ],
            }  # fmt: skip
            wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            made = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
            self._session = f"/session/{made['sessionId']}"
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._session:
            self._ask("DELETE", self._session)
        self._process.kill()
        self._process.wait()

    def open(self, url: str) -> None:
        """Go to an address."""
        self._ask("POST", f"{self._session}/url", {"url": url})

    def run(self, script: str, *arguments: object) -> Any:
        """Run JavaScript in the page; what it returns."""
        return self._ask("POST", f"{self._session}/execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector: str = "body") -> str:
        """The visible text of the first element that fits; empty without one."""
        return str(self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector))

    def wait_for(self, text: str, selector: str = "body") -> None:
        """Wait until an element shows this text."""
        self.wait_until(lambda: text in self.text(selector), f"{text!r} in {selector}")

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds."""
        wait_until(condition, lambda: f"{what}; the page shows:\n{self.text()}\n{self.messages()}")

    def click(self, selector: str) -> None:
        """Click the first element that fits, as a user does: it must be visible."""
        self._act(lambda: self._find(selector), "click", {}, selector)

    def click_button(self, text: str, within: str = "body") -> None:
        """Click the first button with exactly this text."""
        script = (
            "return [...document.querySelectorAll(arguments[0] + ' button')].find("
            "(one) => one.textContent === arguments[1])"
        )

        def find() -> str:
            found = self.run(script, within, text)
            assert found is not None, f"no button {text!r} in {self.text(within)}"
            return str(found[ELEMENT])

        self._act(find, "click", {}, f"button {text!r} in {within}")

    def type(self, selector: str, text: str) -> None:
        """Type into an input."""
        self._act(lambda: self._find(selector), "value", {"text": text}, selector)

    def messages(self) -> list[str]:
        """What the console of the browser has logged since the last call: errors, refusals of the policy."""
        return [one["message"] for one in self._ask("POST", f"{self._session}/se/log", {"type": "browser"})]

    def unnamed_parts(self) -> list[str]:
        """Parts of the page that a screen reader would announce without a name."""
        tree = self._ask(
            "POST", f"{self._session}/goog/cdp/execute", {"cmd": "Accessibility.getFullAXTree", "params": {}}
        )
        roles = {"button", "link", "textbox", "combobox", "spinbutton", "img", "image", "navigation", "dialog"}
        return [
            json.dumps(node)
            for node in tree["nodes"]
            if not node["ignored"] and node["role"]["value"] in roles and not node.get("name", {}).get("value")
        ]

    def low_contrasts(self, within: str) -> list[str]:
        """Texts whose colour is too close to that behind them: below 4.5 to 1, as WCAG 2 counts."""
        return [str(one) for one in self.run(CONTRASTS, within)]

    def screenshot(self, file: Path) -> None:
        """Write a picture of the window."""
        file.write_bytes(base64.b64decode(self._ask("GET", f"{self._session}/screenshot")))

    def dark(self, wanted: bool) -> None:
        """Whether the user prefers dark colours."""
        feature = [{"name": "prefers-color-scheme", "value": "dark" if wanted else "light"}]
        command = {"cmd": "Emulation.setEmulatedMedia", "params": {"features": feature}}
        self._ask("POST", f"{self._session}/goog/cdp/execute", command)

    def _act(self, find: Callable[[], str], act: str, value: object, what: str) -> None:
        """Do something with an element. The page draws itself anew while it follows the cluster, and may replace the
        element after it was found: then it is looked for again."""

        def done() -> bool:
            try:
                self._ask("POST", f"{self._session}/element/{find()}/{act}", value)
            except StaleElementError:
                return False
            return True

        self.wait_until(done, f"{act} of {what}")

    def _find(self, selector: str) -> str:
        found = self._ask("POST", f"{self._session}/element", {"using": "css selector", "value": selector})
        return str(found[ELEMENT])

    def _wait_port(self) -> int:
        def found() -> re.Match[str] | None:
            return re.search(r"successfully on port (\d+)", self._log.read_text())

        wait_until(lambda: bool(found() or self._process.poll() is not None), self._log.read_text)
        listening = found()
        assert listening is not None, self._log.read_text()
        return int(listening[1])

    def _ask(self, method: str, path: str, value: object = None) -> Any:
        data = None if value is None else json.dumps(value).encode()
        request = urllib.request.Request(
            self._address + path, data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            answer = error.read().decode()[:2000]
            if "stale element reference" in answer:
                raise StaleElementError(answer) from error
            raise AssertionError(f"{method} {path}: {answer}") from error
