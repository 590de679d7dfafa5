#!/usr/bin/env python3
# ruff: noqa: E741 (l and m are FlashAttention's names)
"""Tests of python/flashgpt_attention.py, and of how pip builds it.

    python3 dev/test/scripts/test_flashgpt_attention.py           # on the CPU; two minutes
    python3 dev/test/scripts/test_flashgpt_attention.py --gpu     # with ./libattention.so, on a GPU; three minutes

Needs PyTorch 2.4 or newer; without it, it says so and tests nothing. On the CPU, dev/test/fixtures/attention_on_cpu.c
stands in for the library: what is not tested then are the kernels, the GPU that they run on and its stream.
"""

import contextlib
import ctypes
import importlib
import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import types
import warnings
import zipfile
from unittest import mock

import unit

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path += [os.path.join(ROOT, "python"), os.path.join(ROOT, "dev", "bench")]
try:
    import flashgpt_attention as fa
    import torch
    import torch_attention as bench
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(0)

COMPILER = shlex.split(os.environ.get("CC", "cc"))
ON_GPU = sys.argv[1:] == ["--gpu"]
DEVICE = "cuda" if ON_GPU else "cpu"
STREAM = 0x57EA  # of the stand-in
HEAD_SIZES = (32, 64, 96, 128)
# bf16 numbers are off by up to 2^-9, 1.1e-3 in the mean square. So are the results, and P and dS before their GEMMs:
# right kernels are off by 2.0e-3 to 2.6e-3 of a tensor's norm, a forgotten term by percents. In fp16, q, k and v are
# rounded, too, each by as much: scores of order one, and then P, are off by 1.6e-3 more, the operands by 1.1e-3.
TOLERANCE = {torch.bfloat16: 4e-3, torch.float16: 6e-3}


def everywhere(test):
    """A test for the CPU and a GPU; those without a decorator are for the CPU."""
    test.where = (False, True)
    return test


def on_gpu(test):
    test.where = (True,)
    return test


# ----------------------------------------------------------------------------
# The stand-in, and references


class Calls(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("dqkv", "dout", "qkv", "out", "l", "m", "starts", "scratch", "stream")),
        *((name, ctypes.c_int) for name in ("B", "T", "NH", "HS", "forwards", "backwards")),
    ]


def build_stand_in(folder):
    path = os.path.join(folder, "attention_on_cpu.so")
    source = os.path.join(ROOT, "dev", "test", "fixtures", "attention_on_cpu.c")
    command = [
        *COMPILER,
        "-std=c11",
        "-O2",
        f"-I{ROOT}",
        "-fPIC",
        "-shared",
        source,
        "-o",
        path,
        "-lm",
    ]
    subprocess.run(command, check=True)
    return path


@contextlib.contextmanager
def library(path=None):
    """FLASHGPT_ATTENTION_LIBRARY names this library, and nothing has been loaded or warned of."""
    variables = {"FLASHGPT_ATTENTION_LIBRARY": path} if path else {}
    with mock.patch.dict(os.environ, variables):
        if not path:
            os.environ.pop("FLASHGPT_ATTENTION_LIBRARY", None)
        fa._library.cache_clear()
        fa._warn_once.cache_clear()
        yield
    fa._library.cache_clear()


@contextlib.contextmanager
def served():
    """Tensors of the CPU are served, by the stand-in, on a stream with the number STREAM; or, on a GPU, by the library.
    Gives what the stand-in was called with."""
    if ON_GPU:
        with library(os.path.join(ROOT, "libattention.so")):
            yield None
        return
    constant = torch.compiler.assume_constant_result(lambda device: "")
    stream = mock.patch.object(torch.cuda, "current_stream", lambda device: types.SimpleNamespace(cuda_stream=STREAM))
    with library(STAND_IN), mock.patch.object(fa, "_unserved_device", constant), stream:
        loaded = fa._library()
        calls = Calls.in_dll(loaded, "stand_in_calls")
        ctypes.memset(ctypes.byref(calls), 0, ctypes.sizeof(calls))
        yield calls


@contextlib.contextmanager
def failing(reason):
    """The stand-in fails for this reason."""
    pointer = ctypes.c_char_p.in_dll(fa._library(), "stand_in_reason")
    pointer.value = reason
    yield
    pointer.value = None


