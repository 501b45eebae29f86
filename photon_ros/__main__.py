"""``python -m photon_ros``: the command line."""

import sys

from photon_ros.cli import main

sys.exit(main())
