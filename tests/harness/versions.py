"""The version of Duly before this one, taken from the repository's history and run beside this one."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: The last commit of the version before: its nodes, submits and stores must work together with this version's.
PREVIOUS_COMMIT = "1e0d43121c09fe557668b0173eb2bf629afcaf1f"
PREVIOUS_VERSION = "0.1.0"


def previous_source(folder: Path) -> Path:
    """A folder to put on PYTHONPATH, from which `duly` is the version before."""
    archive = subprocess.run(["git", "archive", PREVIOUS_COMMIT, "src"], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"the version before this one is not in the history of this copy: {archive.stderr.decode()[:200]}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    # Nodes register with the version of the installed package; this one comes first on the path.
    metadata = folder / "src" / f"duly-{PREVIOUS_VERSION}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: duly\nVersion: {PREVIOUS_VERSION}\n")
    return folder / "src"
