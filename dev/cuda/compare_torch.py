"""
libattention.so beside PyTorch's cuDNN and FlashAttention-2 backends: the same inputs in the same process, rounds of
CUDA-graph replays interleaved, errors against fp64. bf16, causal, packed (B,T,3,NH,HS) input.

    make libattention.so && python3 dev/cuda/compare_torch.py            the shapes of the README's table
    python3 dev/cuda/compare_torch.py 8,1024,12,64 4,4096,16,128        these shapes: B,T,NH,HS

TFLOP/s count the causal half: 2 B NH T^2 HS forward, 2.5 times that backward. Times are medians over the rounds; inputs
rotate through more memory than the L2 cache. About 35 seconds and 20 GB of GPU memory for all shapes on an H200.
"""

import argparse
import ctypes
import statistics
from pathlib import Path

try:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as error:
    raise SystemExit(f"error: no Python package {error.name} here: pip install torch") from None

SHAPES = [
    (8, 1024, 12, 64),
    (32, 1024, 12, 64),
    (64, 1024, 12, 64),
    (6, 4096, 12, 64),
    (1, 8192, 12, 64),
    (4, 4096, 48, 64),
    (4, 16384, 48, 64),
    (16, 1024, 16, 128),
    (4, 4096, 16, 128),
    (64, 512, 12, 64),  # from here on the shapes of the leaderboard's plots
    (16, 2048, 12, 64),
    (8, 4096, 12, 64),
    (4, 8192, 12, 64),
    (2, 16384, 12, 64),
]
# What errors are printed of: a tensor, and the first of its rows. A head's first rows have the fewest keys.
ERRORS = {"out": ("out", 0), "out[64:]": ("out", 64), "dq": ("dq", 0), "dk": ("dk", 0), "dv": ("dv", 0)}
PEERS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "FA2": SDPBackend.FLASH_ATTENTION}


class Library:
    """The C interface of dev/cuda/libattention.h."""

    def __init__(self, path):
        self.lib = ctypes.CDLL(str(path))
        pointer, integer = ctypes.c_void_p, ctypes.c_int
        self.lib.attention_scratch_bytes.restype = ctypes.c_size_t
        self.lib.attention_scratch_bytes.argtypes = [integer] * 4
        self.lib.attention_error.restype = ctypes.c_char_p
        self.lib.attention_forward.argtypes = [pointer] * 4 + [integer] * 4 + [pointer]
        self.lib.attention_backward.argtypes = [pointer] * 7 + [integer] * 4 + [pointer]

    def call(self, function, tensors, shape):
        pointers = [t.data_ptr() for t in tensors]
        if getattr(self.lib, function)(*pointers, *shape, torch.cuda.current_stream().cuda_stream) != 0:
            raise SystemExit(f"error: {function} at B,T,NH,HS {shape}: {self.lib.attention_error().decode()}")


class Ours:
    def __init__(self, library, shape, qkv, dout):
        B, T, NH, _ = shape
        self.library, self.shape, self.qkv, self.dout = library, shape, qkv, dout
        self.out, self.dqkv = torch.empty_like(dout), torch.empty_like(qkv)
        self.l, self.m = (torch.empty(B, NH, T, device="cuda") for _ in range(2))
        bytes_needed = library.lib.attention_scratch_bytes(*shape)
        if bytes_needed == 0:
            raise SystemExit(f"error: B,T,NH,HS {shape}: {library.lib.attention_error().decode()}")
        self.scratch = torch.empty(bytes_needed, dtype=torch.uint8, device="cuda")

    def forward(self):
        self.library.call("attention_forward", [self.out, self.l, self.m, self.qkv], self.shape)

    def backward(self):
        tensors = [self.dqkv, self.dout, self.qkv, self.out, self.l, self.m, self.scratch]
        self.library.call("attention_backward", tensors, self.shape)

    def results(self):
        return {"out": self.out, **dict(zip(("dq", "dk", "dv"), self.dqkv.unbind(2)))}


class Torch:
    """q, k and v are views of the packed tensor, as a model has them."""

    def __init__(self, backend, qkv, dout):
        self.backend = backend
        self.qkv = [x.transpose(1, 2).detach().requires_grad_() for x in qkv.unbind(2)]
        self.dout = dout.transpose(1, 2)

    def forward(self):
        with sdpa_kernel(self.backend):
            self.out = torch.nn.functional.scaled_dot_product_attention(*self.qkv, is_causal=True)

    def backward(self):
        self.gradients = torch.autograd.grad(self.out, self.qkv, self.dout, retain_graph=True)

    def results(self):
        tensors = (self.out.detach(), *self.gradients)
        return {name: x.transpose(1, 2) for name, x in zip(("out", "dq", "dk", "dv"), tensors)}