@contextlib.contextmanager
def no_warnings():
    """None of ours; PyTorch has its own."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="q, k and v are not views|float16 is computed in bfloat16")
        yield


def random(*shape, dtype=None, seed=1):
    """Normal numbers on DEVICE, the same for a shape everywhere."""
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return drawn.to(DEVICE, dtype or torch.bfloat16)


def reference(qkv, dout, starts=None):
    """out and dqkv in fp64, spelled out"""
    qkv = qkv.detach().double().requires_grad_()
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    T, HS = q.shape[-2:]
    scores = (q @ k.transpose(-2, -1)) * HS**-0.5
    unseen = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)
    if starts is not None:
        unseen = (unseen | (torch.arange(T, device=q.device) < starts[:, :, None]))[:, None]
    out = (scores.masked_fill(unseen, float("-inf")).softmax(-1) @ v).transpose(1, 2)
    return out.detach(), torch.autograd.grad(out, qkv, dout.double())[0]


def error(x, expected):
    return ((x.double() - expected).norm() / expected.norm()).item()


def close(out, dqkv, qkv, dout, starts=None):
    """Checks out, and each of dq, dk and dv, against fp64."""
    expected_out, expected = reference(qkv, dout, starts)
    tolerance = TOLERANCE[qkv.dtype]
    assert out.dtype == dqkv.dtype == qkv.dtype and out.shape == dout.shape and dqkv.shape == qkv.shape
    errors = [error(out, expected_out), *(error(dqkv[:, :, n], expected[:, :, n]) for n in range(3))]
    # of one key, P is 1 whatever q and k are, and dq and dk are 0
    errors = errors[::3] if qkv.shape[1] == 1 else errors
    assert all(e <= tolerance for e in errors), (errors, tuple(qkv.shape), qkv.dtype)


def both(function, qkv, dout):
    """function(qkv) and dqkv"""
    x = qkv.detach().requires_grad_()
    out = function(x)
    return out.detach(), torch.autograd.grad(out, x, dout)[0]


def same(one, other):
    assert len(one) == len(other) and all(torch.equal(x, y) for x, y in zip(one, other))


def of_views(qkv, **options):
    return fa.attention(*qkv.unbind(2), **options)


def nanogpt(qkv):
    """Of (B,T,3C), as nanoGPT cuts it"""
    B, T, _, NH, HS = qkv.shape
    q, k, v = qkv.reshape(B, T, 3 * NH * HS).split(NH * HS, dim=2)
    return fa.attention(*(x.view(B, T, NH, HS) for x in (q, k, v)))


def compiled(function, **options):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, **options)


# ----------------------------------------------------------------------------
# Arguments, and what is not served


def test_arguments_that_do_not_fit(_):
    qkv, q = random(2, 5, 3, 2, 32), random(2, 5, 2, 32)
    wrong = [
        ((random(2, 5, 192),), "qkv has shape (2, 5, 192): must be (B,T,3,NH,HS)"),
        ((random(2, 3, 5, 2, 32),), "qkv has shape (2, 3, 5, 2, 32): must be"),
        ((qkv, qkv, qkv), "q has shape (2, 5, 3, 2, 32): must be (B,T,NH,HS)"),
        ((q, q), "qkv alone, or q, k and v"),
        ((3,), "qkv is int: must be a tensor of floating point"),
        ((q, q, q.int()), "v is torch.int32: must be a tensor of floating point"),
        ((q, None, q), "qkv alone, or q, k and v"),
        ((q, q[:, :4], q), "k is (2, 4, 2, 32) torch.bfloat16 on cpu, and q is (2, 5, 2, 32)"),
        ((q, q, q.half()), "v is (2, 5, 2, 32) torch.float16 on cpu, and q is"),
        ((q, q.to("meta"), q), "on meta, and q is"),
        ((qkv[:0],), "shape (0, 5, 3, 2, 32): every size must be at least 1"),
        ((q[:, :, :0],) * 3, "every size must be at least 1"),
    ]
    for arguments, words in wrong:
        for options in ({}, {"fallback": True}):
            said = unit.refused(words, lambda a=arguments, o=options: fa.attention(*a, **o), error=ValueError)
            assert "\n" not in said


def test_what_is_not_served_is_named(_):
    for qkv, words in (
        (random(1, 4, 3, 2, 32), "tensors on cpu: they must be on an NVIDIA GPU; fallback=True would"),
        (random(1, 4, 3, 2, 32, dtype=torch.float32), "torch.float32: must be torch.bfloat16 or torch.float16; fall"),
        (random(1, 4, 3, 2, 80), "head size 80: must be 32, 64, 96 or 128; fallback=True would"),
    ):
        said = unit.refused(words, fa.attention, qkv, error=ValueError)
        assert said == unit.refused(words, of_views, qkv, error=ValueError) and "\n" not in said
    gpu = torch.device("cuda", 0)
    for capability, words in (((7, 5), "compute capability 7.5: it must be 8.0 or newer"), ((8, 0), ""), ((12, 0), "")):
        with mock.patch.object(torch.cuda, "get_device_capability", lambda device, found=capability: found):
            assert fa._unserved_device(gpu) == words
    with mock.patch.object(torch.version, "hip", "6.0"):
        assert "NVIDIA" in fa._unserved_device(gpu)


def test_fallback_is_sdpa(_):
    """In its dtype, with its bits and gradients; contiguous, as our results are."""
    for dtype, HS in ((torch.float32, 64), (torch.bfloat16, 64), (torch.float64, 80), (torch.float16, 8)):
        qkv, dout = random(2, 9, 3, 2, HS, dtype=dtype), random(2, 9, 2, HS, dtype=dtype, seed=2)

        def sdpa(x):
            q, k, v = x.permute(2, 0, 3, 1, 4)
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

        expected = both(sdpa, qkv, dout)
        for function in (fa.attention, of_views):
            found = both(lambda x, f=function: f(x, fallback=True), qkv, dout)
            assert found[0].is_contiguous() and found[0].dtype == dtype
            same(found, expected)
        if dtype == torch.float64:
            assert error(found[0], reference(qkv, dout)[0]) < 1e-12  # the right one of all attentions


def test_fallback_compiles_whole(_):
    qkv, dout = random(2, 9, 3, 2, 80, dtype=torch.float32), random(2, 9, 2, 80, dtype=torch.float32, seed=2)
    expected = both(lambda x: fa.attention(x, fallback=True), qkv, dout)
    for function in (fa.attention, of_views):
        for dynamic in (None, True):
            function_of_x = compiled(lambda x, f=function: f(x, fallback=True), dynamic=dynamic, backend="aot_eager")
            # fp32 sums of 9 and 80 numbers in another order
            assert all(torch.allclose(x, y, atol=1e-5) for x, y in zip(both(function_of_x, qkv, dout), expected))


def test_meta_tensors(_):
    """Such as a model's whose shapes alone are asked for: the fallback serves them, and the library does not."""
    for dtype in (torch.float32, torch.bfloat16):
        qkv = random(1, 4, 3, 2, 32, dtype=dtype).to("meta")
        for function in (fa.attention, of_views):
            out, dqkv = both(lambda x, f=function: f(x, fallback=True), qkv, qkv[:, :, 0])
            assert (out.shape, out.dtype, dqkv.shape) == ((1, 4, 2, 32), dtype, qkv.shape) and out.is_meta
    unit.refused("tensors on meta: they must be on an NVIDIA GPU; fallback=True", fa.attention, qkv, error=ValueError)


def test_fallback_asks_nothing_of_a_library(_):
    with library("/nowhere/libattention.so"):
        fa.attention(random(1, 4, 3, 2, 32), fallback=True)


# ----------------------------------------------------------------------------
# The library


