"""A real browser, and pages in it that keep account of what went wrong there."""
import os
import pathlib
import shutil

from playwright.sync_api import sync_playwright

from .gateway import root

#: How long each frame of a page took in so many seconds, in ms, the shortest first.
FRAMES = """async (seconds) => {
    const frames = [];
    let before = performance.now();
    const end = before + seconds * 1000;
    while (before < end) {
        await new Promise(requestAnimationFrame);
        const now = performance.now();
        frames.push(now - before);
        before = now;
    }
    return frames.sort((a, b) => a - b);
}"""

fetched = root / ".venv-e2e" / "tools" / "chromium" / "unpacked"


def chromium():
    """The browser: $E2E_CHROMIUM, the machine's, or the one that install.sh has fetched where the machine has none and gets none; and what it
    needs in its environment."""
    named = [os.environ.get("E2E_CHROMIUM"), *map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))]
    found = [one for one in [*named, fetched / "chromium"] if one and pathlib.Path(one).is_file()]
    assert found, "no Chromium: gateway/tests/e2e/install.sh gets one"
    libraries = {"LD_LIBRARY_PATH": str(fetched / "al2023" / "lib")} if found[0] == fetched / "chromium" else {}
    return str(found[0]), {**os.environ, **libraries}


class Browser:
    """One Chromium without a window."""

    def __init__(self):
        self._playwright = sync_playwright().start()
        # Containers and root have no sandbox for it; what it loads is this repository's.
        path, environment = chromium()
        self._browser = self._playwright.chromium.launch(executable_path=path, env=environment, args=["--no-sandbox", "--disable-dev-shm-usage"])
        self._contexts = []

    def open(self, url, width=1440, height=900, scheme="light", token=None, **options):
        """A page of its own, without what others have kept. `page.troubles` are scripts that failed and policies that were broken."""
        context = self._browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, **options)
        self._contexts.append(context)
        context.add_init_script("""
            window.troubles = [];
            document.addEventListener("securitypolicyviolation", (e) => window.troubles.push(`policy: ${e.violatedDirective} ${e.blockedURI}`));
            window.ran = (what) => window.troubles.push(`a script ran: ${what}`);
        """)
        if token:
            context.add_init_script(f"sessionStorage.setItem('huntgroup.token', {token!r})")
        page = context.new_page()
        page.set_default_timeout(15_000)
        errors = []
        page.on("pageerror", lambda error: errors.append(f"{error}\n{error.stack}"))
        page.on("dialog", lambda dialog: (errors.append(f"a dialog: {dialog.message}"), dialog.dismiss()))
        page.errors = errors
        page.goto(url)
        return page

    def end_pages(self):
        for context in self._contexts:
            context.close()
        self._contexts.clear()

    def stop(self):
        self.end_pages()
        self._browser.close()
        self._playwright.stop()


def assert_untroubled(page):
    """No script failed, none ran that is not the page's, and its policy was not even touched."""
    assert not page.errors, page.errors
    assert not page.evaluate("window.troubles"), page.evaluate("window.troubles")
