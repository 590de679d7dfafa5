#!/usr/bin/env python3
"""Exports in Hugging Face's transformers, and its files here: no warning, the same bits, logits and token ids.

python3 dev/test/whole/test_transformers.py build/transformers_side     # 10 s; needs torch and transformers
"""

import json
import logging
import os
import subprocess
import sys
import warnings

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "scripts"))

import unit

os.environ.update(
    HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", TOKENIZERS_PARALLELISM="false"
)
os.environ.pop("TRANSFORMERS_VERBOSITY", None)
try:
    import numpy as np
    import safetensors.torch
    import tokenizers
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}; .ci/requirements.txt has the packages")
    sys.exit(0)

OURS = sys.argv[1] if len(sys.argv) > 1 else "build/transformers_side"
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
# vocabulary, context, channels, layers, heads: odd vocabularies, one layer, every size of head, more heads than layers
SHAPES = [(61, 16, 64, 2, 2), (257, 33, 64, 1, 1), (129, 7, 384, 3, 4), (1000, 64, 256, 4, 2), (5, 8, 160, 2, 5)]
LAYER = [  # llm.c's order of a layer's tensors; True: transposed in transformers
    ("ln_1.weight", False),
    ("ln_1.bias", False),
    ("attn.c_attn.weight", True),
    ("attn.c_attn.bias", False),
    ("attn.c_proj.weight", True),
    ("attn.c_proj.bias", False),
    ("ln_2.weight", False),
    ("ln_2.bias", False),
    ("mlp.c_fc.weight", True),
    ("mlp.c_fc.bias", False),
    ("mlp.c_proj.weight", True),
    ("mlp.c_proj.bias", False),
]