def test_a_library_that_is_missing_or_another_is_one_line(folder):
    qkv = random(1, 4, 3, 2, 32)
    text, other = unit.write(os.path.join(folder, "text.so"), "text"), os.path.join(folder, "other.so")
    empty = unit.write(os.path.join(folder, "other.c"), "int nothing;\n")
    subprocess.run([*COMPILER, "-shared", empty, "-o", other], check=True)
    with served():
        for path, words in (
            (
                os.path.join(folder, "none.so"),
                f"FLASHGPT_ATTENTION_LIBRARY={folder}/none.so: no such file; pip install",
            ),
            (folder, ": no such file"),
            (text, f"cannot use {text}: "),
            (other, f"cannot use {other}: "),
        ):
            with library(path):
                assert "\n" not in unit.refused(words, fa.attention, qkv, error=RuntimeError)
        with library(), mock.patch.object(fa, "__file__", os.path.join(folder, "python", "flashgpt_attention.py")):
            words = f"no libattention.so in {folder}/python or {folder}; pip install ./python builds it, or make"
            assert "\n" not in unit.refused(words, fa.attention, qkv, error=RuntimeError)


def test_where_the_library_is_found(folder):
    """Beside the module before the checkout around it; a library that the environment names before both."""
    beside, around = os.path.join(folder, "python", "libattention.so"), os.path.join(folder, "libattention.so")
    with mock.patch.object(fa, "__file__", os.path.join(folder, "python", "flashgpt_attention.py")):
        os.makedirs(os.path.dirname(beside))
        for path in (around, beside):
            shutil.copy(STAND_IN, path)
            with library():
                assert fa._library()._name == path
        with library(STAND_IN):
            assert fa._library()._name == STAND_IN


def test_the_call_is_that_of_the_header(_):
    B, T, NH, HS = 2, 5, 3, 32
    qkv, dout = random(B, T, 3, NH, HS).requires_grad_(), random(B, T, NH, HS, seed=2)
    with served() as calls, no_warnings():
        out = fa.attention(qkv)
        assert (calls.B, calls.T, calls.NH, calls.HS) == (B, T, NH, HS)
        assert calls.stream == STREAM and calls.forwards == 1 and calls.backwards == 0
        assert calls.qkv == qkv.data_ptr() and calls.out == out.data_ptr()
        l, m = calls.l, calls.m
        calls.B = calls.T = calls.NH = calls.HS = calls.stream = calls.qkv = calls.out = 0
        (dqkv,) = torch.autograd.grad(out, qkv, dout)
        assert (calls.B, calls.T, calls.NH, calls.HS) == (B, T, NH, HS)
        assert calls.stream == STREAM and calls.forwards == 1 and calls.backwards == 1
        assert calls.dqkv == dqkv.data_ptr() and calls.dout == dout.data_ptr()
        assert calls.qkv == qkv.data_ptr() and calls.out == out.data_ptr() and (calls.l, calls.m) == (l, m)
        assert len({calls.dqkv, calls.dout, calls.qkv, calls.out, l, m, calls.scratch}) == 7


def test_scratch_has_the_size_that_the_library_asks_for(_):
    sizes = []
    new_empty = torch.Tensor.new_empty

    def recorded(x, *shape, **options):
        if options.get("dtype") == torch.uint8:
            sizes.append(shape)
        return new_empty(x, *shape, **options)

    with served(), mock.patch.object(torch.Tensor, "new_empty", recorded):
        both(fa.attention, random(2, 5, 3, 3, 32), random(2, 5, 3, 32))
    assert sizes == [(2 * 3 * 5 * 4 + 1,)]


def test_what_the_library_reports_is_raised(_):
    qkv, dout = random(2, 5, 3, 3, 32).requires_grad_(), random(2, 5, 3, 32)
    with served():
        out = fa.attention(qkv)
        with failing(b"a reason"):
            said = unit.refused(
                "attention_forward (B 2, T 5, NH 3, HS 32): a reason", fa.attention, qkv, error=RuntimeError
            )
            assert "\n" not in said
            words = "attention_scratch_bytes (B 2, T 5, NH 3, HS 32): a reason"
            unit.refused(words, torch.autograd.grad, out, qkv, dout, error=RuntimeError)
        out = fa.attention(qkv)
        with failing(b"a reason"), mock.patch.object(fa._library(), "attention_scratch_bytes", lambda *shape: 8):
            words = "attention_backward (B 2, T 5, NH 3, HS 32): a reason"
            unit.refused(words, torch.autograd.grad, out, qkv, dout, error=RuntimeError)
        fa.attention(qkv)


# ----------------------------------------------------------------------------
# Values, on the CPU and on a GPU


@everywhere
def test_values_and_gradients(_):
    sizes = [(2, T, 3, HS) for HS in HEAD_SIZES for T in ((1, 33) if not ON_GPU else (1, 64, 129, 1000))]
    for shape in [*sizes, (1, 7, 1, 64)]:
        B, T, NH, HS = shape
        for dtype in (torch.bfloat16, torch.float16):
            qkv, dout = random(B, T, 3, NH, HS, dtype=dtype), random(B, T, NH, HS, dtype=dtype, seed=2)
            with served():
                found = both(fa.attention, qkv, dout)
                close(*found, qkv, dout)
                assert found[0].is_contiguous()
                same(both(of_views, qkv, dout), found)
                same(both(nanogpt, qkv, dout), found)
                same(both(lambda x: fa.attention(*(y.clone() for y in x.unbind(2))), qkv, dout), found)


def documents(B, T, longest):
    """starts (B,T) of documents of 1 to so many tokens, the same for a shape everywhere"""
    generator, starts = torch.Generator().manual_seed(3), torch.zeros(B, T, dtype=torch.int32)
    for row in starts:
        begin = 0
        while begin < T:
            end = begin + int(torch.randint(1, longest + 1, (1,), generator=generator))
            row[begin:end], begin = begin, end
    return starts.to(DEVICE)


