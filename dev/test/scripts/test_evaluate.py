#!/usr/bin/env python3
"""generate_gpt2 --perplexity and --hellaswag say what dev/reference/evaluate.py does, on random and on trained weights.

    python3 dev/test/scripts/test_evaluate.py [./generate_gpt2 [tolerance]]     # 10 s; ends in 'N passed, N failed'

Needs PyTorch 1.13 or newer and numpy; without them it says so and tests nothing. For bf16 the tolerance is 5e-2.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
from unittest import mock

import unit

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir, os.pardir))
REFERENCE = os.path.join(ROOT, "dev", "reference")
PROGRAM = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "generate_gpt2"))
TOLERANCE = sys.argv[2] if len(sys.argv) > 2 else "1e-5"
CONTEXT, ENDINGS = 48, 4


def project_text(count):
    with open(os.path.join(ROOT, "CONTRIBUTING.md"), "rb") as f:
        return f.read(count)


def write_model(net, folder):
    path = os.path.join(folder, "model.bin")
    with contextlib.redirect_stdout(None):
        formats.write_model(net, path, torch.float32)
    return path


def random_model(seed, vocab_size=256):
    net = model.GPT2(model.Config(CONTEXT, vocab_size, 2, 2, 64))
    model.initialise_for_tests(net, seed)
    return net


def trained_model(text, steps=60):
    """A byte model that has learned a little of the text."""
    torch.manual_seed(1)
    net = model.GPT2(model.Config(CONTEXT, 256, 1, 1, 32))
    model.initialise(net, 2)
    optimizer = model.make_optimizer(net, 1e-2)
    tokens = torch.tensor(list(text))
    for _ in range(steps):
        begins = torch.randint(len(text) - CONTEXT, (16,))
        rows = torch.stack([tokens[b : b + CONTEXT + 1] for b in begins])
        optimizer.zero_grad()
        net(rows[:, :-1], rows[:, 1:])[1].backward()
        optimizer.step()
    return net


def evaluate(*arguments):
    """The lines that evaluate.py prints, --against the program. Fails by SystemExit, as it does."""
    words = ["--device", "cpu", "--against", PROGRAM, "--tolerance", TOLERANCE, *map(str, arguments)]
    with mock.patch("sys.argv", ["evaluate.py", *words]), contextlib.redirect_stdout(io.StringIO()) as out:
        evaluate_script.main()
    return out.getvalue().splitlines()


def write_questions(path, count, vocab_size):
    """Questions of tokens at random; contexts and endings of any length that fits."""
    random = np.random.default_rng(5)
    words = []
    for index in range(count):
        lengths = (random.integers(1, 30), *random.integers(1, 18, ENDINGS))
        parts = [random.integers(0, vocab_size, n).tolist() for n in lengths]
        body = [int(random.integers(0, ENDINGS)), ENDINGS] + [word for part in parts for word in (len(part), *part)]
        words += [65535, 2 * (len(body) + 3), index, *body]
    header = np.zeros(256, np.int32)
    header[:4] = 20240522, 1, count, 1000
    with open(path, "wb") as f:
        f.write(header.tobytes() + np.array(words, np.uint16).tobytes())


def test_random_weights_with_many_windows(folder):
    path, text = write_model(random_model(3), folder), os.path.join(folder, "text.txt")
    with open(text, "wb") as f:
        f.write(project_text(700))
    losses = []
    for shape in ([], ["--window", 48, "--stride", 48], ["--window", 31, "--stride", 7]):
        ours = json.loads(evaluate("-e", path, "--perplexity", text, *shape)[0])
        losses.append(ours["loss"])
        assert ours["tokens"] == ours["bytes"] == 699, ours
    for a, b in zip(
        losses, losses[1:]
    ):  # the shape of the windows decides over the third digit: a wrong one would be seen
        assert abs(a - b) > 1e-3, losses


def test_texts_that_are_shorter_than_a_window(folder):
    path, text = write_model(random_model(4), folder), os.path.join(folder, "text.txt")
    for count in (2, 3, CONTEXT, CONTEXT + 1, CONTEXT + 2):
        with open(text, "wb") as f:
            f.write(project_text(count))
        evaluate("-e", path, "--perplexity", text)


def test_the_default_window_is_the_trained_length(folder):
    net, text = random_model(8), os.path.join(folder, "text.txt")
    net.config.trained = 20
    path = write_model(net, folder)
    with open(text, "wb") as f:
        f.write(project_text(200))
    ours = json.loads(evaluate("-e", path, "--perplexity", text)[0])
    done = subprocess.run([PROGRAM, "-e", path, "--perplexity", text, "--json"], capture_output=True, check=True)
    theirs = json.loads(done.stdout)
    assert ours["window"] == theirs["window"] == 20 and ours["stride"] == theirs["stride"] == 10, (ours, theirs)


def test_tokens_of_another_vocabulary(folder):
    path, tokens = write_model(random_model(5, 300), folder), os.path.join(folder, "tokens.bin")
    with common.CheckedFile(tokens, 20240520, 1, 300) as out:
        out.write((np.arange(300) ** 2 % 300).astype(np.uint16))
        out.finish()
    assert "bytes" not in json.loads(evaluate("-e", path, "--perplexity", tokens)[0])


def test_trained_weights(folder):
    text = os.path.join(folder, "text.txt")
    with open(text, "wb") as f:
        f.write(project_text(1500))
    path = write_model(trained_model(project_text(4000)), folder)
    ours = json.loads(evaluate("-e", path, "--perplexity", text)[0])
    assert 1.0 < ours["loss"] < 3.5, ours  # it has learned


def test_text_in_tokens_of_tokenize_gpt2(folder):
    tokens = [*(bytes([i]) for i in range(256)), b"th", b"the", b"<|endoftext|>"]
    table = os.path.join(folder, "t.bin")
    data_common.write_tokenizer(table, tokens, len(tokens) - 1)
    encoding = data_common.NativeEncoding(os.path.join(ROOT, "tokenize_gpt2"), table)
    path = write_model(random_model(9, len(tokens)), folder)
    text = unit.write(os.path.join(folder, "text.txt"), "the other \u00e9" * 20)
    other = unit.program(folder, "other", f'#!/bin/sh\nexec "{PROGRAM}" "$@" --tokenizer "{table}"\n')
    with mock.patch.object(evaluate_script, "gpt2_encoding", lambda: encoding):
        ours = json.loads(evaluate("-e", path, "--perplexity", text, "--against", other)[0])
    assert ours["bytes"] == 12 * 20 - len("the") and ours["tokens"] < 12 * 20 - 1, ours


def test_answers(folder):
    path, file = write_model(random_model(6, 300), folder), os.path.join(folder, "questions.bin")
    write_questions(file, 60, 300)
    ours = json.loads(evaluate("-e", path, "--hellaswag", file)[0])
    assert ours["examples"] == 60 and 0 < ours["correct"] < 60 and ours["undecided"] <= 600 * float(TOLERANCE), ours


def test_differences_are_refused(folder):
    """What another model would say is not taken for the same."""
    text = os.path.join(folder, "text.txt")
    with open(text, "wb") as f:
        f.write(project_text(200))
    path = write_model(random_model(7), folder)
    other = unit.program(folder, "other", f'#!/bin/sh\n"{PROGRAM}" "$@" | sed \'s/"loss": /"loss": 1/\'\n')
    unit.refused("error: loss: ", evaluate, "-e", path, "--perplexity", text, "--against", other)


if __name__ == "__main__":
    unit.need("torch", "numpy")
    sys.path.insert(0, REFERENCE)
    import numpy as np
    import torch

    import common
    import data_common
    import evaluate as evaluate_script
    import formats
    import model

    sys.exit(unit.run(globals()))
