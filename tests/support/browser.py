"""Chromium before our own pages: what it shows, complains of and asks for."""

from __future__ import annotations

import base64
import json
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selenium.webdriver import Chrome
    from selenium.webdriver.common.keys import Keys

ROOT = Path(__file__).parents[2]
AXE = ROOT / "tests/browser/node_modules/axe-core/axe.min.js"
WIDE, NARROW = 1440, 390
_HEIGHT = 800
_TALLEST = 2_400
_DRIVER = "chromedriver"
_ARGUMENTS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"),
    *("--no-proxy-server", "--disable-background-networking", "--disable-component-update", "--no-first-run"),
)
_TOLD = {"browser": "ALL", "performance": "ALL"}
# Beside violations of the policy and errors of scripts, Chromium reports what was refused on purpose.
_HARMLESS = ("Password forms should have", "the server responded with a status of")


def installed() -> bool:
    """Whether there is a browser to test with: apt-get install chromium chromium-driver."""
    return shutil.which(_DRIVER) is not None and shutil.which("chromium") is not None


_CUT_OFF = """
const found = [];
for (const each of document.body.querySelectorAll("*")) {
  const scrolls = each.closest(".scroll") && !(innerWidth < 800 && each.closest(".rows"));
  if (scrolls || each.closest("nav, svg, pre, .skip, dialog, .rows thead") || !each.checkVisibility()) continue;
  if (each.parentElement.closest("summary, .cut")) continue;  // they end in an ellipsis
  const box = each.getBoundingClientRect(), isOut = box.right > innerWidth + 1 || box.left < -1;
  if (box.width && box.height && isOut) found.push(each.outerHTML.slice(0, 120));
}
return found;
"""


class Browser:
    """One Chromium with a colour scheme."""

    def __init__(self, driver: Chrome, *, is_dark: bool) -> None:
        self.driver = driver
        self._is_dark = is_dark

    def open(self, address: str, width: int = WIDE) -> None:
        self.resize(width)
        self.driver.get(address)

    def resize(self, width: int, height: int = _HEIGHT) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)  # type: ignore[no-untyped-call]

    def keep_picture(self, name: str, folder: Path, width: int = WIDE, most: int = _TALLEST) -> None:
        """The whole page, as far as it fits."""
        tall = int(self.driver.execute_script("return document.documentElement.scrollHeight"))  # type: ignore[no-untyped-call]
        self.resize(width, max(_HEIGHT, min(tall, most)))
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})  # type: ignore[no-untyped-call]
        folder.mkdir(parents=True, exist_ok=True)
        scheme = "-dark" if self._is_dark else ""
        (folder / f"{name}{scheme}.png").write_bytes(base64.b64decode(shot["data"]))

    def complaints(self) -> list[str]:
        """What the console says that is wrong, violations of our policy among it."""
        lines = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [line["message"] for line in lines if not any(word in line["message"] for word in _HARMLESS)]

    def hosts(self) -> set[str]:
        """Where anything was asked for since the last time."""
        entries = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]  # type: ignore[no-untyped-call]
        sent = [entry for entry in entries if entry["method"] == "Network.requestWillBeSent"]
        asked = [urlsplit(entry["params"]["request"]["url"]) for entry in sent]
        return {url.netloc for url in asked if url.scheme not in ("data", "chrome", "about")}

    def overflows(self) -> int:
        """Pixels by which the page is wider than its window."""
        script = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        return int(self.driver.execute_script(script))  # type: ignore[no-untyped-call]

    def cut_off(self) -> list[str]:
        """Visible elements whose box leaves the window at a side, outside of regions that scroll."""
        return list(self.driver.execute_script(_CUT_OFF))  # type: ignore[no-untyped-call]

    def violations(self) -> list[str]:
        """What axe finds wrong for people with assistive technology; nothing where it is not installed."""
        if not AXE.exists():
            return []
        self.driver.execute_script(AXE.read_text("utf-8"))  # type: ignore[no-untyped-call]
        found = self.driver.execute_async_script(  # type: ignore[no-untyped-call]
            "const done = arguments[0]; axe.run(document).then((found) => done(found.violations));"
        )
        return [f"{each['id']}: {node['html']}" for each in found for node in each["nodes"]]

    @property
    def keys(self) -> type[Keys]:
        from selenium.webdriver.common.keys import Keys

        return Keys

    def press(self, *keys: str) -> None:
        """One key after the other, wherever the focus is."""
        from selenium.webdriver import ActionChains

        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def focused(self) -> str:
        return self.driver.switch_to.active_element.text

    def text(self) -> str:
        return self.driver.find_element("tag name", "body").text

    def click(self, text: str) -> None:
        """The first link or summary that says this."""
        path = f"//a[contains(., '{text}')] | //summary[contains(., '{text}')]"
        self.driver.find_element("xpath", path).click()

    def press_button(self, text: str) -> None:
        self.driver.find_element("xpath", f"//button[normalize-space()='{text}']").click()

    def wait_for(self, text: str, seconds: float = 60.0) -> None:
        """Until the page says this by itself; another may take its place meanwhile."""
        from selenium.common.exceptions import WebDriverException
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, seconds, ignored_exceptions=[WebDriverException]).until(
            lambda _: text in self.text()
        )

    def wait_until_at(self, part: str, seconds: float = 60.0) -> None:
        """Until the browser is at an address with this in it: what a key set off may take a while."""
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, seconds).until(lambda driver: part in driver.current_url)


@contextmanager
def browser(*, is_dark: bool = False, has_scripts: bool = True) -> Iterator[Browser]:
    """A Chromium that is closed behind the block; without one the test is skipped."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: run `make setup`")
    if not installed():
        pytest.skip("chromium is not installed: run `apt-get install chromium chromium-driver`")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for argument in _ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", _TOLD)
    if not has_scripts:
        options.add_experimental_option("prefs", {"profile.managed_default_content_settings.javascript": 2})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which(_DRIVER)))
    try:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        yield Browser(driver, is_dark=is_dark)
    finally:
        driver.quit()