@everywhere
def test_documents(_):
    """Values and gradients against fp64; a row of one document has the bits of a row without."""
    for HS in HEAD_SIZES:
        for T, longest in ((1, 1), (33, 5)) if not ON_GPU else ((64, 3), (129, 70), (1000, 400)):
            qkv, dout = random(2, T, 3, 3, HS), random(2, T, 3, HS, seed=2)
            starts = documents(2, T, longest)
            with served(), no_warnings():
                for function in (fa.attention, of_views):
                    found = both(lambda x, f=function, s=starts: f(x, starts=s), qkv, dout)
                    close(*found, qkv, dout, starts)
                one = both(lambda x, s=0 * starts: fa.attention(x, starts=s), qkv, dout)
                same(one, both(fa.attention, qkv, dout))
    with served():
        expected = both(lambda x: fa.attention(x, starts=starts), qkv, dout)
        function = compiled(lambda x, starts: fa.attention(x, starts=starts))
        same(both(lambda x: function(x, starts), qkv, dout), expected)
        wide = torch.stack([starts, starts], 2)[:, :, 0]  # every other number
        same(both(lambda x: fa.attention(x, starts=wide), qkv, dout), expected)


def test_starts_reach_the_library(_):
    qkv, starts = random(2, 5, 3, 2, 32).requires_grad_(), documents(2, 5, 2)
    with served() as calls:
        out = fa.attention(qkv, starts=starts)
        assert calls.starts == starts.data_ptr()
        calls.starts = 0
        out.sum().backward()
        assert calls.starts == starts.data_ptr() and calls.backwards == 1
        fa.attention(qkv)
        assert not calls.starts


def test_starts_that_do_not_fit(_):
    qkv, starts = random(2, 5, 3, 2, 32), documents(2, 5, 2)
    for wrong, words in (
        (starts[:, :4], "starts is (2, 4) torch.int32: must be (2, 5) torch.int32"),
        (starts.long(), "starts is (2, 5) torch.int64: must be (2, 5) torch.int32"),
        (starts.to("meta"), "starts is on meta, and q is on cpu"),
    ):
        for options in ({}, {"fallback": True}):
            said = unit.refused(words, lambda w=wrong, o=options: fa.attention(qkv, starts=w, **o), error=ValueError)
            assert "\n" not in said


def test_fallback_masks_documents(_):
    qkv, dout = random(2, 9, 3, 2, 80, dtype=torch.float64), random(2, 9, 2, 80, dtype=torch.float64, seed=2)
    starts = documents(2, 9, 4)
    found = both(lambda x: fa.attention(x, starts=starts, fallback=True), qkv, dout)
    assert all(error(x, y) < 1e-12 for x, y in zip(found, reference(qkv, dout, starts)))


