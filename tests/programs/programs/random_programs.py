"""Programs drawn at random: sizes that depend on data, reads, branches, constants, late uploads, state in place.

Arguments: the first seed, how many programs, and inferences of each. What one inference of a program does is the same
every time, but for what depends on its input; now and then a program does something else once.
"""

import hashlib
import random
import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
WIDTH = 5


class Program:
    """Statements over a list of tensors with ``WIDTH`` columns and any number of rows."""

    def __init__(self, seed):
        self.choose = random.Random(seed)
        torch.manual_seed(seed)
        self.weight = torch.randn(WIDTH, WIDTH).to(device)
        self.state = torch.zeros(WIDTH, device=device)
        self.body = self.block(self.choose.randint(3, 14), 2)
        self.odd = self.block(2, 0) if self.choose.random() < 0.4 else []
        self.rows = self.choose.choice([[9], [9], [4, 9, 16], list(range(3, 30))])
        self.equal = self.choose.random() < 0.1

    def block(self, count, depth):
        """So many statements, loops and branches among them down to ``depth``."""
        return [self.statement(depth) for _ in range(count)]

    def statement(self, depth):
        """One of them, with the numbers that it uses."""
        names = ["masked", "cat", "nonzero", "topk", "linear", "point", "sort", "state", "read", "constant", "index",
                 "late", "shape", "unique", "slice", "outer", "host", "nested"]  # fmt: skip
        if depth:
            names += ["branch", "loop", "rows"]
        name = self.choose.choice(names)
        inner = [self.block(self.choose.randint(1, 3), depth - 1) for _ in range(2)] if depth else [[], []]
        return name, self.choose.random(), self.choose.randint(0, 99), self.choose.randint(0, 99), inner

    def run(self, turn):
        """One inference; what it reads."""
        x = torch.randn(self.rows[(turn * 5) % len(self.rows)], WIDTH)
        if self.equal:
            x = torch.ones(9, WIDTH)
        tensors, read = [x.to(device)], []
        self.do(self.body, tensors, read)
        if self.odd and turn % 11 == 7:
            self.do(self.odd, tensors, read)
        return [*read, *(item.cpu() for item in tensors[-2:]), self.state.cpu()]

    def do(self, block, tensors, read):
        """Every statement of a block."""
        for name, chance, first, second, inner in block:
            a, b = tensors[first % len(tensors)], tensors[second % len(tensors)]
            result = getattr(self, f"do_{name}")(a, b, chance, inner, tensors, read)
            if result is not None:
                tensors.append(result[:60])

    def do_masked(self, a, b, chance, *_):
        return a[a[:, 0] > 2 * chance - 1]

    def do_cat(self, a, b, *_):
        return torch.cat((a, b))

    def do_nested(self, a, b, *_):
        return torch.cat((torch.cat((a, b[b[:, 1] > 0])), a, torch.cat((b, a))))

    def do_nonzero(self, a, *_):
        return (a > 0.3).nonzero().float().sum(1, keepdim=True).expand(-1, WIDTH).contiguous()

    def do_topk(self, a, b, chance, *_):
        return a[a[:, 1].topk(min(int(9 * chance), a.shape[0])).indices]

    def do_linear(self, a, *_):
        return a @ self.weight

    def do_point(self, a, *_):
        return a.sin() * 0.5 + a.tanh()

    def do_sort(self, a, *_):
        return a[a[:, 2].argsort(stable=True)]

    def do_state(self, a, *_):
        self.state.mul_(0.9).add_(a.sum(0))

    def do_read(self, a, b, chance, inner, tensors, read):
        read.append(torch.tensor(a.sum().item()))

    def do_host(self, a, b, chance, inner, tensors, read):
        read.append(a.mean(0).cpu())

    def do_constant(self, a, b, chance, inner, tensors, read):
        read.append(torch.tensor((a > 0).any().item()))
        return a * torch.tensor([1.0, 2.0, 3.0, 0.5, chance]).to(device)

    def do_index(self, a, *_):
        return a[[-1, 0]] if a.shape[0] else None

    def do_late(self, a, b, chance, inner, tensors, read):
        mean = a.sum().item()
        return b * torch.full((WIDTH,), mean / (1 + abs(mean))).to(device)

    def do_shape(self, a, *_):
        return a + a.shape[0]

    def do_unique(self, a, *_):
        return torch.unique((a[:, :1] * 2).round()).unsqueeze(1).expand(-1, WIDTH).contiguous()

    def do_slice(self, a, b, *_):
        return a[: max(1, b.shape[0] // 2)]

    def do_outer(self, a, b, *_):
        return (a[:, None, 0] - b[None, :, 0]).abs().sum(1, keepdim=True).expand(-1, WIDTH).clone()

    def do_branch(self, a, b, chance, inner, tensors, read):
        self.do(inner[bool(a.sum() > 0)], tensors, read)

    def do_rows(self, a, b, chance, inner, tensors, read):
        self.do(inner[a.shape[0] > 9], tensors, read)

    def do_loop(self, a, b, chance, inner, tensors, read):
        rows = a
        for _ in range(4):
            rows = rows[rows[:, 3] > rows[:, 3].mean()]
            if rows.shape[0] < 2:
                break
            self.do(inner[0], tensors, read)
        return rows


def main():
    first, programs, inferences = (int(argument) for argument in sys.argv[1:4])
    with torch.inference_mode():
        for seed in range(first, first + programs):
            program = Program(seed)
            for turn in range(inferences):
                results = program.run(turn)
                text = hashlib.sha1(b"".join(item.contiguous().numpy().tobytes() for item in results)).hexdigest()
                print(seed, turn, [tuple(item.shape) for item in results[-3:]], text)


main()
