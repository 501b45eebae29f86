# photon_ros on a Jetson Orin (JetPack 6, Humble). Build it on the Jetson:
#   docker build -f docker/jetson.Dockerfile --build-arg TORCH_WHEEL=torch-....whl -t photon_ros .
# TORCH_WHEEL is NVIDIA's torch for this JetPack, downloaded into this folder: the package index has
# none that uses the Jetson's GPU. Run with --runtime nvidia --network host --ipc host.
ARG BASE=nvcr.io/nvidia/l4t-jetpack:r36.4.0
FROM ${BASE}
ARG TORCH_WHEEL

SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
ENV DEBIAN_FRONTEND=noninteractive LANG=C.UTF-8
RUN test -n "${TORCH_WHEEL}" || { echo "give --build-arg TORCH_WHEEL=FILE" >&2; exit 2; }
RUN apt-get update && apt-get install -y --no-install-recommends curl gnupg \
 && curl -fsSL https://raw.githubusercontent.com/ros/rosdistro/master/ros.key \
      -o /usr/share/keyrings/ros-archive-keyring.gpg \
 && echo "deb [arch=arm64 signed-by=/usr/share/keyrings/ros-archive-keyring.gpg]" \
      "http://packages.ros.org/ros2/ubuntu jammy main" > /etc/apt/sources.list.d/ros2.list \
 && apt-get update && apt-get install -y --no-install-recommends \
      ros-humble-ros-base ros-humble-cv-bridge ros-humble-vision-msgs ros-humble-visualization-msgs \
      ros-humble-rmw-fastrtps-cpp python3-colcon-common-extensions python3-venv python3-pip \
      build-essential cmake python3-opencv python3-jinja2 \
 && rm -rf /var/lib/apt/lists/*

COPY ${TORCH_WHEEL} /tmp/wheels/
# Humble's messages and cv_bridge are compiled against NumPy 1, and torch must stay NVIDIA's.
RUN python3 -m venv --system-site-packages /opt/venv \
 && python3 -c 'import numpy; print(f"numpy=={numpy.__version__}")' > /opt/venv/keep.txt \
 && /opt/venv/bin/pip install --no-cache-dir -c /opt/venv/keep.txt /tmp/wheels/*.whl \
 && /opt/venv/bin/pip list --format=freeze | grep '^torch==' >> /opt/venv/keep.txt \
 && /opt/venv/bin/pip install --no-cache-dir -c /opt/venv/keep.txt \
      tokenizers safetensors huggingface_hub rosbags faster-coco-eval 'pillow>=10.1' rich \
 && rm -rf /tmp/wheels
ENV PATH=/opt/venv/bin:${PATH}

WORKDIR /opt/ws
COPY . src/photon_ros
RUN source /opt/ros/humble/setup.bash \
 && python -m colcon build --packages-select photon_ros \
      --cmake-args -DPython3_EXECUTABLE=/opt/venv/bin/python -DBUILD_TESTING=OFF \
 && rm -rf build log

ENV ROS_DISTRO=humble
COPY docker/entrypoint.sh /entrypoint.sh
ENTRYPOINT ["/bin/bash", "/entrypoint.sh"]
CMD ["bash", "-c", "ros2 launch photon_ros perception.launch.py params_file:=$(ros2 pkg prefix photon_ros)/share/photon_ros/config/jetson.yaml"]
