"""One distribution, three packages: `shards` is the base install, `pipelines` and `trainer` are extras."""

import re
from pathlib import Path

from setuptools import find_packages, setup

VERSION = re.search(r'__version__ = "(.+)"', Path("shards/__init__.py").read_text()).group(1)

# Pin what makes bytes.  The same input must give the same shards on every machine, and another release of a decoder, a
# resizer or an encoder may round one pixel differently.  Moving a pin changes datasets: say so in CHANGELOG.md.
MAKES_BYTES = ["opencv-python-headless==5.0.0.93", "pillow==12.3.0", "simplejpeg==1.9.0"]

TENSORFLOW = ["tensorflow==2.21.*"]
DEMO = ["scikit-learn"]  # the digits that `make demo` turns into pictures
PIPELINES = [
    *MAKES_BYTES,
    *TENSORFLOW,
    "apache-beam==2.77.*",
    "pyarrow",
    "tensorflow-metadata",
    "tensorflow-transform==1.21.*",
]
# What Beam's gs:// file system imports; apache-beam[gcp] asks for some 70 packages more.
GCS = ["google-auth-httplib2", "google-cloud-storage"]
S3 = ["boto3"]
# Others that read pictures, for `python -m benchmarks input --peers-python`: an environment of their own.
BENCHMARKS = ["array_record", "grain", "numpy", "opencv-python-headless", "torch", "webdataset"]
DEV = [
    *PIPELINES,
    *DEMO,
    *GCS,
    *S3,
    "flask",  # with flask-cors: moto's server, without what moto[server] asks for to imitate services other than S3
    "flask-cors",
    "gcp-storage-emulator",
    "hypothesis",
    "moto[s3]",
    "mypy",
    "pre-commit",
    "psutil",
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "ruff",
    "setuptools",  # with wheel: installs this project itself without the network
    "tensorflow-datasets",
    "types-PyYAML",
    "wheel",
]

setup(
    name="shardsmith",
    version=VERSION,
    description="Raw images to verified TFRecord shards with Apache Beam, and distributed TensorFlow training on them",
    license="Apache-2.0",
    license_files=["LICENSE"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    python_requires=">=3.11,<3.13",
    packages=find_packages(include=["pipelines", "pipelines.*", "shards", "shards.*", "trainer", "trainer.*"]),
    package_data={name: ["py.typed"] for name in ("pipelines", "shards", "trainer")},
    install_requires=["google-crc32c", "numpy", "pillow", "pydantic>=2", "pyyaml", "rich"],
    extras_require={
        "pipelines": PIPELINES,
        "trainer": TENSORFLOW,
        "demo": DEMO,
        "gcs": GCS,
        "s3": S3,
        "benchmarks": BENCHMARKS,
        "dev": DEV,
    },
)
