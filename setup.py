"""pip packaging, for use without ROS; colcon takes package.xml and CMakeLists.txt instead."""

from pathlib import Path

from setuptools import find_packages, setup

setup(
    name="photon_ros",
    version="0.1.0",
    description="Prompt a robot's cameras in plain language: frames in, typed detections out.",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="The photon_ros maintainers",
    author_email="maintainers@photon-ros.org",
    license="Apache-2.0",
    keywords=["robotics", "ros2", "vision language model", "object detection"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: GPU :: NVIDIA CUDA",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "License :: OSI Approved :: Apache Software License",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Image Recognition",
        "Typing :: Typed",
    ],
    packages=find_packages(include=["photon_ros", "photon_ros.*"]),
    package_data={
        "photon_ros.models.nano": ["weights/*"],
        "photon_ros.replay": ["templates/*"],
        "photon_ros": ["py.typed"],
    },
    python_requires=">=3.10,<3.14",
    # `make lower-bounds` tests with exactly the least versions. They are those of Ubuntu 22.04 but
    # for Pillow, which sizes its own font from 10.1 on, and PyYAML, without a wheel before 6.0.
    install_requires=[
        "faster-coco-eval>=1.6.0",
        "huggingface_hub>=0.26.0",
        "jinja2>=3.0.3",
        "numpy>=1.21.5",
        "opencv-python-headless>=4.5.4.58",
        "pillow>=10.1.0",
        "pyyaml>=6.0",
        "rich>=11.2.0",
        "rosbags>=0.11.6",
        "safetensors>=0.4.0",
        "tokenizers>=0.20.0",
        "torch>=2.3.0",
    ],
    extras_require={
        "dev": [
            "hypothesis>=6.100",
            "import-linter>=2.0",
            "matplotlib>=3.5",
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
