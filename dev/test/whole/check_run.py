#!/usr/bin/env python3
"""What a short run has left behind, against its own arithmetic. Part of test_training.sh; needs no package.

python3 dev/test/whole/check_run.py schedule main.log STEPS WARMUP RATE FRACTION
python3 dev/test/whole/check_run.py initial model.bin
python3 dev/test/whole/check_run.py order state.bin model.bin SEED
python3 dev/test/whole/check_run.py validation main.log VOCABULARY
python3 dev/test/whole/check_run.py adamw FOLDER model_0.bin WARMUP RATE DECAY CLIP
"""

import math
import os
import random
import re
import struct
import sys
from array import array

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir, "data"))

from checksum import CorruptFile, verify

BETA1, BETA2, EPSILON = 0.9, 0.95, 1e-8


def words(data, code):
    a = array(code)
    a.frombytes(data)
    return a


def read_file(path):
    verify(path)  # raises CorruptFile
    with open(path, "rb") as f:
        return f.read()


def read_model(path):
    """The table [(name, count, is matrix, kind, drawn)] of a checkpoint and its weights."""
    data = read_file(path)
    _, version, T, V, L, _, C, Vp = words(data[:32], "i")
    table = [("wte", Vp * C, True, "normal", V * C), ("wpe", T * C, True, "normal", T * C)]
    for name, count, kind in (
        ("ln1w", C, "one"),
        ("ln1b", C, "zero"),
        ("qkvw", 3 * C * C, "normal"),
        ("qkvb", 3 * C, "zero"),
        ("attprojw", C * C, "residual"),
        ("attprojb", C, "zero"),
        ("ln2w", C, "one"),
        ("ln2b", C, "zero"),
        ("fcw", 4 * C * C, "normal"),
        ("fcb", 4 * C, "zero"),
        ("fcprojw", 4 * C * C, "residual"),
        ("fcprojb", C, "zero"),
    ):
        table.append((name, L * count, kind in ("normal", "residual"), kind, L * count))
    table += [("lnfw", C, False, "one", C), ("lnfb", C, False, "zero", C)]
    n = sum(row[1] for row in table)
    if version == 3:
        weights = words(data[1024 : 1024 + 4 * n], "f")
    else:  # bf16: the upper half of a float
        weights = words(b"".join(b"\0\0" + data[i : i + 2] for i in range(1024, 1024 + 2 * n, 2)), "f")
    return table, weights, L


def read_state(path, n):
    """Header, moments, master weights or None, and what follows."""
    data = read_file(path)
    header, at = words(data[:1024], "i"), 1024
    blocks = []
    for _ in range(3 if header[4] else 2):
        blocks.append(words(data[at : at + 4 * n], "f"))
        at += 4 * n
    return header, blocks[0], blocks[1], blocks[2] if header[4] else None, data[at:]


def logged(path, name):
    """{step: value} of a main.log, last entry of a step."""
    with open(path, encoding="utf-8") as f:
        return {int(m[1]): float(m[2]) for m in re.finditer(rf"s:(\d+) .*?\b{name}:(\S+)", f.read())}


def cosine(step, steps, warmup, rate, fraction):
    if step < warmup:
        return rate * (step + 1) / warmup
    smallest = rate * fraction
    return smallest + 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) * (rate - smallest)


def check_schedule(path, steps, warmup, rate, fraction):
    steps, warmup, rate, fraction = int(steps), int(warmup), float(rate), float(fraction)
    rates = logged(path, "lr")
    assert sorted(rates) == list(range(steps)), f"steps {sorted(rates)}"
    for step, got in rates.items():
        expected = cosine(step, steps, warmup, rate, fraction)  # fp32, and the log has seven digits
        assert abs(got - expected) <= 1e-6 * rate, f"step {step}: rate {got}, expected {expected}"


def check_initial(path):
    """N(0, 0.02), and 1/sqrt(2L) of it into the residual stream: moments within 5 of their own deviations."""
    table, weights, layers = read_model(path)
    at = 0
    for name, count, _, kind, drawn in table:
        x = weights[at : at + count]
        at += count
        if kind in ("one", "zero"):
            assert all(value == (1 if kind == "one" else 0) for value in x), f"{name} is not all {kind}"
            continue
        assert not any(x[drawn:]), f"{name}: the padding is not zero"
        deviation = 0.02 / (math.sqrt(2 * layers) if kind == "residual" else 1)
        mean = sum(x) / drawn
        got = math.sqrt(sum(value * value for value in x) / drawn)
        assert abs(mean) <= 5 * deviation / math.sqrt(drawn), f"{name}: mean {mean}"
        assert abs(got / deviation - 1) <= 5 / math.sqrt(2 * drawn) + 1e-3, f"{name}: deviation {got}, not {deviation}"


