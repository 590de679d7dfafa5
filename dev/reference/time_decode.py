#!/usr/bin/env python3
"""Greedy decoding in PyTorch on the CPU, eager, fp32, with a KV cache: what dev/bench/cpu_decode.sh stands beside ours.

    python3 dev/reference/time_decode.py d12 B prompt new rounds        # prints what dev/bench/cpu_decode.c does

The same initial weights and prompts, and so, but for rounding, the same tokens: their sum is printed by both.
"""

import os
import time

try:
    import torch
    from torch.nn import functional as F
except ImportError as error:
    raise SystemExit(f"error: no Python package {error.name} here: pip install torch numpy") from None

from common import Parser, positive_int
from model import GPT2, LAYERNORM_EPSILON, SIZES, Config, initialise

VOCAB = 50257


class Decoder:
    """B sequences of up to T tokens; cache (L,2,B,NH,T,HS)."""

    def __init__(self, model, B, T):
        c = model.config
        self.model, self.length = model, 0
        self.cache = torch.empty(c.layers, 2, B, c.heads, T, c.channels // c.heads)

    def attention(self, layer, qkv):
        """qkv (B,t,3C) of the next t tokens, which follow one another; returns (B,t,C)."""
        B, t, C3 = qkv.shape
        heads, begin, end = self.model.config.heads, self.length, self.length + t
        q, k, v = qkv.view(B, t, 3, heads, C3 // 3 // heads).permute(2, 0, 3, 1, 4)  # each (B,NH,t,HS)
        keys, values = self.cache[layer]
        keys[:, :, begin:end] = k
        values[:, :, begin:end] = v
        scores = q @ keys[:, :, :end].transpose(-2, -1) / q.shape[-1] ** 0.5
        if t > 1:  # all t of them from an empty cache
            scores += torch.full((t, t), float("-inf")).triu(1)
        return (scores.softmax(-1) @ values[:, :, :end]).transpose(1, 2).reshape(B, t, C3 // 3)

    def forward(self, tokens):
        """tokens (B,t); returns the likeliest next tokens (B,1)."""
        m, C = self.model, (self.model.config.channels,)
        x = F.embedding(tokens, m.wte) + m.wpe[self.length : self.length + tokens.shape[1]]
        for i, b in enumerate(m.blocks):
            ln1 = F.layer_norm(x, C, b.ln1w, b.ln1b, LAYERNORM_EPSILON)
            x = x + F.linear(self.attention(i, F.linear(ln1, b.qkvw, b.qkvb)), b.attprojw, b.attprojb)
            ln2 = F.layer_norm(x, C, b.ln2w, b.ln2b, LAYERNORM_EPSILON)
            x = x + F.linear(F.gelu(F.linear(ln2, b.fcw, b.fcb), approximate="tanh"), b.fcprojw, b.fcprojb)
        self.length += tokens.shape[1]
        last = F.layer_norm(x[:, -1:], C, m.lnfw, m.lnfb, LAYERNORM_EPSILON)
        return F.linear(last, m.wte[:VOCAB]).argmax(-1)


def parse_arguments():
    parser = Parser(__doc__)
    parser.add_argument("model", choices=SIZES, help="GPT-2 by depth")
    for name, words in (("B", "sequences"), ("prompt", "tokens of a prompt"), ("new", "tokens after it")):
        parser.add_argument(name, type=positive_int, help=words)
    parser.add_argument("rounds", type=positive_int, help="how often it is timed")
    return parser.parse_args()


@torch.no_grad()
def main():
    args = parse_arguments()
    B, prompt, new = args.B, args.prompt, args.new
    layers, heads, channels = SIZES[args.model]
    torch.set_num_threads(os.cpu_count())
    model = GPT2(Config(1024, VOCAB, layers, heads, channels))
    initialise(model, seed=42)
    tokens = torch.tensor([[i * 2654435761 % 2**32 % VOCAB for i in range(prompt)]] * B)
    for _ in range(args.rounds):
        decoder = Decoder(model, B, prompt + new)
        begin = time.perf_counter()
        drawn = [decoder.forward(tokens)]
        first = time.perf_counter()
        for _ in range(new - 1):
            drawn.append(decoder.forward(drawn[-1]))
        end = time.perf_counter()
        total = int(torch.cat(drawn).sum())
        rate = (new - 1) * B / (end - first)
        print(f"first_ms {1e3 * (first - begin):.2f} tokens_per_s {rate:.2f} token_sum {total}")


if __name__ == "__main__":
    main()
