"""Files of ``torch.save``: pickles, which are recognised by their first bytes and never read."""

from __future__ import annotations

import pathlib
import zipfile

from edge_offload.errors import BadInput

#: First byte of a pickle of protocol 2 or later, as older releases of torch wrote them.
_PROTO = b"\x80"


def reject_pickle(path: str) -> None:
    """Reject a pickle in place of a network file; nothing in it is executed.

    Raises:
        BadInput: the file is a pickle.
    """
    place = pathlib.Path(path).expanduser()
    if not _is_pickle(place):
        return
    export = f"yolo export model={place.name} format=onnx"
    raise BadInput(
        f"{path} is a checkpoint in Python's pickle format, which is not read here, since reading it runs code",
        remedy=f"export the network as ONNX (of ultralytics: {export}), then model:={place.with_suffix('.onnx').name}",
    )


def _is_pickle(place: pathlib.Path) -> bool:
    try:
        with place.open("rb") as file:
            if file.read(1) == _PROTO:
                return True
        with zipfile.ZipFile(place) as archive:
            names = {pathlib.PurePosixPath(name).name for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile, ValueError):
        return False
    # TorchScript files have constants, too
    return "data.pkl" in names and "constants.pkl" not in names
