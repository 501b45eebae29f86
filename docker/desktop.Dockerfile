# photon_ros on a desktop GPU: docker build -f docker/desktop.Dockerfile -t photon_ros .
# Run with --gpus all --network host --ipc host. The driver comes from the host, CUDA from torch.
ARG ROS_DISTRO=jazzy
FROM ros:${ROS_DISTRO}-ros-base
ARG ROS_DISTRO
ARG TORCH=torch

SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
      python3-venv python3-pip python3-colcon-common-extensions build-essential cmake \
      ros-${ROS_DISTRO}-cv-bridge ros-${ROS_DISTRO}-vision-msgs ros-${ROS_DISTRO}-visualization-msgs \
      ros-${ROS_DISTRO}-rmw-fastrtps-cpp python3-opencv python3-jinja2 python3-rich \
 && rm -rf /var/lib/apt/lists/*

# The system's packages stay visible, and NumPy stays the one that they were compiled against.
RUN python3 -m venv --system-site-packages /opt/venv \
 && python3 -c 'import numpy; print(f"numpy=={numpy.__version__}")' > /opt/venv/keep.txt \
 && /opt/venv/bin/pip install --no-cache-dir -c /opt/venv/keep.txt "${TORCH}" \
      tokenizers safetensors huggingface_hub rosbags faster-coco-eval 'pillow>=10.1'
ENV PATH=/opt/venv/bin:${PATH}

WORKDIR /opt/ws
COPY . src/photon_ros
RUN source /opt/ros/${ROS_DISTRO}/setup.bash \
 && python -m colcon build --packages-select photon_ros \
      --cmake-args -DPython3_EXECUTABLE=/opt/venv/bin/python -DBUILD_TESTING=OFF \
 && rm -rf build log

COPY docker/entrypoint.sh /entrypoint.sh
ENTRYPOINT ["/bin/bash", "/entrypoint.sh"]
CMD ["ros2", "launch", "photon_ros", "perception.launch.py", "device:=cuda"]
