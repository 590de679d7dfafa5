"""The files that PyTorch and the trainers share, llm.c's formats: model checkpoints and debug states.

Each begins with 256 int32. Model: magic 20240326, version 3 (fp32) or 5 (bf16), maxT, V, L, NH, C, Vp; then all
parameters in the order of model.TABLE, a tensor's layers one after the other. header[14] of ours is the trained length.

Debug state: magic 20240327, version 2, B, T; then inputs and targets (B,T) int32, logits (B,T,V), loss and all
gradients in fp32. Ours go on where llm.c's end: header[4] is the number of fp32 losses that follow the gradients, one
before each step of AdamW on the same batch, and header[5..10] hold, as the bits of fp32 numbers, learning rate,
beta1, beta2, epsilon, weight decay (on matrices only) and the limit of the gradient norm. llm.c's have zeros there.

Changes by Muon: magic 20261127, version 1, the numbers of steps and of samples of a tensor; then, for each tensor in
the order of model.TABLE, what the steps added to so many of its elements, evenly spaced, or to all of them, in fp32.

header[124..255] of all hold checksums, as in every file of ours: see dev/data/checksum.py.
"""

import json
import os
import struct

import numpy as np
import torch

from common import HEADER_BYTES, CheckedFile, OutputFile, fail, verify
from model import GPT2, Config

MODEL_MAGIC = 20240326
MODEL_VERSIONS = {torch.float32: 3, torch.bfloat16: 5}
TRAINED = 14  # the trained length's word of the header
STATE_MAGIC, STATE_VERSION = 20240327, 2
MUON_MAGIC, MUON_VERSION = 20261127, 1


def to_bytes(tensor, dtype=torch.float32):
    tensor = tensor.detach().to("cpu", dtype).contiguous()
    if dtype == torch.bfloat16:
        tensor = tensor.view(torch.int16)  # numpy has no bf16
    return tensor.numpy().tobytes()


def float_bits(value):
    return struct.unpack("<i", struct.pack("<f", value))[0]


def write_model(model, path, dtype):
    """Writes a checkpoint in fp32 or bf16 (rounded to nearest even)."""
    c = model.config
    sizes = (c.context, c.vocab_size, c.layers, c.heads, c.channels, c.padded_vocab_size)
    rest = [0] * (TRAINED - 2 - len(sizes)) + [c.trained]
    with CheckedFile(path, MODEL_MAGIC, MODEL_VERSIONS[dtype], *sizes, *rest) as out:
        for _, tensors in model.tensors():
            for tensor in tensors:
                out.write(to_bytes(tensor, dtype))
        out.finish()
    print(f"{path}: {os.path.getsize(path):,} bytes")


def write_state(path, x, y, logits, loss, gradients, losses, settings):
    """Writes a debug state; `gradients` in the order of model.tensors(), `settings` as header[5..10] holds them."""
    B, T = x.shape
    with CheckedFile(path, STATE_MAGIC, STATE_VERSION, B, T, len(losses), *map(float_bits, settings)) as out:
        for part in (to_bytes(x, torch.int32), to_bytes(y, torch.int32), to_bytes(logits), to_bytes(loss)):
            out.write(part)
        for gradient in gradients:
            out.write(to_bytes(gradient))
        out.write(np.array(losses, np.float32).tobytes())
        out.finish()
    print(f"{path}: {os.path.getsize(path):,} bytes")


