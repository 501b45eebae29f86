"""What every test runs under."""

from __future__ import annotations

import signal

# Started in the background of a shell, a run inherits an ignored SIGINT and would hand it on to the
# processes whose end by ctrl-C is tested.
signal.signal(signal.SIGINT, signal.default_int_handler)
