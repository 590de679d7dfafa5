#!/usr/bin/env python3
"""Tests of dev/reference: the committed dumps are what the model computes, files read back, batches come in order.

    python3 dev/test/scripts/test_reference.py     # 20 s; ends in 'N passed, N failed'

Needs PyTorch 1.13 or newer and numpy; without them it says so and tests nothing.
"""

import contextlib
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import types
import unittest.mock

import unit

REFERENCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir, "reference")
DUMPS = ["tiny", "tiny_heads", "long_hs64", "long_hs128"]
MUON_DUMPS = ["tiny", "tiny_heads"]
EXPECTED_ORDER = [1, 3, 9, 7, 6, 0, 8, 4, 5, 2, 9, 8, 2, 5, 1, 0, 7, 6, 4, 3]  # two epochs of ten samples, seed 42


def path_of(name):
    return os.path.join(REFERENCE, name)


def read_state(path, config):
    """A debug state as a dict of arrays; everything after the header is 32 bits wide."""
    common.verify(path)
    words = np.fromfile(path, np.int32)
    header, rest = words[:256], words[256:]
    B, T, steps = (int(i) for i in header[2:5])
    sizes = {"x": B * T, "y": B * T, "logits": B * T * config.vocab_size, "loss": 1}
    sizes["gradients"] = len(rest) - sum(sizes.values()) - steps
    sizes["losses"] = steps
    state = {"settings": header[5:11].view(np.float32).tolist()}
    for name, size in sizes.items():
        part, rest = rest[:size], rest[size:]
        state[name] = torch.from_numpy(part.astype(np.int64)).view(B, T) if name in "xy" else part.view(np.float32)
    return state


