"""The least versions that are admitted, as pinned requirements: what an advisory scanner is given before a release.

python tools/floors.py > floors.txt
pip-audit --no-deps --disable-pip -r floors.txt
"""

from __future__ import annotations

import pathlib
import tomllib
from collections.abc import Iterator

from packaging.requirements import Requirement


def floors(project: pathlib.Path) -> Iterator[str]:
    """Name and least version of each dependency, those of extras too."""
    content = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    extras = content["optional-dependencies"].values()
    for line in (*content["dependencies"], *(line for extra in extras for line in extra)):
        wanted = Requirement(line)
        (least,) = (one.version for one in wanted.specifier if one.operator == ">=")
        yield f"{wanted.name}=={least}"


if __name__ == "__main__":
    print("\n".join(floors(pathlib.Path(__file__).parents[1] / "pyproject.toml")))
