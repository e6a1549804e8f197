"""Build description for pip and for catkin, which reads only what is passed to setup() here.

The rest of the metadata is in setup.cfg; the version is that of package.xml.
"""

import os
import pathlib
import sys
import xml.etree.ElementTree as ElementTree

from setuptools import find_packages, setup

# from version 19 on pip builds what is required before it compares versions of Python; older ones compare first
if sys.version_info < (3, 8) and "PEP517_BUILD_BACKEND" in os.environ:
    sys.exit("edge_offload needs Python 3.8 or newer, and this is {}.{}; JetPack 5 has it".format(*sys.version_info))

ROOT = pathlib.Path(__file__).resolve().parent

setup(
    name="edge_offload",
    version=ElementTree.parse(ROOT / "package.xml").getroot().findtext("version"),
    packages=find_packages(str(ROOT / "src"), include=["edge_offload", "edge_offload.*"]),
    package_dir={"": "src"},
)