def mersenne_twister(seed):
    """MT19937 from a 32-bit seed (Matsumoto and Nishimura's init_genrand), through Python's own."""
    state = [seed & 0xFFFFFFFF]
    for i in range(1, 624):
        state.append((1812433253 * (state[-1] ^ (state[-1] >> 30)) + i) & 0xFFFFFFFF)
    generator = random.Random()
    generator.setstate((3, (*state, 624), None))
    return lambda: generator.getrandbits(32)


def check_order(path, model, seed):
    """The order of the samples in the first epoch of a single token file: Fisher-Yates with MT19937."""
    table, _, _ = read_model(model)
    header, _, _, _, tail = read_state(path, sum(row[1] for row in table))
    assert header[5] == 1, "the state is of a run that does not shuffle"
    shards, shard, samples = struct.unpack_from("<qiq", tail)
    assert (shards, shard) == (1, 0)
    draw, order = mersenne_twister(int(seed)), list(range(samples))
    for i in range(samples - 1, 0, -1):
        j = draw() % (i + 1)
        order[i], order[j] = order[j], order[i]
    assert list(words(tail[20 : 20 + 4 * samples], "i")) == order, "samples come in another order"


def check_validation(path, vocabulary):
    """Weights that do not change have one validation loss; that of new ones is about log V."""
    losses = logged(path, "tel")
    assert len(losses) >= 3 and len(set(losses.values())) == 1, f"losses {losses}"
    assert abs(losses[0] - math.log(int(vocabulary))) < 0.2, f"loss {losses[0]}"


def norm(x):
    return math.sqrt(sum(value * value for value in x))


def check_adamw(folder, start, warmup, rate, decay, clip):
    """Two steps of a run: the moments are those of clipped gradients, and the weights follow from the moments."""
    warmup, rate, decay, clip = int(warmup), float(rate), float(decay), float(clip)
    table, w, _ = read_model(start)
    norms = logged(os.path.join(folder, "main.log"), "norm")
    n = len(w)
    m0, v0 = [0.0] * n, [0.0] * n
    for step in (1, 2):
        _, m, v, master, _ = read_state(os.path.join(folder, f"state_{step:08d}_00000.bin"), n)
        after = master or read_model(os.path.join(folder, f"model_{step:08d}.bin"))[1]
        expected = min(norms[step - 1], clip)
        assert norms[step - 1] > 1.1 * clip, "the gradient is too small for this test"
        gradient = [(a - BETA1 * b) / (1 - BETA1) for a, b in zip(m, m0)]
        assert abs(norm(gradient) / expected - 1) <= 1e-3, f"step {step}: norm {norm(gradient)}, not {expected}"
        squares = [(a - BETA2 * b) / (1 - BETA2) for a, b in zip(v, v0)]
        assert abs(math.sqrt(sum(squares)) / expected - 1) <= 1e-3, f"step {step}: squares {sum(squares)}"
        lr, correction1, correction2 = rate * step / warmup, 1 - BETA1**step, 1 - BETA2**step
        at, error, moved = 0, 0.0, 0.0
        for _, count, matrix, _, _ in table:
            for i in range(at, at + count):
                update = m[i] / correction1 / (math.sqrt(v[i] / correction2) + EPSILON)
                change = -lr * (update + (decay * w[i] if matrix else 0.0))
                error += (after[i] - w[i] - change) ** 2
                moved += change * change
            at += count
        # fp32 rounds a weight of up to 2 by up to 2^-24, where it changes by about lr
        assert math.sqrt(error / moved) <= 2**-23 / lr, f"step {step}: weights off by {math.sqrt(error / moved):.1e}"
        w, m0, v0 = after, m, v


if __name__ == "__main__":
    check = {name[6:]: value for name, value in list(globals().items()) if name.startswith("check_")}
    try:
        check[sys.argv[1]](*sys.argv[2:])
    except (AssertionError, CorruptFile) as claim:
        print(f"{' '.join(sys.argv[1:])}: {claim}")
        sys.exit(1)
