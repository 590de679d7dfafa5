#!/usr/bin/env python3
"""Tests of dev/scaling/model.py: its buckets are the trainer's, known limits, planted numbers that fits find.

python3 dev/test/scripts/test_scaling_model.py
"""

import os
import shutil
import subprocess
import sys
from dataclasses import replace

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir, "scaling"))

import model as scaling
import unit
from model import MODELS, Machine, Setup

BUCKETS = r"""
#include "llmc/model/parameter_layout.h"
int main(int argc, char** argv) {
    GPT2Config c = {0};
    (void)argc;
    c.max_seq_len = atoi(argv[1]), c.vocab_size = 50257, c.padded_vocab_size = 50304;
    c.num_layers = atoi(argv[2]), c.channels = atoi(argv[3]), c.num_heads = atoi(argv[4]);
    ParameterLayout l;
    if (layout_create(&l, c, 8, 0) != STATUS_OK) { return 1; }
    for (int i = 0; i < l.num_buckets; i++) {
        if (l.buckets[i].layer <= 0) { printf("%d %zu\n", l.buckets[i].layer, l.buckets[i].count); }
    }
    layout_free(&l);
    return 0;
}
"""


def test_buckets_are_those_of_parameter_layout(folder):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        raise unit.Skipped("no C compiler here")
    source, program = os.path.join(folder, "buckets.c"), os.path.join(folder, "buckets")
    unit.write(source, BUCKETS)
    flags = ["-std=c11", "-D_GNU_SOURCE", "-O1", f"-I{scaling.ROOT}"]
    subprocess.run([compiler, *flags, source, "-o", program, "-lm", "-lpthread"], check=True)
    for model in MODELS.values():
        sizes = map(str, (1024, model.layers, model.channels, model.heads))
        said = subprocess.run([program, *sizes], check=True, capture_output=True, text=True).stdout.split()
        found = {-1: [], -2: [], 0: []}
        for layer, count in zip(said[::2], said[1::2]):
            found[int(layer)].append(int(count))
        assert tuple(found.values()) == scaling.buckets(model, 1024), (model, found)


def test_parameters_are_gpt2s(_):
    for name, count in (("d12", 124475904), ("d48", 1557686400)):  # with the vocabulary padded to 50304
        assert MODELS[name].parameters() == count, MODELS[name].parameters()


def test_one_process_has_nobody_to_wait_for(_):
    for model in MODELS.values():
        for K in (1, 3):
            s, m = Setup(model, 1, 4, K=K), Machine()
            assert abs(scaling.efficiency(s, m) - 1) < 1e-3, (model, K, scaling.efficiency(s, m))


def test_without_costs_only_adamw_remains_to_gain(_):
    free = replace(Machine(), nvlink_gbps=1e9, network_gbps=1e9, nvlink_us=0, network_us=0, message_us=0)
    free = replace(free, agreement_us=0, spread=0, interference=0, step_ms=0)
    for n in (2, 8, 64, 4096):
        s = Setup(MODELS["d48"], n, 8)
        gained = scaling.adamw(s.model.parameters(), free) * (1 - 1 / n)
        t = scaling.one_gpu(s.model, s.B, s.T, free) - gained
        assert abs(scaling.step(s, free)["seconds"] / t - 1) < 0.005, n  # adding up received gradients costs a little


def test_what_costs_more_makes_a_step_longer(_):
    m = Machine()
    for n in (2, 8, 64):
        s = Setup(MODELS["d48"], n, 8)
        t = scaling.step(s, m)["seconds"]
        for worse in ({"interference": 0.4}, {"nvlink_gbps": 100}, {"agreement_us": 800}, {"spread": 0.02}):
            if n <= m.gpus_per_node or "nvlink_gbps" not in worse:  # beyond a node the network binds
                assert scaling.step(s, replace(m, **worse))["seconds"] > t, (n, worse)
        assert scaling.step(replace(s, zero=0), m)["seconds"] > t, n
        assert n > 8 or scaling.step(replace(s, K=2), m)["seconds"] > 1.9 * t, n  # beyond, the exchange is much of it
    flat = Setup(MODELS["12B"], 64, 8)
    near = replace(flat, hierarchical=True)
    assert scaling.step(near, m)["seconds"] < scaling.step(flat, m)["seconds"]
    assert scaling.step(replace(flat, gradient_bytes=2), m)["seconds"] < scaling.step(flat, m)["seconds"]


