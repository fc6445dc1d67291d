"""Where the figures of a full run go, if somebody asks for them."""

import fcntl
import json
import os
from typing import Any


def note(name: str, figures: dict[str, Any]) -> None:
    """Add figures under a name to the JSON file that ``DPFLOWS_FIGURES`` names."""
    place = os.environ.get("DPFLOWS_FIGURES")
    if not place:
        return
    # suites run in several processes, and each writes the whole file
    with open(place, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        known = json.loads(file.read() or "{}")
        merged = known.get(name, {}) | figures
        file.truncate(0)
        file.write(json.dumps(known | {name: merged}, indent=2))
