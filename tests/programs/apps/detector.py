"""A torchvision detector: anchors, box decoding and non-maximum suppression all on the device."""

import torch
import torchvision

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(1)
model = torchvision.models.detection.ssdlite320_mobilenet_v3_large(
    weights=None, weights_backbone=None, score_thresh=0.012, detections_per_img=20
)
model.eval()
model.to(device)
with torch.no_grad():
    for i in range(4):
        image = torch.rand(3, 160, 200)
        (detections,) = model([image.to(device)])
        print(i, len(detections["boxes"]), detections["labels"].cpu().tolist())
        for box, score in zip(detections["boxes"].cpu(), detections["scores"].cpu()):
            print("  ", [value.hex() for value in box.tolist()], score.item().hex())
