"""Text that is generated token by token, as transformers does: a growing cache, a read and a small upload for each."""

import sys

import torch
from torch import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOKENS = 12


class Decoder(nn.Module):
    """One layer of attention over keys and values that are kept."""

    def __init__(self, width: int = 16, vocabulary: int = 40) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.mix = nn.Linear(width, 3 * width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids, cache):
        query, key, value = self.mix(self.embed(ids)).chunk(3, dim=-1)
        if cache is not None:
            key, value = torch.cat((cache[0], key), 1), torch.cat((cache[1], value), 1)
        scores = query @ key.transpose(1, 2) / query.shape[-1] ** 0.5
        later = torch.ones(ids.shape[1], key.shape[1], dtype=torch.bool, device=ids.device)
        scores = scores.masked_fill(later.triu(1 + key.shape[1] - ids.shape[1]), float("-inf"))
        return self.head(scores.softmax(-1) @ value), (key, value)


def generate(model, prompt):
    """The prompt, and ``TOKENS`` more."""
    ids, cache, given = prompt.to(DEVICE), None, prompt.shape[1]
    step = ids
    while ids.shape[1] < given + TOKENS:
        logits, cache = model(step, cache)
        ids = torch.cat((ids, logits[:, -1].argmax(-1, keepdim=True)), 1)
        step = ids[:, [-1]]  # uploads an index
        if bool((step == 0).all()):
            break
    return ids.cpu()


def main():
    """Prompts of one length, or of several, the same every time or not."""
    kind = sys.argv[1]
    torch.manual_seed(3)
    model = Decoder().eval().to(DEVICE)
    with torch.inference_mode():
        for turn in range(12):
            length = 5 + (turn * 7) % 11 if kind == "lengths" else 5
            chance = torch.Generator().manual_seed(0 if kind == "equal" else turn)
            print(generate(model, torch.randint(1, 40, (1, length), generator=chance)).tolist())


main()