def write_muon(path, changes, steps, samples):
    """Writes the changes by Muon: a 1-D tensor for each row of model.TABLE."""
    with CheckedFile(path, MUON_MAGIC, MUON_VERSION, steps, samples) as out:
        for change in changes:
            count = min(samples, len(change))
            out.write(to_bytes(change[torch.arange(count) * len(change) // count]))
        out.finish()
    print(f"{path}: {os.path.getsize(path):,} bytes")


def write_errors(path, precision, errors, batches):
    """Writes a precision's errors, {name: error}, that dev/test/whole/reference_test.h reads beside a debug state."""
    title = f"# root mean square errors of {precision} over {batches} batches (dev/reference/rounding.py)\n"
    with OutputFile(path) as out:
        out.write(title.encode())
        for name, error in errors.items():
            out.write(f"{name},{error:.4e}\n".encode())
        out.finish()
    print(f"{path}: {len(errors)} errors")


def set_trained_length(config, length, source):
    if not isinstance(length, int) or not 0 <= length <= config.context:
        fail(f"{source}: a trained length of {length} tokens is not between 1 and the context of {config.context}")
    config.trained = length


@torch.no_grad()
def read_model(path, **options):
    """The model of a checkpoint file, in fp32; `options` go to GPT2()."""
    try:
        header = np.fromfile(path, np.int32, 256)
        size = os.path.getsize(path)
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}")
    if len(header) < 256 or header[0] != MODEL_MAGIC or header[1] not in MODEL_VERSIONS.values():
        fail(f"{path} is not a GPT-2 model file of version 3 or 5")
    context, vocab_size, layers, heads, channels, padded = (int(i) for i in header[2:8])
    config = Config(context, vocab_size, layers, heads, channels)
    if min(context, vocab_size, layers, heads, channels) < 1 or padded != config.padded_vocab_size or channels % heads:
        fail(f"{path}: its header describes no model: {config}, padded vocabulary {padded}")
    set_trained_length(config, int(header[TRAINED]), path)
    model = GPT2(config, **options)
    count = sum(p.numel() for p in model.parameters())
    width = 4 if header[1] == 3 else 2
    if size != HEADER_BYTES + width * count:
        fail(f"{path}: {size:,} bytes, but its header describes a model of {HEADER_BYTES + width * count:,}")
    verify(path)
    words = np.fromfile(path, np.float32 if width == 4 else np.uint16, offset=HEADER_BYTES)
    if width == 2:
        words = (words.astype(np.uint32) << 16).view(np.float32)
    values = torch.from_numpy(words)
    for _, tensors in model.tensors():
        for tensor in tensors:
            tensor.copy_(values[: tensor.numel()].view_as(tensor))
            values = values[tensor.numel() :]
    return model


# Our names, and Hugging Face's: those of a layer stand below h.<layer>. Theirs are stored transposed where marked.
HUGGING_FACE = {
    "wte": ("wte.weight", False),
    "wpe": ("wpe.weight", False),
    "ln1w": ("ln_1.weight", False),
    "ln1b": ("ln_1.bias", False),
    "qkvw": ("attn.c_attn.weight", True),
    "qkvb": ("attn.c_attn.bias", False),
    "attprojw": ("attn.c_proj.weight", True),
    "attprojb": ("attn.c_proj.bias", False),
    "ln2w": ("ln_2.weight", False),
    "ln2b": ("ln_2.bias", False),
    "fcw": ("mlp.c_fc.weight", True),
    "fcb": ("mlp.c_fc.bias", False),
    "fcprojw": ("mlp.c_proj.weight", True),
    "fcprojb": ("mlp.c_proj.bias", False),
    "lnfw": ("ln_f.weight", False),
    "lnfb": ("ln_f.bias", False),
}


def load_hugging_face_weights(folder):
    """The tensors of a folder by name, from model.safetensors or pytorch_model.bin."""
    safe, pickled = (os.path.join(folder, name) for name in ("model.safetensors", "pytorch_model.bin"))
    if os.path.exists(safe):
        try:
            from safetensors.torch import load_file
        except ImportError:
            fail(f"{safe} needs the Python package safetensors: pip install safetensors")
        tensors = load_file(safe)
    elif os.path.exists(pickled):
        tensors = torch.load(pickled, map_location="cpu", weights_only=True)
    else:
        fail(f"{folder} holds neither model.safetensors nor pytorch_model.bin")
    return {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}


@torch.no_grad()
def read_hugging_face(folder):
    """The model of a local Hugging Face GPT-2 checkpoint: config.json and the weights beside it."""
    try:
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
            settings = json.load(f)
        config = Config(*(settings[key] for key in ("n_positions", "vocab_size", "n_layer", "n_head", "n_embd")))
    except (OSError, ValueError, KeyError) as error:
        fail(f"{folder} is not a Hugging Face GPT-2 checkpoint: {error}")
    if settings.get("activation_function", "gelu_new") != "gelu_new":
        fail(f"{folder}: activation {settings['activation_function']}; GPT-2 has gelu_new, and so have the trainers")
    set_trained_length(config, settings.get("flashgpt_trained_length", 0), folder)
    model = GPT2(config)
    weights = load_hugging_face_weights(folder)
    for row, tensors in model.tensors():
        theirs, transposed = HUGGING_FACE[row.name]
        for layer, tensor in enumerate(tensors):
            name = f"h.{layer}.{theirs}" if row.per_layer else theirs
            if name not in weights:
                fail(f"{folder}: tensor {name} is missing")
            value = weights[name].t() if transposed else weights[name]
            target = tensor[: config.vocab_size] if row.name == "wte" else tensor
            if value.shape != target.shape:
                fail(f"{folder}: tensor {name} is {tuple(value.shape)}, expected {tuple(target.shape)}")
            target.copy_(value)
    return model
