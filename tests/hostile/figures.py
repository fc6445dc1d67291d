"""Where the figures of a full run go, if somebody asks for them."""

import json
import os
from pathlib import Path
from typing import Any


def note(name: str, figures: dict[str, Any]) -> None:
    """Add figures under a name to the JSON file that ``DPFLOWS_FIGURES`` names."""
    place = os.environ.get("DPFLOWS_FIGURES")
    if not place:
        return
    # suites run in several processes, and each replaces the whole file
    import fcntl

    with open(f"{place}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = Path(place)
        known = json.loads(path.read_text()) if path.exists() else {}
        merged = known.get(name, {}) | figures
        path.write_text(json.dumps(known | {name: merged}, indent=2))
