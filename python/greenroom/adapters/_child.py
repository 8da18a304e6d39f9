"""The process of a service: `greenroom serve`, until the process that started it has ended."""

import os
import signal
import sys
import threading


def _follow() -> None:
    # The other end of this pipe closes with the process that holds it, however that ends.
    while os.read(0, 4096):
        pass
    if sys.platform == "win32":
        os._exit(0)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    # Ctrl-C reaches all processes of a terminal; the one that started this one decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow, daemon=True).start()
    from greenroom._greenroom import main

    sys.exit(main(["greenroom", *sys.argv[1:]]))