def ours(*arguments, stdin=b""):
    done = subprocess.run([OURS, *map(str, arguments)], input=stdin, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


class Silent(logging.Handler):
    """Fails on whatever transformers or Python warn of inside the with statement."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.heard = []

    def emit(self, record):
        self.heard.append(record.getMessage())

    def __enter__(self):
        self.caught = warnings.catch_warnings(record=True)
        self.warned = self.caught.__enter__()
        warnings.simplefilter("always")
        transformers.logging.set_verbosity_warning()
        logging.getLogger("transformers").addHandler(self)
        return self

    def __exit__(self, *error):
        logging.getLogger("transformers").removeHandler(self)
        self.caught.__exit__(*error)
        if error[0] is None:
            heard = self.heard + [str(w.message) for w in self.warned]
            assert not heard, heard


def random_model(shape, seed=1):
    """A model whose weights are large enough that every tensor is felt in the logits."""
    V, T, C, L, NH = shape
    torch.manual_seed(seed)
    config = transformers.GPT2Config(
        vocab_size=V, n_positions=T, n_embd=C, n_layer=L, n_head=NH, bos_token_id=V - 1, eos_token_id=V - 1
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(
                torch.randn_like(p) * (0.3 if p.dim() == 1 else 0.1)
                + (1.0 if "ln_" in name and "weight" in name else 0.0)
            )
    return model


def write_bin(path, model, dtype=torch.float32, trained=0):
    """llm.c's file of a model, and what we add to it, written by this test alone."""
    c = model.config
    state = model.transformer.state_dict()
    Vp = -(-c.vocab_size // 128) * 128
    header = np.zeros(256, np.int32)
    header[:8] = (
        20240326,
        3 if dtype == torch.float32 else 5,
        c.n_positions,
        c.vocab_size,
        c.n_layer,
        c.n_head,
        c.n_embd,
        Vp,
    )
    header[14] = trained
    parts = [state["wte.weight"], torch.zeros(Vp - c.vocab_size, c.n_embd), state["wpe.weight"]]
    for name, transposed in LAYER:
        parts += [state[f"h.{i}.{name}"].t() if transposed else state[f"h.{i}.{name}"] for i in range(c.n_layer)]
    parts += [state["ln_f.weight"], state["ln_f.bias"]]
    flat = torch.cat([p.reshape(-1) for p in parts]).to(dtype)
    words = flat.numpy() if dtype == torch.float32 else flat.view(torch.int16).numpy()
    with open(path, "wb") as f:
        f.write(header.tobytes() + words.tobytes())


def logits_of(model, tokens):
    with torch.no_grad():
        return model(torch.from_numpy(tokens.astype(np.int64))).logits.numpy()


def our_logits(path, tokens, V, folder):
    B, T = tokens.shape
    out = os.path.join(folder, "logits")
    ours("logits", path, T, out, stdin=tokens.astype(np.int32).tobytes())
    return np.fromfile(out, np.float32).reshape(B, T, V)


def check_logits(found, model, tokens):
    """Both compute the same GEMMs in fp32, each in its own order: ours may be as far from fp64 as transformers' own
    logits are, or a few times as far, since the largest of some thousand roundings is compared."""
    exact = logits_of(model.double(), tokens)
    theirs = np.abs(logits_of(model.float(), tokens) - exact).max()
    error = np.abs(found - exact).max()
    assert np.abs(exact).max() > 1.0, "these logits say nothing"
    assert error <= 4 * theirs, f"logits differ by {error:.3g} from fp64, transformers' by {theirs:.3g}"


def tokens_for(shape, B=3):
    V, T = shape[:2]
    return np.random.default_rng(T).integers(0, V, (B, T), np.int32)


def test_an_export_loads_without_a_warning_and_gives_our_logits(folder):
    for shape in SHAPES:
        bin_file, export = os.path.join(folder, "m.bin"), os.path.join(folder, f"export{shape[0]}")
        write_bin(bin_file, random_model(shape))
        ours("export", bin_file, export, "auto")
        with Silent():
            model, info = transformers.AutoModelForCausalLM.from_pretrained(
                export, torch_dtype="auto", output_loading_info=True
            )
            assert isinstance(transformers.AutoModel.from_pretrained(export), transformers.GPT2Model)
        assert not any(info.values()), info
        assert model.dtype == torch.float32 and not model.training
        tokens = tokens_for(shape)
        check_logits(our_logits(bin_file, tokens, shape[0], folder), model, tokens)


def test_every_weight_arrives_in_its_place_and_bit_for_bit(folder):
    bin_file, export = os.path.join(folder, "m.bin"), os.path.join(folder, "export")
    for dtype, name in ((torch.float32, "fp32"), (torch.bfloat16, "bf16")):
        model = random_model(SHAPES[2]).to(dtype)
        write_bin(bin_file, model.float(), dtype)
        ours("export", bin_file, export + name, "auto")
        found = safetensors.torch.load_file(os.path.join(export + name, "model.safetensors"))
        expected = {k: v for k, v in model.to(dtype).state_dict().items() if k != "lm_head.weight"}
        assert set(found) == set(expected), sorted(set(found) ^ set(expected))
        for key, value in expected.items():
            assert found[key].dtype == dtype and torch.equal(found[key], value), key
        with Silent():
            assert transformers.AutoModelForCausalLM.from_pretrained(export + name, torch_dtype="auto").dtype == dtype


def test_config_json_says_what_transformers_would(folder):
    bin_file, export = os.path.join(folder, "m.bin"), os.path.join(folder, "export")
    model = random_model(SHAPES[1])
    write_bin(bin_file, model)
    ours("export", bin_file, export, "bf16")
    model.bfloat16().save_pretrained(os.path.join(folder, "theirs"))
    theirs = transformers.AutoConfig.from_pretrained(os.path.join(folder, "theirs")).to_dict()
    found = transformers.AutoConfig.from_pretrained(export).to_dict()
    for key in ("_name_or_path", "transformers_version", "attn_pdrop", "embd_pdrop", "resid_pdrop", "n_ctx"):
        found.pop(key, None), theirs.pop(key, None)
    assert found == theirs, {
        k: (found.get(k), theirs.get(k)) for k in found.keys() | theirs if found.get(k) != theirs.get(k)
    }
    with Silent():
        generation = transformers.AutoModelForCausalLM.from_pretrained(export).generation_config
    assert (generation.bos_token_id, generation.eos_token_id) == (256, 256)


def test_the_trained_length_is_kept(folder):
    names = "m.bin", "export", "theirs", "again.bin"
    bin_file, export, theirs, again = (os.path.join(folder, name) for name in names)
    _, tokens = train_tokenizer(300)
    write_tokenizer(os.path.join(folder, "tokenizer.bin"), tokens)
    write_bin(bin_file, random_model((300, 64, 64, 1, 1)), trained=20)
    ours("export", bin_file, export, "auto", os.path.join(folder, "tokenizer.bin"))
    with Silent():
        model, info = transformers.AutoModelForCausalLM.from_pretrained(export, output_loading_info=True)
        assert transformers.AutoTokenizer.from_pretrained(export).model_max_length == 20
    assert not any(info.values()), info
    assert model.config.n_positions == 64 and model.config.flashgpt_trained_length == 20
    model.save_pretrained(theirs)
    ours("export", theirs, again, "auto")
    assert np.fromfile(again, np.int32, 15)[14] == 20


def weights_of(path):
    """What follows the header of llm.c's file."""
    with open(path, "rb") as f:
        return f.read()[1024:]


def test_what_transformers_writes_is_read_bit_for_bit(folder):
    expected, found, theirs = (os.path.join(folder, name) for name in ("expected.bin", "found.bin", "theirs"))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for number, (part, shard) in enumerate([("", "1GB"), ("transformer", "1GB"), ("", "100KB")]):
            model = random_model(SHAPES[0]).to(dtype)
            written = f"{theirs}{dtype}{number}"
            model.get_submodule(part).save_pretrained(written, max_shard_size=shard)
            files = [name for name in os.listdir(written) if name.endswith(".safetensors")]
            assert (len(files) > 1) == (shard == "100KB"), files
            write_bin(expected, model.float(), torch.bfloat16 if dtype == torch.bfloat16 else torch.float32)
            ours("export", written, found, "auto")
            assert weights_of(found) == weights_of(expected), (dtype, part, shard)
            os.remove(found)


def test_generate_continues_a_prompt(folder):
    bin_file, export = os.path.join(folder, "m.bin"), os.path.join(folder, "export")
    write_bin(bin_file, random_model(SHAPES[3]))
    ours("export", bin_file, export, "fp32")
    model = transformers.AutoModelForCausalLM.from_pretrained(export)
    prompt = torch.tensor([[1, 2, 3]])
    with Silent():
        out = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=8, pad_token_id=0
        )
    text = np.zeros((1, out.shape[1]), np.int32) + out.numpy()
    greedy = our_logits(bin_file, text, 1000, folder)[0].argmax(-1)
    assert out.shape[1] > 3 and (greedy[2:-1] == text[0, 3:]).all(), (greedy, text)


# ----------------------------------------------------------------------------
# The tokenizer


TEXTS = [
    "Hello world",
    " It's  they'll\n\n\tgo 12345!",
    "naïve Größe 東京 🙂 \u0130\u200d",
    "a" * 100,
    "<|endoftext|>, in a text",
    "\x00\x7f",
    "x .",
]


def read_text(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def train_tokenizer(vocab_size):
    """Byte pair encoding of this project's own text, <|endoftext|> last, as GPT-2's; and its tokens as bytes."""
    made = tokenizers.ByteLevelBPETokenizer(trim_offsets=False)
    texts = [read_text(os.path.join(ROOT, name)) for name in ("README.md", "CONTRIBUTING.md")]
    made.train_from_iterator(texts, vocab_size=vocab_size - 1, show_progress=False)
    made.add_special_tokens(["<|endoftext|>"])
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]  # written as themselves
    others = [byte for byte in range(256) if byte not in printable]  # written as U+0100, U+0101, ...
    byte_of = {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}
    vocab = sorted(made.get_vocab().items(), key=lambda item: item[1])
    assert [i for _, i in vocab] == list(range(vocab_size)) and vocab[-1][0] == "<|endoftext|>"
    return made, [bytes(byte_of[c] for c in token) for token, _ in vocab[:-1]] + [b"<|endoftext|>"]


def write_tokenizer(path, tokens):
    header = np.zeros(256, np.int32)
    header[:4] = (20240328, 2, len(tokens), len(tokens) - 1)
    with open(path, "wb") as f:
        f.write(header.tobytes() + b"".join(bytes([len(token)]) + token for token in tokens))


def check_tokenizers(export, path, V, texts):
    with Silent():
        fast = transformers.AutoTokenizer.from_pretrained(export)
        slow = transformers.AutoTokenizer.from_pretrained(export, use_fast=False)
    one_kind = int(transformers.__version__.split(".")[0]) >= 5  # its slow tokenizer is the fast one
    assert fast.is_fast and slow.is_fast == one_kind and len(fast) == len(slow) == V, (len(fast), len(slow), V)
    for text in texts:
        ids = np.frombuffer(ours("encode", path, V, stdin=text.encode()), np.int32).tolist()
        assert fast.encode(text) == ids and slow.encode(text) == ids, (text, ids, fast.encode(text), slow.encode(text))
        assert fast.decode(ids) == slow.decode(ids) == text, (text, fast.decode(ids), slow.decode(ids))
    return fast


def test_a_tokenizer_is_exported_with_its_merges(folder):
    V = 700
    shape = (V, 512, 64, 1, 1)
    made, tokens = train_tokenizer(V)
    path, bin_file, export = (os.path.join(folder, name) for name in ("tokenizer.bin", "m.bin", "export"))
    write_tokenizer(path, tokens)
    write_bin(bin_file, random_model(shape))
    ours("export", bin_file, export, "auto", path)
    made.save_model(folder)
    theirs, found = (read_text(os.path.join(f, "merges.txt")) for f in (folder, export))
    assert theirs.split("\n")[1:] == found.split("\n")[1:]
    theirs, found = (json.loads(read_text(os.path.join(f, "vocab.json"))) for f in (folder, export))
    theirs["<|endoftext|>"] = V - 1
    assert found == theirs
    fast = check_tokenizers(export, path, V, [t for t in TEXTS if "endoftext" not in t])
    assert fast.encode("a<|endoftext|>") == [*fast.encode("a"), V - 1] and fast.eos_token_id == V - 1
    assert fast.model_max_length == 512


def test_a_vocabulary_of_bytes_has_a_tokenizer_too(folder):
    bin_file, export = os.path.join(folder, "m.bin"), os.path.join(folder, "export")
    write_bin(bin_file, random_model((256, 512, 64, 1, 1)))
    ours("export", bin_file, export, "auto", "bytes")
    fast = check_tokenizers(export, "bytes", 256, TEXTS)
    assert fast.encode("é\n") == [0xC3, 0xA9, 10]
    with Silent():
        config = transformers.AutoConfig.from_pretrained(export)
    assert config.bos_token_id == 10 and config.eos_token_id is None


def trained(vocab_size, special=("<|endoftext|>",), ids=lambda i, n: i):
    """A tokenizer of this project's own text, special tokens last; ids: of the i-th of n tokens that training gives."""
    made = tokenizers.ByteLevelBPETokenizer(trim_offsets=False)
    texts = [read_text(os.path.join(ROOT, name)) for name in ("README.md", "CONTRIBUTING.md")]
    made.train_from_iterator(texts, vocab_size=vocab_size - len(special), show_progress=False)
    state = json.loads(made.to_str())
    vocab = state["model"]["vocab"]
    state["model"]["vocab"] = {token: ids(i, len(vocab)) for token, i in vocab.items()}
    made = tokenizers.Tokenizer.from_str(json.dumps(state))
    made.add_special_tokens(list(special))
    return made


def same_ids(folder, theirs, V, texts):
    """Our ids of prompts are those of transformers, or of the tokenizers library."""
    for text in texts:
        ids = np.frombuffer(ours("prompt", folder, V, stdin=text.encode()), np.int32).tolist()
        assert theirs(text) == ids, (text, theirs(text), ids)


def model_folder(folder, V):
    """A folder with a model of V tokens, and none of its tokenizer's files."""
    random_model((V, 512, 64, 1, 1)).save_pretrained(folder)
    return folder


def test_a_tokenizer_json_gives_the_ids_of_transformers(folder):
    V = 700
    special = ["<x y>", "<|im|>", "<|endoftext|>"]
    texts = [*TEXTS, "", " ", "a <|endoftext|> b<x y>c", "<|im|><|im|>\n <|im", "<|endoftext|>"]
    for number, ids in enumerate([lambda i, n: i, lambda i, n: (i * 7 + 5) % n]):
        made = trained(V, special, ids)
        written = model_folder(os.path.join(folder, str(number)), V)
        made.save(os.path.join(written, "tokenizer.json"))
        same_ids(written, lambda text, made=made: made.encode(text).ids, V, texts)
        again = transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|endoftext|>")
        saved = os.path.join(folder, f"saved{number}")
        again.save_pretrained(saved)  # merges as texts, or as pairs, with tokenizer_config.json
        loaded = transformers.AutoTokenizer.from_pretrained(saved)
        same_ids(saved, loaded.encode, V, texts)


def test_what_transformers_saves_of_gpt2_is_read(folder):
    V = 700
    made = trained(V, ids=lambda i, n: (i * 5 + 3) % n)
    state = json.loads(made.to_str())
    merges = [" ".join(m) if isinstance(m, list) else m for m in state["model"]["merges"]]
    source = model_folder(os.path.join(folder, "source"), V)
    with open(os.path.join(source, "vocab.json"), "w", encoding="utf-8") as f:
        json.dump(made.get_vocab(), f)
    with open(os.path.join(source, "merges.txt"), "w", encoding="utf-8") as f:
        f.write("#version: 0.2\n" + "\n".join(merges) + "\n")
    first = transformers.AutoTokenizer.from_pretrained(source)
    same_ids(source, first.encode, V, [*TEXTS, "a<|endoftext|> b"])
    saved = model_folder(os.path.join(folder, "saved"), V)
    first.save_pretrained(saved)
    assert os.path.exists(os.path.join(saved, "tokenizer.json"))
    same_ids(saved, transformers.AutoTokenizer.from_pretrained(saved).encode, V, [*TEXTS, "a<|endoftext|> b"])


def test_an_export_has_the_models_own_tokenizer(folder):
    V = 700
    source = model_folder(os.path.join(folder, "source"), V)
    made = trained(V, ("<x y>", "<|endoftext|>"), ids=lambda i, n: (i * 5 + 3) % n)
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|endoftext|>").save_pretrained(source)
    export = os.path.join(folder, "export")
    ours("export", source, export, "auto", source)
    theirs = transformers.AutoTokenizer.from_pretrained(export)
    before = transformers.AutoTokenizer.from_pretrained(source)
    for text in [*TEXTS, "a<|endoftext|><x y>"]:
        assert theirs.encode(text) == before.encode(text) == made.encode(text).ids
    same_ids(export, theirs.encode, V, [*TEXTS, "a<|endoftext|><x y>"])


if __name__ == "__main__":
    sys.exit(unit.run(globals()))
