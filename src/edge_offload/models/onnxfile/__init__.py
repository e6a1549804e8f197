"""Detectors from ONNX files: their operators run as torch's, their outputs are decoded by published formats."""
