# Source this in bash: the environment of this checkout after `make build`. It finds the ROS that
# the set-up used (a sourced one, or the wheels in .venv), the built messages and the DDS profile.
_photon_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
export VIRTUAL_ENV="$_photon_root/.venv"
export PATH="$VIRTUAL_ENV/bin:$PATH"
if [ -e "$VIRTUAL_ENV/.ros-wheels" ]; then
  export AMENT_PREFIX_PATH="$VIRTUAL_ENV" CMAKE_PREFIX_PATH="$VIRTUAL_ENV"
fi
if [ -e "$_photon_root/install/local_setup.bash" ]; then
  # The generated script reads variables that may be unset.
  _photon_flags="$-"; set +u
  . "$_photon_root/install/local_setup.bash"
  case "$_photon_flags" in *u*) set -u ;; esac
  unset _photon_flags
fi
# The sources come before their installed copy.
export PYTHONPATH="$_photon_root${PYTHONPATH:+:$PYTHONPATH}"
if [ "${ROS_DISTRO:-}" = humble ]; then
  export FASTRTPS_DEFAULT_PROFILES_FILE="${FASTRTPS_DEFAULT_PROFILES_FILE:-$_photon_root/config/fastdds.xml}"
else
  export FASTDDS_DEFAULT_PROFILES_FILE="${FASTDDS_DEFAULT_PROFILES_FILE:-$_photon_root/config/fastdds.xml}"
fi
unset _photon_root
