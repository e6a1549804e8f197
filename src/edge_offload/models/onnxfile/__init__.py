"""Networks from ONNX files: read as data, computed by an engine, their outputs decoded by published formats."""
