"""pip packaging, for use without ROS; colcon takes package.xml and CMakeLists.txt instead."""

from setuptools import find_packages, setup

setup(
    name="photon_ros",
    version="0.1.0",
    description="Prompt a robot's cameras in plain language: frames in, typed detections out.",
    author="The photon_ros maintainers",
    author_email="maintainers@photon-ros.org",
    license="Apache-2.0",
    packages=find_packages(include=["photon_ros", "photon_ros.*"]),
    package_data={
        "photon_ros.models.nano": ["weights/*"],
        "photon_ros.replay": ["templates/*"],
        "photon_ros": ["py.typed"],
    },
    python_requires=">=3.10,<3.14",
    install_requires=[
        "faster-coco-eval>=1.6",
        "huggingface_hub>=0.26",
        "jinja2>=3.0",
        "matplotlib>=3.5",
        "numpy>=1.21",
        "opencv-python-headless>=4.5",
        "pillow>=9.0",
        "pyyaml>=5.4",
        "rich>=12.0",
        "rosbags>=0.10",
        "safetensors>=0.4",
        "tokenizers>=0.15",
        "torch>=2.1",
    ],
    extras_require={
        "dev": [
            "hypothesis>=6.100",
            "import-linter>=2.0",
            "mypy>=1.10",
            "pytest>=8.0",
            "pytest-timeout>=2.3",
            "ruff>=0.5",
            "transformers>=4.46",
            "types-PyYAML",
        ],
    },
    entry_points={"console_scripts": ["photon-ros = photon_ros.cli:main"]},
    zip_safe=False,
)
