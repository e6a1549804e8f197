"""Training KAPAO: samples, augmentation, targets, loss, trainer, and distillation from a teacher.

Source of the method: McNally et al., "Rethinking Keypoint Representations" (KAPAO). Nothing here is needed to run a
trained network.
"""