def run(script, *arguments, code=0):
    command = [sys.executable, path_of(script), *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == code, f"exit code {done.returncode}, expected {code}: {done.stderr}"
    if code:
        assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, f"not one line: {done.stderr!r}"
    return done.stdout, done.stderr


def test_committed_dumps_are_what_the_model_computes(_):
    """Recomputed in fp64 and compared in fp32: half a unit in the last place is 6e-8 of a number, 1e-6 leaves room."""
    for name in DUMPS:
        net = formats.read_model(path_of(f"{name}.bin")).double()
        state = read_state(path_of(f"{name}_debug_state.bin"), net.config)
        rate, *adam, clip = state["settings"]
        assert np.allclose([rate, *adam, clip], [1e-3, 0.9, 0.95, 1e-8, 0.1, 1.0])
        optimizer = model.make_optimizer(net, rate, *adam)
        losses = []
        for step in range(10):
            logits, loss = net(state["x"], state["y"])
            optimizer.zero_grad()
            loss.backward()
            if step == 0:
                gradients = torch.cat([p.grad.flatten() for _, tensors in net.tensors() for p in tensors]).numpy()
                computed = logits.detach().numpy().ravel()
            model.clip_gradients(net, clip)
            optimizer.step()
            losses.append(loss.item())
        for what, values in (("logits", computed), ("gradients", gradients), ("losses", np.array(losses))):
            assert values.shape == state[what].shape, what
            error = np.linalg.norm(values - state[what]) / np.linalg.norm(values)
            assert error <= 1e-6, f"{name}: {what} differ by {error:.2e}"
        assert state["loss"][0] == state["losses"][0]


def test_committed_changes_by_muon_are_what_it_computes(folder):
    for name in MUON_DUMPS:
        net = formats.read_model(path_of(f"{name}.bin")).double()
        state = read_state(path_of(f"{name}_debug_state.bin"), net.config)
        rate, *adam, clip = state["settings"]
        changes = rounding.muon_changes(net, lambda m, *b: m(*b), state["x"], state["y"], 10, clip, rate, *adam)
        path = os.path.join(folder, "muon.bin")
        with contextlib.redirect_stdout(None):
            formats.write_muon(path, changes, 10, 128)
        committed, computed = (
            np.fromfile(file, np.float32, offset=1024) for file in (path_of(f"{name}_muon.bin"), path)
        )
        assert committed.shape == computed.shape
        error = np.linalg.norm(committed - computed) / np.linalg.norm(committed)
        assert error <= 1e-3, f"{name}: {error:.2e}"  # where a gradient is zero, AdamW follows the rounding


def test_muon_steps_are_orthogonal(_):
    """Singular values come to between .68 and 1.13 (Jordan et al. 2024), whatever the shape."""
    generator = torch.Generator().manual_seed(1)
    for shape in ((48, 48), (96, 24), (24, 96)):
        u = torch.randn(shape, generator=generator, dtype=torch.float64)
        values = torch.linalg.svdvals(model.Muon([u], 1e-3, 0.95, 0.0).orthogonalised(u))
        assert values.min() > 0.3 and values.max() < 1.21, values


def test_committed_dumps_carry_checksums(_):
    paths = [path_of(f"{name}{end}") for name in DUMPS for end in (".bin", "_debug_state.bin")]
    for path in paths + [path_of(f"{name}_muon.bin") for name in MUON_DUMPS]:
        assert common.verify(path), path


def test_clipping_only_shrinks(_):
    net = model.GPT2(model.Config(10, 7, 1, 1, 32))
    for scale, clipped in ((0.001, False), (10.0, True)):
        for parameter in net.parameters():
            parameter.grad = torch.full_like(parameter, scale)
        before = sum(p.numel() for p in net.parameters()) ** 0.5 * scale
        norm = model.clip_gradients(net, 1.0).item()
        after = sum(p.grad.square().sum().item() for p in net.parameters()) ** 0.5
        assert abs(norm / before - 1) < 1e-5 and abs(after / (1.0 if clipped else before) - 1) < 1e-5


def test_committed_dumps_reach_the_main_loops(_):
    """Heads of 64 and of 128 beyond T = 1024, two layers, two heads, and weights that bf16 does not represent."""
    longest, layers, heads, exact = {}, 0, 0, []
    for name in DUMPS:
        net = formats.read_model(path_of(f"{name}.bin"))
        c = net.config
        T = read_state(path_of(f"{name}_debug_state.bin"), c)["x"].shape[1]
        HS = c.channels // c.heads
        longest[HS] = max(T, longest.get(HS, 0))
        layers, heads = max(layers, c.layers), max(heads, c.heads)
        exact.append(all(torch.equal(p.bfloat16().float(), p) for p in net.parameters()))
    assert longest[64] > 1024 and longest[128] > 1024, longest
    assert layers >= 2 and heads >= 2 and not all(exact), (layers, heads, exact)


def test_committed_errors_are_what_our_rounding_gives(_):
    """Measured again on one batch: relative errors of whole tensors hardly differ from batch to batch.

    But what ten steps change does: where a gradient is small, AdamW follows the sign of its rounding.
    """
    for name in MUON_DUMPS:
        with open(path_of(f"{name}_bf16_errors.csv"), encoding="utf-8") as f:
            committed = dict(line.strip().split(",") for line in f if not line.startswith("#"))
        net = formats.read_model(path_of(f"{name}.bin")).double()
        state = read_state(path_of(f"{name}_debug_state.bin"), net.config)
        rate, *adam, clip = state["settings"]
        errors = rounding.measure(net, [(state["x"], state["y"])], 10, clip, rate, *adam, muon=True)
        assert sorted(errors) == sorted(committed), set(errors) ^ set(committed)
        for what in errors:
            most = 4 if what.startswith("Muon") else 2
            if not what.startswith("loss"):
                assert 1 / most <= errors[what] / float(committed[what]) <= most, f"{name}: {what} {errors[what]}"


def test_padding_is_zero_and_bf16_is_rounded(folder):
    for name in DUMPS:
        exact = formats.read_model(path_of(f"{name}.bin"))
        path = os.path.join(folder, "rounded.bin")
        with contextlib.redirect_stdout(None):
            formats.write_model(exact, path, torch.bfloat16)
        rounded = formats.read_model(path)
        assert not exact.wte[exact.config.vocab_size :].any() and len(exact.wte) % 128 == 0
        for (row, a), (_, b) in zip(exact.tensors(), rounded.tensors()):
            for x, y in zip(a, b):
                assert torch.equal(x.bfloat16().float(), y), row.name


def test_checkpoints_read_back(folder):
    net = model.GPT2(model.Config(10, 7, 2, 2, 64, trained=4))
    model.initialise_for_tests(net, seed=1)
    path = os.path.join(folder, "m.bin")
    with contextlib.redirect_stdout(None):
        formats.write_model(net, path, torch.float32)
    again = formats.read_model(path)
    assert again.config == net.config and again.config.trained_length == 4
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters()))
    with open(path, "r+b") as f:
        content = f.read()
        f.seek(len(content) // 2)
        f.write(bytes([content[len(content) // 2] ^ 4]))
    _, error = run("train_reference.py", "-e", path, code=1)
    assert path in error and "do not have their checksum" in error
    with open(path, "ab") as f:
        f.write(b"x")
    _, error = run("train_reference.py", "-e", path, code=1)
    assert path in error and "its header describes a model of" in error


def test_what_the_trainers_are_tested_against_is_written(folder):
    sizes = "--layers 1 --heads 1 --channels 32 --context 8 --vocab 7 --batch 2 --time 4 --error-batches 1"
    said, _ = run("write_reference.py", "--init", "test", *sizes.split(), "--output", f"{folder}/small")
    for name in ("small.bin", "small_bf16.bin", "small_debug_state.bin"):
        path = os.path.join(folder, name)
        assert f"{path}: {os.path.getsize(path):,} bytes\n" in said, (name, said)
    net = formats.read_model(f"{folder}/small.bin").double()
    state = read_state(f"{folder}/small_debug_state.bin", net.config)
    assert abs(net(state["x"], state["y"])[1].item() / state["loss"][0] - 1) < 1e-6
    assert state["losses"].argmin() == 9 and f"{folder}/small_bf16_errors.csv: " in said, state["losses"]


def test_hugging_face_checkpoints_are_transposed(folder):
    """Written by Hugging Face's conventions from known weights, and read back to the same weights."""
    net = model.GPT2(model.Config(10, 7, 2, 2, 64))
    model.initialise_for_tests(net, seed=1)
    tensors = {}
    for row, owned in net.tensors():
        name, transposed = formats.HUGGING_FACE[row.name]
        for layer, tensor in enumerate(owned):
            value = tensor.detach()[:7] if row.name == "wte" else tensor.detach()
            key = f"transformer.h.{layer}.{name}" if row.per_layer else f"transformer.{name}"
            tensors[key] = (value.t() if transposed else value).contiguous()
    torch.save(tensors, os.path.join(folder, "pytorch_model.bin"))
    settings = {"n_positions": 10, "vocab_size": 7, "n_layer": 2, "n_head": 2, "n_embd": 64}
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(settings, f)
    again = formats.read_hugging_face(folder)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters()))
    assert again.config.trained_length == 10
    for length in (4, 11, "4"):
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
            json.dump(settings | {"flashgpt_trained_length": length}, f)
        if length == 4:
            assert formats.read_hugging_face(folder).config.trained_length == 4
            continue
        words = f"a trained length of {length} tokens is not between 1 and the context of 10"
        unit.refused(words, formats.read_hugging_face, folder)


def test_batches_come_in_the_order_of_the_trainers(folder):
    """The shuffled order of ten samples under seed 42, and of the next epoch, as llm.c's loader draws it."""
    path = os.path.join(folder, "tokens.bin")
    header = np.zeros(256, np.int32)
    header[:3] = 20240520, 1, 61
    np.concatenate([header.view(np.uint16), np.arange(61, dtype=np.uint16)]).tofile(path)
    loader = train_reference.TokenLoader(path, 2, 3, 61)
    for sample in (*range(10), 0):
        x, y = loader.next_batch()
        assert x.flatten().tolist() == list(range(6 * sample, 6 * sample + 6)) and torch.equal(y, x + 1)
    loader = train_reference.TokenLoader(path, 1, 6, 61, shuffle_seed=42)
    order = [int(loader.next_batch()[0][0, 0]) // 6 for _ in range(20)]
    assert order == EXPECTED_ORDER, order
    rows, batches = (train_reference.TokenLoader(path, B, 4, 61, shuffle_seed=42) for B in (1, 2))
    for i in range(20):  # a batch is the next rows; the last of the 15 is left out
        if i in (7, 14):
            rows.next_batch()
        x, y = batches.next_batch()
        assert torch.equal(y, x + 1) and torch.equal(x, torch.cat([rows.next_batch()[0] for _ in range(2)]))


def test_a_flipped_token_ends_the_training(folder):
    path = os.path.join(folder, "tokens.bin")
    with common.CheckedFile(path, 20240520, 1, 61) as out:
        out.write(np.arange(61, dtype=np.uint16))
        out.finish()
    train_reference.TokenLoader(path, 2, 3, 61)
    with open(path, "r+b") as f:
        f.seek(1024 + 2 * 60)
        f.write(b"\0\0")
    unit.refused(f"{path}: bytes 1024 to 1145 do not have", train_reference.TokenLoader, path, 2, 3, 61)


def test_schedules(_):
    args = argparse.Namespace(learning_rate=1.0, final_fraction=0.1, warmup=10, max_steps=110, scheduler="")
    expected = {  # at the first step, the last of the warm-up, half-way and the end
        "constant": [1, 1, 1, 1],
        "linear": [0.1, 1, 0.55, 0.1],
        "cosine": [0.1, 1, 0.55, 0.1],
        "wsd": [0.1, 1, 1, 0.1],
    }
    for args.scheduler, rates in expected.items():
        got = [train_reference.learning_rate(args, step) for step in (0, 9, 60, 110)]
        assert np.allclose(got, rates), (args.scheduler, got)
    args.scheduler = "wsd"  # 1 - sqrt from 80% of the steps on: a quarter of the way down it has come half of it
    assert np.isclose(train_reference.learning_rate(args, 88 + 22 // 4), 0.1 + 0.9 * (1 - (5 / 22) ** 0.5))


def test_training_lowers_the_loss(folder):
    """A small model, twenty steps on one sample: the loss falls, and main.log has the trainers' lines."""
    tokens = os.path.join(folder, "tokens.bin")
    header = np.zeros(256, np.int32)
    header[:3] = 20240520, 1, 65
    run_of_tokens = (np.arange(65) * 7 % 251).astype(np.uint16)
    np.concatenate([header.view(np.uint16), run_of_tokens]).tofile(tokens)
    out = os.path.join(folder, "log")
    data = ["-e", path_of("tiny.bin"), "-i", tokens, "-j", tokens, "-o", out, "--device", "cpu", "--dtype", "float32"]
    said, _ = run("train_reference.py", *data, "-b", 1, "-t", 64, "-x", 20, "-l", "1e-3", "-v", 0)
    assert re.search(r"^val loss [\d.]+\nmedian of the last three quarters: [\d.]+ ms, [\d,]+ tok/s\n$", said, re.M), (
        said
    )
    lines = unit.read(os.path.join(out, "main.log")).splitlines()
    losses = [float(line.split("trl:")[1].split()[0]) for line in lines[:-1]]
    assert len(losses) == 20 and losses[-1] < losses[0] - 1 and lines[-1].startswith("s:20 tel:")
    stated, _ = run("../../scripts/plot_run.py", *[os.path.join(out, "main.log")] * 2, "--difference")
    assert "20 steps: largest difference 0.000000" in stated
    short = [*data, "-b", 1, "-t", 64, "-x", 1, "-s", 0]
    run("train_reference.py", *short)  # its own log is replaced
    assert len(unit.read(os.path.join(out, "main.log")).splitlines()) == 3
    for name, text in (("main.log", "s:0 run:77\ns:0 tel:5.5451\n"), ("main.flags", "")):
        unit.write(os.path.join(out, name), text)
        _, error = run("train_reference.py", *short, code=1)
        assert f"-o {out}: it holds a run of another program" in error and unit.read(os.path.join(out, name)) == text
        unit.write(os.path.join(out, "main.log"), "")
    os.remove(os.path.join(out, "main.flags"))
    _, error = run("train_reference.py", *short, "--sample-every", 20, code=1)
    assert "--sample-every: invalid choice: 20 (choose from 0)" in error, error
    _, error = run("train_reference.py", *data, "-b", 2, "-t", 64, code=1)
    assert tokens in error and "a batch of 2 x 64 needs 129" in error


def test_a_pytorch_step_is_timed(_):
    """time_torch.py's main() on a model of a layer, with a stand-in for torch.nn.attention."""
    backends, names = [], ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH")
    stand_in = types.ModuleType("torch.nn.attention")
    stand_in.SDPBackend = types.SimpleNamespace(**{name: name for name in names})
    stand_in.sdpa_kernel = lambda backend: backends.append(backend) or contextlib.nullcontext()
    kept, argv = sys.modules.get("torch.nn.attention"), sys.argv
    sys.modules["torch.nn.attention"] = stand_in
    try:
        import time_torch

        sys.argv = ["time_torch.py"]
        args = time_torch.parse_arguments()
        assert (args.model, args.steps, args.warm_up, args.compile) == ("d12", 30, 10, 1), args
        time_torch.SIZES = {"d12": (1, 2, 32)}
        for sdpa in ("auto", "cudnn", "flash"):
            flags = (
                "--batch 2 --time 8 --vocab 64 --steps 3 --warm-up 1 --compile 0 --dtype float32 --device cpu --sdpa"
            )
            sys.argv = ["time_torch.py", *flags.split(), sdpa]
            with contextlib.redirect_stdout(io.StringIO()) as said:
                time_torch.main()
            size, times = said.getvalue().splitlines()
            assert size.startswith(f"d12, B=2, T=8, float32, sdpa {sdpa}, eager, PyTorch {torch.__version__}, CPU"), (
                size
            )
            mean, tok_s = re.match(r"mean ([\d.]+) ms of 3 steps after 1 .*, ([\d,]+) tok/s$", times).groups()
            assert abs(float(mean) * int(tok_s.replace(",", "")) / 16000 - 1) < 0.01, times
        # by torchao's linear layers: here those that it converts, as they are
        torchao, converted, own = types.ModuleType("torchao.float8"), [], time_torch.Block.linear
        torchao.convert_to_float8_training = lambda layers: converted.append(list(layers))
        modules = {"torchao": types.ModuleType("torchao"), "torchao.float8": torchao}
        with unittest.mock.patch.dict(sys.modules, modules), contextlib.redirect_stdout(io.StringIO()) as said:
            sys.argv = ["time_torch.py", *flags.split(), "auto", "--fp8", "1"]
            time_torch.main()
        assert time_torch.Block.linear is not own and converted == [["qkv", "attproj", "fc", "fcproj"]], converted
        assert "fp8 by torchao, sdpa auto" in said.getvalue(), said.getvalue()
        time_torch.Block.linear = own
    finally:
        sys.argv = argv
        sys.modules.pop("torch.nn.attention")
        if kept:
            sys.modules["torch.nn.attention"] = kept
    assert backends == ["CUDNN_ATTENTION", "FLASH_ATTENTION"], backends


def test_a_backend_that_the_cpu_lacks_is_refused(_):
    if importlib.util.find_spec("torch.nn.attention") is None:  # before PyTorch 2.3
        return
    flags = ["--batch", "1", "--time", "16", "--vocab", "64", "--compile", "0", "--device", "cpu", "--sdpa", "cudnn"]
    _, error = run("time_torch.py", *flags, code=1)
    assert "--sdpa cudnn does not serve this device" in error, error


if __name__ == "__main__":
    unit.need("torch", "numpy")
    sys.path.insert(0, REFERENCE)
    import argparse

    import numpy as np
    import torch

    import common
    import formats
    import model
    import rounding
    import train_reference

    sys.exit(unit.run(globals()))