def reference(qkv, dout, b, h):
    """Attention of one head and its gradients in fp64: the tensors of results(), each (T,HS)."""
    q, k, v = (x[b, :, h].double() for x in qkv.unbind(2))
    T, HS = q.shape
    g = dout[b, :, h].double()
    scores = (q @ k.T) * HS**-0.5
    scores.masked_fill_(torch.ones(T, T, dtype=torch.bool, device="cuda").triu_(1), float("-inf"))
    P = scores.softmax(-1)
    out = P @ v
    dS = P * (g @ v.T - (g * out).sum(-1, keepdim=True)) * HS**-0.5
    return {"out": out, "dq": dS @ k, "dk": dS.T @ q, "dv": P.T @ g}


def errors(providers, qkv, dout):
    """||x - ref|| / ||ref|| of each provider's tensors over up to 96 heads, from the first to the last: with a few of
    them, chance is larger than what sets the providers apart."""
    B, _, NH, _ = dout.shape
    results = {name: provider.results() for name, provider in providers.items()}
    squares = {name: dict.fromkeys(ERRORS, 0.0) for name in providers}
    size = dict.fromkeys(ERRORS, 1e-300)  # more than nothing, where there are no such rows
    for head in sorted({n * (B * NH - 1) // 95 for n in range(96)}):
        b, h = divmod(head, NH)
        wanted = reference(qkv, dout, b, h)
        for label, (tensor, row) in ERRORS.items():
            want = wanted[tensor][row:]
            size[label] += want.square().sum().item()
            for name, tensors in results.items():
                squares[name][label] += (tensors[tensor][b, row:, h].double() - want).square().sum().item()
    return {name: {t: (x / size[t]) ** 0.5 for t, x in found.items()} for name, found in squares.items()}


def captured(calls, stream):
    """A graph that makes the calls in turn, once warmed up."""
    for call in calls:
        call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    graph.replay()
    return graph


def race(graphs, launches, rounds):
    """Median milliseconds of a launch for each graph; every round replays all of them."""
    times = {name: [] for name in graphs}
    for _ in range(rounds):
        for name, graph in graphs.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times[name].append(begin.elapsed_time(end) / launches)
    return {name: statistics.median(t) for name, t in times.items()}


def compare(library, shape, rounds):
    B, T, NH, HS = shape
    tflop = 2e-12 * B * NH * T * T * HS
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    sets = 1 + 2 * cache // (8 * B * T * NH * HS)  # qkv and out: 8 bytes for each number of out
    # graphs of 2 ms or more at 300 TFLOP/s, but of no more than 200 launches
    repeats = max(1, min(round(2 / (sets * tflop / 300 * 1e3)), 200 // sets))
    torch.manual_seed(42)
    inputs = [
        [torch.randn(B, T, *size, device="cuda").bfloat16() for size in ((3, NH, HS), (NH, HS))] for _ in range(sets)
    ]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        entrants = {"ours": [Ours(library, shape, *x) for x in inputs]}
        for name, backend in PEERS.items():
            entrants[name] = [Torch(backend, *x) for x in inputs]
        results = {}
        for direction in ("forward", "backward"):
            graphs = {
                name: captured([getattr(e, direction) for e in entrant] * repeats, stream)
                for name, entrant in entrants.items()
            }
            results[direction] = race(graphs, sets * repeats, rounds)
            del graphs  # and their memory; what backward needs is computed again outside of them
            if direction == "forward":
                for entrant in entrants.values():
                    for e in entrant:
                        e.forward()
        for entrant in entrants.values():
            entrant[0].backward()
        found = errors({name: entrant[0] for name, entrant in entrants.items()}, *inputs[0])
    for direction, work in (("forward", tflop), ("backward", 2.5 * tflop)):
        ms = results[direction]
        peer = min(ms[name] for name in PEERS)
        cells = "  ".join(f"{name} {t:8.4f} ms {work / t * 1e3:6.1f}" for name, t in ms.items())
        print(f"{B},{T},{NH},{HS}".ljust(16), direction.ljust(9), cells, f" best peer / ours {peer / ms['ours']:.3f}")
    for name, error in found.items():
        print(" " * 16, "error", name.ljust(6), "  ".join(f"{tensor} {x:.2e}" for tensor, x in error.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", help="B,T,NH,HS")
    parser.add_argument("--library", type=Path, default=Path(__file__).parents[2] / "libattention.so")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    shapes = [tuple(int(n) if n.isdigit() else 0 for n in text.split(",")) for text in args.shapes] or SHAPES
    for text, shape in zip(args.shapes, shapes):
        if len(shape) != 4 or min(shape) < 1:
            raise SystemExit(f"error: {text}: a shape is B,T,NH,HS, such as 8,1024,12,64")
    if not args.library.exists():
        raise SystemExit(f"error: {args.library} is missing: make libattention.so builds it")
    if not torch.cuda.is_available():
        raise SystemExit("error: compare_torch.py needs an NVIDIA GPU, and PyTorch sees none")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, bf16")
    print("ms and TFLOP/s; relative errors against fp64")
    library = Library(args.library)
    for shape in shapes:
        compare(library, shape, args.rounds)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
