"""Inputs of unequal lengths: padding masks (nested tensors inside an nn.TransformerEncoder), packed sequences."""

import warnings

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence

warnings.filterwarnings("ignore")
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def bits(tensor):
    return [value.hex() for value in tensor.cpu().flatten().tolist()]


encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval().to(device)
networks = [net(3, 4, batch_first=True).eval().to(device) for net in (nn.LSTM, nn.GRU, nn.RNN)]
deep = nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True).eval().to(device)
with torch.no_grad():
    for lengths in ([5, 3], [5, 3], [5, 4], [2, 5], [5, 3]):
        mask = torch.arange(5)[None, :] >= torch.tensor(lengths)[:, None]
        seen = encoder(torch.rand(2, 5, 16).to(device), src_key_padding_mask=mask.to(device))
        print(tuple(seen.shape), bits(seen))
        x = torch.rand(2, 5, 3).to(device)
        for net in [*networks, deep]:
            packed = pack_padded_sequence(x, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
            padded, result = pad_packed_sequence(net(packed)[0], batch_first=True)
            print(packed.batch_sizes.device, bits(packed.data), bits(padded), result.tolist())
        print(bits(pack_sequence([x[0], x[1, :2]]).data))
    pieces = torch.nested.nested_tensor([torch.rand(2, 3), torch.rand(4, 3)], device=device)
    for result in (pieces * 2, nn.functional.linear(pieces, torch.ones(2, 3, device=device)), pieces.transpose(1, 2)):
        print(result.is_nested, bits(result.contiguous().to_padded_tensor(0.0)), [bits(one) for one in result.unbind()])
