"""Build description for pip and for catkin, which reads only what is passed to setup() here.

The rest of the metadata is in setup.cfg; the version is that of package.xml.
"""

import pathlib
import xml.etree.ElementTree as ElementTree

from setuptools import find_packages, setup

ROOT = pathlib.Path(__file__).resolve().parent

setup(
    name="edge_offload",
    version=ElementTree.parse(ROOT / "package.xml").getroot().findtext("version"),
    packages=find_packages(str(ROOT / "src"), include=["edge_offload", "edge_offload.*"]),
    package_dir={"": "src"},
)
