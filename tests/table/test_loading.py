"""What importing the tables brings along."""

import subprocess
import sys

CODE = "import dpflows.table, sys; print(*sorted({name.split('.')[0] for name in sys.modules}))"


def test_frame_libraries_are_loaded_only_when_their_frames_come():
    shown = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    loaded = set(shown.stdout.split())
    assert "pyarrow" in loaded
    assert not {"pandas", "polars", "jax", "sklearn", "matplotlib"} & loaded
