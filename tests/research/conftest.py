"""The authors' data, if they are at hand, and a small set in the same form."""

import pathlib

import pytest

DATA = pathlib.Path(__file__).resolve().parents[2].parent / "shared" / "data" / "lopinfer"

HEADER = (
    "idx,op,local_dim,masked,excluded,input_from,output_to,out_shapes,out_bytes_est,in_bytes_est,robot_ms,"
    "robot_ms_std,robot_ms_logged,server_ms,server_ms_std,robot_ms_oldfmt,server_ms_oldfmt"
)


@pytest.fixture(scope="session")
def data():
    """Directory of what the LOPInfer authors measured."""
    if not (DATA / "summary.csv").exists():
        pytest.skip("the authors' measurements are not at hand")
    return DATA


@pytest.fixture
def made(tmp_path):
    """A directory with a profile of SCONet's kind: type, conv2d, in-place relu, a check, max pool, argmax."""
    rows = [
        "0,_start,3,0,0,,1,1x1x8x16,128,0,0,0,0,0,0,,",
        "1,type,3,0,0,0,2,1x1x8x16,512,128,0,0,0,0.0,0,,",
        "2,conv2d,3,0,0,1,3,1x4x8x16,2048,512,6.0,0,6.0,0.6,0,,",
        "3,relu,3,0,0,2,4 5,1x4x8x16,2048,2048,1.0,0,1.0,0.1,0,,",
        "4,dim,,1,1,2,,,0,2048,0.5,0,0.5,0.05,0,,",
        "5,max_pool2d,3,0,0,2 3,6,1x4x4x8,512,2048,1.0,0,1.0,0.1,0,,",
        "6,linear,,0,0,5,7,1x10,40,512,1.5,0,1.5,0.15,0,,",
        "7,_end,,0,0,6,,1x10,40,40,0,0,0,0,0,,",
    ]
    directory = tmp_path / "data"
    (directory / "op_profiles").mkdir(parents=True)
    (directory / "op_profiles" / "agrnav.csv").write_text("\n".join([HEADER, *rows]) + "\n", encoding="utf-8")
    return directory