@everywhere
def test_fp16_says_once_that_it_is_computed_in_bf16(_):
    qkv = random(1, 8, 3, 2, 32, dtype=torch.float16)
    with served(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            both(fa.attention, qkv, qkv[:, :, 0])
    assert [str(w.message) for w in caught] == ["float16 is computed in bfloat16, and rounded like it"]


@everywhere
def test_layouts_of_qkv(_):
    """Strided, misaligned, a part of a larger tensor, and gradients that are expanded: all with the same bits."""
    B, T, NH, HS = 2, 40, 2, 64
    qkv, dout = random(B, T, 3, NH, HS), random(B, T, NH, HS, seed=2)
    flat = torch.zeros(qkv.numel() + 1, dtype=qkv.dtype, device=DEVICE)
    flat[1:] = qkv.flatten()
    larger = torch.cat([qkv, qkv])
    with served():
        expected = both(fa.attention, qkv, dout)
        same(both(lambda x: fa.attention(x.transpose(3, 4)), qkv.transpose(3, 4).contiguous(), dout)[:1], expected[:1])
        for function in (fa.attention, of_views):
            same(both(lambda x, f=function: f(x[1:].view_as(qkv)), flat, dout)[:1], expected[:1])
            same(both(lambda x, f=function: f(x[B:]), larger, dout)[:1], expected[:1])
            ones = both(function, qkv, torch.ones_like(dout))
            same(both(function, qkv, torch.ones(1, dtype=qkv.dtype, device=DEVICE).expand_as(dout)), ones)


def test_views_are_recognised(_):
    """Views of one tensor are not copied. Others are, with one warning."""
    B, T, NH, HS = 2, 5, 2, 32
    qkv = random(B, T, 3, NH, HS)
    q, k, v = qkv.unbind(2)
    part = random(3, B, T, 3, NH, HS)[1]
    with served() as calls, no_warnings():
        for whole in (qkv, part, qkv[1:], qkv[:1, :2], random(1, 1, 3, 1, HS)):
            of_views(whole)
            assert calls.qkv == whole.data_ptr()
        expected = of_views(qkv)
        nanogpt(qkv)
        assert calls.qkv == qkv.data_ptr()
    wide = random(B, T, 4, NH, HS)
    others = {
        "of several tensors": (q, k.clone(), v),
        "in another order": (k, q, v),
        "of the same": (q, q, q),
        "v, k": (q, v, k),
        "of wider rows": wide[:, :, :3].unbind(2),
        "of rows a token apart": (wide.view(B, T * 4, NH, HS)[:, :T], wide[:, :, 1], wide[:, :, 2]),
        "of (3,B,T,NH,HS)": random(3, B, T, NH, HS).unbind(0),
        "of (B,T,NH,3,HS)": random(B, T, NH, 3, HS).unbind(3),
        "of every second token": random(B, 2 * T, 3, NH, HS)[:, ::2].unbind(2),
        "one of them transposed": (q, k, random(B, T, HS, NH).transpose(2, 3)),
    }
    for name, three in others.items():
        with served() as calls, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            out = [fa.attention(*three) for _ in range(2)]
            assert calls.qkv not in [x.data_ptr() for x in three], name
            assert len(caught) == 1 and "q, k and v are not views of one tensor (B,T,3,NH,HS)" in str(caught[0].message)
            same(out, [fa.attention(torch.stack(three, 2))] * 2)
    assert not torch.equal(out[0], expected)


# ----------------------------------------------------------------------------
# With the rest of PyTorch


def test_operators_pass_opcheck(_):
    """Schema, autograd and fake kernels, also with sizes that are symbols"""
    qkv = random(2, 5, 3, 2, 32)
    q, k, v = qkv.unbind(2)
    with served():
        out, l, m = torch.ops.flashgpt.attention(qkv, None, None, None)
        for x in ((qkv, None, None), (q, k, v)):
            for starts in (None, documents(2, 5, 2)):
                torch.library.opcheck(torch.ops.flashgpt.attention_backward.default, (out, *x, starts, out, l, m))
        for x in ((qkv.clone().requires_grad_(), None, None), (q.half(), k.half().requires_grad_(), v.half())):
            for starts in (None, documents(2, 5, 2)):
                torch.library.opcheck(torch.ops.flashgpt.attention.default, (*x, starts))


def test_fake_tensors(_):
    from torch._subclasses.fake_tensor import FakeTensorMode

    qkv = random(2, 5, 3, 2, 32)
    with served() as calls:
        real = [
            torch.ops.flashgpt.attention(qkv, None, None, None),
            torch.ops.flashgpt.attention(*qkv.unbind(2), None),
        ]
        real += [[torch.ops.flashgpt.attention_backward(real[0][0], qkv, None, None, None, *real[0])]]
        before = calls.forwards, calls.backwards
        with FakeTensorMode() as mode:
            fake_qkv = mode.from_tensor(qkv)
            fake = [
                torch.ops.flashgpt.attention(fake_qkv, None, None, None),
                torch.ops.flashgpt.attention(*fake_qkv.unbind(2), None),
            ]
            fake += [[torch.ops.flashgpt.attention_backward(fake[0][0], fake_qkv, None, None, None, *fake[0])]]
            assert fa.attention(fake_qkv).shape == (2, 5, 2, 32)
        assert (calls.forwards, calls.backwards) == before == (2, 1)
    for one, other in zip(real, fake):
        for x, y in zip(one, other):
            assert (x.shape, x.dtype, x.stride(), x.device) == (y.shape, y.dtype, y.stride(), y.device)


@everywhere
def test_compiles_whole_with_the_same_bits(_):
    for dtype in (torch.bfloat16, torch.float16):
        qkv, dout = random(2, 40, 3, 2, 64, dtype=dtype), random(2, 40, 2, 64, dtype=dtype, seed=2)
        with served(), warnings.catch_warnings():
            warnings.filterwarnings("error", message="q, k and v are not views")
            expected = both(fa.attention, qkv, dout)
            for function in (fa.attention, of_views, nanogpt):
                same(both(compiled(function), qkv, dout), expected)
                same(both(compiled(function, dynamic=True, backend="aot_eager"), qkv, dout), expected)


def test_compiled_code_raises_the_same(_):
    qkv = random(2, 40, 3, 2, 64)
    torch._dynamo.reset()
    unit.refused("head size 80", torch.compile(fa.attention), random(1, 4, 3, 2, 80), error=ValueError)
    unit.refused("tensors on cpu", torch.compile(fa.attention), qkv, error=ValueError)
    with served():
        function = compiled(fa.attention)
        function(qkv)
        with failing(b"a reason"):
            unit.refused("a reason", function, qkv, error=RuntimeError)


@everywhere
def test_activation_checkpointing(_):
    from torch.utils.checkpoint import checkpoint

    qkv, dout = random(2, 40, 3, 2, 64), random(2, 40, 2, 64, seed=2)
    with served() as calls:
        expected = both(fa.attention, qkv, dout)
        for reentrant in (False, True):
            x = qkv.detach().requires_grad_()
            out = checkpoint(fa.attention, x, use_reentrant=reentrant)
            out.backward(dout)
            same((out, x.grad), expected)
        assert ON_GPU or (calls.forwards, calls.backwards) == (5, 3)


@everywhere
def test_autocast(_):
    qkv = random(2, 40, 3, 2, 64, dtype=torch.float32)
    for dtype in (torch.bfloat16, torch.float16):
        dout = random(2, 40, 2, 64, dtype=dtype, seed=2)
        with served():
            expected = both(fa.attention, qkv.to(dtype), dout)
            for function in (fa.attention, of_views, compiled(fa.attention)):
                with torch.autocast(DEVICE, dtype):
                    x = qkv.detach().requires_grad_()
                    out = function(x)
                (gradient,) = torch.autograd.grad(out, x, dout)
                assert out.dtype == dtype and gradient.dtype == torch.float32
                same((out, gradient), (expected[0], expected[1].float()))
            with torch.autocast(DEVICE, dtype, enabled=False):
                unit.refused("torch.float32: must be", fa.attention, qkv, error=ValueError)
    with torch.autocast(DEVICE, torch.bfloat16):
        assert fa.attention(random(2, 4, 3, 2, 80, dtype=torch.float32), fallback=True).dtype == torch.bfloat16


@everywhere
def test_without_gradients(_):
    qkv = random(2, 40, 3, 2, 64).requires_grad_()
    with served():
        expected = fa.attention(qkv)
        for mode in (torch.no_grad(), torch.inference_mode()):
            with mode:
                out = fa.attention(qkv)
            assert not out.requires_grad and torch.equal(out, expected)
        assert expected.requires_grad
        _, l, m = torch.ops.flashgpt.attention(qkv, None, None, None)
        assert not l.requires_grad and not m.requires_grad


def test_a_second_derivative_is_refused(_):
    qkv = random(1, 4, 3, 2, 32).requires_grad_()
    with served():
        (gradient,) = torch.autograd.grad(fa.attention(qkv).sum(), qkv, create_graph=True)
        unit.refused("attention_backward", gradient.sum().backward, error=RuntimeError)


class Layer(torch.nn.Module):
    """Attention between its two projections, as in a GPT"""

    def __init__(self, NH=2, HS=64):
        super().__init__()
        self.NH, self.HS = NH, HS
        torch.manual_seed(1)
        self.c_attn, self.c_proj = torch.nn.Linear(NH * HS, 3 * NH * HS), torch.nn.Linear(NH * HS, NH * HS)

    def forward(self, x):
        B, T, C = x.shape
        qkv = self.c_attn(x).view(B, T, 3, self.NH, self.HS)
        return self.c_proj(fa.attention(qkv).view(B, T, C))


def gradients(model, x):
    """Of the mean square of its output, under autocast where its weights are fp32"""
    with torch.autocast(DEVICE, torch.bfloat16, enabled=x.dtype == torch.float32):
        loss = model(x).float().square().mean()
    loss.backward()
    found = [p.grad for p in model.parameters()]
    return [getattr(g, "full_tensor", lambda g=g: g)() for g in found]


@contextlib.contextmanager
def process_group(folder):
    """A group of this process alone"""
    from torch import distributed

    backend = "nccl" if ON_GPU else "gloo"
    distributed.init_process_group(backend, init_method=f"file://{folder}/meet", rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()


@everywhere
def test_DistributedDataParallel(folder):
    x = random(2, 40, 128, dtype=torch.float32)
    with served(), process_group(folder):
        expected = gradients(Layer().to(DEVICE), x)
        same(gradients(torch.nn.parallel.DistributedDataParallel(Layer().to(DEVICE)), x), expected)
        torch._dynamo.reset()
        backend = "inductor" if ON_GPU else "aot_eager"
        parallel = torch.nn.parallel.DistributedDataParallel(Layer().to(DEVICE))
        found = gradients(torch.compile(parallel, backend=backend), x)
        # other roundings to bf16 around attention, of 2^-9 at most each; a term that is missing is ten times as much
        assert all(error(g, e.double()) <= 3e-2 for g, e in zip(found, expected))


@everywhere
def test_FullyShardedDataParallel(folder):
    try:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    except ImportError:
        if not ON_GPU:
            raise unit.Skipped("PyTorch shards on the CPU from 2.6 on") from None
        from torch.distributed._composable.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed import init_device_mesh

    x = random(2, 40, 128)
    with served(), process_group(folder):
        expected = gradients(Layer().to(DEVICE, torch.bfloat16), x)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        model = fully_shard(Layer().to(DEVICE), mesh=init_device_mesh(DEVICE, (1,)), mp_policy=policy)
        same(gradients(model, x), [g.float() for g in expected])


# ----------------------------------------------------------------------------
# On a GPU alone


@on_gpu
def test_errors_are_those_of_sdpa(_):
    """Against fp64 at the sizes of models: at most half more than FlashAttention-2's, which is PyTorch's"""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def sdpa(x):
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return fa._sdpa(x, None, None, None)

    for shape in ((2, 1024, 12, 64), (1, 2048, 4, 128), (2, 777, 3, 96), (1, 1024, 2, 32)):
        B, T, NH, HS = shape
        qkv, dout = random(B, T, 3, NH, HS), random(B, T, NH, HS, seed=2)
        expected = reference(qkv, dout)
        with served():
            ours, theirs = both(fa.attention, qkv, dout), both(sdpa, qkv, dout)
        close(*ours, qkv, dout)
        for x, y, right in zip(ours, theirs, expected):
            assert error(x, right) <= 1.5 * error(y, right), (shape, error(x, right), error(y, right))


@on_gpu
def test_same_bits_again(_):
    """Ten times, alone and beside GEMMs on another stream"""
    other, busy = torch.cuda.Stream(), random(4096, 4096)
    for shape in ((4, 1024, 12, 64), (2, 1000, 5, 128), (2, 513, 3, 96), (2, 700, 3, 32)):
        B, T, NH, HS = shape
        qkv, dout = random(B, T, 3, NH, HS), random(B, T, NH, HS, seed=2)
        with served():
            first = both(fa.attention, qkv, dout)
            for n in range(10):
                if n >= 5:
                    with torch.cuda.stream(other):
                        torch.mm(busy, busy)
                same(both(fa.attention, qkv, dout), first)


@on_gpu
def test_kernels_run_on_the_current_stream(_):
    """Inputs are written late on a stream that waits for no other; the gradient's kernels run there, too."""
    qkv, dout = random(2, 512, 3, 4, 64), random(2, 512, 4, 64, seed=2)
    stream = torch.cuda.Stream()
    with served():
        expected = both(fa.attention, qkv, dout)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            for cycles in (0, 200_000_000):  # first to load and allocate what is needed; then a tenth of a second
                x, g = torch.zeros_like(qkv), torch.zeros_like(dout)
                torch.cuda._sleep(cycles)
                x.copy_(qkv)
                g.copy_(dout)
                found = both(fa.attention, x, g)
            assert not stream.query()  # nothing has waited for it
        stream.synchronize()
        same(found, expected)


@on_gpu
def test_cuda_graphs(_):
    """Captured by hand and by torch.compile, and replayed on other inputs"""
    shape, inputs = (2, 512, 3, 4, 64), []
    for seed in range(3):
        inputs.append((random(*shape, seed=seed), random(2, 512, 4, 64, seed=10 + seed)))
    with served():
        expected = [both(fa.attention, *pair) for pair in inputs]
        for function in (fa.attention, of_views):
            x, g = (torch.zeros_like(t) for t in inputs[0])
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                both(function, x, g)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                found = both(function, x, g)
            for pair, right in zip(inputs, expected):
                x.copy_(pair[0])
                g.copy_(pair[1])
                graph.replay()
                same(found, right)
            replayed = compiled(function, mode="reduce-overhead")
            for pair, right in [*zip(inputs, expected)] * 2:
                same([t.clone() for t in both(replayed, *pair)], right)
    torch._dynamo.reset()


@on_gpu
def test_memory_is_the_allocator_s(_):
    """Forward keeps out, l and m, and copies nothing; nothing waits for the GPU."""
    B, T, NH, HS = 4, 1024, 4, 64
    qkv, dout = random(B, T, 3, NH, HS).requires_grad_(), random(B, T, NH, HS, seed=2)
    with served(), no_warnings():
        for function in (fa.attention, of_views):
            both(function, qkv, dout)
            torch.cuda.synchronize()
            allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
            torch.cuda.set_sync_debug_mode("error")
            try:
                out = function(qkv)
                kept = torch.cuda.memory_allocated() - allocated
                torch.autograd.grad(out, qkv, dout)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            assert kept == 2 * out.numel() + 2 * 4 * B * NH * T, kept
            assert torch.cuda.memory_reserved() == reserved
            del out


@on_gpu
def test_another_device_than_the_current(_):
    if torch.cuda.device_count() < 2:
        raise unit.Skipped("one GPU")
    qkv, dout = random(2, 512, 3, 4, 64), random(2, 512, 4, 64, seed=2)
    with served():
        expected = both(fa.attention, qkv, dout)
        found = both(fa.attention, qkv.to("cuda:1"), dout.to("cuda:1"))
        assert torch.cuda.current_device() == 0
        same([t.to("cuda:0") for t in found], expected)


@on_gpu
def test_what_the_library_refuses_leaves_the_GPU_usable(_):
    """The operator is asked, which does not look at head sizes as attention() does."""
    qkv, dout = random(1, 64, 3, 2, 64), random(1, 64, 2, 64, seed=2)
    with served():
        for _ in range(2):
            words = "attention_forward (B 1, T 4, NH 2, HS 48): B 1, T 4, NH 2, HS 48: the head size must be 32, 64"
            arguments = random(1, 4, 3, 2, 48), None, None, None
            unit.refused(words, torch.ops.flashgpt.attention, *arguments, error=RuntimeError)
            close(*both(fa.attention, qkv, dout), qkv, dout)


# ----------------------------------------------------------------------------
# dev/bench/torch_attention.py


def refused_by_the_bench(words, function, *arguments):
    said = unit.refused(words, function, *arguments)
    assert said.startswith("error: ") and "\n" not in said


def test_the_bench_refuses_wrong_values(_):
    def uncausal(qkv):
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)

    def constant_keys(qkv):
        q, k, v = qkv.unbind(2)
        return bench.sdpa(torch.stack((q, k.detach(), v), 2))

    qkv = random(1, 40, 3, 2, 32)
    with served():
        bench.check_values({"ours": fa.attention, "sdpa": bench.sdpa}, qkv)
        refused_by_the_bench(
            "other: out is off ours's by", bench.check_values, {"ours": fa.attention, "other": uncausal}, qkv
        )
        refused_by_the_bench(
            "other: dk is off ours's by", bench.check_values, {"ours": fa.attention, "other": constant_keys}, qkv
        )


def math_attention(qkv):
    with bench.sdpa_kernel(bench.SDPBackend.MATH):
        return bench.sdpa(qkv)


def test_the_bench_refuses_other_operators_than_it_names(_):
    """And trains, compiled, with the same gradients"""
    batch = torch.randint(64, (2, 2, 32), generator=torch.Generator().manual_seed(1))
    torch._dynamo.reset()
    entrants = {
        name: bench.Entrant((1, 2, 64), batch, function, "aot_eager", vocab_size=64)
        for name, function in (("ours", fa.attention), ("sdpa", bench.flash2))
    }
    operators = {"ours": "flashgpt::attention", "sdpa": "aten::_scaled_dot_product_flash_attention_for_cpu"}
    with served():
        bench.check_models(entrants, operators)
        words = "ours calls flashgpt::attention instead of aten::none"
        refused_by_the_bench(
            words, bench.check_models, entrants, {**operators, "ours": "aten::none", "x": operators["ours"]}
        )
        words = "sdpa calls none of the operators instead of cuDNN"
        refused_by_the_bench(words, bench.check_models, entrants, {**operators, "sdpa": "cuDNN"})
        times = bench.time_steps(entrants, 2, types.SimpleNamespace(sample=lambda names, n: names), warm_up=1, steps=3)
        if (
            torch.__version__ >= "2.7"
        ):  # older ones compile no choice of a backend into a model, which the bench then says
            # another backend in the same process, which must not get the compiled model of the first
            math = bench.Entrant((1, 2, 64), batch, math_attention, "aot_eager", vocab_size=64)
            refused_by_the_bench(
                "math calls none of the operators", bench.check_models, {"math": math}, {**operators, "math": ""}
            )
    assert [len(found) for found in times.values()] == [6, 6] and min(times["ours"]) > 0
    with torch.no_grad():
        entrants["sdpa"].model.blocks[0].c_proj.weight.mul_(2)
    with served():
        refused_by_the_bench(
            "the gradient of a layer's values is off ours's by", bench.check_models, entrants, operators
        )


def test_the_bench_s_rows(_):
    times = {"ours": [3.0, 2.0, 40.0], "cuDNN": [6.0, 6.0, 5.0], "FlashAttention-2": [4.0, 4.5, 5.0]}
    rows = list(bench.rows_of(times, "d12", 2, 1000))
    assert [row["attention"] for row in rows] == list(times)
    assert [(row["ms"], row["fastest_ms"], row["tokens_per_s"], row["sdpa_over_this"]) for row in rows] == [
        ("3.000", "2.000", 666667, "1.5000"),
        ("6.000", "5.000", 333333, "0.7500"),
        ("4.500", "4.000", 444444, "1.0000"),
    ]
    assert all({"model", "B", "T"} < set(row) <= set(bench.COLUMNS) for row in rows)


# ----------------------------------------------------------------------------
# The wheel


NVCC = """#!/bin/sh
echo "$*" >>"$CALLS"
while [ $# -gt 0 ]; do
    [ "$1" = -o ] && output=$2
    shift
done
[ -z "$output" ] || echo library >"$output"
"""


def checkout(folder):
    for source in ("python", "llmc", "dev/cuda"):
        shutil.copytree(os.path.join(ROOT, source), os.path.join(folder, source))
    os.makedirs(os.path.join(folder, "dev", "test"))
    for source in ("Makefile", "dev/test/checks.mk"):
        shutil.copy(os.path.join(ROOT, source), os.path.join(folder, source))


def pip_wheel(folder, **variables):
    """pip's exit code and output"""
    for package, version in (("pip", "21.3"), ("setuptools", "70.1")):
        try:
            found = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found = "0"
        if [int(n) for n in found.split(".")[:2]] < [int(n) for n in version.split(".")]:
            raise unit.Skipped(f"no {package} {version} or newer for {sys.executable}")
    command = [sys.executable, "-m", "pip", "wheel", "./python", "--no-build-isolation", "--no-deps", "--no-index"]
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    environment.update(variables, CALLS=os.path.join(folder, "calls"), GPU_ARCH="90")  # which a wheel does not ask for
    command += ["-w", os.path.join(folder, "wheels"), "--disable-pip-version-check"]
    done = subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_pip_builds_one_wheel_for_sm_80_and_sm_90a(folder):
    checkout(folder)
    code, said = pip_wheel(folder, NVCC="env " + unit.program(folder, "nvcc", NVCC))
    assert code == 0, said
    (wheel,) = os.listdir(os.path.join(folder, "wheels"))
    version = re.search(r'FLASHGPT_VERSION "(.*)"', unit.read(os.path.join(ROOT, "llmc/base/cli.h")))[1]
    assert re.fullmatch(rf"flashgpt_attention-{version}-py3-none-linux_\w+\.whl", wheel), wheel
    with zipfile.ZipFile(os.path.join(folder, "wheels", wheel)) as z:
        files = {name for name in z.namelist() if ".dist-info/" not in name}
        assert files == {"flashgpt_attention.py", "libattention.so"} and z.read("libattention.so") == b"library\n"
    compiled_kernels = [
        call for call in unit.read(os.path.join(folder, "calls")).splitlines() if "attention.cu" in call
    ]
    assert len(compiled_kernels) >= 1
    for call in compiled_kernels:
        for code in ("sm_80", "sm_90a", "compute_80"):
            assert f"code={code}" in call, call
        assert "-Werror" not in call, call
    assert not os.path.exists(os.path.join(folder, "libattention.so")) and not os.path.exists(
        os.path.join(folder, "build")
    )


def test_pip_without_what_the_library_is_built_with_ends_in_one_line(folder):
    checkout(folder)
    errors = re.compile(r"^ *(error: .*)$", re.MULTILINE)
    code, said = pip_wheel(folder, NVCC="/nowhere/nvcc")
    words = "error: no /nowhere/nvcc found: install the CUDA Toolkit, 12.6 or newer, or name its compiler with NVCC="
    assert code == 1 and words in errors.findall(said), said
    code, said = pip_wheel(folder, NVCC=unit.program(folder, "nvcc", "#!/bin/sh\nexit 1\n"))
    assert code == 1 and any(line.startswith("error: make -s") for line in errors.findall(said)), said
    for source in ("llmc", "Makefile", "dev"):
        path = os.path.join(folder, source)
        (shutil.rmtree if os.path.isdir(path) else os.remove)(path)
    code, said = pip_wheel(folder, NVCC="/nowhere/nvcc")
    words = f"error: {os.path.realpath(folder)} is not a checkout of flashgpt, from which libattention.so is built"
    assert code == 1 and words in errors.findall(said), said


def main():
    global STAND_IN
    if ON_GPU and (not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0)):
        print("skipped: PyTorch finds no GPU of compute capability 8.0 or newer")
        return 0
    chosen = {name: x for name, x in globals().items() if name.startswith("test_")}
    chosen = {name: test for name, test in chosen.items() if ON_GPU in getattr(test, "where", (False,))}
    with tempfile.TemporaryDirectory() as folder:
        STAND_IN = None if ON_GPU else build_stand_in(folder)
        return unit.run(chosen)


