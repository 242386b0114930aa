"""The lowest versions that pyproject.toml allows of what apportion computes with: constraints for ``make versions``.

``python tests/versions.py`` prints a line ``NAME==VERSION`` for each of them, and needs only the standard library.
"""

import re
import tomllib
from pathlib import Path

PACKAGES = ("numpy", "scipy", "torch", "transformers", "trl")
REQUIREMENT = re.compile(r"(?P<name>[\w-]+)(\[[^]]*\])?>=(?P<lowest>[\d.]+)")


def lowest():
    """Return the highest lower bound of each package, over the core and the extras that fit into one environment."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    requirements = [*project["dependencies"], *extras["lab"], *extras["trl"], *extras["vote"], *extras["serve"]]
    found = {}
    for each in filter(None, map(REQUIREMENT.match, requirements)):
        name, version = each["name"], each["lowest"]
        if name in PACKAGES:
            found[name] = max(found.get(name, "0"), version, key=lambda text: [int(part) for part in text.split(".")])
    return found


if __name__ == "__main__":
    print(*(f"{name}=={version}" for name, version in lowest().items()), sep="\n")  # noqa: T201
