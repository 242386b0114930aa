"""The page in a real browser without a window: nothing overflows, nothing is loaded, and keys work."""

import json
import re
import shutil
import subprocess

import pytest

from apportion.report import page_of, profile_of, report_of
from tests.report.builders import make_record

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed"),
    pytest.mark.slow,  # each start of a browser takes seconds
]

PROBE = """
<script>
addEventListener("load", () => {
  const shown = each => getComputedStyle(each).display !== "none" && each.getClientRects().length > 0;
  const widths = () => document.documentElement.scrollWidth;
  const drawn = key => [...document.querySelectorAll(".over-" + key)].filter(shown).length;
  const found = {width: widths(), inner: innerWidth, loads: performance.getEntriesByType("resource").length};
  found.drawn = {};
  for (const key of ["rollouts", "tokens", "hours"]) {
    document.getElementById("cost-" + key).click();
    found.drawn[key] = ["rollouts", "tokens", "hours"].map(drawn);
  }
  for (const each of document.querySelectorAll("details")) each.open = true;
  found.opened = widths();
  found.small = [...document.querySelectorAll("svg text")].filter(shown).map(each => {
    const box = each.ownerSVGElement.getBoundingClientRect();
    return 12 * box.width / each.ownerSVGElement.viewBox.baseVal.width;
  }).reduce((a, b) => Math.min(a, b), 99);
  found.outside = [...document.querySelectorAll("svg text")].filter(shown).filter(each => {
    const box = each.getBoundingClientRect(), own = each.ownerSVGElement.getBoundingClientRect();
    return box.left < own.left - 2 || box.right > own.right + 2;
  }).map(each => each.textContent);
  const focusable = [...document.querySelectorAll("a[href],input:not([disabled]),summary,[tabindex='0']")];
  found.order = focusable.map(each => (each.focus(), document.activeElement === each));
  document.body.innerHTML = "<pre id=found></pre>";
  document.getElementById("found").textContent = JSON.stringify(found);
});
</script>
"""
"""A script that measures the page. The tested page itself has none, so the policy is taken out of the copy."""


@pytest.fixture(scope="module")
def page():
    profiles = [profile_of(make_record(seed=seed), name) for seed, name in enumerate(("grpo", "a-long-name-of-a-run"))]
    return page_of(report_of(profiles))


def probe(folder, page, width, *options):
    """Return what the script finds on a copy of ``page`` in a frame ``width`` pixels wide."""
    copy = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page).replace("</body>", f"{PROBE}</body>")
    path = folder / "page.html"
    path.write_text(copy)
    return json.loads(re.search(r'<pre id="found">(.*?)</pre>', dumped(folder, path, width, *options))[1])


def dumped(folder, path, width, *options):
    command = [
        BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}",
        f"--window-size={width},900", "--hide-scrollbars", "--virtual-time-budget=3000", *options, "--dump-dom",
        path.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    return done.stdout


@pytest.mark.parametrize("width", [1280, 500])
def test_the_page_fits_and_its_switches_work(tmp_path, page, width):
    found = probe(tmp_path, page, width)
    assert found["width"] <= found["inner"] and found["opened"] <= found["inner"]
    assert found["loads"] == 0
    for place, drawn in enumerate(found["drawn"].values()):
        assert drawn[place] >= 5 and sum(drawn) == drawn[place]
    assert found["small"] >= 10 and not found["outside"]
    assert len(found["order"]) > 15 and all(found["order"])


def test_the_policy_lets_the_style_through(tmp_path, page):
    """A browser that refused the style would show the drawings over all costs."""
    path = tmp_path / "page.html"
    path.write_text(page)
    shot = tmp_path / "page.png"
    errors = subprocess.run(
        [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
         "--enable-logging=stderr", "--window-size=800,600", f"--screenshot={shot}", path.as_uri()],
        capture_output=True, text=True, timeout=90, check=True,
    ).stderr  # fmt: skip
    assert shot.stat().st_size > 5_000
    assert "Content Security Policy" not in errors and "CONSOLE" not in errors
