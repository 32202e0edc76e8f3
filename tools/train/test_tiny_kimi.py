"""Unit tests of tiny-kimi's model, number format, tokenizer and chat format.

    python -m unittest test_tiny_kimi

KIMI_GOLDEN=FOLDER adds a comparison with a reference checkpoint (target/,
golden.safetensors), KIMI_CHAT_CASES=FILE one with rendered conversations.
"""

import json
import os
import random
import tempfile
import unittest
from pathlib import Path

import torch
from safetensors.torch import load_file

import kimi_documents as documents
import kimi_export
import kimi_tokenizer
import mxfp4
from kda import CHUNK, chunked, recurrent
from kimi_config import make_config
from kimi_model import TinyKimi
from kimi_oracle import difference, greedy

LARGEST_FILE = 16_000_000


def small_model() -> TinyKimi:
    """tiny-kimi with random weights."""
    torch.manual_seed(3)
    ids = {name: 1024 + at for at, name in kimi_tokenizer.CONTROL.items()}
    return TinyKimi(make_config(1280, ids)["text_config"]).eval()


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest difference relative to the largest number of b."""
    return ((a - b).abs().max() / b.abs().max()).item()


class Recurrence(unittest.TestCase):
    def test_chunks_equal_single_tokens(self):
        torch.manual_seed(1)
        for strength in (0.01, 1.0, 5.0):
            q, k, v = torch.randn(3, 2, 4, 3 * CHUNK, 16)
            q, k = q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True)
            beta, decay = torch.rand(2, 4, 3 * CHUNK, 1), -strength * torch.rand(2, 4, 3 * CHUNK, 16)
            state, outs = torch.zeros(2, 4, 16, 16), []
            for t in range(3 * CHUNK):
                out, state = recurrent(*(x[:, :, t] for x in (q, k, v, beta, decay)), state)
                outs.append(out)
            self.assertLess(relative(chunked(q, k, v, beta, decay), torch.stack(outs, 2)), 1e-5)

    def test_strongest_decay_has_finite_gradients(self):
        q, k, v = (torch.randn(1, 1, CHUNK, 16, requires_grad=True) for _ in range(3))
        decay = torch.full((1, 1, CHUNK, 16), -5.0, requires_grad=True)
        beta = torch.ones(1, 1, CHUNK, 1, requires_grad=True)
        chunked(q, k, v, beta, decay).square().sum().backward()
        for x in (q, k, v, beta, decay):
            self.assertTrue(x.grad.isfinite().all())


class Numbers(unittest.TestCase):
    def test_packed_numbers_come_back(self):
        torch.manual_seed(2)
        w = torch.randn(64, 128) * torch.logspace(-6, 6, 64).unsqueeze(1)
        packed, scale = mxfp4.pack(w)
        self.assertEqual((packed.dtype, packed.shape, scale.dtype, scale.shape),
                         (torch.uint8, (64, 64), torch.uint8, (64, 4)))
        self.assertTrue(torch.equal(mxfp4.unpack(packed, scale), mxfp4.rounded(w)))
        again = mxfp4.pack(mxfp4.rounded(w))
        self.assertTrue(torch.equal(mxfp4.unpack(*again), mxfp4.rounded(w)))
        self.assertLess((mxfp4.rounded(w) - w).norm(dim=1).div(w.norm(dim=1)).max(), 0.15)

    def test_scale_is_never_reserved(self):
        for size in (0.0, 1e-38, 1e38):
            scale = mxfp4.pack(torch.full((1, 32), size))[1]
            self.assertTrue(0 < scale.item() < 255)

    def test_first_of_two_is_in_the_low_half(self):
        packed, scale = mxfp4.pack(torch.tensor([[1.0, -6.0] + [0.0] * 30]))
        self.assertEqual((packed[0, 0].item(), scale.item()), (2 + 16 * 15, 127))
        self.assertEqual(packed[0, 1:].sum().item(), 0)

    def test_gradient_passes_straight_through(self):
        w = torch.randn(4, 32, requires_grad=True)
        mxfp4.pretend(w).sum().backward()
        self.assertTrue(torch.equal(w.grad, torch.ones(4, 32)))


class Model(unittest.TestCase):
    def test_one_pass_equals_single_tokens(self):
        model = small_model()
        self.assertLess(difference(model, list(range(50))), 1e-4)

    def test_greedy_does_not_depend_on_the_other_rows(self):
        model = small_model()
        first, second = [5, 9, 2, 7, 1], [3, 4]
        both = greedy(model, [first, second], stop=1279, limit=6)
        self.assertEqual(both, greedy(model, [first], 1279, 6) + greedy(model, [second], 1279, 6))

    def test_checkpoint_has_the_names_of_the_family(self):
        model = small_model()
        tensors = kimi_export.to_tensors(model.state_dict(), model.c["num_experts"])
        self.assertLess(sum(t.nbytes for t in tensors.values()), LARGEST_FILE)
        layer = "language_model.model.layers.1."
        names = [name.removeprefix(layer) for name in tensors if name.startswith(layer) and ".experts." not in name]
        self.assertEqual(sorted(names), sorted(LAYER_NAMES))
        expert = layer + "block_sparse_moe.experts.15.w2.weight_"
        self.assertEqual(tensors[expert + "packed"].shape, (128, 32))
        self.assertEqual(tensors[expert + "scale"].shape, (128, 2))
        for name, t in tensors.items():
            if "weight_" not in name:
                self.assertEqual(t.dtype, torch.float32 if name.endswith(FLOAT32_NAMES) else torch.bfloat16, name)
        self.assertEqual(tensors[layer + "self_attn.A_log"][8:].count_nonzero(), 0)

    def test_checkpoint_computes_what_quantised_training_did(self):
        model = small_model()
        tensors = kimi_export.to_tensors(model.state_dict(), model.c["num_experts"])
        stored = kimi_export.from_tensors(tensors)
        model.load_state_dict({name: w if ".experts." in name else stored[name] for name, w in model.state_dict().items()})
        loaded = small_model()
        loaded.load_state_dict(stored)
        model.quantise(True)
        ids = torch.arange(CHUNK).unsqueeze(0)
        with torch.no_grad():
            self.assertLess(relative(loaded(ids), model(ids)), 1e-5)

    def test_golden_checkpoint(self):
        if not (golden := os.environ.get("KIMI_GOLDEN")):
            self.skipTest("KIMI_GOLDEN names no folder")
        model, wanted = kimi_export.load(Path(golden) / "target"), load_file(str(Path(golden) / "golden.safetensors"))
        ids = wanted["prompt_ids"].long().unsqueeze(0)
        length = ids.shape[1]
        with torch.no_grad():
            whole = model(torch.nn.functional.pad(ids, (0, -length % CHUNK)))[0, :length]
            caches = model.empty(1)
            steps = torch.cat([model(ids[:, t:t + 1], caches=caches)[0] for t in range(length)])
        self.assertLess(relative(whole, wanted["prompt_logits_f32"]), 1e-5)
        self.assertLess(relative(steps, wanted["prompt_logits_f32"]), 1e-5)
        for at, cache in enumerate(caches):
            for name, value in cache.items():
                reference = wanted[f"cache{at}.{name}"]
                self.assertLess(relative(value[0].view_as(reference), reference), 1e-4, f"layer {at}, {name}")
        new = wanted["greedy_ids"].tolist()
        self.assertEqual(greedy(model, [ids[0].tolist()], stop=-1, limit=len(new))[0], new)


FLOAT32_NAMES = ("conv1d.weight", "A_log", "dt_bias", "o_norm.weight", "e_score_correction_bias")
LAYER_NAMES = """input_layernorm.weight post_attention_layernorm.weight self_attention_res_norm.weight
self_attention_res_proj.weight mlp_res_norm.weight mlp_res_proj.weight self_attn.q_proj.weight self_attn.k_proj.weight
self_attn.v_proj.weight self_attn.g_proj.weight self_attn.o_proj.weight self_attn.q_conv1d.weight self_attn.k_conv1d.weight
self_attn.v_conv1d.weight self_attn.A_log self_attn.dt_bias self_attn.f_a_proj.weight self_attn.f_b_proj.weight
self_attn.b_proj.weight self_attn.o_norm.weight block_sparse_moe.gate.weight block_sparse_moe.gate.e_score_correction_bias
block_sparse_moe.routed_expert_down_proj.weight block_sparse_moe.routed_expert_up_proj.weight
block_sparse_moe.routed_expert_norm.weight block_sparse_moe.shared_experts.gate_proj.weight
block_sparse_moe.shared_experts.up_proj.weight block_sparse_moe.shared_experts.down_proj.weight""".split()


class Text(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            kimi_tokenizer.save(Path(folder), documents=500)
            cls.tokenizer = kimi_tokenizer.load(Path(folder))

    def merged(self, piece: bytes) -> list[bytes]:
        """Lowest rank first, the leftmost among equals."""
        ranks, parts = self.tokenizer._mergeable_ranks, [bytes([b]) for b in piece]
        while True:
            pairs = [(ranks[a + b], at) for at, (a, b) in enumerate(zip(parts, parts[1:])) if a + b in ranks]
            if not pairs:
                return parts
            at = min(pairs)[1]
            parts[at:at + 2] = [parts[at] + parts[at + 1]]

    def test_every_entry_is_reached_by_merging(self):
        self.assertEqual(sorted(self.tokenizer._mergeable_ranks.values()), list(range(kimi_tokenizer.BASE_SIZE)))
        for entry in self.tokenizer._mergeable_ranks:
            self.assertEqual(self.merged(entry), [entry])

    def test_digits_are_single_tokens(self):
        self.assertEqual(len(self.tokenizer.encode_ordinary("2027")), 4)

    def test_documents_come_back(self):
        rng = random.Random(6)
        for _ in range(200):
            pieces = documents.document(rng)
            ids, weights = kimi_tokenizer.encode(self.tokenizer, pieces)
            self.assertEqual(self.tokenizer.decode(ids), documents.text_of(pieces))
            self.assertEqual(weights[-1], 1.0)
            self.assertEqual(ids[-1], self.tokenizer.encode_single_token("<|end_of_msg|>"))

    def test_typed_marks_are_no_control_tokens(self):
        ids, _ = kimi_tokenizer.encode(self.tokenizer, documents.plain_prompt("<|open|>"))
        self.assertEqual(ids.count(self.tokenizer.encode_single_token("<|open|>")), 3)

    def test_golden_conversations(self):
        if not (path := os.environ.get("KIMI_CHAT_CASES")):
            self.skipTest("KIMI_CHAT_CASES names no file")
        on, off, history, *_ = json.loads(Path(path).read_text()).values()
        self.assertEqual(documents.text_of(documents.thinking_prompt('Hi & <b>"x"</b>')), on["text"])
        self.assertEqual(documents.text_of(documents.plain_prompt("Hi")), off["text"])
        pieces = [*documents.effort("low"), *documents.system("Be brief."), *documents.message("2+2?", role="user", name="ann"),
                  *documents.opened("message", role="assistant"), *documents.opened("think"), *documents.rest("Add.", "4", 0.0),
                  *documents.question_and_start("3+3?", True)]
        self.assertEqual(documents.text_of(pieces), history["text"])


if __name__ == "__main__":
    unittest.main()
