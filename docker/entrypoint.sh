#!/bin/bash
# Source the ROS and the workspace, then become the command: it gets the signals.
set -e
source "/opt/ros/${ROS_DISTRO}/setup.bash"
source /opt/ws/install/setup.bash
exec "$@"