def test_an_exchange_is_bytes_over_bandwidth(_):
    m = replace(Machine(), nvlink_us=0, network_us=0, message_us=0, nvlink_gbps=200, network_gbps=50)
    eight, many = Setup(MODELS["d12"], 8, 1), Setup(MODELS["d12"], 64, 1)
    elements = 1 << 25
    assert abs(scaling.exchange(elements, 4, eight, m) - 4 * elements * 7 / 8 / 200e9) < 1e-9
    assert abs(scaling.exchange(elements, 4, many, m) - 4 * elements * 56 / 64 / 50e9) < 1e-9
    near = 4 * elements * 7 / 8 / 200e9 + 4 * elements / 8 * 7 / 8 / 50e9
    assert abs(scaling.exchange(elements, 4, replace(many, hierarchical=True), m) - near) < 1e-9
    assert scaling.exchange(elements, 4, Setup(MODELS["d12"], 1, 1), m) == 0


def test_a_fit_finds_planted_numbers(_):
    planted = replace(Machine(), interference=0.35, step_ms=2.0)
    rows = []
    for name, B in (("d12", 64), ("d48", 8)):
        for gpus in (2, 4):
            for zero in (0, 1):
                s = Setup(MODELS[name], gpus, B, zero=zero)
                one = 1e3 * scaling.one_gpu(s.model, B, s.T, planted)
                rows.append(scaling.Measured(s, 1e3 * scaling.step(s, planted)["seconds"], "", one))
    found = scaling.fit_several(rows, Machine())
    for x in rows:
        assert abs(scaling.predicted(x, found) / x.ms - 1) < 1e-3, (x.name, found)
    ones = [replace(x, setup=replace(x.setup, gpus=1, B=B)) for x in rows[:1] for B in (1, 4, 64)]
    truth = replace(Machine(), tflops=700, layer_us=50)
    ones = [replace(x, ms=1e3 * scaling.one_gpu(x.setup.model, x.setup.B, x.setup.T, truth)) for x in ones]
    found = scaling.fit_one(ones, Machine())
    assert abs(found.tflops / 700 - 1) < 0.02 and abs(found.layer_us / 50 - 1) < 0.1, found


def test_measured_rows_are_read(_):
    call = {
        "program": "flashgpt",
        "model": "d12",
        "max_gpus": "2",
        "B": "64",
        "T": "1024",
        "sum_order": "",
        "zero": "",
        "exchange": "",
    }
    rows = [{**call, "gpus": "1", "ms": ms} for ms in ("100", "102")]
    rows += [{**call, "gpus": "2", "ms": "103", "zero": zero, "sum_order": "tree"} for zero in "10"]
    rows += [{**call, "gpus": "2", "ms": "99", "zero": "1", "sum_order": "any"}]
    found = [(x.setup.gpus, x.setup.zero, x.ms, x.one_ms) for x in scaling.several_steps(rows)]
    assert found == [(2, 1, 103, 101), (2, 0, 103, 101)], found


def test_memory_is_what_a_run_takes(_):
    m = Machine()
    for row in scaling.read_csv("speed.csv"):
        if row["program"] == "flashgpt" and row["attention_forward"] == "wgmma" and row["mib"]:
            s = Setup(MODELS[row["model"]], 1, int(row["B"]), int(row["T"]))
            parts = scaling.memory(s, m)
            got = (parts["total"] - m.spare_gib) * 1024
            if row["recompute"] == "0":  # every layer's GELU is kept, not one
                got += s.B * s.T * (s.model.layers - 1) * 4 * s.model.channels * 2 / 2**20
            assert 0 <= float(row["mib"]) - got < m.spare_gib * 1024 / 4, (row["B"], row["T"], row["mib"], got)


def test_state_is_sharded_and_buffers_are_few(_):
    s, m = Setup(MODELS["d48"], 8, 1), Machine()
    whole, part = (scaling.memory(replace(s, zero=zero), m)["state"] for zero in (0, 1))
    assert abs(whole / part - 8) < 1e-9
    expected = {1: 1, 2: 1, 3: 1, 4: 2, 6: 2, 8: 3, 12: 3, 64: 6}
    assert {K: scaling.gradient_buffers(K) for K in expected} == expected


def test_readme_has_what_the_model_says(_):
    shown = unit.read(scaling.README).partition(scaling.MARKERS[0])[2].partition(scaling.MARKERS[1])[0]
    said = subprocess.run([sys.executable, scaling.__file__], check=True, capture_output=True, text=True).stdout
    assert said == shown, "python3 dev/scaling/model.py --write"


if __name__ == "__main__":
    sys.exit(unit.run(globals()))
