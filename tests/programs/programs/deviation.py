"""A regular program that does something else once, at every place where it could, with state updated in place."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(5)
LENGTH = 8


def inference(state, x, odd):
    y = x.to(device)
    for position in range(LENGTH):
        if position == odd:
            y = y.cos()
        elif position % 3 == 0:
            y = y * 1.5
        elif position % 3 == 1:
            state.add_(y)
        else:
            y = y + state.sigmoid()
        if position == 3:
            print("mid", y.sum().item().hex())
    if odd == LENGTH:
        state.neg_()
    print("end", [v.hex() for v in y.cpu().tolist()])
    if odd == LENGTH + 1:
        print("extra", state[0].item().hex())


for odd in range(LENGTH + 2):
    state = torch.zeros(3, device=device)
    for i in range(7):
        inference(state, torch.randn(3), odd if i == 5 else None)
    print(odd, [v.hex() for v in state.cpu().tolist()])
