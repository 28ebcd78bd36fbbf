"""How many threads compute, where a control group allows fewer than there are processors."""

from __future__ import annotations

import pathlib

import pytest

from maple.engine.cores import cpu_quota

V2, V1 = "0::{}\n", "5:cpu,cpuacct:{}\n4:memory:/elsewhere\n"


@pytest.mark.parametrize(
    ("listing", "path", "files", "quota"),
    [
        (V2, "/", {"cpu.max": "200000 100000"}, 2.0),
        (V2, "/", {"cpu.max": "max 100000"}, None),
        (
            V2,
            "/a/b",
            {"cpu.max": "800000 100000", "a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000"},
            1.5,
        ),
        (V2, "/only/outside", {"cpu.max": "300000 100000"}, 3.0),
        (V1, "/a", {"cpu/a/cpu.cfs_quota_us": "400000", "cpu/a/cpu.cfs_period_us": "100000"}, 4.0),
        (V1, "/a", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, None),
    ],
)
def test_quota_of_a_control_group(
    listing: str, path: str, files: dict[str, str], quota: float | None, tmp_path: pathlib.Path
) -> None:
    """The least of the group's and its parents', in either version, also where the path is the host's."""
    texts = {"proc/self/cgroup": listing.format(path)}
    texts |= {f"sys/fs/cgroup/{name}": text + "\n" for name, text in files.items()}
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cpu_quota(tmp_path) == quota


def test_no_control_groups_no_quota(tmp_path: pathlib.Path) -> None:
    """Off Linux, or without the files, nothing is limited."""
    assert cpu_quota(tmp_path) is None