# ----------------------------------------------------------------------------
# dev/bench/torch_documents.py


def of_each_document(q, k, v, offsets, _, longest, __):
    """Of tokens (n,NH,HS), by SDPA, as FlashAttention's varlen has it"""
    pieces = [x.split(offsets.diff().tolist()) for x in (q, k, v)]
    assert longest == max(piece.shape[0] for piece in pieces[0])
    of_one = torch.nn.functional.scaled_dot_product_attention
    out = [of_one(*(x.transpose(0, 1) for x in piece), is_causal=True).transpose(0, 1) for piece in zip(*pieces)]
    return torch.cat(out), None


def torch_documents():
    try:
        return importlib.import_module("torch_documents")
    except SystemExit:
        raise unit.Skipped("FlexAttention is in PyTorch from 2.5 on") from None


def test_providers_of_documents_agree(_):
    documents_bench = torch_documents()
    for lengths in ("7", "64", "log-normal"):
        starts = documents_bench.document_starts(2, 40, lengths)
        qkv, dout = random(2, 40, 3, 2, 32), random(2, 40, 2, 32, seed=2)
        with served():
            providers = {"ours": documents_bench.ours, "flex": documents_bench.flex}
            providers["varlen"] = documents_bench.varlen(of_each_document)
            passes = {}
            for name, provider in providers.items():
                try:
                    passes[name] = provider(qkv, dout, starts)
                except NotImplementedError:  # a newer PyTorch's on a CPU
                    assert name == "flex"
            documents_bench.check_values(passes)
            others = documents_bench.ours(qkv, dout, 0 * starts)
            for which, words in ((0, "other: out is off ours's by"), (1, "other: dq is off ours's by")):
                wrong = tuple(others[n] if n == which else passes["ours"][n] for n in range(2))
                if lengths == "7":
                    refused_by_the_bench(words, documents_bench.check_values, {"ours": passes["ours"], "other": wrong})


