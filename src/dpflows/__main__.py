"""Entry point of the command ``dpflows`` and of ``python -m dpflows``.

Two problems are handled here before anything else is imported: Ctrl-C while the command
line is still being imported, and standard streams that are closed.
"""

import atexit
import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

INTERRUPTED = 130
_LINE = b"error: interrupted; no incomplete file was left\n"
_PAUSE = 0.05


def main() -> None:
    """Run the command line and exit; ``dpflows.cli.output`` names the exit codes.

    Example:
        >>> main.__module__
        'dpflows.__main__'
    """
    # whoever started us may have chosen to ignore it, as nohup does
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_ours:
        signal.signal(signal.SIGINT, _leave)
    codes: list[int] = []
    # the first to be registered is the last to be called
    atexit.register(_end, codes)
    open_standard_streams()
    from dpflows.cli.main import app, run

    try:
        if is_ours:
            sys.unraisablehook = _again
            signal.signal(signal.SIGINT, _Interrupt())
        codes.append(run(app, sys.argv[1:]))
    except KeyboardInterrupt:
        # a second one, while the first was being reported
        _leave()
    if is_ours:
        # nothing is left to do but to end, and ending prints traces when it is interrupted
        signal.signal(signal.SIGINT, _leave)
    sys.exit(codes[0])


def open_standard_streams() -> None:
    """Redirect closed standard streams to the null device.

    A closed one has a number that the next file to be opened would get, and whatever a
    library prints would be written into that file.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)


class _Interrupt:
    """Raises ``KeyboardInterrupt``, but never in the middle of an import.

    Libraries may suppress exceptions while they are imported, or remain half imported. An
    interrupt that comes then ends the process at once, or, if a file is being written that
    is to be removed, is raised as soon as the import is done.
    """

    def __init__(self) -> None:
        self._is_waiting = False

    def __call__(self, number: int, frame: "FrameType | None") -> None:
        if not _is_importing(frame):
            self._is_waiting = False
            raise KeyboardInterrupt
        if not _is_writing():
            _leave()
        if not self._is_waiting:
            self._is_waiting = True
            _soon(self._repeat)

    def _repeat(self) -> None:
        while self._is_waiting:
            signal.raise_signal(signal.SIGINT)
            time.sleep(_PAUSE)


def _is_importing(frame: "FrameType | None") -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _is_writing() -> bool:
    found = getattr(sys.modules.get("dpflows.files"), "is_writing", None)
    return found is not None and found()


def _again(unraisable: "sys.UnraisableHookArgs") -> None:
    """Repeat an interrupt that arrived where none can be raised, as in a destructor."""
    if unraisable.exc_type is KeyboardInterrupt:
        _soon(lambda: signal.raise_signal(signal.SIGINT))
    else:
        sys.__unraisablehook__(unraisable)


def _soon(action: "Callable[[], None]") -> None:
    import threading

    timer = threading.Timer(_PAUSE, action)
    timer.daemon = True
    timer.start()


def _leave(number: int = 0, frame: "FrameType | None" = None) -> None:
    """End the process at once; no file is open at this point."""
    try:
        os.write(2, _LINE)
    finally:
        os._exit(INTERRUPTED)


def _end(codes: list[int]) -> None:
    """End with the exit code; Python would end by a signal if Ctrl-C passed through ``exec``."""
    if codes == [INTERRUPTED]:
        os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
