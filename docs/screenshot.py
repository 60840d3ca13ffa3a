"""Takes ``docs/explore.jpg``, the page of ``triton-ext explore``, in headless Chromium.

Not part of ``make docs``, since fonts differ from machine to machine. Run it by itself.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

from triton_ext.render.html import explore_html

PICTURE = Path(__file__).resolve().parent / "explore.jpg"
STATE = {"shape": "64x128", "at": "9,72", "tensor": "4096x4096", "start_at": "4064,0"}


def main() -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("google-chrome"),
            args=["--no-sandbox", "--disable-gpu"],
        )
        page = browser.new_page(viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
        page.set_content(explore_html("layout", STATE))
        page.screenshot(path=PICTURE, type="jpeg", quality=60)
        browser.close()


if __name__ == "__main__":
    main()