def test_documents_are_counted(_):
    documents_bench = torch_documents()
    starts = documents_bench.document_starts(3, 100, "30")
    assert starts.unique(dim=0).tolist() == [[t // 30 * 30 for t in range(100)]]
    assert documents_bench.visible_scores(starts) == 3 * (3 * 30 * 31 // 2 + 10 * 11 // 2)
    offsets, longest = documents_bench.offsets_of(starts)
    assert offsets.tolist() == [row * 100 + begin for row in range(3) for begin in (0, 30, 60, 90)] + [300]
    assert longest == 30
    ends = documents_bench.document_starts(16, 16384, "log-normal")
    found = documents_bench.offsets_of(ends)[0].diff().float()
    assert 370 < found.median() < 440 and 620 < found.mean() < 760, (found.median(), found.mean())
    rows = list(documents_bench.rows_of({"ours": 2.0, "a": 3.0, "b": 5.0}, "backward", 10**9, 1024, "64"))
    assert [row["best_peer_over_this"] for row in rows] == ["1.500", "1.000", "0.600"]
    assert rows[0]["tflops"] == f"{10 * 12 * 64 * 1e9 / 2e-3 / 1e12:.1f}"
    assert all(set(row) < set(documents_bench.COLUMNS) for row in rows)


if __name__ == "__main__":
    sys.exit(main())
