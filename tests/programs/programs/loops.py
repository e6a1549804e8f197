"""Ten loops whose sizes depend on data: masks, the best of each class, suppression, writes by index, while on a read.

The argument says how many rows there are.
"""

import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
ROWS, CLASSES, TURNS = int(sys.argv[1]) if len(sys.argv) > 1 else 60, 5, 3


def best_of_each_class(boxes, scores):
    survivors, values, labels = [], [], []
    for label in range(1, CLASSES):
        score = scores[:, label]
        above = score > 0.3
        score, box = score[above], boxes[above]
        score, best = score.topk(min(9, score.size(0)))
        survivors.append(box[best])
        values.append(score)
        labels.append(torch.full_like(score, label, dtype=torch.int64))
    return torch.cat(survivors), torch.cat(values), torch.cat(labels)


def sorted_of_each_class(boxes, scores):
    rows = []
    for label in range(CLASSES):
        score, order = scores[scores[:, label] > 0.25, label].sort(descending=True)
        rows.append(torch.stack([score, torch.full_like(score, label), order.to(score.dtype)], 1)[:7])
    return (torch.cat(rows),)


def near(boxes):
    corner = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
    other = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    inter = (other - corner).clamp(min=0).prod(2)
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    return inter / (area[:, None] + area[None] - inter)


def suppressed_class_by_class(boxes, scores):
    survivors = torch.zeros_like(scores[:, 0], dtype=torch.bool)
    for label in range(CLASSES):
        mine = torch.where(scores.argmax(1) == label)[0]
        order = mine[scores[mine, label].argsort(descending=True)]
        while order.numel() > 0:
            survivors[order[0]] = True
            order = order[1:][near(boxes[order])[0, 1:] <= 0.3]
    return boxes[survivors], survivors.nonzero()[:, 0]


def written_by_mask(boxes, scores):
    written = torch.zeros_like(scores)
    for label in range(CLASSES):
        mask = scores[:, label] > 0.3
        written[mask, label] = scores[mask, label] * 2
        written.index_put_((mask.nonzero()[:, 0],), scores[mask], accumulate=True)
    return (written,)


def halved_while_many(boxes, scores):
    values = scores.flatten()
    turns = 0
    while values.numel() > 8 and values.max().item() - values.min().item() > 0.01:
        values = values[values > values.median()]
        turns += 1
    return values, torch.full_like(values, turns)


def selected_and_added(boxes, scores):
    total = torch.zeros_like(scores[:, 0])
    for label in range(CLASSES):
        mask = scores[:, label] > scores[:, label].median()
        chosen = torch.masked_select(scores[:, label], mask)
        total = total.masked_scatter(mask, chosen.cumsum(0)).index_add(0, mask.nonzero()[:, 0], chosen)
    return (total,)


def gathered_by_a_count_that_is_read(boxes, scores):
    rows = []
    for label in range(CLASSES):
        count = int((scores[:, label] > 0.25).sum())
        value, place = scores[:, label].topk(count)
        rows.append(torch.cat([boxes.gather(0, place[:, None].expand(-1, 4)), value[:, None]], 1))
    return (torch.cat(rows),)


def counted_per_value(boxes, scores):
    values = (boxes[:, 0] * 10).to(torch.int64)
    rows = []
    for value in torch.unique(values):
        mine = torch.where(values == value)[0]
        rows.append(torch.stack([value.to(scores.dtype), scores[mine].max(), torch.full_like(scores[0, 0], len(mine))]))
    return (torch.stack(rows),)


def split_by_lengths_that_are_read(boxes, scores):
    lengths = (scores > 0.25).sum(0)
    chosen = boxes[(scores.T > 0.25).nonzero()[:, 1]]
    parts = chosen.split(lengths.tolist())
    return tuple(part.mean(0) if len(part) else torch.full_like(boxes[0], -1) for part in parts)


def compacted_in_place(boxes, scores):
    state, turn = scores.clone(), 0
    while turn < 12:
        weak = state < 0.1
        if not weak.any():
            break
        state[weak] = state[~weak].topk(1)[0]
        state /= state.sum(1, keepdim=True)
        turn += 1
    return state, torch.full_like(state[0], turn)


LOOPS = [
    best_of_each_class, sorted_of_each_class, suppressed_class_by_class, written_by_mask, halved_while_many,
    selected_and_added, gathered_by_a_count_that_is_read, counted_per_value, split_by_lengths_that_are_read,
    compacted_in_place,
]  # fmt: skip
with torch.no_grad():
    for loop in LOOPS:
        for turn in range(TURNS):
            generator = torch.Generator().manual_seed(turn)
            boxes = torch.rand(ROWS, 4, generator=generator)
            boxes[:, 2:] += boxes[:, :2]
            scores = torch.randn(ROWS, CLASSES, generator=generator).softmax(-1)
            outputs = [item.cpu() for item in loop(boxes.to(device), scores.to(device))]
            text = [value.hex() for item in outputs for value in item.flatten().double().tolist()]
            print(loop.__name__, turn, [tuple(item.shape) for item in outputs], text)
